"""`budget`: what a run may spend with its children, and adding to it."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID, uuid4

import typer

from .access import UnknownRunError, reading, run_id, who, writing
from .console import document, say, table
from .options import By, Json, RunId

if TYPE_CHECKING:
    from ..ledger.budgets import Raised

__all__ = ["budget"]


def budget(  # each is an option
    run: RunId,
    *,
    add_tokens: Annotated[int | None, typer.Option(min=1, help="Tokens more.", show_default=False)] = None,
    add_usd: Annotated[float | None, typer.Option(min=0, help="US dollars more.", show_default=False)] = None,
    add_retries: Annotated[int | None, typer.Option(min=1, help="Retries more.", show_default=False)] = None,
    by: By = None,
    why: Annotated[str | None, typer.Option(help="Why; kept with the change.", show_default=False)] = None,
    as_json: Json = False,
) -> None:
    """Show what a run may spend, or add to it: runs that are held for it go on."""
    with reading() as connection:
        id_ = run_id(run, connection)
    released: Mapping[UUID, str] = {}
    if add_tokens or add_usd or add_retries:
        released = _add(id_, tokens=add_tokens, usd=add_usd, retries=add_retries, by=who(by), why=why)
    _tell(id_, released, as_json=as_json)


def _add(
    id_: UUID, *, tokens: int | None, usd: float | None, retries: int | None, by: str, why: str | None
) -> Mapping[UUID, str]:
    from ..ledger import budgets  # noqa: PLC0415  # only verbs that write pay for psycopg

    amount = None if usd is None else Decimal(str(usd))
    with writing() as connection:
        raised = budgets.add(connection, id_, id_=uuid4(), tokens=tokens, usd=amount, retries=retries, by=by, why=why)
        if not raised.is_done:
            raise _refused(id_, raised)
        return budgets.release_held(connection, id_, by=by)


def _refused(id_: UUID, raised: Raised) -> Exception:
    from ..ledger.errors import Refused  # noqa: PLC0415  # only a refusal pays for it

    text = {
        "unbounded": f"its budget bounds no {raised.detail}; nothing is to be added, and nothing was changed"
        if raised.detail != "anything"
        else "it has no budget, so nothing bounds it; nothing was changed",
        "final": f"it is {raised.detail}; nothing was changed",
    }.get(raised.answer, "there is no such run")
    return Refused(run_id=str(id_), verb="budget", text=text)


def _tell(id_: UUID, released: Mapping[UUID, str], *, as_json: bool) -> None:
    from ..ledger import budgets  # noqa: PLC0415  # as above
    from ..ledger.views import read_budget, read_summary  # noqa: PLC0415

    with reading() as connection:
        found, shared = read_summary(connection, id_), read_budget(connection, id_)
    if found is None:
        raise UnknownRunError(run=str(id_))
    with writing() as connection:
        changes = budgets.changes(connection, id_)
    if as_json:
        facts = {name: found[name] for name in ("run_id", "budget", "spent", "wasted")}
        document({**facts, "shared": shared, "changes": changes, "released": [str(one) for one in released]})
        return
    if shared is None:
        spent, wasted = found["spent"]["tokens"], found["wasted"]["tokens"]
        say(f"{id_} has no budget; {spent:,} tokens were spent, {wasted:,} of them wasted.")
        return
    table(("", "#LIMIT", "#SPENT", "#RESERVED", "#LEFT"), [_row(shared, name) for name in ("tokens", "usd", "retries")])
    owner = shared["run_id"]
    say(f"It is the budget of {owner}." if owner != str(id_) else "Its children spend from it as well.")
    for one, status in released.items():
        say(f"{one} was held for it and is {status}.")
    if found["status"] == "failed" and changes:
        say(f"Next: safepoint retry {id_}")


def _row(shared: Mapping[str, Any], name: str) -> tuple[str, ...]:
    limit, spent, reserved = shared["budget"][name], shared["spent"][name], shared["reserved"].get(name, 0)
    left = "" if limit is None else f"{max(0, limit - spent - reserved):,}"
    return (name, "none" if limit is None else f"{limit:,}", f"{spent:,}", f"{reserved:,}", left)

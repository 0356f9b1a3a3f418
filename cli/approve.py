"""`approve` and `deny`: a person's decision on what a run asks, bound to what was shown."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, NoReturn
from uuid import UUID

import typer

from .access import reading, run_id, who, writing
from .console import document, say
from .options import By, Json, RunId

if TYPE_CHECKING:
    from ..tasks.ruling import Ruled

__all__ = ["approve", "deny", "parse_json"]

Name = Annotated[
    str, typer.Argument(help="The approval's name, the effect's, or a step key: safepoint why RUN.", show_default=False)
]
Note = Annotated[str | None, typer.Option(help="What you say about it; the flow reads it.", show_default=False)]
Digest = Annotated[
    str | None,
    typer.Option(help="Only what has this digest, or this beginning of it (8 digits or more).", show_default=False),
]


def approve(  # each is an option
    run: RunId,
    name: Name,
    *,
    by: By = None,
    note: Note = None,
    with_: Annotated[
        str | None,
        typer.Option("--with", metavar="JSON", help="The payload as you have edited it.", show_default=False),
    ] = None,
    digest: Digest = None,
    as_json: Json = False,
) -> None:
    """Approve what a run asks: `approval(NAME)` of its flow, or an effect that requires it."""
    value = None if with_ is None else parse_json(with_, hint="--with")
    _rule(run, name, approved=True, by=by, note=note, value=value, digest=digest, as_json=as_json)


def deny(  # as above
    run: RunId, name: Name, *, by: By = None, note: Note = None, digest: Digest = None, as_json: Json = False
) -> None:
    """Deny what a run asks."""
    _rule(run, name, approved=False, by=by, note=note, value=None, digest=digest, as_json=as_json)


def _rule(run: str, name: str, *, as_json: bool, **given: Any) -> None:
    id_, ruled = _ruled(run, name, **given)
    decision = ruled.decision
    if as_json:
        told = {"outcome": decision.outcome, "by": decision.by, "note": decision.note, "value": decision.value}
        document({"run_id": str(id_), "name": name, "key": ruled.key, "digest": ruled.digest, **told})
        return
    edited = ", with your edits" if decision.value is not None else ""
    say(f"{ruled.key} is {decision.outcome} by {decision.by}{edited}. safepoint watch {id_} shows what follows.")


def _ruled(
    run: str, name: str, *, approved: bool, by: str | None, note: str | None, value: Any, digest: str | None
) -> tuple[UUID, Ruled]:
    from ..config.settings import settings  # noqa: PLC0415  # --help needs none of it
    from ..ledger.errors import ValueNotEncodable, ValueTooLarge  # noqa: PLC0415
    from ..ledger.seal import Seal  # noqa: PLC0415
    from ..tasks.ruling import Ruling, edited, rule  # noqa: PLC0415

    values = settings().values
    try:
        ruling = Ruling(
            approved=approved, by=who(by), note=note, value=edited(value, limit=values.max_size),
            digest=digest and digest.lower(),
        )  # fmt: skip
    except (ValueNotEncodable, ValueTooLarge) as error:
        _refuse(str(error), hint="--with")
    except ValueError as error:
        field, _, text = str(error).partition(": ")
        _refuse(text, hint=f"--{field}")
    with reading() as connection:
        id_ = run_id(run, connection)
    with writing() as connection:
        return id_, rule(lambda question: question(connection), id_, name, ruling, seal=Seal.load(values.codec))


def _refuse(text: str, *, hint: str) -> NoReturn:
    raise typer.BadParameter(text, param_hint=hint) from None


def parse_json(text: str, *, hint: str) -> Any:
    """Read a JSON value as a person types it."""

    def refuse(name: str) -> NoReturn:
        raise ValueError(f"{name} is no JSON")

    try:
        return json.loads(text, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        _refuse(f"not JSON: {error}. A text needs its quotes: '\"yes\"'", hint=hint)

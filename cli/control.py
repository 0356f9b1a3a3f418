"""Verbs that move a run: `cancel`, `pause`, `resume`, `retry`, `signal`; and `sweep`, one round of the orphan scan."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer

from .access import reading, run_id, who, writing
from .console import document, say
from .options import By, Json, RunId

if TYPE_CHECKING:
    from ..ledger.connect import Connection

__all__ = ["cancel", "pause", "resume", "retry", "signal", "sweep"]


def _find(run: str) -> UUID:
    with reading() as connection:
        return run_id(run, connection)


def _answer(id_: UUID, *, status: str, text: str, as_json: bool) -> None:
    document({"run_id": str(id_), "status": status}) if as_json else say(text)


def _expect(id_: UUID, verb: str, *, status: str, accepted: frozenset[str]) -> None:
    if status not in accepted:
        raise _refused(id_, verb, f"it is {status}; nothing was changed")


def _refused(id_: UUID, verb: str, text: str) -> Exception:
    from ..ledger.errors import Refused  # noqa: PLC0415  # only a refusal pays for it

    return Refused(run_id=str(id_), verb=verb, text=text)


def cancel(run: RunId, *, by: By = None, as_json: Json = False) -> None:
    """Ask a run to stop.

    What is running commits, the flow's clean-up runs, then the run is cancelled.
    """
    from ..ledger import control  # noqa: PLC0415  # only verbs that write pay for psycopg

    id_ = _find(run)
    with writing() as connection:
        status = control.cancel(connection, id_, by=who(by))
    _expect(id_, "cancel", status=status, accepted=frozenset({"cancelling", "cancelled"}))
    _answer(id_, status=status, text=f"{id_} is {status}.", as_json=as_json)


def pause(run: RunId, *, by: By = None, as_json: Json = False) -> None:
    """Start nothing more of a run until it is resumed.

    What is running commits.
    """
    from ..ledger import control  # noqa: PLC0415  # as above

    id_ = _find(run)
    with writing() as connection:
        status = control.pause(connection, id_, by=who(by))
    _expect(id_, "pause", status=status, accepted=frozenset({"paused"}))
    _answer(id_, status=status, text=f"{id_} is paused. safepoint resume {id_} lets it go on.", as_json=as_json)


def resume(
    run: RunId,
    *,
    code: Annotated[
        str | None, typer.Option(help="Lift only this hold, as in flow_error; all of them when not given.")
    ] = None,
    by: By = None,
    as_json: Json = False,
) -> None:
    """Let a paused or held run go on."""
    from ..ledger import control  # noqa: PLC0415  # as above

    id_ = _find(run)
    with writing() as connection:
        status = control.resume(connection, id_, by=who(by), code=code)
    _expect(id_, "resume", status=status, accepted=frozenset({"queued", "running", "waiting", "held"}))
    more = f" Something else holds it: safepoint why {id_}" if status == "held" else ""
    _answer(id_, status=status, text=f"{id_} is {status}.{more}", as_json=as_json)


def retry(run: RunId, *, by: By = None, as_json: Json = False) -> None:
    """Let a failed run go on in place.

    Committed steps stay, what failed is tried again.
    """
    from ..ledger import control  # noqa: PLC0415  # as above

    id_ = _find(run)
    with writing() as connection:
        status = control.reopen(connection, id_, by=who(by))
    if status != "running":
        raise _refused(id_, "retry", status.removeprefix("refused: "))
    _answer(id_, status=status, text=f"{id_} goes on. safepoint watch {id_} shows how.", as_json=as_json)


def signal(
    run: RunId,
    name: Annotated[str, typer.Argument(help="What the flow waits for: wait_for(NAME).", show_default=False)],
    payload: Annotated[str, typer.Argument(metavar="JSON", help="What it is told.")] = "null",
    *,
    key: Annotated[str | None, typer.Option(help="The same key is taken once.")] = None,
    by: By = None,
    as_json: Json = False,
) -> None:
    """Bring a signal to a run.

    One that comes before the wait is kept for it.
    """
    id_ = _find(run)
    data = _payload(payload)
    with writing() as connection:
        answer = _send(connection, id_, name, data, sender=who(by), key=key)
    if answer in {"final", "unknown"}:
        raise _refused(id_, "signal", f"it is {answer}")
    text = {
        "delivered": f"{name} was delivered: {id_} goes on.",
        "stored": f"{name} is stored: {id_} does not wait for it yet.",
        "duplicate": f"{name} with the key {key} was taken before.",
    }[answer]
    if as_json:
        document({"run_id": str(id_), "name": name, "answer": answer})
    else:
        say(text)


def _payload(text: str) -> bytes:
    try:
        value = json.loads(text)
    except ValueError as error:
        hint = f"{error}. A text needs its quotes: '\"yes\"'"
        raise typer.BadParameter(f"not JSON: {hint}", param_hint="JSON") from None
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _send(connection: Connection, id_: UUID, name: str, data: bytes, *, sender: str, key: str | None) -> str:
    from ..ledger import control  # noqa: PLC0415  # as above
    from ..ledger.artifacts import named  # noqa: PLC0415
    from ..ledger.key import checked_name  # noqa: PLC0415

    try:
        checked_name(name, what="signal")
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="NAME") from None
    return control.mail(
        connection, id_, kind="signal", name=name, data=data, encoding="json", sender=sender, dedupe=key,
        artifacts=named(data),
    )  # fmt: skip


def sweep(*, as_json: Json = False) -> None:
    """Run one round of the orphan scan now."""
    from ..config.settings import settings  # noqa: PLC0415  # as above
    from ..recovery.scan import scan  # noqa: PLC0415

    with writing() as connection:
        counts = scan(connection, settings(), by=f"sweep by {who(None)}", force=True).as_json()
    if as_json:
        document(counts)
    else:
        say(
            f"{counts['expired']} claims taken from dead owners, {counts['due']} waits and runs moved; "
            f"{counts['undelivered']} steps lie due for the relay, {counts['unsettled']} messages are unsettled."
        )

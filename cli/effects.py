"""`effects`: what the outside world may or may not have done; a card for each that nobody knows, and its settling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, cast
from uuid import UUID

import typer

from ..config.errors import SafepointError
from .access import reading, run_id, who, writing
from .approve import parse_json
from .console import document, say, table
from .options import By, Json, Tenant
from .words import age, clock, short

if TYPE_CHECKING:
    from sqlalchemy import Connection as Reader

    from ..ledger.connect import Connection

__all__ = ["app", "show_cards", "told"]

STATUSES = ("pending", "executing", "unknown", "succeeded", "failed")
WIDTH = 600  # characters of a request on a card: what fits on a screen at night
Document = Mapping[str, Any]

app = typer.Typer(
    help="Effects: what nobody knows first, with what settles it.",
    invoke_without_command=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Key = Annotated[
    str,
    typer.Argument(metavar="KEY", help="The effect's key, or 8 digits or more of its beginning.", show_default=False),
]


@app.callback()
def effects(  # each is an option
    context: typer.Context,
    *,
    status: Annotated[
        list[str] | None, typer.Option(help="Only effects in this status, or all; may be repeated.")
    ] = None,
    run: Annotated[str | None, typer.Option(metavar="RUN", help="Only this run's.", show_default=False)] = None,
    tenant: Tenant = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many.")] = 50,
    as_json: Json = False,
) -> None:
    """List effects: those that nobody knows first, each with a card that says how to settle it."""
    if context.invoked_subcommand is not None:
        return
    from ..ledger.effect_views import list_effects  # noqa: PLC0415  # only verbs that read pay for it

    wrong = [one for one in status or () if one not in (*STATUSES, "all")]
    if wrong:
        accepted = ", ".join((*STATUSES, "all"))
        raise typer.BadParameter(f"no status {wrong[0]!r}; there are {accepted}", param_hint="--status")
    wanted = () if "all" in (status or ()) else status or ()
    with reading() as connection:
        of_run = run_id(run, connection) if run else None
        found = list_effects(_driver(connection), status=wanted, run=of_run, tenant=tenant, limit=limit)
    document(found) if as_json else _list(found)


def _driver(connection: Reader) -> Connection:
    """Give the driver's own connection, in the snapshot's transaction."""
    return cast("Connection", connection.connection.driver_connection)


def _list(found: Sequence[Document]) -> None:
    if not found:
        say("No effects.")
        return
    cards = [one for one in found if one["commands"]]
    for one in cards:
        say(*_card(one), "")
    if rest := [one for one in found if not one["commands"]]:
        names = ("EFFECT", "STATUS", "#ATTEMPTS", "#AGE", "RUN", "EXTERNAL ID", "IDEMPOTENCY KEY")
        table(names, [_row(one) for one in rest])


def _row(effect: Document) -> tuple[str, ...]:
    return (
        effect["key"],
        effect["status"],
        str(effect["attempts"]),
        age(effect["created_at"]),
        effect["run_id"],
        effect["external_id"] or "",
        effect["idempotency_key"][:16] + "…",
    )


def _card(effect: Document) -> list[str]:
    """Say what a person needs to settle it: what, when, where, what is known, what to read, what to type."""
    asked = effect["step_status"] == "waiting"
    headline = f"WAITS for {_role(effect)} to decide" if asked else "NOBODY KNOWS whether it was executed"
    if effect["status"] == "pending" and not asked:
        headline = "CANNOT FINISH, and was not sent: it may be done by hand"
    if isinstance(effect["error"], Mapping) and effect["error"].get("outcome") == "succeeded":
        headline = "WAS EXECUTED, and what it gave could not be stored"
    facts = {
        "run": f"{effect['run_id']}  ({effect['run_status']}, tenant {effect['tenant']})",
        "key": effect["idempotency_key"],
        "reference": effect["reference"],
        "request": told(effect["request"]),
        "undoes": effect["compensates"] or "",
        "digest": effect["request_digest"] if asked else "",
        "sent": _sent(effect),
        "error": _error(effect["error"]),
        "lookup": "" if asked or effect["compensates"] else _lookup(effect),
        "late": _late(effect["may_arrive_until"]),
        "runbook": _runbook(effect),
    }
    lines = [f"{effect['name']} of {effect['flow']}@{effect['flow_version']}, step {effect['key']}: {headline}"]
    lines += [f"  {name:<10} {value}" for name, value in facts.items() if value]
    ways = ("let it be sent", "refuse it") if asked else ("it was executed", "it was not")
    lines += [f"  {way + ':':<17} {command}" for way, command in zip(ways, effect["commands"], strict=True)]
    return lines


def _late(until: str | None) -> str:
    """Say until when it may still arrive: whoever looks before that may look too early."""
    try:
        is_over = until is None or datetime.fromisoformat(until) <= datetime.now(UTC)
    except ValueError:  # infinity
        is_over = False
    return "" if is_over else f"it may still arrive until {until}: look after that before you say that it was not"


def _runbook(effect: Document) -> str:
    if effect["runbook"]:
        return short(effect["runbook"], width=WIDTH)
    return "none is declared: @effect(runbook=...)" if effect["status"] == "unknown" else ""


def _role(effect: Document) -> str:
    return str(effect["declared"].get("requires_approval") or "a person")


def told(value: object) -> str:
    """Give a stored value in the lines of a card: bounded, and what is sealed as sealed."""
    from ..ledger.document import dumps  # noqa: PLC0415  # as above

    if isinstance(value, Mapping) and set(value) == {"encoding", "bytes"}:
        how = "sealed" if value["encoding"] == "sealed" else f"{value['encoding']}, too big to be shown here"
        return f"({how}, {value['bytes']} bytes)"
    return short(dumps(value), width=WIDTH)


def show_cards(run_id: str) -> None:
    """Show the cards of a run's effects that a person has to settle."""
    from ..ledger.effect_views import list_effects  # noqa: PLC0415  # as above

    with reading() as connection:
        found = list_effects(_driver(connection), status=("unknown", "pending"), run=UUID(run_id), limit=100)
    for one in found:
        if one["commands"] and one["step_status"] != "waiting":  # what is asked has been told
            say("", *_card(one))


def _sent(effect: Document) -> str:
    if effect["last_sent_at"] is None:
        return ""
    first = effect["first_sent_at"]
    again = f", first {clock(first)}" if effect["attempts"] > 1 and first else ""
    ago = age(effect["last_sent_at"])
    return (
        f"{effect['last_sent_at']} ({ago} ago) by {effect['sent_by'] or 'an unknown node'}, "
        f"attempt {effect['attempts']}{again}"
    )


def _error(error: object) -> str:
    if not isinstance(error, Mapping):
        return ""
    return short(f"{error.get('type', 'error')}: {error.get('message', '')}", width=200)


def _lookup(effect: Document) -> str:
    if not effect["declared"].get("lookup"):
        return "none is declared: only a person, or a webhook, can tell"
    answer = effect["last_answer"]
    following = _following(effect)
    if not isinstance(answer, Mapping):
        return f"has not answered yet; {following}"
    words = str(answer.get("answer", "?")).replace("_", " ")
    text = f": {short(answer['text'], width=120)}" if answer.get("text") else ""
    times = "once" if effect["lookups"] == 1 else f"{effect['lookups']} times"
    return f"{short(words)}{text}, {age(answer.get('at'))} ago (asked {times}); {following}"


def _following(effect: Document) -> str:
    if effect["step_status"] == "running":
        return "it is being asked now"
    return f"asked again at {clock(effect['asked_next_at'])}" if effect["asked_next_at"] else "it is not asked again"


@app.command()
def show(key: Key, *, as_json: Json = False) -> None:
    """Show all that is known of one effect, with its history."""
    found = _read(key)
    if as_json:
        document(found)
        return
    if found["commands"]:
        say(*_card(found))
    else:
        say(f"{found['name']} of {found['flow']}@{found['flow_version']}, step {found['key']}: {found['status']}")
        say(*_settled(found))
    rows = [
        (clock(one["at"]), one["status"], one["actor"], one["why"] or "", _evidence(one)) for one in found["history"]
    ]
    table(("AT", "STATUS", "BY", "WHY", "EVIDENCE"), rows)


def _settled(effect: Document) -> list[str]:
    facts = {
        "run": f"{effect['run_id']}  ({effect['run_status']}, tenant {effect['tenant']})",
        "key": effect["idempotency_key"],
        "reference": effect["reference"],
        "request": told(effect["request"]),
        "sent": _sent(effect),
        "error": _error(effect["error"]),
        "external": effect["external_id"] or "",
        "result": "" if effect["result"] is None else told(effect["result"]),
    }
    return [f"  {name:<10} {value}" for name, value in facts.items() if value]


def _evidence(entry: Document) -> str:
    return "" if entry["evidence"] is None else short(entry["evidence"], width=60)


def _read(key: str) -> dict[str, Any]:
    from ..ledger.effect_views import read_effect  # noqa: PLC0415
    from ..ledger.errors import UnknownEffect  # noqa: PLC0415  # as above
    from ..tasks.resolution import find_key  # noqa: PLC0415

    with reading() as connection:
        driver = _driver(connection)
        try:
            found = read_effect(driver, find_key(driver, key))
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="KEY") from None
    if found is None:
        raise UnknownEffect(key=key)
    return found


@app.command()
def resolve(  # noqa: PLR0913  # each is an option
    key: Key,
    *,
    succeeded: Annotated[
        str | None, typer.Option(metavar="JSON", help="It was executed, and this was its result.", show_default=False)
    ] = None,
    not_executed: Annotated[
        bool, typer.Option("--not-executed", help="It was not executed, and will not be: it may be sent.")
    ] = False,
    failed: Annotated[
        str | None, typer.Option(metavar="TEXT", help="The other side has refused it.", show_default=False)
    ] = None,
    why: Annotated[str | None, typer.Option(help="How you know; required.", show_default=False)] = None,
    by: By = None,
    version: Annotated[
        int | None, typer.Option(help="Only if the effect is still at this version.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Say what became of an effect that nobody knows; exactly one of the three verdicts."""
    if sum((succeeded is not None, not_executed, failed is not None)) != 1:
        raise typer.BadParameter("say exactly one of --succeeded JSON, --not-executed and --failed TEXT")
    if why is None or not why.strip():
        raise typer.BadParameter("say how you know; it stands in the effect's history", param_hint="--why")
    given: dict[str, Any] = {"failed": failed, "not_executed": not_executed}
    if succeeded is not None:
        given["succeeded"] = parse_json(succeeded, hint="--succeeded")
    found = _resolved(key, version=version, by=who(by), why=why, **given)
    if as_json:
        document(found)
        return
    told = {"pending": "was not executed: it will be sent", "failed": "has failed"}.get(
        found["status"], "has succeeded"
    )
    say(f"{found['key']} {told}, says {who(by)}. safepoint why {found['run_id']} shows what follows.")


def _resolved(key: str, *, version: int | None, **given: Any) -> dict[str, Any]:
    from ..config.settings import settings  # noqa: PLC0415  # as above
    from ..ledger.errors import BadArguments, ValueNotEncodable, ValueTooLarge  # noqa: PLC0415
    from ..ledger.seal import Seal  # noqa: PLC0415
    from ..tasks.resolution import Resolution, resolve  # noqa: PLC0415

    try:
        resolution = Resolution.of(**given)
    except ValueError as error:
        field, _, text = str(error).partition(": ")
        raise typer.BadParameter(text, param_hint=f"--{field}") from None
    values = settings().values
    if "succeeded" in given:
        _load_flows(settings().flows)
    with writing() as connection:
        try:
            return resolve(
                lambda question: question(connection), key, resolution, version=version, seal=Seal.load(values.codec),
                limit=values.max_size,
            )  # fmt: skip
        except (BadArguments, ValueNotEncodable, ValueTooLarge) as error:
            raise typer.BadParameter(str(error), param_hint="--succeeded") from None
        except SafepointError:
            raise
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="KEY") from None


def _load_flows(modules: Sequence[str]) -> None:
    """Import the flows, so that a result is checked here; at night, on a machine without them, the worker checks it."""
    from ..config.errors import ConfigError  # noqa: PLC0415  # as above
    from ..tasks import registry  # noqa: PLC0415

    try:
        registry.load(modules)
    except ConfigError as error:
        typer.echo(f"safepoint: the result is checked by the worker, not here: {error}", err=True)

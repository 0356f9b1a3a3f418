"""`lanes`, `lanes show`: what admits steps, what of it people have set over the file, and what is on the lanes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..config.errors import SafepointError
from .access import reading
from .console import document, say, table
from .options import Json
from .words import age, moment, short, span

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Name", "UnknownLaneError", "amount", "app", "overridden"]

Document = Mapping[str, Any]
LIMITS = ("rate", "burst", "in_flight", "tenant_in_flight", "window")
UNSAID = {"paused": "false", "order": "priority", "stop_on_breaker": "true", "inline_slice": "0", "weights": "none"}

app = typer.Typer(
    help="Lanes: what lets steps through, and who has changed it for a while.",
    invoke_without_command=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Name = Annotated[str, typer.Argument(metavar="LANE", help="The lane, as in @step(lane=LANE).", show_default=False)]


class UnknownLaneError(SafepointError):
    """There is no lane {name}. There are: {names}."""

    name: str
    names: str


@app.callback()
def lanes(context: typer.Context, *, as_json: Json = False) -> None:
    """List the lanes: what holds, what of it is overridden, and what is on them."""
    if context.invoked_subcommand is not None:
        return
    from ..ledger.lane_views import list_lanes  # noqa: PLC0415  # only verbs that read pay for SQLAlchemy

    with reading() as connection:
        found = list_lanes(connection)
    if as_json:
        document(found)
        return
    limits = ("#RATE/S", "#BURST", "#IN FLIGHT", "#OF A TENANT", "#WINDOW")
    names = ("LANE", *limits, "#QUEUED", "#READY", "#SENT", "#RUNNING", "#WORKERS", "")
    table(names, [_row(lane) for lane in found])
    for lane in found:
        say(*overridden(lane))


def _row(lane: Document) -> tuple[str, ...]:
    limits = (_limit(lane, key) for key in LIMITS)
    counts = (str(lane[name]) for name in ("queued", "ready", "sent", "running", "workers"))
    return (lane["name"], *limits, *counts, ", ".join(_words(lane)))


def _limit(lane: Document, key: str) -> str:
    """Give a limit, with a star where it is not the file's."""
    star = "*" if key in lane["overrides"] else ""
    return star if lane[key] is None else f"{lane[key]:g}{star}"


def _words(lane: Document) -> Iterable[str]:
    """Say what else a lane does, with a star as above; what it does as usual only where it is overridden."""
    starred = set(lane["overrides"])
    for key, is_usual, words in (
        ("paused", not lane["paused"], "paused" if lane["paused"] else "not paused"),
        ("order", lane["order"] == "priority", f"by {lane['order']}"),
        ("weights", not lane["weights"], f"weights {amount('weights', lane['weights'])}"),
        ("stop_on_breaker", lane["stop_on_breaker"], f"{'heeds' if lane['stop_on_breaker'] else 'past'} open breakers"),
    ):
        if not is_usual or key in starred:
            yield words + ("*" if key in starred else "")


def overridden(lane: Document) -> list[str]:
    """Say of each overridden key what it is, what the file says, until when, by whom and why."""
    return [_overridden(lane["name"], key, one) for key, one in lane["overrides"].items()]


def _overridden(name: str, key: str, one: Document) -> str:
    until = "it is lifted" if one["until"] is None else f"{moment(one['until'])} ({span(one['seconds_left'])} more)"
    file = f"the file says {amount(key, one['policy'])}"
    return f"* {name}.{key} = {amount(key, one['value'])} until {until}; {file}; by {one['by']}: {short(one['why'])}"


def amount(key: str, value: object) -> str:
    """Give a value of a lane's key as people type it; none is no limit, or the key's default."""
    match value:
        case None:
            return UNSAID.get(key, "unlimited")
        case bool():
            return "true" if value else "false"
        case int() | float():
            return f"{value:g}"
        case Mapping():
            return " ".join(f"{name}={amount(key, one)}" for name, one in sorted(value.items())) or "none"
    return str(value)


@app.command()
def show(name: Name, *, as_json: Json = False) -> None:
    """Show one lane: what holds and from whom, who waits on it, and what has been done to it."""
    from ..ledger.lane_views import list_lanes, read_lane  # noqa: PLC0415  # as above

    with reading() as connection:
        lane = read_lane(connection, name)
        if lane is None:
            known = [one["name"] for one in list_lanes(connection)]
            raise UnknownLaneError(name=name, names=", ".join(known))
    if as_json:
        document(lane)
        return
    say(_sentence(lane), *overridden(lane))
    keys = (*LIMITS, "order", "weights", "stop_on_breaker", "inline_slice", "paused")
    table(("KEY", "HOLDS", "FILE"), [(key, amount(key, lane[key]), _file(lane, key)) for key in keys])
    if lane["tenants"]:
        table(("TENANT", "#QUEUED", "#IN FLIGHT", "#WEIGHT"), [_tenant(one) for one in lane["tenants"]])
    if lane["history"]:
        table(("#AGO", "WHAT", "BY", "WHY"), [_event(one) for one in lane["history"]])


def _sentence(lane: Document) -> str:
    counts = f"{lane['queued']} queued, {lane['sent']} sent, {lane['running']} running, {lane['workers']} workers"
    tokens, slots = lane["room"]["tokens"], lane["room"]["slots"]
    bucket = "" if tokens is None else f", {max(tokens, 0):.0f} steps in the bucket"
    return f"{lane['name']}: {'paused, ' if lane['paused'] else ''}{counts}; room for {slots} more{bucket}."


def _file(lane: Document, key: str) -> str:
    return amount(key, lane["policy"][key]) if key in lane["policy"] else ""


def _tenant(one: Document) -> tuple[str, ...]:
    return (one["tenant"], str(one["queued"]), str(one["in_flight"]), f"{one['weight']:g}")


def _event(one: Document) -> tuple[str, ...]:
    facts = one["facts"]
    match one["what"]:
        case "overridden" | "over":
            told = " ".join(f"{key}={amount(key, value)}" for key, value in sorted((facts.get("values") or {}).items()))
        case "lifted":
            told = " ".join(facts.get("keys", ()))
        case _:
            after = facts.get("after") or facts.get("before") or {}
            told = " ".join(f"{key}={amount(key, value)}" for key, value in sorted(after.items()))
    return (age(one["at"]), f"{one['what']} {told}".strip(), one["by"], short(one["why"], width=80))

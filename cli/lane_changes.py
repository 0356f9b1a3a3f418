"""`lanes apply|set|unset|pause|resume|remove`: the file's word on the lanes, and a person's over it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from ..config.errors import SafepointError
from .access import reading, who, writing
from .console import document, say
from .lanes import Name, UnknownLaneError, amount, overridden
from .options import By, Json, Why, seconds_of
from .words import span

if TYPE_CHECKING:
    from ..config.settings import Settings
    from ..recovery.admission import Applied

__all__ = ["VERBS", "told"]

Document = Mapping[str, Any]
For = Annotated[
    str | None,
    typer.Option("--for", metavar="TIME", help="As in 90s, 30m, 2h; until it is lifted when not given."),
]


class LaneInUseError(SafepointError):
    """Lane {name} is in use: {what}. Nothing was removed."""

    name: str
    what: str


def apply(
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would change, and change nothing.")] = False,
    by: By = None,
    why: Annotated[str, typer.Option(help="Why; for those who read it later.")] = "safepoint lanes apply",
    as_json: Json = False,
) -> None:
    """Write the configured lanes and breakers to the ledger; what people have set over them stands.

    Lanes that the configuration does not have are kept.
    """
    from ..config.settings import settings  # noqa: PLC0415  # only this verb needs it

    here = settings()
    found, breakers = _preview(here) if dry_run else _write(here, by=who(by), why=why)
    stand = _standing()
    if as_json:
        lanes = [_document(one, stand.get(one.name)) for one in found]
        document({"dry_run": dry_run, "lanes": lanes, "breakers": breakers})
        return
    for one in found:
        say(*told(one), *(f"  {line}" for line in overridden(stand.get(one.name, {"overrides": {}}))))
    changed = [f"{name} {outcome}" for name, outcome in breakers.items() if outcome != "same"]
    say(*([f"breakers: {', '.join(changed)}"] if changed else []))


def _write(here: Settings, *, by: str, why: str) -> tuple[list[Applied], dict[str, str]]:
    from ..recovery import admission, outcomes  # noqa: PLC0415  # as above

    with writing() as connection:
        found = admission.apply(connection, here.lanes, window=here.relay.window, by=by, why=why)
        return found, outcomes.apply(connection, here.breakers)


def _preview(here: Settings) -> tuple[list[Applied], dict[str, str]]:
    from ..ledger.lanes import policies  # noqa: PLC0415  # as above
    from ..recovery import admission  # noqa: PLC0415

    before = {name: lane["policy"] for name, lane in _standing().items()}
    return admission.compare(before, policies(here.lanes, window=here.relay.window)), {}


def _standing() -> dict[str, Document]:
    from ..ledger.lane_views import list_lanes  # noqa: PLC0415  # as above

    with reading() as connection:
        return {lane["name"]: lane for lane in list_lanes(connection)}


def told(one: Applied) -> list[str]:
    """Say what the file's word has made of a lane."""
    if one.outcome == "kept":
        return [f"{one.name}: kept, the configuration does not have it (safepoint lanes remove {one.name})"]
    pairs = ((key, amount(key.partition(".")[0], before), after) for key, (before, after) in one.changes.items())
    changes = [f"  {one.name}.{key}: {before} → {amount(key.partition('.')[0], after)}" for key, before, after in pairs]
    return [f"{one.name}: {one.outcome}", *changes]


def _document(one: Applied, lane: Document | None) -> Document:
    changes = {key: {"before": before, "after": after} for key, (before, after) in one.changes.items()}
    return {
        "name": one.name,
        "outcome": one.outcome,
        "changes": changes,
        "overrides": lane["overrides"] if lane else {},
    }


def set_(
    name: Name,
    values: Annotated[
        list[str], typer.Argument(metavar="KEY=VALUE...", help="As in rate=5, in_flight=unlimited, weights.acme=3.")
    ],
    *,
    why: Why,
    for_: For = None,
    by: By = None,
    as_json: Json = False,
) -> None:
    """Set keys of a lane over what the file says, for a while or until they are lifted."""
    from ..recovery import admission  # noqa: PLC0415  # --help needs none of it

    typed, seconds = _typed(values), None if for_ is None else seconds_of(for_, option="--for")
    with writing() as connection:
        lane = admission.override(connection, name, typed, seconds=seconds, by=who(by), why=why)
        if lane is None:
            _unknown(connection, name)
    _answer(name, typed, as_json=as_json)


def _typed(pairs: Sequence[str]) -> dict[str, Any]:
    """Read `key=value` pairs; weights are collected under their one key."""
    typed: dict[str, Any] = {}
    for pair in pairs:
        key, found, value = (part.strip() for part in pair.partition("="))
        key, dot, tenant = key.partition(".")
        if not found or not key or not value:
            _refuse(f"{pair!r} sets nothing; accepted is KEY=VALUE, as in rate=5 or weights.acme=3")
        if (key == "weights") != bool(dot):
            _refuse(f"{pair!r}: a weight is one tenant's, as in weights.acme=3; other keys have no dot")
        if key in typed and (not dot or tenant in typed[key]):
            _refuse(f"{pair!r}: {key} is set twice")
        if dot:
            typed.setdefault(key, {})[tenant] = value
        else:
            typed[key] = value
    return typed


def _refuse(text: str) -> NoReturn:
    raise typer.BadParameter(text, param_hint="KEY=VALUE")


def unset(
    name: Name,
    keys: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY...]", help="Which; all when none is given.", show_default=False)
    ] = None,
    *,
    why: Why,
    by: By = None,
    as_json: Json = False,
) -> None:
    """Take back what people have set over the file, before its time is over."""
    from ..ledger import lanes  # noqa: PLC0415  # as above
    from ..recovery.admission import KEYS  # noqa: PLC0415

    for key in keys or ():
        if key not in KEYS:
            close = difflib.get_close_matches(key.partition(".")[0], KEYS, n=1)
            hint = f"did you mean {close[0]}?" if close else f"accepted is {', '.join(KEYS)}"
            raise typer.BadParameter(f"{key!r} is no key of a lane; {hint}", param_hint="KEY")
    with writing() as connection:
        lifted = lanes.lift(connection, name, keys or None, by=who(by), why=why)
        if lifted is None:
            _unknown(connection, name)
    idle = [f"{name}: {key} was not overridden." for key in sorted(set(keys or ()) - set(lifted))]
    nothing = [] if keys or lifted else [f"{name}: nothing was overridden."]
    _answer(name, lifted, as_json=as_json, more=idle + nothing)


def pause(name: Name, *, why: Why, for_: For = None, by: By = None, as_json: Json = False) -> None:
    """Let nothing more of a lane start; what is running goes on."""
    from ..recovery import admission  # noqa: PLC0415  # as above

    seconds = None if for_ is None else seconds_of(for_, option="--for")
    with writing() as connection:
        if not admission.pause(connection, name, seconds=seconds, by=who(by), why=why):
            _unknown(connection, name)
    _answer(name, ["paused"], as_json=as_json)


def resume(name: Name, *, why: Why, by: By = None, as_json: Json = False) -> None:
    """Let a lane go on, whoever has paused it."""
    from ..recovery import admission  # noqa: PLC0415  # as above

    with writing() as connection:
        if not admission.resume(connection, name, by=who(by), why=why):
            _unknown(connection, name)
    _answer(name, ["paused"], as_json=as_json)


def remove(name: Name, *, why: Why, by: By = None) -> None:
    """Remove a lane that neither the configuration has nor anybody uses."""
    from ..config.settings import settings  # noqa: PLC0415  # as above
    from ..ledger import lanes  # noqa: PLC0415

    if name in settings().lanes:
        raise LaneInUseError(name=name, what="the configuration has it, and the next start would add it again")
    with writing() as connection:
        crowd = lanes.remove(connection, name, by=who(by), why=why)
        if crowd is None:
            _unknown(connection, name)
    if not crowd.is_empty:
        counts = {"ready": crowd.ready, "running": crowd.running, "waiting or held": crowd.waiting}
        parts = [f"{count} {what}" for what, count in counts.items() if count]
        parts += [f"{node} takes it" for node in crowd.nodes[:3]]
        raise LaneInUseError(name=name, what=", ".join(parts))
    say(f"{name} is removed.")


def _answer(name: str, keys: Iterable[str], *, as_json: bool, more: Sequence[str] = ()) -> None:
    """Say what of these keys holds now, and from whom."""
    from ..ledger.lane_views import list_lanes  # noqa: PLC0415  # as above

    with reading() as connection:
        (lane,) = list_lanes(connection, only=name)
    if as_json:
        document(lane)
        return
    for key in keys:
        over = lane["overrides"].get(key)
        until = "" if over is None else _until(over)
        say(f"{name}.{key} = {amount(key, lane[key])}{until}")
    say(*more)


def _until(over: Document) -> str:
    left = over["seconds_left"]
    return " until it is lifted" if left is None else f" for {span(left)}"


def _unknown(connection: Any, name: str) -> NoReturn:
    from ..ledger.lanes import names  # noqa: PLC0415  # as above

    raise UnknownLaneError(name=name, names=", ".join(names(connection)) or "none, safepoint lanes apply makes them")


VERBS = (apply, set_, unset, pause, resume, remove)

"""`lanes plan`: what the narrowest dependency bears, and whether workers and the recovery lane are within it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .access import LedgerMissingError, reading
from .console import document, say, table
from .options import Json

if TYPE_CHECKING:
    from ..config.settings import Settings
    from ..recovery.capacity import Bears, Figure, Finding, Measured, Most, Plan

__all__ = ["plan"]

Document = dict[str, Any]
RECOVERY = "recovery"


@dataclass(frozen=True, slots=True)
class _Present:
    """How things are: what the ledger has seen, the recovery lane as it holds, and the live workers."""

    measured: Mapping[str, Measured]
    recovery: Mapping[str, Any]
    source: str  # of the lane's policy: the ledger, or the configuration where there is no ledger yet
    workers: int = 0
    slots: int = 0


def plan(
    *,
    concurrency: Annotated[
        int | None, typer.Option(min=1, help="Slots of each worker; the configured ones when not given.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Compute how many workers, and which rate of recovery, the narrowest dependency bears.

    From [dependencies.NAME] of the configuration; what a call takes is measured where it is not configured.
    """
    from ..config.settings import settings  # noqa: PLC0415  # --help needs none of it
    from ..recovery import capacity  # noqa: PLC0415

    here = settings()
    present = _present(here)
    found = capacity.plan(here.dependencies, present.measured, concurrency=concurrency or here.worker.concurrency)
    limits = {key: present.recovery[key] for key in ("rate", "burst", "in_flight")}
    wrong = capacity.compare(found, **limits, slots=present.slots)
    if as_json:
        document(_document(found, present, wrong))
        return
    if not found.bears:
        say("No dependency is configured: add [dependencies.NAME] with its limits to safepoint.toml, as in")
        say('  [dependencies.llm]  tokens_per_minute = 90000   (NAME is what steps have in uses="NAME")')
        return
    table(("DEPENDENCY", "LIMIT", "#CALLS/S", "#AT ONCE", "A CALL TAKES"), _rows(found))
    say(*_lines(found, present, wrong))


def _present(here: Settings) -> _Present:
    from ..ledger.consumption import live_workers, measured  # noqa: PLC0415  # as above
    from ..ledger.lane_views import list_lanes  # noqa: PLC0415
    from ..recovery.capacity import Measured  # noqa: PLC0415

    configured = here.lanes[RECOVERY].model_dump()
    try:
        with reading() as connection:
            seen = measured(connection, sorted(here.dependencies))
            lane = next(iter(list_lanes(connection, only=RECOVERY)), None)
            live = live_workers(connection)
    except LedgerMissingError:  # before the first start: the arithmetic is wanted all the same
        return _Present({}, configured, "configuration")
    calls = {name: Measured(one.seconds, one.tokens, one.calls) for name, one in seen.items()}
    source = "ledger" if lane else "configuration"
    return _Present(calls, lane or configured, source, live.workers, live.slots)


def _rows(found: Plan) -> Iterator[tuple[str, ...]]:
    for one in found.bears:
        for place, bound in enumerate(one.bounds):
            name = one.name if place == 0 else ""
            rate = "" if bound.calls_per_second is None else _number(bound.calls_per_second)
            yield (name, f"{bound.key} = {bound.limit:g}", rate, _at_once(one, bound.key), _takes(one, bound.key))


def _at_once(one: Bears, key: str) -> str:
    if one.held is not None and key == "connections":
        return ""
    bound = next(bound for bound in one.bounds if bound.key == key)
    if key == "connections":
        return f"{bound.limit:g}"
    if bound.calls_per_second is None or one.seconds is None:
        return ""
    return _number(bound.calls_per_second * one.seconds.value)


def _takes(one: Bears, key: str) -> str:
    if one.held is not None and key == "connections":
        return f"held: {one.held[0]:g} by a worker, {one.held[1]:g} by each of its slots"
    parts = [_figure(one.seconds, "s", "seconds_per_call", one)]
    if key == "tokens_per_minute":
        parts.insert(0, _figure(one.tokens, "tokens", "tokens_per_call", one))
    return ", ".join(part for part in parts if part)


def _figure(figure: Figure | None, unit: str, key: str, one: Bears) -> str:
    if figure is None:
        return f"{key} is neither configured nor measured" if key in one.missing else ""
    return f"{_number(figure.value)} {unit} ({figure.source})"


def _lines(found: Plan, present: _Present, wrong: Sequence[Finding]) -> Iterator[str]:
    if found.narrowest is None:
        yield "Nothing can be computed: add seconds_per_call and tokens_per_call, or let some steps run first."
        return
    if found.calls_per_second is not None:
        yield f"Narrowest: {found.calls_per_second.by}, {_number(found.calls_per_second.value)} calls a second."
    if found.slots is not None and found.workers is not None:
        workers = f"{found.workers.value:g} workers of {found.concurrency}"
        most = f"{found.slots.value:g} at most, by {found.slots.by} ({workers})" if found.slots.value else ""
        yield f"Worker slots: {most or f'less than one, by {found.slots.by}'}; {_live(present)}."
    if found.rate is not None:
        share = next(one.share for one in found.bears if one.name == found.rate.by)
        at_once = "" if found.in_flight is None else f", {found.in_flight.value:g} at once"
        yield f"Recovery: {_number(found.rate.value)} steps a second{at_once} ({share:.0%} of {found.rate.by})."
    yield from (_finding(one) for one in wrong)
    command = _command(wrong)
    yield f"Next: {command}" if command else "The recovery lane is within it." if found.rate else ""


def _live(present: _Present) -> str:
    return f"there are {present.slots} in {present.workers} live workers"


def _finding(one: Finding) -> str:
    borne = f"{_number(one.bears)}{'/s' if one.key == 'rate' else ' at once'}"
    if one.key == "slots":
        return f"{one.have:g} worker slots are more than {one.by} bears ({borne}): the others wait, or are throttled."
    have = "unlimited" if one.have is None else f"{one.have:g}"
    if one.have is not None and one.bears > 0 and one.have > one.bears:
        return f"{RECOVERY}.{one.key} = {have} is {one.have / one.bears:.1f} times what {one.by} bears ({borne})."
    if one.have is None:
        return f"{RECOVERY}.{one.key} is unlimited; {one.by} bears {borne}."
    return f"{RECOVERY}.{one.key} = {have} is more than recovery's share of {one.by}, which bears {borne}."


def _command(wrong: Sequence[Finding]) -> str | None:
    least: dict[str, float] = {}
    for one in wrong:  # of each key the narrowest comes first
        if one.key != "slots":
            least.setdefault(one.key, one.may)
    values = [f"{key}={may:g}" for key, may in least.items()]
    return f"safepoint lanes set {RECOVERY} {' '.join(values)} --why TEXT" if values else None


def _number(value: float) -> str:
    """Give a number with three digits, and never as a power of ten."""
    if value >= 100:
        return f"{value:,.0f}".replace(",", " ")
    return f"{value:.3g}" if value >= 0.001 else f"{value:.5f}"


def _document(found: Plan, present: _Present, wrong: Sequence[Finding]) -> Document:
    recovery = {key: present.recovery[key] for key in ("rate", "burst", "in_flight")}
    return {
        "dependencies": [_dependency(one, found, present) for one in found.bears],
        "narrowest": found.narrowest,
        "calls_per_second": _most(found.calls_per_second),
        "slots": _most(found.slots),
        "workers": _most(found.workers),
        "concurrency": found.concurrency,
        "recovery": {"rate": _most(found.rate), "in_flight": _most(found.in_flight)},
        "present": {"recovery": recovery, "source": present.source, "workers": present.workers, "slots": present.slots},
        "findings": [_finding_document(one) for one in wrong],
        "next": _command(wrong),
    }


def _dependency(one: Bears, found: Plan, present: _Present) -> Document:
    measured = present.measured.get(one.name)
    return {
        "name": one.name,
        "limits": [
            {"key": bound.key, "limit": bound.limit, "calls_per_second": bound.calls_per_second} for bound in one.bounds
        ],
        "seconds_per_call": _source(one.seconds),
        "tokens_per_call": _source(one.tokens),
        "calls_measured": measured.calls if measured else 0,
        "calls_per_second": one.calls_per_second,
        "concurrency": one.concurrency,
        "slots": one.slots(found.concurrency),
        "workers": one.workers(found.concurrency),
        "share_of_recovery": one.share,
        "recovery": {"rate": one.recovery_rate, "in_flight": one.recovery_in_flight},
        "missing": list(one.missing),
    }


def _source(figure: Figure | None) -> Document | None:
    return None if figure is None else {"value": figure.value, "source": figure.source}


def _most(most: Most | None) -> Document | None:
    return None if most is None else {"value": most.value, "by": most.by}


def _finding_document(one: Finding) -> Document:
    facts = {"key": one.key, "have": one.have, "bears": one.bears, "may": one.may, "by": one.by}
    return {**facts, "text": _finding(one)}

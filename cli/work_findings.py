"""What the state of workers, lanes, runs and their configuration means. Pure: it takes what was read and judges it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ..config.lanes import CONTROL, RECOVERY, Lane
from ..ledger.condition import Held, Identity, LaneLimits, LaneLoad, Unserved, Worker
from ..ledger.lanes import policies
from ..recovery.admission import compare
from .finding import Finding, counted, error, fine, warning
from .words import short, span

__all__ = ["breakers", "configured", "held", "lanes", "relays", "scan", "slots", "steps_served", "versions", "workers"]

NO_STEPS: Final = "It has no steps to keep back, and scans go on: whoever meant to stop recovery pauses that lane."
UNSEEN: Final = 60.0  # seconds without a scan: more than any restart of a beat takes
HELD_NEXT: Final[Mapping[str, str]] = {
    "unknown_effect": "safepoint effects",
    "compensation": "safepoint effects",
    "missing_version": "safepoint versions",
    "diverged": "safepoint replay {run}",
    "budget": "safepoint budget {run}",
}


def scan(noted: Identity, *, interval: float) -> list[Finding]:
    """Judge when somebody last looked for lost steps."""
    next_ = "safepoint beat, with a worker on lane control; or safepoint relay, which scans in their place"
    if noted.scanned_ago is None:
        return [_scan_missing(noted, "Nobody has looked for lost steps yet.", next_)]
    ago = f"{span(max(noted.scanned_ago, 0.0))} ago, by {short(noted.scanned_by or '?', width=60)}"
    if noted.scanned_ago > max(UNSEEN, 10 * interval):
        return [_scan_missing(noted, f"The last look for lost steps was {ago}.", next_)]
    if noted.frozen_for is not None and noted.frozen_for > 0:
        text = f"The last look for lost steps was {ago}; takeovers wait {span(noted.frozen_for)} more, after an outage."
        return [fine("scan", text)]
    return [fine("scan", f"The last look for lost steps was {ago}.")]


def _scan_missing(noted: Identity, text: str, next_: str) -> Finding:
    if noted.has_live_runs:
        return error("scan", f"{text} There are live runs: what a dead worker holds stays lost.", next_)
    return warning("scan", text, next_)


def relays(connected: int, loads: Sequence[LaneLoad], *, late: float) -> list[Finding]:
    """Judge whether somebody publishes: by the sessions that relays have, and by what lies there unsent."""
    waiting = sum(one.late for one in loads if one.is_known and not one.is_paused)
    if connected:
        return [fine("relay", f"{counted(connected, 'session')} of relays: what is due is published.")]
    if waiting:
        text = f"{counted(waiting, 'step')} should have been sent {span(late)} ago or earlier, and no relay is there."
        return [error("relay", text, "safepoint relay")]
    text = "No relay is connected: new runs, retries and recovered steps are not published."
    return [warning("relay", text, "safepoint relay")]


def workers(found: Sequence[Worker], noted: Identity) -> list[Finding]:
    """Judge who works, and who has gone without a word."""
    live = [one for one in found if one.is_live]
    told = []
    if live:
        places = sum(one.concurrency for one in live)
        told.append(fine("workers", f"{counted(len(live), 'worker')} with {counted(places, 'slot')}."))
    elif noted.has_live_runs:
        told.append(error("workers", "There are live runs and no live worker.", "safepoint worker, or safepoint up"))
    else:
        told.append(warning("workers", "There is no live worker.", "safepoint worker, or safepoint up"))
    for one in found:
        if one.is_lost:
            text = f"{one.node_id} was seen {span(one.seen_ago)} ago and has not said goodbye"
            text += f"; {counted(one.running, 'step')} are still its own." if one.running else "."
            told.append(warning("workers", text, "see why it ended (out of memory, a lost host); safepoint nodes"))
    return told


def lanes(loads: Sequence[LaneLoad], found: Sequence[Worker]) -> list[Finding]:
    """Judge whether each lane has somebody who takes its steps."""
    served = _slots(found)
    bad = []
    for one in loads:
        steps = counted(one.due, "step")
        if not one.is_known:
            text = f"{steps} of live runs are on lane {one.lane}, which the ledger does not know: no relay sends them."
            next_ = f"add [lanes.{one.lane}] to safepoint.toml and start a relay or a worker with it"
            bad.append(error("lanes", text, next_))
        elif one.lane not in served and one.due:
            text = (
                f"{steps} lie on lane {one.lane}, the oldest for {span(one.oldest or 0)}, and no live worker takes it."
            )
            bad.append(error("lanes", text, f"safepoint worker --lanes {one.lane}"))
        elif one.is_paused and one.due:
            text = f"Lane {one.lane} is paused, and {steps} wait on it."
            bad.append(warning("lanes", text, f"safepoint lanes resume {one.lane}"))
        elif one.is_paused and one.lane == CONTROL:
            text = f"Lane {one.lane} is paused. {NO_STEPS}"
            bad.append(warning("lanes", text, f"safepoint lanes resume {one.lane}"))
    missing = {RECOVERY: "what a dead worker held waits", CONTROL: "only relays look for lost steps"}
    for name, hurts in missing.items():
        if served and name not in served and not any(one.lane == name and one.due for one in loads):
            bad.append(
                warning("lanes", f"No live worker takes lane {name}: {hurts}.", f"safepoint worker --lanes {name}")
            )
    return bad or [fine("lanes", "Every lane with steps on it has a worker.")] if served or bad else []


def slots(limits: Mapping[str, LaneLimits], found: Sequence[Worker]) -> list[Finding]:
    """Compare each lane's cap with the slots of its workers: worth knowing, and never wrong by itself."""
    served, told = _slots(found), []
    for name, limit in limits.items():
        places, cap = served.get(name, 0), limit.in_flight
        if name == CONTROL and 0 in {limit.rate, cap}:
            told.append(warning("lanes", f"Lane {name} admits nothing. {NO_STEPS}", f"safepoint lanes show {name}"))
            continue
        if cap is None or not places:
            continue
        if cap == 0:
            told.append(warning("lanes", f"Lane {name} admits nothing: in_flight is 0.", "safepoint lanes"))
        elif cap > places:
            text = f"Lane {name} may have {counted(cap, 'step')} in flight; its workers have {counted(places, 'slot')}."
            told.append(fine("slots", f"{text} The rest waits in the broker."))
        elif cap * 4 < places:
            text = f"Lane {name} may have {counted(cap, 'step')} in flight; its workers have {counted(places, 'slot')}."
            told.append(fine("slots", f"{text} It never fills them."))
    return told


def _slots(found: Sequence[Worker]) -> dict[str, int]:
    served: dict[str, int] = {}
    for one in found:
        if one.is_live:
            for lane in one.lanes:
                served[lane] = served.get(lane, 0) + one.concurrency
    return served


def steps_served(
    wanted: Mapping[str, Sequence[str]], known: Mapping[str, Lane], found: Sequence[Worker]
) -> list[Finding]:
    """Judge the lanes that the code's steps ask for: `wanted` is lane to names of steps."""
    served, bad = _slots(found), []
    for lane, names in sorted(wanted.items()):
        some = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        if lane not in known:
            text = f"{some} ask for lane {lane}, which is not configured."
            bad.append(error("flows", text, f"add [lanes.{lane}] to safepoint.toml"))
        elif served and lane not in served:
            text = f"{some} ask for lane {lane}, and no live worker takes it."
            bad.append(warning("flows", text, f"safepoint worker --lanes {lane}"))
    return bad


def versions(found: Sequence[Unserved]) -> list[Finding]:
    """Judge whether somebody has the code of each live run (P15, G9)."""
    bad = []
    for one in found:
        text = f"{counted(one.runs, 'live run')} of {one.flow}@{one.version}, the oldest {span(one.oldest)} old, "
        text += "and no live worker serves that version."
        next_ = f'start a worker that has it, or lists it in accepts=("{one.version}",); safepoint versions'
        bad.append(error("versions", text, next_))
    return bad or [fine("versions", "Every live run has a worker with its version.")]


def held(found: Sequence[Held]) -> list[Finding]:
    """Say what waits for a person."""
    told = []
    for one in found:
        text = f"{counted(one.runs, 'run')} held: {one.code.replace('_', ' ')}."
        # Of several, the list comes first: one run's command would hide the others.
        several = f"safepoint runs --status held; safepoint why {one.example}"
        next_ = HELD_NEXT.get(one.code, "safepoint why {run}").format(run=one.example) if one.runs == 1 else several
        told.append(warning("held", text, next_))
    return told or [fine("held", "No run waits for a person.")]


def breakers(found: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """Say which dependencies are let alone."""
    told = []
    for one in found:
        if one["state"] == "closed":
            continue
        state = str(one["state"]).replace("_", " ")
        text = f"The breaker of {one['name']} is {state} ({short(one['why'] or 'no reason given')}); "
        told.append(warning("breakers", f"{text}{counted(one['waiting'], 'step')} wait.", "safepoint breakers"))
    return told or [fine("breakers", "No dependency is let alone.")]


def configured(
    wanted: Mapping[str, Lane], stored: Mapping[str, LaneLimits], *, window: int | None = None
) -> list[Finding]:
    """Compare the configured lanes with the file's word as the ledger has it; what people override is no difference."""
    bad, told = [], []
    before = {name: limits.policy for name, limits in stored.items()}
    for lane in compare(before, policies(wanted, window=window)):
        if lane.outcome == "added":
            text = f"Lane {lane.name} is configured and not in the ledger yet."
            bad.append(
                warning("configuration", text, "safepoint lanes apply (a relay or worker that starts adds it, too)")
            )
        elif lane.outcome == "changed":
            differs = "; ".join(
                f"{key} {_limit(mine)} here, {_limit(theirs)} there" for key, (theirs, mine) in lane.changes.items()
            )
            text = f"Lane {lane.name} differs from the ledger's, which counts: {differs}."
            bad.append(warning("configuration", text, "safepoint lanes apply"))
        if lane.name in stored and (keys := stored[lane.name].overridden):
            text = f"Lane {lane.name} is overridden for a while: {', '.join(keys)}."
            told.append(fine("configuration", f"{text} safepoint lanes show {lane.name} tells by whom and until when."))
    return [*(bad or [fine("configuration", "The configured lanes are those of the ledger.")]), *told]


def _limit(value: object) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return "unlimited" if value is None else str(value).lower()

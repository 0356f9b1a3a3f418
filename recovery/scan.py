"""The orphan scan: finds steps without an executor and gives them to the recovery lane; one statement when there
is nothing to do.

Any number of scans at once is correct: each finding is confirmed again under the run's lock before a step is
taken (P1). The scan never
publishes and never runs user code: it writes verdicts and rows that the relay sends.
"""

from __future__ import annotations

import threading
from dataclasses import asdict, dataclass, replace
from typing import Any

import structlog

from ..config.crash import crash_point
from ..config.lanes import RECOVERY
from ..config.process import is_gone, place
from ..config.settings import Settings
from ..ledger import orphans, steps
from ..ledger.connect import Connection
from . import evidence
from .verdict import Facts, Finding, judge

__all__ = ["RECOVERY", "Sweep", "recovery_lane", "scan"]

log = structlog.get_logger("safepoint.scan")
BATCH = 1000  # orphans of one round
BREATH = 50  # orphans after which a scan says that it goes on
CONTENDED = frozenset({"lost", "poison"})
GONE = frozenset({"node", "lease"})  # causes that are about the whole worker


@dataclass(slots=True)
class Sweep:
    """What one scan did: `expired` claims taken, `undelivered` and `unsettled` rows that lie due for the relay,
    `due` waits and runs moved.
    """

    ran: bool = True
    expired: int = 0
    undelivered: int = 0
    unsettled: int = 0
    due: int = 0
    poison: int = 0
    is_full: bool = False  # there were as many orphans as one round takes: there may be more

    def as_json(self) -> dict[str, int]:
        """Return the counts that `safepoint sweep --json` prints."""
        return {
            name: value
            for name, value in asdict(self).items()
            if name in {"expired", "undelivered", "unsettled", "due"}
        }


def recovery_lane(settings: Settings, fallback: str = "online") -> str:
    """Return the lane for orphans: `recovery` unless the configuration has none."""
    return RECOVERY if RECOVERY in settings.lanes else fallback


def scan(
    connection: Connection,
    settings: Settings,
    *,
    by: str,
    wait: threading.Event | None = None,
    force: bool = False,
    limit: int = BATCH,
) -> Sweep:
    """Run one round.

    Args:
        connection: an autocommit connection.
        settings: lease, interval, confirmation time and the cap on deaths.
        by: who scans, for the ledger's note.
        wait: what a suspicion is slept on, so that a stopping process is not held up.
        force: scan even when another one has just been (a person asked).
        limit: how many orphans are looked at in this round.
    """
    sweep = Sweep()
    interval = 0.0 if force else settings.scan.interval
    found = orphans.look(connection, by=by, interval=interval, lease=settings.worker.lease, limit=limit + 1)
    sweep.ran, sweep.is_full = found.ran, len(found.orphans) > limit
    found = _part(found, limit)
    if not found.ran and not force:
        return sweep
    suspicions = _take(connection, settings, found, sweep, known=frozenset(), by=by)
    if suspicions:
        (wait or threading.Event()).wait(settings.scan.confirm)  # P21: a missing lock counts when it is still missing
        again = orphans.look(connection, by=by, interval=0.0, lease=settings.worker.lease, limit=limit + 1)
        again = _part(again, limit)
        _take(connection, settings, again, sweep, known=suspicions, by=by)
    done = orphans.chores(connection, limit=settings.relay.batch, cancel_grace=settings.scan.cancel_grace)
    sweep.due = done.fired + done.ended + done.revived + done.delivered
    if done.revived:  # P10: no rule of the protocol leaves a run without an open step
        log.error("run.stalled", runs=done.revived)
    sweep.undelivered, sweep.unsettled = done.undelivered, done.unsettled
    return sweep


def _part(found: orphans.Round, limit: int) -> orphans.Round:
    """Leave two at least where something is left: the last one of many must not seem to have died alone (P23)."""
    return found if len(found.orphans) <= limit else replace(found, orphans=found.orphans[: max(1, limit - 1)])


def _take(
    connection: Connection, settings: Settings, found: orphans.Round, sweep: Sweep, *, known: frozenset[object], by: str
) -> frozenset[object]:
    suspicions = set()
    for number, orphan in enumerate(found.orphans, 1):
        if number % BREATH == 0:
            orphans.still_scanning(connection, by=by)
        verdict = judge(_facts(orphan, frozen=found.frozen), confirmed=orphan.token in known)
        match verdict.finding:
            case Finding.CONFIRM:
                suspicions.add(orphan.token)
            case Finding.TAKE:
                _lose(connection, settings, orphan, verdict.cause, deadly=verdict.deadly, sweep=sweep)
    return frozenset(suspicions)


def _facts(orphan: orphans.Orphan, *, frozen: bool) -> Facts:
    return Facts(
        lease_over=orphan.lease_over,
        lock_missing=orphan.lock_missing,
        stopped=orphan.stopped,
        expired=orphan.expired,
        unnamed=orphan.unnamed,
        neighbours=orphan.neighbours,
        frozen=frozen,
    )


def _lose(
    connection: Connection, settings: Settings, orphan: orphans.Orphan, cause: str, *, deadly: bool, sweep: Sweep
) -> None:
    known = _evidence(connection, orphan, cause) or None
    loss = steps.Loss(orphan.run_id, orphan.key, orphan.token, steps.Cause(cause), deadly=deadly, evidence=known)
    answer = steps.lose(connection, loss, lane=recovery_lane(settings), max_deaths=settings.scan.max_recoveries)
    if answer in CONTENDED:
        sweep.expired += 1
        sweep.poison += answer == "poison"
        crash_point("scan.requeued", orphan.key.wire)


def _evidence(connection: Connection, orphan: orphans.Orphan, cause: str) -> dict[str, Any]:
    """Tell what is known of the process that had the step."""
    process = orphans.executing(connection, orphan)
    if process is None:
        return {}
    if cause not in GONE:
        return {"dead": True} if _is_dead(process) else {}
    return evidence.of_worker(process.pid, process.marks.get(evidence.MEMORY), dead=_is_dead(process))


def _is_dead(process: orphans.Executing) -> bool:
    """Whether the executing process is certainly gone: seen from its own machine, by number and start time (P33)."""
    if not process.place or process.pid is None or not process.pid_start:
        return False
    return process.place == place() and is_gone(process.pid, process.pid_start)

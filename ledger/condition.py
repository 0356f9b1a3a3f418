"""How the ledger's work stands, in numbers: who works, what lies due, what is held, and when somebody last looked.

Each question is one statement that may be asked while everything runs; what the numbers mean is said elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from .connect import Connection

__all__ = [
    "Held",
    "Identity",
    "LaneLimits",
    "LaneLoad",
    "Unserved",
    "Worker",
    "longest_claim",
    "read_held",
    "read_identity",
    "read_limits",
    "read_loads",
    "read_unserved",
    "read_workers",
]

# P7, P8, P20: who scanned last, whether takeovers wait, and whether an instant was written that is still to come.
_IDENTITY: Final = """
SELECT i.reason, i.timeline, extract(epoch FROM safepoint.now() - i.last_scan_at)::float, i.last_scan_by,
       CASE WHEN isfinite(i.takeover_after) THEN extract(epoch FROM i.takeover_after - safepoint.now())::float END,
       extract(epoch FROM greatest(i.last_scan_at, (SELECT max(beat_at) FROM safepoint.nodes WHERE stopped_at IS NULL))
           - safepoint.now())::float,
       EXISTS (SELECT FROM safepoint.runs WHERE finished_at IS NULL)
  FROM safepoint.identity i
"""
# By nodes_live. A node that was lost hours ago is history, not news.
_WORKERS: Final = """
SELECT node_id, lanes, concurrency, lease_until > safepoint.now() AND NOT draining, lease_until <= safepoint.now(),
       extract(epoch FROM safepoint.now() - beat_at)::float,
       (SELECT count(*) FROM safepoint.steps s WHERE s.owner = n.node_id AND s.status = 'running'), flows
  FROM safepoint.nodes n
 WHERE stopped_at IS NULL AND kind = 'worker' AND beat_at > safepoint.now() - interval '1 hour' ORDER BY node_id
"""
# By steps_due and steps_queue, which hold the ready steps and nothing else; a backlog is counted as far as tells
# enough. Also of lanes that are no row: what is due there, no relay ever sends. `late`: what a relay would have taken
# by now; a queue behind its lane's limits is not late. `lost`: sent so long ago that by now a claim should have come.
# What is due within moments is due: a step that was just committed lies a little ahead, so that the relay leaves it to
# the fast path.
_LOADS: Final = """
SELECT coalesce(l.name, s.lane), l.name IS NOT NULL, coalesce(l.paused, false), coalesce(s.due, 0),
       coalesce(s.late, 0) + CASE
           WHEN l.paused OR l.rate = 0 OR l.in_flight = 0 OR l.tenant_in_flight = 0 THEN 0
           WHEN s.sent = 0 AND NOT EXISTS (SELECT FROM safepoint.steps x WHERE x.status = 'running'
               AND x.claimed_from = l.name) OR NOT l.limited AND s.sent < 64 THEN coalesce(s.behind, 0)
           ELSE 0 END,
       coalesce(s.sent, 0), coalesce(s.lost, 0), s.oldest
  FROM safepoint.lanes l FULL JOIN (
       SELECT lane, count(*) FILTER (WHERE due_at <= safepoint.now() + interval '10 s' OR dispatched_at IS NOT NULL
                                        OR reason->>'code' = 'no_worker') AS due,
              count(*) FILTER (WHERE queued = 0 AND dispatched_at IS NULL
                                 AND due_at < safepoint.now() - make_interval(secs => %(late)s)) AS late,
              count(*) FILTER (WHERE queued > 0
                                 AND due_at < safepoint.now() - make_interval(secs => %(late)s)) AS behind,
              count(dispatched_at) AS sent,
              count(*) FILTER (WHERE dispatched_at < safepoint.now() - make_interval(secs => %(lost)s)) AS lost,
              extract(epoch FROM safepoint.now() - min(ready_at))::float AS oldest
         FROM ((SELECT lane, queued, due_at, dispatched_at, ready_at, reason FROM safepoint.steps
                 WHERE status = 'ready' AND queued = 0 LIMIT %(most)s)
               UNION ALL
               (SELECT lane, queued, due_at, dispatched_at, ready_at, reason FROM safepoint.steps
                 WHERE status = 'ready' AND queued > 0 AND due_at < 'infinity' LIMIT %(most)s)) x
        GROUP BY lane) s ON s.lane = l.name
 ORDER BY 1
"""
MOST: Final = 100_000  # steps of each kind
_LIMITS: Final = """
SELECT l.name, l.in_flight, l.policy,
       ARRAY(SELECT o.key FROM safepoint.lane_overrides o WHERE o.lane = l.name ORDER BY 1), l.rate
  FROM safepoint.lanes l ORDER BY l.name
"""
# By runs_live. P15, G9: a version that runs need and no live node has.
_UNSERVED: Final = """
SELECT r.flow, r.workflow_version, count(*), extract(epoch FROM safepoint.now() - min(r.created_at))::float
  FROM safepoint.runs r
 WHERE r.finished_at IS NULL AND NOT EXISTS (
       SELECT FROM safepoint.nodes n WHERE n.stopped_at IS NULL AND n.lease_until > safepoint.now()
          AND r.flow || '@' || r.workflow_version = ANY (n.flows))
 GROUP BY 1, 2 ORDER BY 3 DESC, 1, 2
"""
# By runs_live. A run that is held for several reasons counts for each; that it was paused is a person's wish.
_HELD: Final = """
SELECT coalesce(h.code, r.reason->>'code', 'unknown'), count(*), min(r.run_id::text)
  FROM safepoint.runs r LEFT JOIN LATERAL jsonb_object_keys(r.holds) AS h(code) ON true
 WHERE r.finished_at IS NULL AND r.status = 'held' GROUP BY 1 ORDER BY 2 DESC, 1
"""
# By steps_expiring: how long the longest step that runs now may go on, as it was claimed.
_LONGEST: Final = """
SELECT max(extract(epoch FROM expires_at - claimed_at))::float FROM safepoint.steps
 WHERE status = 'running' AND isfinite(expires_at)
"""


@dataclass(frozen=True, slots=True)
class Identity:
    """What the ledger notes of itself; times are seconds, those of the past positive."""

    reason: str
    timeline: str | None
    scanned_ago: float | None
    scanned_by: str | None
    frozen_for: float | None
    future: float | None  # by how much the newest instant that was written lies ahead of now
    has_live_runs: bool


@dataclass(frozen=True, slots=True)
class Worker:
    """A node that has not said goodbye."""

    node_id: str
    lanes: Sequence[str]
    concurrency: int
    is_live: bool
    is_lost: bool
    seen_ago: float
    running: int
    flows: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class LaneLoad:
    """What lies on a lane: due now, due for too long and not sent, sent and not claimed, and that for too long."""

    lane: str
    is_known: bool
    is_paused: bool
    due: int
    late: int
    sent: int
    lost: int
    oldest: float | None


@dataclass(frozen=True, slots=True)
class LaneLimits:
    """What of a lane holds and matters here: its cap, the file's word as the ledger has it, and what is overridden."""

    in_flight: int | None
    policy: dict[str, Any]
    overridden: tuple[str, ...] = ()
    rate: float | None = None


@dataclass(frozen=True, slots=True)
class Unserved:
    """A version that live runs need and no live node serves."""

    flow: str
    version: str
    runs: int
    oldest: float


@dataclass(frozen=True, slots=True)
class Held:
    """How many runs are held for a reason, and one of them."""

    code: str
    runs: int
    example: str


def read_identity(connection: Connection) -> Identity:
    """Read when the ledger was last looked after, and by whom."""
    return Identity(*_row(connection, _IDENTITY))


def read_workers(connection: Connection) -> list[Worker]:
    """List the nodes that have not said goodbye and were seen within the last hour."""
    return [Worker(*row) for row in connection.execute(_WORKERS)]


def read_loads(connection: Connection, *, late: float, lost: float) -> list[LaneLoad]:
    """Count what is ready on each lane; `late` and `lost` are seconds."""
    return [LaneLoad(*row) for row in connection.execute(_LOADS, {"late": late, "lost": lost, "most": MOST})]


def read_limits(connection: Connection) -> dict[str, LaneLimits]:
    """Give the lanes' limits by name."""
    return {
        str(name): LaneLimits(in_flight, policy, tuple(overridden), rate)
        for name, in_flight, policy, overridden, rate in connection.execute(_LIMITS)
    }


def read_unserved(connection: Connection) -> list[Unserved]:
    """List the versions that nobody serves, those that most runs need first."""
    return [Unserved(*row) for row in connection.execute(_UNSERVED)]


def read_held(connection: Connection) -> list[Held]:
    """Count the held runs by reason."""
    return [Held(*row) for row in connection.execute(_HELD)]


def longest_claim(connection: Connection) -> float:
    """Give the longest time, in seconds, that a step which runs now was allowed."""
    (longest,) = _row(connection, _LONGEST)
    return float(longest or 0.0)


def _row(connection: Connection, statement: str) -> tuple[Any, ...]:
    row = connection.execute(statement.encode()).fetchone()
    assert row is not None
    return row

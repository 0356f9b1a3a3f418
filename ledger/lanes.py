"""Lanes in the ledger: the file's policy, what people set over it for a time, and what of both holds now.

Admission reads them under the lane's row lock, so that limits hold over any number of relays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from psycopg.types.json import Jsonb

from .connect import Connection

__all__ = ["Crowd", "Policy", "Standing", "apply", "lift", "lock", "names", "override", "policies", "remove"]

# In the order of the names, so that two people wait for each other, and never both (P2).
_LOCK = "SELECT name, policy FROM safepoint.lanes WHERE name = ANY (%s) ORDER BY name FOR NO KEY UPDATE"
# A statement of its own, after the lock: what somebody has committed meanwhile must be seen (P1).
_OVERRIDES = "SELECT lane, key, value FROM safepoint.lane_overrides WHERE lane = ANY (%s)"
# FOR UPDATE, so that no admission is under way on a lane that goes. Rare, and the one reader of open steps by lane: it
# has no index of its own and walks steps_open, which has no finished step in it.
_CROWD = """
SELECT count(*) FILTER (WHERE status = 'ready'), count(*) FILTER (WHERE status = 'running'),
       count(*) FILTER (WHERE status IN ('waiting', 'held'))
  FROM safepoint.steps
 WHERE status IN ('ready', 'running', 'waiting', 'held') AND (lane = %(lane)s OR home_lane = %(lane)s)
"""
_TAKERS = """
SELECT node_id FROM safepoint.nodes
 WHERE stopped_at IS NULL AND lease_until > safepoint.now() AND %s = ANY (lanes) ORDER BY node_id
"""
_REMOVE = """
WITH gone AS (DELETE FROM safepoint.lanes WHERE name = %(lane)s RETURNING name, policy)
INSERT INTO safepoint.lane_events (lane, what, facts, actor, why, at)
SELECT name, 'removed', jsonb_build_object('before', policy), %(by)s, %(why)s, safepoint.now() FROM gone
"""


@dataclass(frozen=True, slots=True)
class Standing:
    """A locked lane: the file's word, and what people have set over it."""

    policy: dict[str, Any]
    overrides: dict[str, Any] = field(default_factory=dict)

    @property
    def effective(self) -> dict[str, Any]:
        """What holds."""
        return {**self.policy, **self.overrides}


@dataclass(frozen=True, slots=True)
class Crowd:
    """What is on a lane, and which live nodes take it."""

    ready: int
    running: int
    waiting: int
    nodes: tuple[str, ...]

    @property
    def is_empty(self) -> bool:
        """Whether nobody would miss the lane."""
        return not (self.ready or self.running or self.waiting or self.nodes)


class Policy(Protocol):
    """What the configuration says of a lane."""

    def as_policy(self) -> dict[str, Any]:
        """Return what is set, by the names of the configuration's keys."""
        ...


def apply(
    connection: Connection,
    lanes: Mapping[str, Policy],
    *,
    window: int | None = None,
    only_missing: bool = False,
    by: str = "",
    why: str = "",
) -> dict[str, str]:
    """Write the configured lanes and return what became of each: `added`, `changed` or `same`.

    Args:
        connection: an autocommit connection.
        lanes: by name; others that the ledger has are left alone.
        window: the window of lanes that name none, in messages; None lets the ledger fit it to the workers.
        only_missing: leave lanes that the ledger has as they are: what a starting process may do.
        by: who applies it, for the audit.
        why: for the audit.
    """
    done = {}
    for name, policy in policies(lanes, window=window).items():
        row = connection.execute(
            "SELECT safepoint.apply_lane_v1(%s, %s, %s, %s, %s)", (name, Jsonb(policy), only_missing, by, why)
        ).fetchone()
        done[name] = "" if row is None else str(row[0])
    return done


def policies(lanes: Mapping[str, Policy], *, window: int | None = None) -> dict[str, dict[str, Any]]:
    """Give what `apply` writes, in the order in which it does."""
    default = {} if window is None else {"window": window}
    return {name: {**default, **lanes[name].as_policy()} for name in sorted(lanes)}


def names(connection: Connection) -> list[str]:
    """List the lanes that there are."""
    return [row[0] for row in connection.execute("SELECT name FROM safepoint.lanes ORDER BY name").fetchall()]


def lock(connection: Connection, wanted: Sequence[str]) -> dict[str, Standing]:
    """Lock lanes until the transaction ends, and tell how they stand by then; those that there are."""
    rows = connection.execute(_LOCK, (list(wanted),)).fetchall()
    found = {name: Standing(policy) for name, policy in rows}
    for lane, key, value in connection.execute(_OVERRIDES, (list(found),)).fetchall():
        found[lane].overrides[key] = value
    return found


def override(
    connection: Connection, lane: str, values: Mapping[str, Any], *, seconds: float | None, by: str, why: str
) -> bool:
    """Set keys of a lane over what the file says, for so many seconds or until they are lifted; False: no such lane.

    A value of None lifts the limit that the file sets.
    """
    row = connection.execute(
        "SELECT safepoint.override_lane_v1(%s, %s, %s, %s, %s)", (lane, Jsonb(dict(values)), seconds, by, why)
    ).fetchone()
    return row is not None and bool(row[0])


def lift(connection: Connection, lane: str, keys: Sequence[str] | None, *, by: str, why: str) -> tuple[str, ...] | None:
    """End overrides of these keys, or of all (None), before their time; return which there were; None: no such lane."""
    row = connection.execute(
        "SELECT safepoint.lift_overrides_v1(%s, %s, %s, %s)", (lane, None if keys is None else list(keys), by, why)
    ).fetchone()
    return None if row is None or row[0] is None else tuple(row[0])


def remove(connection: Connection, lane: str, *, by: str, why: str) -> Crowd | None:
    """Remove a lane that nothing is on and that nobody takes; return what is there, which is nothing when it is gone.

    None: no such lane. What asks for it later waits until the lane is there again.
    """
    with connection.transaction():
        if connection.execute("SELECT FROM safepoint.lanes WHERE name = %s FOR UPDATE", (lane,)).fetchone() is None:
            return None
        ready, running, waiting = connection.execute(_CROWD, {"lane": lane}).fetchone() or (0, 0, 0)
        takers = connection.execute(_TAKERS, (lane,)).fetchall()
        crowd = Crowd(ready, running, waiting, tuple(row[0] for row in takers))
        if crowd.is_empty:
            connection.execute(_REMOVE, {"lane": lane, "by": by, "why": why})
        return crowd

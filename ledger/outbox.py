"""The outbox: which steps are due to be published, and what is to be delivered that is no step.

A step's `due_at` is the outbox (P10). The relay asks what is due, publishes, and settles; what it does not settle
is due again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import orjson
from psycopg.types.json import Jsonb

from .connect import Connection
from .key import Key
from .steps import Settled

__all__ = ["Dispatched", "dead_nodes", "decline", "deliver", "dispatch", "fire_due", "next_due", "put_back", "settle"]


@dataclass(frozen=True, slots=True)
class Dispatched:
    """A step that may be published now; `due` is the ticket that settles this row and no later one (P17)."""

    run_id: UUID
    key: Key
    kind: str
    name: str
    lane: str
    attempt: int
    epoch: int
    due: datetime
    dispatches: int


def dispatch(connection: Connection, *, limit: int, grace: float, redispatch_after: float) -> list[Dispatched]:
    """Take up to `limit` due steps a lane, within the lanes' limits; each is due again after `grace` seconds unless
    it is settled.
    """
    rows = connection.execute(
        "SELECT * FROM safepoint.dispatch_v1(%s, %s, %s)", (limit, grace, redispatch_after)
    ).fetchall()
    return [
        Dispatched(run, Key(generation, path, step, iteration), kind, name, lane, attempt, epoch, due, dispatches)
        for run, generation, path, step, iteration, kind, name, lane, attempt, epoch, due, dispatches in rows
    ]


def settle(connection: Connection, rows: Sequence[Settled]) -> int:
    """Mark rows as published: due again only after their wait (P11); answers how many still stood as published."""
    if not rows:
        return 0
    facts = Jsonb([row.facts() for row in rows], dumps=orjson.dumps)
    row = connection.execute("SELECT safepoint.settle_v1(%s)", (facts,)).fetchone()
    return 0 if row is None else int(row[0])


def put_back(connection: Connection, run_id: UUID, key: Key, *, lane: str) -> None:
    """Let a row be dispatched again soon, because its message reached a worker that has not its code (P15)."""
    connection.execute(
        # P14: never later. A moment earlier, so that the ticket of who has just published it settles it no more.
        "UPDATE safepoint.steps SET due_at = least(due_at - interval '1 ms', safepoint.now() + interval '5 s'),"
        " dispatched_at = NULL"
        " WHERE run_id = %s AND generation = %s AND path = %s AND step_id = %s AND iteration = %s"
        " AND status = 'ready' AND lane = %s AND due_at < 'infinity'",
        (run_id, key.generation, key.path, key.step_id, key.iteration, lane),
    )


def decline(connection: Connection, run_id: UUID, key: Key, *, lane: str) -> None:
    """Put back a published row whose receiver does not know the step; dispatch then judges who serves it (P15)."""
    connection.execute(
        # Only a row that still is as it was published; the pause keeps two workers from passing it to and fro.
        "UPDATE safepoint.steps SET due_at = safepoint.now() + interval '5 s', dispatched_at = NULL"
        " WHERE run_id = %s AND generation = %s AND path = %s AND step_id = %s AND iteration = %s"
        " AND status = 'ready' AND lane = %s AND due_at < 'infinity'",
        (run_id, key.generation, key.path, key.step_id, key.iteration, lane),
    )


def fire_due(connection: Connection, *, limit: int) -> int:
    """Decide timers that are due and waits that have expired; answers how many runs moved."""
    row = connection.execute("SELECT safepoint.fire_due_v1(%s)", (limit,)).fetchone()
    return 0 if row is None else int(row[0])


def deliver(connection: Connection, *, limit: int) -> int:
    """Bring the ends of child runs to their parents and cancels to children; answers how many."""
    row = connection.execute("SELECT safepoint.deliver_v1(%s)", (limit,)).fetchone()
    return 0 if row is None else int(row[0])


def dead_nodes(connection: Connection) -> tuple[bool, bool]:
    """Tell whether steps run, and whether the session lock of a node that has some is gone: a suspicion, never a proof
    (P21), and reason enough for a scan before its time.
    """
    row = connection.execute(
        # By steps_running. A lock under another server start says nothing; a lease that is over the scan sees anyway.
        """
        WITH owners AS MATERIALIZED (SELECT DISTINCT owner FROM safepoint.steps WHERE status = 'running')
        SELECT EXISTS (SELECT FROM owners), EXISTS (
            SELECT FROM owners o JOIN safepoint.nodes n ON n.node_id = o.owner
             WHERE n.stopped_at IS NULL AND n.lock_key IS NOT NULL AND n.server_started = pg_postmaster_start_time()
               AND NOT safepoint.has_lock_v1(n.lock_key))
        """
    ).fetchone()
    return (False, False) if row is None else (bool(row[0]), bool(row[1]))


def next_due(connection: Connection, *, tending: float = 1.0) -> float | None:
    """Return in how many seconds a round has something to do (0 or less: now); None when nothing is to come.

    Whatever a round acts on counts here. Breakers that are not closed, or have steps set aside, are looked after every
    `tending` seconds.
    """
    row = connection.execute(
        # Index heads: ready steps of each lane, waits, messages, the ends of overrides. Parked rows are due at
        # infinity and do not count; what a paused lane keeps is not to be looked at before it is resumed.
        """
        SELECT extract(epoch FROM min(due) - safepoint.now()) FROM (
            SELECT (SELECT least(
                (SELECT min(due_at) FROM safepoint.steps s WHERE s.status = 'ready' AND s.lane = l.name
                    AND s.queued = 0),
                (SELECT safepoint.now() FROM safepoint.steps s WHERE s.status = 'ready' AND s.queued > 0
                    AND s.due_at < 'infinity' AND s.lane = l.name ORDER BY s.lane, s.tenant_id LIMIT 1))) AS due
              FROM safepoint.lanes l WHERE NOT l.paused
            UNION ALL SELECT min(overridden_until) FROM safepoint.lanes
            UNION ALL SELECT min(due_at) FROM safepoint.steps WHERE status = 'waiting' AND due_at IS NOT NULL
            UNION ALL SELECT min(due_at) FROM safepoint.outbox_messages
            UNION ALL SELECT safepoint.now() + make_interval(secs => %s) WHERE EXISTS (
                SELECT FROM safepoint.breakers b WHERE b.state <> 'closed' OR EXISTS (
                    SELECT FROM safepoint.steps s WHERE s.status = 'ready' AND s.reason->>'code' = 'breaker'
                       AND s.due_at < 'infinity' AND s.uses = b.name))
        ) x WHERE due < 'infinity'
        """,
        (tending,),
    ).fetchone()
    return None if row is None or row[0] is None else float(row[0])

"""Lanes under test: limits set as a person sets them, and backlogs put in place at once."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

from ledger_verbs import Verbs
from safepoint.ledger import lanes

__all__ = ["backlog", "crew", "limit", "orphan", "sent"]


def limit(verbs: Verbs, lane: str, **values: Any) -> None:
    """Set limits of a lane until further notice; a lane that is not there yet is made."""
    verbs.connection.execute("INSERT INTO safepoint.lanes (name) VALUES (%s) ON CONFLICT DO NOTHING", (lane,))
    assert lanes.override(verbs.connection, lane, values, seconds=None, by="test", why="test")


def crew(verbs: Verbs, name: str = "node-1", *, lanes: tuple[str, ...], flows: tuple[str, ...] = ("f@1",)) -> None:
    """Register a node of these lanes that is there for the whole test."""
    verbs.connection.execute("DELETE FROM safepoint.nodes WHERE node_id = %s", (name,))
    verbs.node(name, lanes=lanes, flows=flows, concurrency=4, lease=1e6)


def backlog(
    verbs: Verbs, count: int, *, lane: str, tenant: str = "loud", kind: str = "step", queued: int = 1, flow: str = "f",
    priority: int = 0, run: UUID | None = None,
) -> UUID:  # fmt: skip
    """Put that many ready rows of one run on a lane, due now; queued as their committer would have left them."""
    run = run or uuid4()
    verbs.connection.execute(
        "INSERT INTO safepoint.runs (run_id, tenant_id, flow, status, input, input_encoding, input_hash,"
        " workflow_version, created_at, updated_at) VALUES (%s, %s, %s, 'running', '{}', 'json', 'h',"
        " '1', safepoint.now(), safepoint.now())",
        (run, tenant, flow),
    )
    verbs.connection.execute(
        "INSERT INTO safepoint.steps (run_id, generation, path, step_id, iteration, tenant_id, priority, kind, name,"
        " status, lane, home_lane, queued, due_at, ready_at, created_at) SELECT %s, 1, '', 's', n, %s, %s, %s, 's',"
        " 'ready', %s, %s, %s, safepoint.now(), safepoint.now(), safepoint.now() FROM generate_series(1, %s) AS n",
        (run, tenant, priority, kind, lane, lane, queued, count),
    )
    return run


def orphan(verbs: Verbs, **options: Any) -> UUID:
    """Begin a run whose first claim was lost: its start waits on the recovery lane."""
    run = verbs.enqueue(**options)
    assert verbs.lose(verbs.claimed(run)) == "lost"
    return run


def sent(verbs: Verbs, lane: str, *, limit: int = 100) -> list[UUID]:
    """Let a relay look once, and return the runs of what it sends on a lane."""
    return [row.run_id for row in verbs.dispatch(limit=limit) if row.lane == lane]

"""Orphans in any number: runs that stand at a running step of a node that is about to be gone.

Made by the ledger's own functions, in the order in which a relay and a worker call them; then the node beats for the
last time, its lease ends, and the orphan scan finds what it held.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import ledger_work as work
from safepoint.ledger import nodes
from safepoint.ledger.connect import Connection
from storm_flows import orphan

__all__ = ["let_go", "make"]

STEP = "call"
LAST_LEASE = 0.2  # seconds


def make(connection: Connection, tenants: Sequence[str], *, node: str) -> list[UUID]:
    """Make one orphan to be for each of these tenants, and return their runs."""
    work.register(connection, node, [orphan], lanes=["online"])
    runs = work.enqueue(connection, orphan.name, tenants)
    asks = work.asked_first(orphan, {})
    ready = 0
    while found := work.dispatch_starts(connection):
        tokens = work.claim(connection, found, step="@start", node=node)
        work.commit_starts(connection, found, tokens, node=node, asks=asks)
        work.claim(connection, found, step=STEP, node=node)
        ready += len(found)
    if ready != len(runs):
        raise RuntimeError(f"{ready} of {len(runs)} runs stand at their step")
    return runs


def let_go(connection: Connection, node: str) -> float:
    """Beat for the last time, and return the instant at which the lease ends."""
    nodes.beat(connection, node, active=[], marks={}, lease=LAST_LEASE)
    row = connection.execute(
        "SELECT extract(epoch FROM lease_until)::double precision FROM safepoint.nodes WHERE node_id = %s", (node,)
    ).fetchone()
    assert row is not None  # it has just beaten
    return float(row[0])

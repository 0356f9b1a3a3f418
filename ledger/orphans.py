"""The orphan scan's questions to the ledger: which running steps may have lost their executor, and the chores that
need no verdict.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from .connect import Connection
from .key import Key

__all__ = ["Chores", "Executing", "Orphan", "Round", "chores", "claims_of", "executing", "look", "still_scanning"]


@dataclass(frozen=True, slots=True)
class Orphan:
    """A running step and what the ledger saw of its node."""

    run_id: UUID
    key: Key
    token: UUID
    owner: str | None
    lease_over: bool
    lock_missing: bool
    stopped: bool
    expired: bool
    unnamed: bool
    neighbours: int


@dataclass(frozen=True, slots=True)
class Round:
    """One look: whether it was this scan's turn, whether takeovers are frozen (P20), and what was found."""

    ran: bool
    frozen: bool
    orphans: tuple[Orphan, ...]


@dataclass(frozen=True, slots=True)
class Chores:
    """What was done besides: waits decided, runs ended, stalled runs revived, ends delivered; and what lies due for
    the relay.
    """

    fired: int
    ended: int
    revived: int
    delivered: int
    undelivered: int
    unsettled: int


def look(connection: Connection, *, by: str, interval: float, lease: float, limit: int = 1000) -> Round:
    """Find running steps that may be orphans; nothing when another scan is at it or has just been."""
    rows = connection.execute(
        "SELECT * FROM safepoint.orphans_v1(%s, %s, %s, %s)", (by, interval, lease, limit)
    ).fetchall()
    return Round(
        ran=bool(rows and rows[0][0]),
        frozen=bool(rows and rows[0][1]),
        orphans=tuple(Orphan(row[2], Key(*row[3:7]), *row[7:]) for row in rows if row[2] is not None),
    )


def still_scanning(connection: Connection, *, by: str) -> None:
    """Say that the scan goes on, so that nobody begins another one beside it."""
    connection.execute("UPDATE safepoint.identity SET last_scan_at = safepoint.now() WHERE last_scan_by = %s", (by,))


@dataclass(frozen=True, slots=True)
class Executing:
    """The process that executes a step, where its number means something, and what its node's last beat has told."""

    place: str
    pid: int | None
    pid_start: int | None
    marks: Mapping[str, Any]


def executing(connection: Connection, orphan: Orphan) -> Executing | None:
    """Return which process a claim named as the one that executes; None when the claim has fallen."""
    row = connection.execute(
        # The primary key, and the node of its owner.
        "SELECT n.place, s.owner_pid, s.owner_pid_start, n.marks"
        " FROM safepoint.steps s JOIN safepoint.nodes n ON n.node_id = s.owner"
        " WHERE s.run_id = %s AND s.generation = %s AND s.path = %s AND s.step_id = %s AND s.iteration = %s"
        " AND s.claim_token = %s",
        (orphan.run_id, *_place(orphan.key), orphan.token),
    ).fetchone()
    return None if row is None else Executing(*row)


def _place(key: Key) -> tuple[int, str, str, int]:
    return key.generation, key.path, key.step_id, key.iteration


def chores(connection: Connection, *, limit: int, cancel_grace: float) -> Chores:
    """Decide due waits, end runs past their deadline, revive stalled ones, deliver the ends of children."""
    row = connection.execute("SELECT * FROM safepoint.chores_v1(%s, %s)", (limit, cancel_grace)).fetchone()
    return Chores(*row) if row is not None else Chores(0, 0, 0, 0, 0, 0)


def claims_of(connection: Connection, node_id: str, token: UUID | None = None) -> list[tuple[UUID, Key, UUID]]:
    """Return the running steps of a node, or the one that a token claims: run, key, token."""
    rows = connection.execute(
        # Index steps_running (owner, claim_token).
        "SELECT run_id, generation, path, step_id, iteration, claim_token FROM safepoint.steps"
        " WHERE status = 'running' AND owner = %s AND (%s::uuid IS NULL OR claim_token = %s::uuid)",
        (node_id, token, token),
    ).fetchall()
    return [(row[0], Key(*row[1:5]), row[5]) for row in rows]

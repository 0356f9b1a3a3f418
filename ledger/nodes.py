"""Nodes: who works, for how long that is believed (the lease), and the session lock whose absence is a suspicion
(P19 to P21).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from .connect import Connection

__all__ = [
    "Beat",
    "Node",
    "Registered",
    "beat",
    "hold_session_lock",
    "lock_key",
    "register",
    "session_locks_work",
    "stop",
]


@dataclass(frozen=True, slots=True)
class Node:
    """A worker main process, unique per start: what it takes and what it serves (P15)."""

    node_id: str
    host: str
    pid: int
    lanes: tuple[str, ...] = ()
    flows: tuple[str, ...] = ()  # flow@version, with the versions that it accepts
    steps: tuple[str, ...] = ()
    concurrency: int = 0
    kind: str = "worker"
    versions: tuple[dict[str, Any], ...] = ()  # {name, version, versions} of the flows it holds itself
    place: str = ""  # where its pid means something


@dataclass(frozen=True, slots=True)
class Registered:
    """The ledger's identity at registration."""

    incarnation: UUID
    server_started: datetime


@dataclass(frozen=True, slots=True)
class Beat:
    """What a beat learns: whether the node is known, the ledger's identity, and which of its claims have fallen."""

    known: bool
    incarnation: UUID
    server_started: datetime
    lost: tuple[UUID, ...]
    must_register: bool


def lock_key(node_id: str) -> int:
    """Return the advisory lock's key of a node, a signed 64 bit integer; the top bits mark it as ours."""
    digest = int.from_bytes(hashlib.blake2b(node_id.encode(), digest_size=8).digest(), "big")
    return (0x5AFE << 44) | (digest & ((1 << 44) - 1))


def register(connection: Connection, node: Node, *, lease: float, with_lock: bool) -> Registered:
    """Write the node's row with a fresh lease (seconds), and what it serves."""
    row = connection.execute(
        "SELECT * FROM safepoint.register_v1(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)",
        (
            *(
                node.node_id,
                node.kind,
                node.host,
                node.pid,
                list(node.lanes),
                list(node.flows),
                list(node.steps),
                node.concurrency,
            ),
            *(lock_key(node.node_id) if with_lock else None, lease, Jsonb(list(node.versions)), node.place),
        ),
    ).fetchone()
    assert row is not None
    return Registered(row[0], row[1])


def beat(
    connection: Connection,
    node_id: str,
    *,
    active: Sequence[UUID],
    marks: dict[str, Any],
    lease: float,
    draining: bool = False,
) -> Beat:
    """Renew the lease and name the claims that are really executing (P4): one statement, however many."""
    row = connection.execute(
        "SELECT * FROM safepoint.beat_v1(%s, %s, %s, %s, %s)", (node_id, list(active), Jsonb(marks), lease, draining)
    ).fetchone()
    assert row is not None
    return Beat(bool(row[0]), row[1], row[2], tuple(row[3] or ()), bool(row[5]))


def stop(connection: Connection, node_id: str) -> None:
    """Say that the node has ended; what it still held is free at once."""
    connection.execute("SELECT safepoint.stop_node_v1(%s)", (node_id,))


def hold_session_lock(connection: Connection, node_id: str) -> bool:
    """Take the node's session lock on this (direct) connection; it falls with the process."""
    row = connection.execute("SELECT pg_try_advisory_lock(%s)", (lock_key(node_id),)).fetchone()
    return row is not None and bool(row[0])


def session_locks_work(connection: Connection, other: Connection, node_id: str) -> bool:
    """Self-test (P21): behind a transaction pooler the lock does not stay with this session, or is seen by another
    as its own.
    """
    return all(_stays(connection, other, node_id) for _ in range(3))


def _stays(connection: Connection, other: Connection, node_id: str) -> bool:
    query = "SELECT pg_backend_pid(), safepoint.has_lock_v1(%s)"
    first = connection.execute(query, (lock_key(node_id),)).fetchone()
    # A pooler that has nothing else to do lends the backend that was used last: in a transaction, `other` keeps it.
    with other.transaction():
        theirs = other.execute(query, (lock_key(node_id),)).fetchone()
        again = connection.execute(query, (lock_key(node_id),)).fetchone()
    assert first is not None  # a query without a table answers always
    assert theirs is not None
    assert again is not None
    return bool(first == again and first[1] and theirs[1] and theirs[0] != first[0])

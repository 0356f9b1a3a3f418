"""Breakers in the ledger: their policies, the lock under which a verdict is written, and the writing of it.

What a verdict is, is not decided here. Lock order: a breaker comes after lanes, and nothing after it but its own
probes and events (P1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from .connect import Connection

__all__ = ["Row", "apply", "end_probe", "lock", "names", "write"]

Policy = Mapping[str, Any]

_INSERT = """
INSERT INTO safepoint.breakers (name, policy) VALUES (%s, %s) ON CONFLICT (name) DO NOTHING
"""
_UPDATE = """
UPDATE safepoint.breakers SET policy = %(policy)s, changed_at = safepoint.now()
 WHERE name = %(name)s AND policy <> %(policy)s
"""
# In the order of the names, so that two nodes that flush the same ones wait, and never for each other (P2).
_LOCK = """
SELECT name, state, extract(epoch FROM opened_at)::double precision,
       extract(epoch FROM next_probe_at)::double precision, detail, policy
  FROM safepoint.breakers WHERE name = ANY (%s) ORDER BY name FOR NO KEY UPDATE
"""
_WRITE = """
SELECT safepoint.turn_breaker_v1(%s, %s, to_timestamp(%s), to_timestamp(%s), %s, %s, %s, %s, %s)
"""
_NOW = "SELECT extract(epoch FROM safepoint.now())::double precision"
# P39: the outcome of a round that is over finds no row, and moves nothing; so does one that is told twice.
_END_PROBE = "DELETE FROM safepoint.breaker_probes WHERE name = %s AND token = %s"


@dataclass(frozen=True, slots=True)
class Row:
    """A breaker's row; instants are seconds since the epoch, by the ledger's clock, infinite where there is no end."""

    name: str
    state: str
    opened_at: float | None
    next_probe_at: float | None
    detail: dict[str, Any]
    policy: dict[str, Any] = field(default_factory=dict)


def apply(connection: Connection, policies: Mapping[str, Policy], *, only_missing: bool = False) -> dict[str, str]:
    """Write policies, making the breakers that there are not yet; return what became of each: `added`, `changed` or
    `same`. `only_missing` leaves those that there are as they are.
    """
    done = {}
    for name in sorted(policies):
        done[name] = "same"
        if connection.execute(_INSERT, (name, Jsonb(policies[name]))).rowcount:
            done[name] = "added"
        elif not only_missing and connection.execute(_UPDATE, {"name": name, "policy": Jsonb(policies[name])}).rowcount:
            done[name] = "changed"
    return done


def names(connection: Connection) -> list[str]:
    """List the breakers that there are."""
    return [row[0] for row in connection.execute("SELECT name FROM safepoint.breakers ORDER BY name").fetchall()]


def lock(connection: Connection, wanted: Sequence[str]) -> tuple[float, list[Row]]:
    """Lock breakers until the transaction ends, and tell the time that has come by then (P7)."""
    rows = connection.execute(_LOCK, (list(wanted),)).fetchall()
    now = connection.execute(_NOW).fetchone()
    assert now is not None
    return float(now[0]), [Row(*row) for row in rows]


def write(connection: Connection, row: Row, *, actor: str, why: str, facts: Policy, anyway: bool = False) -> bool:
    """Write a locked breaker; answers whether its state has changed, which then is an event. `anyway` makes one of a
    person's word that changes nothing.
    """
    written = connection.execute(
        _WRITE,
        (
            *(row.name, row.state, row.opened_at, row.next_probe_at, Jsonb(row.detail)),
            *(actor, why, Jsonb(dict(facts)), anyway),
        ),
    ).fetchone()
    return written is not None and bool(written[0])


def end_probe(connection: Connection, name: str, *, token: UUID) -> bool:
    """Take a probe's row away; False when it was none of this round. Its breaker is locked by then."""
    return connection.execute(_END_PROBE, (name, token)).rowcount > 0

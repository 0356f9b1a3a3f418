"""Reads a run's committed history outside a claim: for an advance that must be repeated, and for `replay`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from .connect import Connection
from .key import Key
from .steps import Record

__all__ = ["History", "lock", "read"]


@dataclass(frozen=True, slots=True)
class History:
    """One generation's outcomes in commit order, and the state version that they make."""

    run: dict[str, Any]
    generation: int
    era: str
    state_version: int
    input: bytes
    input_encoding: str
    rows: tuple[Record, ...]


# One statement, one snapshot: the version and the rows agree.
_READ = """
SELECT jsonb_build_object('tenant', r.tenant_id, 'flow', r.flow, 'version', r.workflow_version, 'deadline',
r.deadline, 'budget', r.budget,
         'spent_tokens', r.spent_tokens, 'spent_usd', r.spent_usd, 'spent_retries', r.spent_retries,
         'versions', r.versions, 'tags', r.tags,
         'created_at', r.created_at, 'cancel_at', r.cancel_at, 'conversation', r.conversation_id, 'status', r.status),
       r.generation, r.attempt || '.' || r.generation, r.state_version, r.input, r.input_encoding,
       s.commit_seq, s.path, s.step_id, s.iteration, s.kind, s.status, s.input_hash, s.result,
       s.result_encoding, s.error, s.at, s.tokens + s.wasted_tokens,
       s.usd + s.wasted_usd
  FROM safepoint.runs r
  LEFT JOIN safepoint.steps s ON s.run_id = r.run_id AND s.generation = r.generation AND s.commit_seq IS NOT NULL
   AND s.kind <> 'compensation'
 WHERE r.run_id = %s ORDER BY s.commit_seq
"""


def read(connection: Connection, run_id: UUID) -> History:
    """Return the history of the run's current generation; raises LookupError for an unknown run."""
    rows = connection.execute(_READ, (run_id,)).fetchall()
    if not rows:
        raise LookupError(f"no run {run_id}")
    run, generation, era, version, data, encoding = rows[0][:6]
    records = tuple(Record(row[6], Key(generation, *row[7:10]), *row[10:]) for row in rows if row[6] is not None)
    return History(run, generation, era, version, data, encoding, records)


def lock(connection: Connection, run_id: UUID) -> None:
    """Lock the run's row for the transaction at hand (P1)."""
    connection.execute("SELECT FROM safepoint.runs WHERE run_id = %s FOR NO KEY UPDATE", (run_id,))

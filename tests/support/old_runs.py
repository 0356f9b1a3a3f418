"""Runs that ended long ago, by the ledger's clock, as no verb can make them today."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

from safepoint.ledger.connect import Connection

__all__ = ["old_run"]


def old_run(
    connection: Connection, status: str = "succeeded", *, days: float = 40, run: UUID | None = None, **columns: Any
) -> UUID:
    """Make a run that ended so many days ago, with one event; one that is live began then."""
    live = status not in ("succeeded", "failed", "cancelled")
    given: dict[str, Any] = {"tenant_id": "default", "flow": "f", "event_seq": 1, **columns}
    names, values = ", ".join(given), ", ".join(f"%({name})s" for name in given)
    id_ = run or uuid4()
    connection.execute(
        f"INSERT INTO safepoint.runs (run_id, status, input, input_encoding, input_hash, workflow_version, created_at,"
        f" updated_at, finished_at, {names}) SELECT %(run)s, %(status)s, '{{}}', 'json', 'h', '1', at, at,"
        f" CASE WHEN %(live)s THEN NULL ELSE at END, {values} FROM"
        f" (SELECT safepoint.now() - make_interval(secs => %(age)s) AS at) x".encode(),
        {"run": id_, "status": status, "live": live, "age": days * 86_400, **given},
    )
    connection.execute(
        "INSERT INTO safepoint.events (run_id, seq, tenant_id, type, at) VALUES (%s, 1, 'default', 'run.queued',"
        " safepoint.now())",
        (id_,),
    )
    return id_

"""What is left of runs that were pruned: who comes late is told so, and writes nothing (P40)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final
from uuid import UUID

from psycopg.sql import SQL

from .connect import Connection
from .errors import RunPruned, UnknownRun

__all__ = ["missing", "of_beginning", "of_effect"]

_COLUMNS: Final = SQL("p.run_id, p.flow, p.status, p.finished_at, p.pruned_at")
# Each by its primary key.
_RUN: Final = SQL("SELECT {} FROM safepoint.pruned_runs p WHERE p.run_id = %s").format(_COLUMNS)
_BEGINNING: Final = SQL(
    "SELECT {} FROM safepoint.pruned_runs p WHERE p.run_id BETWEEN %s AND %s ORDER BY p.run_id LIMIT 2"
).format(_COLUMNS)
_EFFECT: Final = SQL(
    "SELECT {} FROM safepoint.pruned_effects e JOIN safepoint.pruned_runs p USING (run_id)"
    " WHERE e.idempotency_key BETWEEN %s AND %s ORDER BY e.idempotency_key LIMIT 2"
).format(_COLUMNS)


def missing(connection: Connection, run_id: UUID | str) -> UnknownRun:
    """Return the error for a run that is not there: it was pruned, or there has never been one."""
    row = connection.execute(_RUN, (run_id,)).fetchone()
    return UnknownRun(run_id=str(run_id)) if row is None else _error(*row)


def of_beginning(connection: Connection, low: UUID, high: UUID) -> RunPruned | None:
    """Return the error for the one pruned run whose id lies between two; None when none or several do."""
    found = connection.execute(_BEGINNING, (low, high)).fetchall()
    return _error(*found[0]) if len(found) == 1 else None


def of_effect(connection: Connection, digits: str) -> RunPruned | None:
    """Return the error for the one pruned effect whose key begins with these digits; None when none or several do."""
    low, high = (bytes.fromhex((digits + 64 * filler)[:64]) for filler in "0f")
    found = connection.execute(_EFFECT, (low, high)).fetchall()
    return _error(*found[0]) if len(found) == 1 else None


def _error(run_id: UUID, flow: str, status: str, finished_at: datetime, pruned_at: datetime) -> RunPruned:
    return RunPruned(
        run_id=str(run_id), flow=flow, status=status, finished_at=finished_at.astimezone(UTC),
        pruned_at=pruned_at.astimezone(UTC),
    )  # fmt: skip

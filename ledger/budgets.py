"""What people do to budgets: see one with the runs that share it, and add to it."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from uuid import UUID

from .connect import Connection
from .control import resume

__all__ = ["Raised", "add", "changes", "release_held"]


@dataclass(frozen=True, slots=True)
class Raised:
    """What came of it: `raised`, `already` (this very call), or why not: `unknown`, `unbounded` (`detail`: of what),
    `final` (`detail`: the run's status).
    """

    answer: str
    detail: str | None = None

    @property
    def is_done(self) -> bool:
        """Whether the budget is as it was meant."""
        return self.answer in {"raised", "already"}


def add(  # noqa: PLR0913  # one change's parts, each by name
    connection: Connection,
    run_id: UUID,
    *,
    id_: UUID,
    tokens: int | None = None,
    usd: Decimal | None = None,
    retries: int | None = None,
    by: str,
    why: str | None = None,
) -> Raised:
    """Add to the budget that a run spends from; repeated with the same `id_` it adds once (P3)."""
    row = connection.execute(
        "SELECT safepoint.raise_budget_v1(%s, %s, %s, %s, %s, %s, %s)", (run_id, id_, tokens, usd, retries, by, why)
    ).fetchone()
    facts: dict[str, Any] = row[0] if row else {"answer": "unknown"}
    return Raised(facts["answer"], facts.get("detail"))


# By runs_budget; a family is locked run by run, never together (P2).
_HELD = (
    "SELECT r.run_id FROM safepoint.runs r WHERE r.budget_id = (SELECT budget_id FROM safepoint.runs WHERE run_id = %s)"
    " AND r.holds ? 'budget' ORDER BY r.run_id"
)


def release_held(connection: Connection, run_id: UUID, *, by: str) -> dict[UUID, str]:
    """Let the runs of the family go on that are held for their budget; answers the status of each after it."""
    found = connection.execute(_HELD, (run_id,)).fetchall()
    return {held: resume(connection, held, by=by, code="budget") for (held,) in found}


def changes(connection: Connection, run_id: UUID) -> list[dict[str, Any]]:
    """Give what was added to the run's budget, by whom and why, the oldest first."""
    row = connection.execute(
        "SELECT b.changes FROM safepoint.runs r JOIN safepoint.budgets b USING (budget_id) WHERE r.run_id = %s",
        (run_id,),
    ).fetchone()
    return row[0] if row else []

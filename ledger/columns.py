"""What the tables' descriptions have in common: the metadata, columns that must and may be there, keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import CheckConstraint, Column, DateTime, ForeignKey, Integer, MetaData, Text, Uuid, text

__all__ = [
    "CLOCK", "INSTANT", "METADATA", "NEVER", "STEP_KEY", "may", "must", "of_run", "one_of", "reference", "step_key",
]  # fmt: skip

METADATA: Final = MetaData(schema="safepoint")

STEP_KEY: Final = ("run_id", "generation", "path", "step_id", "iteration")

INSTANT = DateTime(timezone=True)
CLOCK = text("clock_timestamp()")
NEVER = text("'-infinity'")


def must(name: str, kind: Any, default: str | int | None = None) -> Column[Any]:
    """Describe a column that is never NULL."""
    return Column(name, kind, nullable=False, server_default=None if default is None else text(str(default)))


def may(name: str, kind: Any) -> Column[Any]:
    """Describe a column that may be NULL."""
    return Column(name, kind, nullable=True)


def one_of(name: str, values: Sequence[str], column: str = "status") -> CheckConstraint:
    """Describe the check that a column has one of these values."""
    listed = ", ".join(f"'{value}'" for value in values)
    return CheckConstraint(f"{column} IN ({listed})", name=name)


def reference(column: str) -> ForeignKey:
    """Describe a reference to a column of another table, whose rows take these with them."""
    return ForeignKey(f"safepoint.{column}", ondelete="CASCADE")


def of_run() -> Column[Any]:
    """Describe the run that a row belongs to."""
    return Column("run_id", Uuid, reference("runs.run_id"), nullable=False)


def step_key() -> tuple[Column[Any], ...]:
    """Describe the columns that name a step."""
    return (
        of_run(),
        must("generation", Integer),
        must("path", Text),
        must("step_id", Text),
        must("iteration", Integer),
    )

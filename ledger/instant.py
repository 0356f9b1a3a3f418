"""Instants of the ledger as SQL that cannot fail in Python: PostgreSQL knows infinity, `datetime` does not."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import ColumnElement, case, extract, func, literal_column

__all__ = ["NOW", "iso", "seconds_to"]

NOW: Final[ColumnElement[Any]] = func.safepoint.now()  # P7: the one clock


def iso(column: ColumnElement[Any]) -> ColumnElement[str]:
    """Give an instant as an ISO 8601 text, or `infinity`."""
    return func.to_jsonb(column).op("#>>")(literal_column("'{}'"))


def seconds_to(column: ColumnElement[Any]) -> ColumnElement[Any]:
    """Give the seconds from now to an instant; NULL for none and for infinity, which cannot be subtracted."""
    return case((func.isfinite(column), extract("epoch", column - NOW)), else_=None)

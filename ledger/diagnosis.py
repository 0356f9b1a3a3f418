"""What PostgreSQL says about an error, whichever driver or framework has wrapped it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["Diagnosis"]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The SQLSTATE with the detail and the hint for programs; all None when the error is not PostgreSQL's."""

    state: str | None = None
    detail: str | None = None
    hint: str | None = None

    @classmethod
    def of(cls, error: BaseException) -> Diagnosis:
        """Read an error of psycopg's or asyncpg's, alone or wrapped by SQLAlchemy or Django."""
        state = detail = hint = None
        for one in _layers(error):
            told = getattr(one, "diag", None)
            state = state or getattr(one, "sqlstate", None)
            detail = detail or getattr(told, "message_detail", None) or getattr(one, "detail", None)
            hint = hint or getattr(told, "message_hint", None) or getattr(one, "hint", None)
        return cls(*(None if part is None else str(part) for part in (state, detail, hint)))


def _layers(error: BaseException | None) -> Iterator[BaseException]:
    for _ in range(4):
        if error is None:
            return
        yield error
        error = getattr(error, "orig", None) or error.__cause__

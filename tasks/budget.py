"""A budget: how many tokens, how much money and how many retries a run or a step may use; None is no bound."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

__all__ = ["Budget"]


@dataclass(frozen=True, slots=True)
class Budget:
    """Bounds of a run, or what a step reserves before it starts."""

    tokens: int | None = None
    usd: float | None = None
    retries: int | None = None

    def __post_init__(self) -> None:
        """Refuse what is no amount."""
        for field in fields(self):
            value = getattr(self, field.name)
            whole = field.name != "usd"
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
                msg = f"Budget({field.name}={value!r}): accepted is {'a whole number' if whole else 'a number'}"
                raise TypeError(msg)
            if not math.isfinite(value) or value < 0:
                msg = f"Budget({field.name}={value!r}): accepted is a finite amount that is not negative"
                raise ValueError(msg)

    def less(self, *, tokens: int = 0, usd: float = 0.0, retries: int = 0) -> Budget:
        """Give what is left after spending; never below nothing."""
        return Budget(
            tokens=None if self.tokens is None else max(0, self.tokens - tokens),
            usd=None if self.usd is None else max(0.0, self.usd - usd),
            retries=None if self.retries is None else max(0, self.retries - retries),
        )

"""What a system has shown in one turn. Pure."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from spent import Bill

__all__ = ["STEPS", "Round", "growth"]

STEPS = 10  # of each run under load
PART, FEWEST = 10, 50  # a tenth of a long run's steps at each end, or so many: one checkpoint outlasts fifty


@dataclass(frozen=True, slots=True)
class Round:
    """What a turn has shown. Times of steps and starts are milliseconds, rates runs a second."""

    steps: int
    seconds: float
    bill: Bill
    alone: list[float]
    start: list[float]
    statements: float | None = None  # a step
    trips: float | None = None  # claims and commits of our executors, a run
    long: dict[str, float] = field(default_factory=dict)
    enqueue: dict[str, float] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """Steps a second."""
        return self.steps / self.seconds

    @property
    def cpu(self) -> float:
        """Milliseconds of processor a step, of all that the system consists of."""
        return sum(self.bill.cpu.values()) * 1000 / self.steps

    @classmethod
    def read(cls, kept: dict[str, Any]) -> Round:
        """Return what `asdict` has made of a round."""
        return cls(**{**kept, "bill": Bill(**kept["bill"])})

    def kept(self) -> dict[str, Any]:
        """Return it as JSON can have it."""
        return asdict(self)


def growth(instants: Sequence[float]) -> dict[str, float]:
    """Return how many steps there were, and the median milliseconds of one after the tenth and of one at the end."""
    gaps = [(later - earlier) * 1000 for earlier, later in itertools.pairwise(instants)]
    window = max(1, min(max(FEWEST, len(gaps) // PART), (len(gaps) - 10) // 2))
    return {
        "steps": len(instants),
        "early": statistics.median(gaps[10 : 10 + window]),
        "late": statistics.median(gaps[-window:]),
    }

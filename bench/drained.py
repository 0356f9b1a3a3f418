"""A storm as it is planned, and as it was seen."""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import UUID

from arrivals import Served
from figures import Move
from sampling import Sample, Usage

__all__ = ["Drained", "Plan"]


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured; times in seconds, rates a second."""

    orphans: int = 10_000
    tenants: int = 50
    skew: float = 5.0  # rows of the first tenant for each one of another
    rate: float = 100.0
    burst: int = 50
    in_flight: int = 50
    latency: float = 0.2  # of the dependency: the rate binds
    slow: float = 0.8  # for a quarter of the orphans: the cap binds
    live: float = 5.0  # runs a second, of two steps each
    live_seconds: float = 0.2  # that the longer of them takes
    before: float = 60.0  # of live traffic alone
    outage: float = 0.0  # that the dependency fails, from a third of the orphans on
    window: float = 5.0  # that the breaker looks at


@dataclass
class Drained:
    """Everything that was seen of one storm; instants are seconds since the epoch."""

    plan: Plan
    broker: str
    before: tuple[float, float] = (0.0, 0.0)
    released: float = 0.0
    ended: float = 0.0
    slow: tuple[float, float] | None = None
    outage: tuple[float, float] | None = None
    orphans: frozenset[UUID] = frozenset()
    ends: dict[str, int] = field(default_factory=dict)
    committed_twice: int = 0
    attempts: dict[int, int] = field(default_factory=dict)
    moves: list[Move] = field(default_factory=list)
    served: list[Served] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    usages: list[Usage] = field(default_factory=list)
    turns: list[tuple[float, str, str]] = field(default_factory=list)  # when, to which state, why
    calls: list[tuple[float, str, str]] = field(default_factory=list)

"""What admission must do, in plain Python: a bucket, places, turns of tenants and the order within one. Reads no table.

`Row` is a step as the tables have it; `Limits` what holds of a lane. A `Round` is one look of the relays at one lane.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from math import inf
from typing import Any

__all__ = ["Bucket", "Limits", "Place", "Round", "Row", "Turns"]

Place = tuple[Any, int, str, str, int]
EPSILON = 1e-6


@dataclass(frozen=True, slots=True)
class Limits:
    """What holds of a lane now; None: no limit."""

    rate: float | None = None
    burst: float | None = None
    in_flight: int | None = None
    tenant_in_flight: int | None = None
    window: int | None = None
    weights: Mapping[str, float] = field(default_factory=dict)
    order: str = "priority"
    stop_on_breaker: bool = True
    paused: bool = False

    @classmethod
    def of(cls, policy: Mapping[str, Any]) -> Limits:
        """Read a policy with what stands over it."""
        kept = {key: value for key, value in policy.items() if value is not None}
        return cls(**kept)

    @property
    def is_limited(self) -> bool:
        """Whether everything of the lane is admitted."""
        return (self.rate, self.in_flight, self.tenant_in_flight) != (None, None, None)

    @property
    def bucket(self) -> float:
        """What may be sent at once."""
        return self.burst if self.burst is not None else max(self.rate or 0.0, 1.0)


@dataclass(frozen=True, slots=True)
class Row:
    """A step that is ready or running, and what of its run matters here."""

    place: Place
    tenant: str
    lane: str
    status: str
    kind: str
    uses: str | None
    queued: int
    priority: int
    deadline: float | None
    due: float
    is_sent: bool
    is_new_run: bool
    reason: str | None
    claimed_from: str | None
    flow: str
    is_parked: bool

    def is_in_flight_on(self, lane: str) -> bool:
        """Whether it takes one of the lane's places."""
        return self.claimed_from == lane if self.status == "running" else self.is_sent and self.lane == lane

    def turn(self, order: str) -> tuple[float, ...]:
        """What it goes by within its tenant: smaller is sooner."""
        urgency, deadline = -self.priority, inf if self.deadline is None else self.deadline
        return (1 + self.is_new_run, *((deadline, urgency) if order == "deadline" else (urgency, deadline)), self.due)

    def assert_somewhere(self, now: float) -> None:
        """It is in exactly one place: parked, on its way, in the queue, aside, or waiting for its time."""
        if self.status != "ready":
            return
        is_parked, is_queued = self.due == inf, self.queued > 0
        assert is_parked == self.is_parked, self
        assert not (self.is_sent and (is_parked or is_queued)), self
        if is_queued and not is_parked:
            assert self.due <= now, self
            assert self.reason != "breaker", self


class Bucket:
    """Tokens by the limits that held then; to go below nothing is to have sent too many in some interval."""

    def __init__(self) -> None:
        self.rate: float | None = None
        self.size = self.level = 0.0
        self.at = 0.0

    def limit(self, limits: Limits, now: float) -> None:
        """Let other limits hold from now on."""
        self._fill(now)
        was, self.rate, self.size = self.rate, limits.rate, limits.bucket
        self.level = self.size if was is None else min(self.level, self.size)

    def send(self, count: int, now: float) -> None:
        """Take what was sent out of it."""
        self._fill(now)
        if self.rate is None:
            return
        assert count == 0 or self.rate > 0
        self.level -= count
        assert self.level >= -EPSILON, f"{count} sent of {self.level + count}"

    def has_one(self, now: float) -> bool:
        """Whether one more may be sent."""
        self._fill(now)
        return self.rate is None or (self.rate > 0 and self.level >= 1 + EPSILON)

    def _fill(self, now: float) -> None:
        self.level = min(self.size, self.level + (self.rate or 0.0) * (now - self.at))
        self.at = now


@dataclass(frozen=True, slots=True)
class Round:
    """What was there before, what was admitted, and what is there after."""

    lane: str
    limits: Limits
    now: float
    flows: frozenset[str]
    is_breaker_open: bool
    before: Mapping[Place, Row]
    after: Mapping[Place, Row]
    sent: Counter[Place]
    began: Mapping[Place, Row]  # `before`, without what came while it went on

    @property
    def admitted(self) -> list[Row]:
        """What has got a place now and had none before."""
        return [self.before[place] for place in self.sent if not self.before[place].is_sent]

    def may_go(self, row: Row) -> bool:
        """Whether it could be admitted, were there room."""
        is_here = row.status == "ready" and row.lane == self.lane and not row.is_sent
        is_due = row.due <= self.now or (row.reason == "breaker" and row.due < inf)
        return is_here and is_due and row.flow in self.flows and not self.is_stopped(row)

    def is_stopped(self, row: Row) -> bool:
        """Whether its dependency's breaker keeps it back."""
        return self.is_breaker_open and row.uses is not None and self.limits.stop_on_breaker

    def in_flight(self, rows: Mapping[Place, Row]) -> Counter[str]:
        """Count the lane's places that are taken, by tenant."""
        return Counter(row.tenant for row in rows.values() if row.is_in_flight_on(self.lane))

    def waiting(self, rows: Mapping[Place, Row]) -> dict[str, list[Row]]:
        """Give what could be admitted, by tenants below their cap; what comes back from aside stood in no turn."""
        cap, busy = self.limits.tenant_in_flight, self.in_flight(rows)
        found: dict[str, list[Row]] = {}
        for row in rows.values():
            if self.may_go(row) and row.reason != "breaker" and (cap is None or busy[row.tenant] < cap):
                found.setdefault(row.tenant, []).append(row)
        return found

    def has_slot(self) -> bool:
        """Whether one more could have been in flight all along."""
        places = max(sum(self.in_flight(rows).values()) for rows in (self.before, self.after))
        unclaimed = max(
            sum(row.status == "ready" and row.is_in_flight_on(self.lane) for row in rows.values())
            for rows in (self.before, self.after)
        )
        return places < (inf if self.limits.in_flight is None else self.limits.in_flight) and unclaimed < (
            inf if self.limits.window is None else self.limits.window
        )

    def assert_fits(self, bucket: Bucket, limit: int, *, is_whole: bool = True) -> None:
        """Everything that must hold of one round alone; one that is not whole may have been kept from this lane."""
        count = sum(self.sent.values())
        assert count <= limit
        assert not (count and self.limits.paused), "a paused lane sends nothing"
        assert set(self.sent.values()) <= {1}, "a row goes out once a round"
        assert not [row for row in self.admitted if not self.may_go(row)], "what may not go was sent"
        bucket.send(count, self.now)
        if is_whole and count == 0 and bucket.has_one(self.now) and self.has_slot() and not self.limits.paused:
            assert not (self.waiting(self.before) and self.waiting(self.after)), "there is room, and nobody goes"
        if is_whole and self.limits.is_limited:
            self._assert_order()

    def _assert_order(self) -> None:
        left = [row for row in self.before.values() if self.may_go(row) and row.place not in self.sent]
        for row in self.admitted:
            for other in left:
                if other.tenant == row.tenant and "breaker" not in (row.reason, other.reason):
                    assert row.turn(self.limits.order) <= other.turn(self.limits.order), (row, other)


class Turns:
    """How far tenants that wait all the time are apart; counted anew whenever one of them had nothing that could go."""

    def __init__(self) -> None:
        self.served: dict[tuple[str, str], tuple[float, float, float]] = {}
        self.weights: Mapping[str, float] = {}

    def add(self, round_: Round) -> None:
        """Count a round of a limited lane."""
        if round_.limits.weights != self.weights:
            self.served.clear()
            self.weights = round_.limits.weights
        before, after = round_.waiting(round_.began), round_.waiting(round_.after)
        backlogged = sorted(set(before) & set(after))
        got = Counter(row.tenant for row in round_.admitted)
        pairs = set(combinations(backlogged, 2)) if round_.limits.is_limited else set()
        self.served = {(one, other): self._further(one, other, got[one], got[other]) for one, other in _sorted(pairs)}

    def _further(self, one: str, other: str, ones: int, others: int) -> tuple[float, float, float]:
        weight, weight_of_other = self.weights.get(one, 1.0), self.weights.get(other, 1.0)
        lead, low, high = self.served.get((one, other), (0.0, 0.0, 0.0))
        lead += ones / weight - others / weight_of_other
        low, high = min(low, lead), max(high, lead)
        assert high - low <= 1 / weight + 1 / weight_of_other + EPSILON, (one, other, low, high)
        return lead, low, high


def _sorted(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    return sorted(pairs)

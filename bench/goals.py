"""What we want to reach, beside what was measured. Ratios are taken within each pass, and of them the median. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from compared import Compared
from comparison import table
from contenders import CONTENDERS
from figures import percentile
from rounds import STEPS, Round

__all__ = ["Goal", "at_least", "at_most", "goals", "judge"]

Measure = Callable[[Round], float]
IN_PLACE = {
    "inline-rabbitmq-threads": ("RabbitMQ, threads", {"Restate": 1.8, "Absurd": 2.0, "DBOS": 5.0}),
    "inline-redis": ("Redis, prefork", {"Restate": 1.3, "Absurd": 1.8, "DBOS": 4.0}),
}
RIVALS = {"Restate": ("restate",), "Absurd": ("absurd",), "DBOS": ("dbos-threads", "dbos-queue")}
THREADS = "inline-rabbitmq-threads"


@dataclass(frozen=True, slots=True)
class Goal:
    """A bound, and what was measured: NaN when it was not."""

    what: str
    sign: str
    bound: float
    value: float
    unit: str

    @property
    def is_met(self) -> bool:
        """Whether the value keeps the bound."""
        return self.value >= self.bound if self.sign == "≥" else self.value <= self.bound

    def row(self) -> list[str]:
        """Return its line of the table."""
        bound = f"{self.sign} {self.bound:,g}{self.unit}"
        if math.isnan(self.value):
            return [self.what, bound, "–", "not measured"]
        shown = f"{self.value:,.0f}" if self.value >= 100 else f"{self.value:.2f}"
        return [self.what, bound, f"{shown}{self.unit}", "met" if self.is_met else "**missed**"]


def at_least(what: str, bound: float, value: float, unit: str = "") -> Goal:
    """Return a goal that a large value meets."""
    return Goal(what, "≥", bound, value, unit)


def at_most(what: str, bound: float, value: float, unit: str = "") -> Goal:
    """Return a goal that a small value meets."""
    return Goal(what, "≤", bound, value, unit)


def goals(compared: Compared) -> list[str]:
    """Return the table of goals."""
    return table(["goal", "bound", "measured", ""], (goal.row() for goal in judge(compared)))


def judge(compared: Compared) -> list[Goal]:
    """Return all goals with what was measured."""
    return [*_by_message(compared), *_in_place(compared), *_round_trips(compared), *_growth(compared), *_rest(compared)]


def _by_message(compared: Compared) -> list[Goal]:
    found = []
    for broker, shown in (("redis", "Redis"), ("rabbitmq", "RabbitMQ")):
        mine, chain = f"ours-{broker}", (f"chain-{broker}",)
        what = f"one message a step, {shown}, prefork"
        found += [
            at_least(f"{what}: steps/s ÷ Celery chain", 1.2, _ratio(compared, mine, chain, _rate), " ×"),
            at_most(f"{what}: CPU/step ÷ Celery chain", 0.8, _ratio(compared, mine, chain, _cpu), " ×"),
            at_least(f"{what}: steps/s ÷ DBOS", 2, _ratio(compared, mine, RIVALS["DBOS"], _rate), " ×"),
            at_least(f"{what}: steps/s ÷ LangGraph", 2, _ratio(compared, mine, ("langgraph",), _rate), " ×"),
        ]
    return found


def _in_place(compared: Compared) -> list[Goal]:
    found = [
        at_least(f"in place, {where}: steps/s ÷ {rival}", bound, _ratio(compared, name, RIVALS[rival], _rate), " ×")
        for name, (where, bounds) in IN_PLACE.items()
        for rival, bound in bounds.items()
    ]
    alone = _median(compared, THREADS, lambda one: statistics.median(one.alone))
    return [
        *found,
        at_most("in place, RabbitMQ, threads: CPU/step", 1.2, _median(compared, THREADS, _cpu), " ms"),
        at_most("in place, RabbitMQ, threads: a step alone", 0.7, alone, " ms"),
    ]


def _round_trips(compared: Compared) -> list[Goal]:
    return [
        at_most("an executor's round trips a step, one message a step", 2, _trips(compared, "ours-redis")),
        # The first step of a run comes by message, and is claimed so.
        at_most("an executor's round trips a step, in place", 1, _trips(compared, THREADS, spared=1)),
    ]


def _growth(compared: Compared) -> list[Goal]:
    found = []
    for name in ("ours-redis", THREADS):
        long = next((one.long for one in reversed(compared.rounds.get(name, [])) if one.long), None)
        ratio = long["late"] / long["early"] if long else math.nan
        what = CONTENDERS[name].name.removeprefix("Safepoint, ")
        found.append(at_most(f"growth, {what}: end ÷ start of a long run", 1.2, ratio, " ×"))
    return found


def _rest(compared: Compared) -> list[Goal]:
    found = [
        at_most(f"recovery, {name} killed, p95", 0.5 if "child" in name else 1.0, _p95(took), " s")
        for name, took in compared.deaths.items()
    ]
    for kind, bound in (("one by one", 1500), ("in bulk", 8000)):
        rates = [one.enqueue[kind] for one in _ours(compared) if kind in one.enqueue]
        value = statistics.median(rates) if rates else math.nan
        found.append(at_least(f"enqueue, one client, {kind}", bound, value, " runs/s"))
    return [
        *found,
        at_most("idle stack with its servers, share of a core", 2, compared.idle.get("core", math.nan) * 100, " %"),
        at_most("idle stack, statements a second", 5, compared.idle.get("statements", math.nan)),
    ]


def _ours(compared: Compared) -> list[Round]:
    return [one for name, done in compared.rounds.items() if name.startswith(("ours", "inline")) for one in done]


def _p95(took: Sequence[float | None]) -> float:
    return percentile([math.inf if one is None else one for one in took], 0.95)


def _ratio(compared: Compared, name: str, others: Sequence[str], value: Measure) -> float:
    """Compare with the best of the others: of two forms of a peer the faster one counts."""
    found = [ratio for other in others if not math.isnan(ratio := _paired(compared, name, other, value))]
    return min(found, default=math.nan)


def _paired(compared: Compared, name: str, other: str, value: Measure) -> float:
    pairs = zip(compared.rounds.get(name, []), compared.rounds.get(other, []), strict=False)
    ratios = [value(mine) / value(theirs) for mine, theirs in pairs]
    return statistics.median(ratios) if ratios else math.nan


def _trips(compared: Compared, name: str, *, spared: int = 0) -> float:
    """Claims and commits a step; a run has one more than it says, its start."""
    counted = [one.trips - spared for one in compared.rounds.get(name, []) if one.trips is not None]
    return statistics.median(counted) / (STEPS + 1) if counted else math.nan


def _median(compared: Compared, name: str, value: Measure) -> float:
    done = compared.rounds.get(name, [])
    return statistics.median(value(one) for one in done) if done else math.nan


def _rate(one: Round) -> float:
    return one.rate


def _cpu(one: Round) -> float:
    return one.cpu

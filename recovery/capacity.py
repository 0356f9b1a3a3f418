"""Computes what dependencies bear: calls a second, calls at once, and from these worker slots and the rate of recovery.

Pure: it takes limits and what has been measured, and reads nothing. With W seconds and k tokens a call:

- tokens a minute: T / 60 / k calls a second; requests a minute: R / 60; requests a second as they are;
- connections: by Little's law (J. D. C. Little, "A Proof for the Queuing Formula L = λW", Operations Research 9, 1961)
  L calls at once of W seconds each are L / W calls a second;
- the narrowest of these, λ, is what the dependency bears, and λ · W the calls at once that reach it: more worker slots
  only wait, or are throttled;
- recovery may take its share of both, so that live traffic keeps the rest when everything comes back at once. It is
  assumed that every recovered step calls the dependency: a storm may be of one kind;
- connections that processes hold all the time (PostgreSQL's, the broker's) bound workers instead: w workers of c slots
  hold w · (a + c · b).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..config.dependencies import Dependency

__all__ = ["Bears", "Bound", "Figure", "Finding", "Measured", "Most", "Plan", "bears", "compare", "plan", "round_down"]

ABOUT = 1e-9  # a number that arithmetic has left a hair below a whole one is that one


@dataclass(frozen=True, slots=True)
class Measured:
    """What the ledger has seen of a dependency's calls: medians, and of how many."""

    seconds_per_call: float | None = None
    tokens_per_call: float | None = None
    calls: int = 0


@dataclass(frozen=True, slots=True)
class Figure:
    """A number, and whether it was `configured` or `measured`."""

    value: float
    source: str


@dataclass(frozen=True, slots=True)
class Bound:
    """One of a dependency's limits, and the calls a second that it comes to; None: a figure for it is missing."""

    key: str
    limit: float
    calls_per_second: float | None


@dataclass(frozen=True, slots=True)
class Bears:
    """What one dependency bears; None where it sets no bound, or where a figure is missing."""

    name: str
    bounds: tuple[Bound, ...]
    share: float
    seconds: Figure | None
    tokens: Figure | None
    calls_per_second: float | None
    concurrency: float | None  # calls at once
    held: tuple[float, float] | None  # connections of a worker and of each slot
    connections: int | None
    missing: tuple[str, ...]

    @property
    def recovery_rate(self) -> float | None:
        """The steps a second that recovery may take."""
        return None if self.calls_per_second is None else self.share * self.calls_per_second

    @property
    def recovery_in_flight(self) -> int | None:
        """The steps at once that recovery may have; one, where its share is less."""
        return None if self.concurrency is None else max(1, _whole(self.share * self.concurrency))

    def workers(self, concurrency: int) -> int | None:
        """How many workers of so many slots it bears."""
        if self.held is not None and self.connections is not None:
            return _whole(self.connections / (self.held[0] + concurrency * self.held[1]))
        return None if self.concurrency is None else _whole(self.concurrency / concurrency)

    def slots(self, concurrency: int) -> int | None:
        """How many worker slots it bears, in workers of so many."""
        if self.held is not None:
            workers = self.workers(concurrency)
            return None if workers is None else workers * concurrency
        return None if self.concurrency is None else _whole(self.concurrency)


@dataclass(frozen=True, slots=True)
class Most:
    """The most that is borne, and by which dependency no more."""

    value: float
    by: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What all dependencies together bear: of each number the narrowest one's; None where none sets a bound."""

    bears: tuple[Bears, ...]
    concurrency: int
    narrowest: str | None
    calls_per_second: Most | None
    slots: Most | None
    workers: Most | None
    rate: Most | None
    in_flight: Most | None


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is set higher than is borne: what there is (None: no limit), what is borne, what is to be."""

    key: str
    have: float | None
    bears: float
    may: float
    by: str


def bears(name: str, limits: Dependency, measured: Measured) -> Bears:
    """Compute what a dependency bears; what is configured goes before what was measured."""
    seconds = _figure(limits.seconds_per_call, measured.seconds_per_call)
    tokens = _figure(limits.tokens_per_call, measured.tokens_per_call)
    held = limits.held(name)
    bounds = tuple(_bounds(limits, seconds, tokens, is_held=held is not None))
    rates = [bound.calls_per_second for bound in bounds if bound.calls_per_second is not None]
    rate = min(rates, default=None)
    at_once: float | None = None if held is not None or limits.connections is None else float(limits.connections)
    if rate is not None and seconds is not None:
        at_once = min(rate * seconds.value, math.inf if at_once is None else at_once)
    return Bears(
        name, bounds, limits.share_of_recovery, seconds, tokens, rate, at_once, held, limits.connections,
        missing=tuple(_missing(bounds, seconds, is_held=held is not None)),
    )  # fmt: skip


def _figure(configured: float | None, measured: float | None) -> Figure | None:
    if configured is not None:
        return Figure(configured, "configured")
    return Figure(measured, "measured") if measured else None  # a step that reports no tokens says nothing of them


def _bounds(limits: Dependency, seconds: Figure | None, tokens: Figure | None, *, is_held: bool) -> Iterator[Bound]:
    if limits.tokens_per_minute is not None:
        rate = limits.tokens_per_minute / 60 / tokens.value if tokens else None
        yield Bound("tokens_per_minute", limits.tokens_per_minute, rate)
    if limits.requests_per_minute is not None:
        yield Bound("requests_per_minute", limits.requests_per_minute, limits.requests_per_minute / 60)
    if limits.requests_per_second is not None:
        yield Bound("requests_per_second", limits.requests_per_second, limits.requests_per_second)
    if limits.connections is not None:
        rate = limits.connections / seconds.value if seconds and not is_held else None
        yield Bound("connections", limits.connections, rate)


def _missing(bounds: Sequence[Bound], seconds: Figure | None, *, is_held: bool) -> Iterator[str]:
    if any(bound.key == "tokens_per_minute" and bound.calls_per_second is None for bound in bounds):
        yield "tokens_per_call"
    if seconds is None and not (is_held and all(bound.key == "connections" for bound in bounds)):
        yield "seconds_per_call"


def plan(limits: Mapping[str, Dependency], measured: Mapping[str, Measured], *, concurrency: int) -> Plan:
    """Compute what all of them bear, in workers of so many slots."""
    found = tuple(bears(name, limits[name], measured.get(name, Measured())) for name in sorted(limits))
    rate = _narrowest((one.name, one.calls_per_second) for one in found)
    slots = _narrowest((one.name, one.slots(concurrency)) for one in found)
    narrowest = rate or slots
    return Plan(
        found,
        concurrency,
        narrowest.by if narrowest else None,
        rate,
        slots,
        workers=_narrowest((one.name, one.workers(concurrency)) for one in found),
        rate=_narrowest((one.name, one.recovery_rate) for one in found),
        in_flight=_narrowest((one.name, one.recovery_in_flight) for one in found),
    )


def _narrowest(values: Iterator[tuple[str, float | None]]) -> Most | None:
    known = [Most(value, name) for name, value in values if value is not None]
    return min(known, key=lambda one: (one.value, one.by), default=None)


def compare(
    found: Plan, *, rate: float | None, burst: float | None, in_flight: float | None, slots: int
) -> list[Finding]:
    """Tell what of the recovery lane's policy, and of the workers that there are, is more than is borne, and by whom.

    Of each key the narrowest dependency comes first.
    """
    return [
        *sorted(_rates(found, rate, burst), key=lambda one: (one.key != "rate", one.may)),
        *sorted(_at_once(found, in_flight), key=lambda one: one.may),
        *sorted(_slots(found, slots), key=lambda one: one.may),
    ]


def _rates(found: Plan, rate: float | None, burst: float | None) -> Iterator[Finding]:
    for one in found.bears:
        if one.recovery_rate is None or one.calls_per_second is None:
            continue
        may = round_down(one.recovery_rate)
        if rate is None or rate > one.recovery_rate + ABOUT:
            yield Finding("rate", rate, one.calls_per_second, may, one.name)
        # One second's worth of what all may take: a burst above it is throttled at once.
        most = max(1, _whole(one.calls_per_second))
        if burst is not None and burst > most:
            yield Finding("burst", burst, most, max(1, _whole(may)), one.name)


def _at_once(found: Plan, in_flight: float | None) -> Iterator[Finding]:
    for one in found.bears:
        most = one.recovery_in_flight
        if most is not None and (in_flight is None or in_flight > most):
            yield Finding("in_flight", in_flight, one.concurrency or 0.0, most, one.name)


def _slots(found: Plan, slots: int) -> Iterator[Finding]:
    for one in found.bears:
        most = one.slots(found.concurrency)
        if most is not None and slots > most:
            yield Finding(
                "slots", slots, most if one.concurrency is None or one.held else one.concurrency, most, one.name
            )


def round_down(number: float, *, digits: int = 2) -> float:
    """Give a number with so many digits that is not above it: what people type."""
    if number <= 0:
        return 0.0
    step = 10.0 ** (math.floor(math.log10(number)) - digits + 1)
    rounded = math.floor(number / step + ABOUT) * step
    return min(number, float(f"{rounded:.{digits}g}"))


def _whole(number: float) -> int:
    return math.floor(number + ABOUT)

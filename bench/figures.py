"""What is made of raw samples: shares, percentiles, rates, peaks, fairness. Pure; instants are seconds."""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

__all__ = [
    "Move",
    "backlogged",
    "crowded",
    "jain",
    "order_of_tenants",
    "overlap",
    "peak",
    "percentile",
    "rate_within",
    "serviced",
    "windows",
]


@dataclass(frozen=True, slots=True)
class Move:
    """One step came to the lane's queue (`found`), was let out of it (`admitted`), gave its place up (`left`), or gave
    it up to wait again (`back`).
    """

    at: float
    tenant: str
    what: str


def order_of_tenants(count: int, *, tenants: int, skew: float, seed: int = 7) -> list[str]:
    """Deal rows to tenants, the first of which has `skew` times as many as any other, in a random order."""
    others = count / (tenants - 1 + skew)
    sizes = [max(1, int(others))] * (tenants - 1)
    dealt = ["t00"] * (count - sum(sizes))
    for n, size in enumerate(sizes, start=1):
        dealt += [f"t{n:02}"] * size
    random.Random(seed).shuffle(dealt)
    return dealt


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least that share of all do not exceed; NaN of nothing."""
    if not values:
        return math.nan
    return sorted(values)[max(0, math.ceil(len(values) * share) - 1)]


def jain(values: Sequence[float]) -> float:
    """Return Jain's index: 1 when all have got the same, 1/n when one has got everything; NaN of nothing."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else math.nan


def windows(begin: float, end: float, *, width: float) -> list[tuple[float, float]]:
    """Return the whole windows of an interval."""
    count = max(0, int((end - begin) / width + 1e-9))
    return [(begin + n * width, begin + (n + 1) * width) for n in range(count)]


def rate_within(instants: Sequence[float], spans: Iterable[tuple[float, float]]) -> float:
    """Return how many of the sorted instants lie in these spans, a second; NaN without a span."""
    counted, seconds = 0, 0.0
    for begin, end in spans:
        counted += bisect_left(instants, end) - bisect_left(instants, begin)
        seconds += end - begin
    return counted / seconds if seconds > 0 else math.nan


def peak(moves: Iterable[Move]) -> int:
    """Return the most that were in flight at any time."""
    # What leaves makes room for what is admitted: of two at one instant it was first.
    steps = sorted((move.at, 1 if move.what == "admitted" else -1) for move in moves if move.what != "found")
    most = level = 0
    for _, step in steps:
        level += step
        most = max(most, level)
    return most


def crowded(moves: Iterable[Move], least: int) -> list[tuple[float, float]]:
    """Return the spans in which at least so many rows waited in the queue."""
    found: list[tuple[float, float]] = []
    level, begin = 0, math.nan
    for at, step in sorted((move.at, -1 if move.what == "admitted" else 1) for move in moves if move.what != "left"):
        before, level = level, level + step
        if before < least <= level:
            begin = at
        elif level < least <= before:
            found.append((begin, at))
    return found


def overlap(one: Iterable[tuple[float, float]], other: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the spans that two lists of spans have in common."""
    pairs = [(max(a, c), min(b, d)) for a, b in one for c, d in other]
    return [(begin, end) for begin, end in pairs if begin < end]


def backlogged(moves: Iterable[Move], tenants: Sequence[str]) -> tuple[float, float]:
    """Return the interval in which every tenant had rows in the queue: up to the first that ran out for good, from
    the last moment before at which one had none. Both infinite when there is none.
    """
    changes: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for move in moves:
        if move.what != "left":
            changes[move.tenant].append((move.at, -1 if move.what == "admitted" else 1))
    if any(tenant not in changes for tenant in tenants):
        return math.inf, math.inf
    end = min(max(at for at, _ in changes[tenant]) for tenant in tenants)
    begin = -math.inf
    for tenant in tenants:
        level, empty_until = 0, -math.inf
        for at, step in sorted(changes[tenant], key=lambda change: (change[0], -change[1])):
            if at >= end:
                break
            if level == 0:
                empty_until = at
            level += step
        begin = max(begin, empty_until)
    return (begin, end) if begin < end else (math.inf, math.inf)


def serviced(moves: Iterable[Move], span: tuple[float, float], *, what: str, tenants: Sequence[str]) -> list[int]:
    """Return how many of each tenant were admitted, or left, within a span."""
    counts = dict.fromkeys(tenants, 0)
    for move in moves:
        if move.what == what and span[0] <= move.at < span[1] and move.tenant in counts:
            counts[move.tenant] += 1
    return list(counts.values())

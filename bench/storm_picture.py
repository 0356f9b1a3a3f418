"""The picture of a storm: what waited, what was let in, who got it, and what the live traffic felt of it."""

from __future__ import annotations

import math
import statistics
from bisect import bisect_right
from collections import defaultdict
from pathlib import Path

import matplotlib as mpl
from drained import Drained
from figures import percentile, windows
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from storm_report import fairness, took

__all__ = ["draw"]

INK, ACCENT, SOFT, LINE = "#22313f", "#c0392b", "#7f9db9", "#8a8a8a"
STATES = {"closed": 0, "half_open": 1, "open": 2}


def draw(seen: Drained, path: Path) -> None:
    """Draw six panels over one axis of time, whose zero is the end of the lease."""
    mpl.use("Agg")  # nobody has a screen here
    figure = Figure(figsize=(15, 12), layout="constrained")
    axes = figure.subplots(3, 2, sharex=True)
    plan = seen.plan
    figure.suptitle(
        f"{plan.orphans:,} orphans of {plan.tenants} tenants on {seen.broker}: rate {plan.rate:g}/s, "
        f"{plan.in_flight} in flight, {plan.live:g} live runs a second",
        color=INK,
    )
    _backlog(axes[0][0], seen)
    _in_flight(axes[0][1], seen)
    _latency(axes[1][0], seen)
    _tenants(axes[1][1], seen)
    _memory(axes[2][0], seen)
    _dependency(axes[2][1], seen)
    for axis in axes.flat:
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
        for begin, end, colour in _changes(seen):
            axis.axvspan(begin, end, color=colour, alpha=0.12, lw=0)
        axis.axvline(0, color=LINE, lw=0.8)
        axis.set_xlim(seen.before[0] - seen.released, seen.ended - seen.released + 2)
    for axis in axes[-1]:
        axis.set_xlabel("seconds since the lease ended")
    figure.savefig(path, dpi=110)


def _changes(seen: Drained) -> list[tuple[float, float, str]]:
    zero = seen.released
    spans = [(seen.slow, "#e0a030"), (seen.outage, ACCENT)]
    return [(span[0] - zero, span[1] - zero, colour) for span, colour in spans if span is not None]


def _backlog(axis: Axes, seen: Drained) -> None:
    zero, level = seen.released, 0
    at, waiting = [0.0], [0]
    per_second: dict[int, int] = defaultdict(int)
    for move in seen.moves:
        if move.what == "left":
            continue
        level += -1 if move.what == "admitted" else 1
        at.append(move.at - zero)
        waiting.append(level)
        per_second[int(move.at - zero)] += move.what == "admitted"
    axis.plot(at, waiting, color=SOFT, label="waiting in the lane (left)")
    axis.set_ylabel("orphans waiting")
    axis.set_title("Backlog and admission (the amber span: a slow dependency; red: a failing one)", fontsize=10)
    rate = axis.twinx()
    seconds = range(int(seen.ended - zero) + 1)
    rate.step(
        [n + 0.5 for n in seconds], [per_second[n] for n in seconds], where="mid", color=INK, lw=1, label="admitted"
    )
    rate.axhline(seen.plan.rate, color=ACCENT, ls="--", lw=1, label="configured rate")
    rate.set_ylabel("admitted a second")
    rate.set_ylim(0, max([*per_second.values(), seen.plan.rate]) * 1.15)
    rate.legend(loc="upper right", fontsize=8)


def _in_flight(axis: Axes, seen: Drained) -> None:
    at = [sample.at - seen.released for sample in seen.samples]
    axis.plot(at, [sample.in_flight for sample in seen.samples], color=INK, lw=0.8, label="in flight")
    axis.plot(at, [sample.messages for sample in seen.samples], color=SOFT, lw=0.8, label="messages in the broker")
    axis.axhline(seen.plan.in_flight, color=ACCENT, ls="--", lw=1, label="cap")
    axis.set_ylim(0, seen.plan.in_flight * 1.25)
    axis.set_title("Steps of the recovery lane in flight", fontsize=10)
    axis.legend(loc="upper left", fontsize=8)


def _latency(axis: Axes, seen: Drained) -> None:
    wide = max(2.0, min(100 / seen.plan.live, (seen.ended - seen.before[0]) / 12))  # about a hundred steps, or fewer
    spans = windows(seen.before[0], seen.ended, width=wide)
    for share, colour in ((0.5, SOFT), (0.99, INK)):
        at = [(begin + end) / 2 - seen.released for begin, end in spans]
        axis.plot(
            at, [percentile(took(seen, span), share) for span in spans], color=colour, label=f"p{share * 100:.0f}"
        )
        before = percentile(took(seen, seen.before), share)
        axis.axhline(before, color=colour, ls=":", lw=1, label=f"p{share * 100:.0f} of the time before")
    axis.axhline(1.2 * percentile(took(seen, seen.before), 0.99), color=ACCENT, ls="--", lw=1, label="1.2 × that p99")
    axis.set_ylim(0)
    axis.set_ylabel("ms, ready to commit")
    axis.set_title(f"Live steps, windows of {wide:g} s", fontsize=10)
    axis.legend(loc="upper left", fontsize=8, ncols=2)


def _tenants(axis: Axes, seen: Drained) -> None:
    served: dict[str, list[float]] = defaultdict(list)
    for move in seen.moves:
        if move.what == "left":
            served[move.tenant].append(move.at - seen.released)
    at = [n / 2 for n in range(int(2 * (seen.ended - seen.released)) + 2)]
    biggest = max(served, key=lambda tenant: len(served[tenant]), default="")
    others = [done for tenant, done in served.items() if tenant != biggest]
    if others:
        counts = [sorted(bisect_right(done, when) for done in others) for when in at]
        axis.fill_between(
            at, [c[0] for c in counts], [c[-1] for c in counts], color=SOFT, alpha=0.5, label="the others"
        )
        axis.plot(at, [c[len(c) // 2] for c in counts], color=SOFT, label="their median")
        axis.plot(at, [bisect_right(served[biggest], when) for when in at], color=INK, label="the biggest tenant")
    axis.set_ylabel("orphans done")
    axis.set_title("Service by tenant, and Jain's index while all have rows (right)", fontsize=10)
    axis.legend(loc="upper left", fontsize=8)
    index = axis.twinx()
    found = fairness(seen, "left")
    index.plot(
        [when - seen.released for when, _ in found], [value for _, value in found], "o-", color=ACCENT, ms=3, lw=0.8
    )
    index.axhline(0.95, color=ACCENT, ls="--", lw=1)
    index.set_ylim(min([0.9, *(value for _, value in found if not math.isnan(value))]) - 0.02, 1.005)


def _memory(axis: Axes, seen: Drained) -> None:
    at = [usage.at - seen.released for usage in seen.usages]
    for role in ("relay", "recovery", "online", "control", "beat"):
        held = [usage.memory[role] for usage in seen.usages]
        usual = statistics.median(held[: max(1, len(held) // 4)])
        axis.plot(at, [one - usual for one in held], label=f"{role}, {usual:.0f} MiB", lw=1)
    axis.set_ylim(min(-10, axis.get_ylim()[0]), max(30, axis.get_ylim()[1]))
    axis.set_ylabel("MiB more than in the first quarter")
    axis.set_title("Resident memory, and the machine's processor (grey, right)", fontsize=10)
    axis.legend(loc="center left", fontsize=8)
    cpu = axis.twinx()
    cpu.plot(at, [usage.cpu for usage in seen.usages], color=LINE, lw=0.8)
    cpu.set_ylim(0, 105)
    cpu.set_ylabel("CPU %")


def _dependency(axis: Axes, seen: Drained) -> None:
    per_second: dict[tuple[int, bool], int] = defaultdict(int)
    for at, _, what in seen.calls:
        per_second[int(at - seen.released), what == "ok"] += 1
    seconds = range(int(seen.ended - seen.released) + 1)
    for is_ok, colour, name in ((True, SOFT, "answered"), (False, ACCENT, "failed")):
        axis.step(
            [n + 0.5 for n in seconds], [per_second[n, is_ok] for n in seconds], where="mid", color=colour, label=name
        )
    axis.set_ylabel("calls a second")
    axis.set_title("The dependency, and its breaker (right)", fontsize=10)
    axis.legend(loc="upper left", fontsize=8)
    turns = [(seen.before[0], "closed"), *((at, state) for at, state, _ in seen.turns), (seen.ended + 2, "")]
    at = [when - seen.released for when, _ in turns]
    levels = [STATES.get(state, 0) for _, state in turns]
    levels[-1] = levels[-2]
    state = axis.twinx()
    state.step(at, levels, where="post", color=INK, lw=1)
    state.set_yticks(list(STATES.values()), list(STATES))
    state.set_ylim(-0.1, 2.3)

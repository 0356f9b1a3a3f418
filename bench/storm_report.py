"""What a storm has come to: each figure beside its goal, as a table and as JSON with all raw samples."""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from drained import Drained
from figures import backlogged, crowded, jain, overlap, peak, percentile, rate_within, serviced, windows

__all__ = ["Line", "fairness", "judge", "show", "steady", "store", "took", "width"]

ASIDE = 2.0  # seconds after a change in which a full bucket empties
TURNS = 10  # of each tenant in a window of Jain's index


@dataclass(frozen=True, slots=True)
class Line:
    """One figure; `is_met` is None where there is no goal, `is_exact` where the goal is no matter of speed."""

    what: str
    value: str
    goal: str = ""
    is_met: bool | None = None
    is_exact: bool = False


def judge(seen: Drained) -> list[Line]:
    """Weigh everything."""
    lines = [*_kept(seen), *_admission(seen), *_fairness(seen), *_live(seen), *_memory(seen), *_machine(seen)]
    return [*lines, *_outage(seen)] if seen.outage else lines


def _kept(seen: Drained) -> list[Line]:
    needed, ends = seen.plan.orphans, seen.ends
    answered = Counter(run for _, run, what in seen.calls if what == "ok")
    again = sum(count > 1 for count in answered.values())
    most = max(peak(seen.moves), max((sample.in_flight for sample in seen.samples), default=0))
    amplified = len(seen.calls) / needed
    done = ends.get("succeeded", 0)
    return [
        Line("orphans done", f"{done:,} of {needed:,}", "all", done == needed, is_exact=True),
        Line("committed twice", str(seen.committed_twice), "0", seen.committed_twice == 0, is_exact=True),
        Line("answered twice", str(again), "0", again == 0, is_exact=True),
        Line("in flight at most", str(most), f"≤ {seen.plan.in_flight}", most <= seen.plan.in_flight, is_exact=True),
        Line("executions ÷ needed", f"{amplified:.4f}", "≤ 1.1", amplified <= 1.1),
        Line("first admission after the lease", f"{_admitted(seen)[0] - seen.released:.2f} s" if seen.moves else "-"),
        Line("all found by the scan", f"{_found(seen):.1f} s after the lease"),
        Line("the drain", f"{seen.ended - seen.released:.1f} s"),
    ]


def _found(seen: Drained) -> float:
    return max((move.at for move in seen.moves if move.what == "found"), default=math.nan) - seen.released


def _admitted(seen: Drained) -> list[float]:
    return [move.at for move in seen.moves if move.what == "admitted"]


def steady(seen: Drained) -> list[tuple[float, float]]:
    """Return the spans in which rows waited and nothing but the rate held them back: no full bucket, no slow or failing
    dependency, and found by the scan faster than they may go.
    """
    admitted = _admitted(seen)
    if not admitted:
        return []
    begin, end = admitted[0] + ASIDE, admitted[-1]
    disturbed = seen.slow or seen.outage
    calm = [(begin, end)]
    if disturbed is not None:
        closed = [at for at, state, _ in seen.turns if state == "closed" and at > disturbed[0]]
        again = max([disturbed[1], *closed]) + ASIDE
        calm = [(begin, disturbed[0]), (again, end)]
    return overlap(calm, crowded(seen.moves, max(1, seen.plan.tenants // 2)))


def _admission(seen: Drained) -> list[Line]:
    plan, spans = seen.plan, steady(seen)
    rate = rate_within(_admitted(seen), spans)
    seconds, used = sum(end - begin for begin, end in spans), _in_flight(seen, spans)
    shown = f"{rate:.1f} /s in {seconds:.0f} s, {used:.1f} of {plan.in_flight} in flight"
    if used > plan.in_flight * 0.9:  # this machine drains no faster: the rate has nothing to say
        lines = [Line("admitted, rate should bind", shown, "the cap did: too slow a machine")]
    else:
        lines = [Line("admitted, rate binds", shown, f"{plan.rate:g} ± 5 %", abs(rate / plan.rate - 1) <= 0.05)]
    if seen.slow:
        span = [(seen.slow[0] + ASIDE, seen.slow[1])]
        rate, used = rate_within(_admitted(seen), span), _in_flight(seen, span)
        lines.append(Line("admitted, cap binds", f"{rate:.1f} /s, {used:.1f} of {plan.in_flight} in flight"))
    return lines


def _in_flight(seen: Drained, spans: Sequence[tuple[float, float]]) -> float:
    used = [sample.in_flight for sample in seen.samples if any(begin <= sample.at < end for begin, end in spans)]
    return statistics.mean(used) if used else math.nan


def width(seen: Drained) -> float:
    """Return how wide a window is in which each tenant has its turns."""
    return TURNS * seen.plan.tenants / seen.plan.rate


def fairness(seen: Drained, what: str) -> list[tuple[float, float]]:
    """Return Jain's index over the tenants' service for each window in which all of them had rows waiting."""
    tenants = [f"t{n:02}" for n in range(seen.plan.tenants)]
    begin, end = backlogged(seen.moves, tenants)
    if math.isinf(begin):
        return []
    found = []
    for span in windows(begin, end, width=width(seen)):
        counts = serviced(seen.moves, span, what=what, tenants=tenants)
        # What is served a few times tells nothing of shares: an outage, the slow quarter.
        if sum(counts) >= TURNS / 2 * len(tenants):
            found.append((span[0], jain(counts)))
    return found


def _fairness(seen: Drained) -> list[Line]:
    lines = []
    for what, name in (("admitted", "admissions"), ("left", "ends")):
        values = [value for _, value in fairness(seen, what)]
        if not values:
            lines.append(Line(f"Jain's index of {name}", "no window in which all tenants had rows"))
            continue
        shown = f"min {min(values):.4f}, mean {statistics.mean(values):.4f} of {len(values)} × {width(seen):g} s"
        lines.append(Line(f"Jain's index of {name}", shown, "≥ 0.95", min(values) >= 0.95))
    return lines


def took(seen: Drained, span: tuple[float, float], *, waited: bool = False) -> list[float]:
    """Return the latencies, in milliseconds, of the live steps that became ready within a span; starts are not among
    them: they take a moment, and would be half of all.
    """
    steps = [step for step in seen.served if step.kind == "step" and span[0] <= step.at < span[1]]
    return [(step.waited if waited else step.took) * 1000 for step in steps]


def _runs(seen: Drained, span: tuple[float, float]) -> list[float]:
    """Return how long the starts of live runs took: unlike what follows them, they go through the relay."""
    return [step.took * 1000 for step in seen.served if step.kind == "start" and span[0] <= step.at < span[1]]


def _live(seen: Drained) -> list[Line]:
    before, during = seen.before, (seen.released, seen.ended)
    middle = (before[0] + before[1]) / 2
    halves = [percentile(took(seen, half), 0.99) for half in ((before[0], middle), (middle, before[1]))]
    lines = []
    for name, waited in (("live step, ready to commit", False), ("of it, ready to claim", True)):
        then, now = took(seen, before, waited=waited), took(seen, during, waited=waited)
        for share in (0.5, 0.99):
            old, new = percentile(then, share), percentile(now, share)
            shown = f"{old:.1f} → {new:.1f} ms (n = {len(then)}, {len(now)}): × {new / old:.2f}"
            goal = "≤ 1.2" if share == 0.99 and not waited else ""
            lines.append(Line(f"{name}, p{share * 100:.0f}", shown, goal, new / old <= 1.2 if goal else None))
    noise = max(halves) / min(halves)
    runs = [percentile(_runs(seen, span), 0.99) for span in (before, during)]
    shown = f"{runs[0]:.1f} → {runs[1]:.1f} ms: × {runs[1] / runs[0]:.2f}"
    lines.append(Line("live run, enqueue to commit of its start, p99", shown))
    lines.append(Line("the same p99 in two halves of the time before", f"× {noise:.2f}", "what chance does"))
    return lines


def _memory(seen: Drained) -> list[Line]:
    lines = []
    for role in ("relay", "recovery", "online", "control", "beat"):
        old = [usage.memory[role] for usage in seen.usages if seen.before[0] <= usage.at < seen.before[1]]
        new = [usage.memory[role] for usage in seen.usages if seen.released <= usage.at < seen.ended]
        if old and new:
            then, most = statistics.median(old), max(new)
            shown = f"{then:.1f} → {most:.1f} MiB at most, {new[-1]:.1f} at the end"
            lines.append(Line(f"memory of {role}", shown, "≤ × 1.1", most <= then * 1.1))
    return lines


def _machine(seen: Drained) -> list[Line]:
    lines = []
    for name, (begin, end) in (("before", seen.before), ("during", (seen.released, seen.ended))):
        used = [usage for usage in seen.usages if begin <= usage.at < end]
        if not used:
            continue
        roles = {role: statistics.mean(usage.cores.get(role, 0.0) for usage in used) for role in used[0].cores}
        parts = ", ".join(f"{role} {cores:.2f}" for role, cores in sorted(roles.items(), key=lambda part: -part[1]))
        cpu, load = (statistics.mean(values) for values in zip(*((one.cpu, one.load) for one in used), strict=True))
        lines.append(Line(f"machine {name}", f"CPU {cpu:.0f} %, load {load:.1f}; cores: {parts}"))
    return lines


def _outage(seen: Drained) -> list[Line]:
    assert seen.outage is not None
    began, healed = seen.outage
    turns = [(at, state) for at, state, _ in seen.turns if at >= began]
    opened = [at for at, state in turns if state == "open"]
    lines = [Line("the breaker", " → ".join(f"{state} {at - began:.1f} s" for at, state in turns) or "never opened")]
    is_over = bool(turns) and turns[-1][1] == "closed"
    lines.append(Line("opened, and closed again", str(is_over), "yes", is_over, is_exact=True))
    if not is_over:
        return lines
    closed = turns[-1][0]
    failed = sum(what != "ok" for _, _, what in seen.calls)
    probes = sum(opened[0] + 0.5 <= at < closed for at, _, _ in seen.calls)
    within = Counter(move.what for move in seen.moves if opened[0] + 0.5 <= move.at < closed)
    return [
        *lines,
        Line("failed calls", f"{failed}, in an outage of {healed - began:.1f} s"),
        Line(
            "while it was not closed",
            f"{within['admitted']} admitted, {within['back']} of them refused; {probes} calls",
        ),
        Line("closed after the dependency was back", f"{closed - healed:.1f} s"),
        Line("attempts", ", ".join(f"{count} × {attempt}" for attempt, count in seen.attempts.items())),
    ]


def show(seen: Drained, lines: Sequence[Line]) -> None:
    """Print the table."""
    plan = seen.plan
    print(
        f"\n{seen.broker}: {plan.orphans:,} orphans of {plan.tenants} tenants (the first has {plan.skew:g} times as"
        f" many as another), rate {plan.rate:g}, burst {plan.burst}, in flight {plan.in_flight};"
        f" {plan.live:g} live runs a second"
    )
    print("\n| | value | goal | |\n| --- | --- | --- | --- |")
    for line in lines:
        mark = {None: "", True: "met", False: "BROKEN" if line.is_exact else "missed"}[line.is_met]
        print(f"| {line.what} | {line.value} | {line.goal} | {mark} |")


def store(seen: Drained, lines: Sequence[Line], path: Path) -> None:
    """Write the table and all raw samples."""
    document = asdict(seen) | {"orphans": len(seen.orphans), "lines": [asdict(line) for line in lines]}
    path.write_text(json.dumps(document, indent=None, separators=(",", ":")))

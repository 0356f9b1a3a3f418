"""Steps a second, and what a step costs: 200 runs of ten empty steps each, at most eight at once, all systems in turns.

`python bench/throughput.py [--passes 3] [--runs 200] [NAME ...]`; the names are those of `contenders.CONTENDERS`.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from contenders import CONTENDERS
from servers import Servers, serving
from spent import Bill, Meter
from starting import Contender

__all__ = ["Round", "once"]

STEPS = 10


@dataclass(frozen=True, slots=True)
class Round:
    """One system's turn: steps done in how many seconds, their bill, and milliseconds alone and until a start."""

    steps: int
    seconds: float
    bill: Bill
    alone: list[float]
    start: list[float]
    statements: float | None = None  # a step

    @property
    def rate(self) -> float:
        """Steps a second."""
        return self.steps / self.seconds

    @property
    def cpu(self) -> float:
        """Milliseconds of processor a step, of all that the system consists of."""
        return sum(self.bill.cpu.values()) * 1000 / self.steps


def once(servers: Servers, contender: Contender, *, runs: int, alone: int, counted: int = 0) -> Round:
    """Start a system, warm it, measure it under load and alone, and end it."""
    with contender.run(servers, contender) as started:
        roots = started.roots | {role: servers.pids[role] for role in contender.servers}
        started.client.ask("many", runs=max(16, runs // 5), steps=STEPS)  # pools, plans and pages are warm
        with Meter(servers.admin_url, roots) as meter:
            seconds = started.client.ask("many", runs=runs, steps=STEPS)["seconds"]
        single = started.client.ask("alone", runs=alone, steps=STEPS)
        statements = None
        if counted:
            with Meter(servers.admin_url, roots, count_statements=True) as counting:
                started.client.ask("many", runs=counted, steps=STEPS)
            statements = counting.bill.statements / (counted * STEPS)
        return Round(runs * STEPS, seconds, meter.bill, single["step"], single["start"], statements)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the named systems, or all, in turns; print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=[], metavar="NAME")
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--alone", type=int, default=20)
    given = parser.parse_args(arguments)
    rounds: dict[str, list[Round]] = defaultdict(list)
    with serving() as servers:
        names = [name for name in given.names or CONTENDERS if servers.pids.keys() >= set(CONTENDERS[name].servers)]
        for turn in range(given.passes):
            for name in names:
                counted = 50 if turn == given.passes - 1 else 0
                done = once(servers, CONTENDERS[name], runs=given.runs, alone=given.alone, counted=counted)
                rounds[name].append(done)
                print(f"pass {turn + 1}, {name}: {done.rate:.0f} steps/s, {done.cpu:.2f} ms", file=sys.stderr)
    show(rounds)


def show(rounds: dict[str, list[Round]]) -> None:
    """Print medians, with smallest and largest; processor time also by what it went into."""
    print(
        "| system | steps/s | CPU ms/step | of it | ms/step alone | ms until it starts | writing tx/step | WAL B/step "
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for name, done in rounds.items():
        roles = {
            role: statistics.median(one.bill.cpu[role] * 1000 / one.steps for one in done) for role in done[0].bill.cpu
        }
        of_it = ", ".join(f"{role} {value:.2f}" for role, value in roles.items())
        rates, cpus = [one.rate for one in done], [one.cpu for one in done]
        statements = [one.statements for one in done if one.statements is not None]
        print(
            f"| {CONTENDERS[name].name} | {statistics.median(rates):.0f} ({min(rates):.0f}-{max(rates):.0f})"
            f" | {statistics.median(cpus):.2f} ({min(cpus):.2f}-{max(cpus):.2f}) | {of_it}"
            f" | {statistics.median(x for one in done for x in one.alone):.2f}"
            f" | {statistics.median(x for one in done for x in one.start):.1f}"
            f" | {statistics.median(one.bill.commits / one.steps for one in done):.2f}"
            f" | {statistics.median(one.bill.records / one.steps for one in done):.0f}"
            f" + {statistics.median(one.bill.pages / one.steps for one in done):.0f}"
            f" | statements/step {statements} |"
        )


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    main()

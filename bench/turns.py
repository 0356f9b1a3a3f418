"""One system's turn: it is started, warmed, measured and ended."""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import dataclass

from own_servers import Servers
from rounds import STEPS, Round, growth
from spent import Meter
from starting import Contender, Started

__all__ = ["Plan", "turn"]


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is done in a turn; what is nought is left out."""

    runs: int = 200
    alone: int = 20  # runs, one after the other
    counted: int = 0  # runs while statements are counted, which costs a little
    share: float = 0.0  # of a contender's long run
    enqueued: int = 0  # runs, one by one; ten times as many in bulk


def turn(servers: Servers, contender: Contender, plan: Plan) -> Round:
    """Give a system its turn."""
    with contender.run(servers, contender) as started:
        client, roots = started.client, started.roots | {role: servers.pids[role] for role in contender.servers}
        client.ask("many", runs=max(16, plan.runs // 5), steps=STEPS)  # pools, plans and pages are warm
        with Meter(servers.admin_url, roots) as meter:
            seconds = client.ask("many", runs=plan.runs, steps=STEPS)["seconds"]
        single = client.ask("alone", runs=plan.alone, steps=STEPS)
        counted = trips = None
        if plan.counted and "PostgreSQL" in contender.servers:
            with Meter(servers.admin_url, roots, count_statements=True) as counting:
                client.ask("many", runs=plan.counted, steps=STEPS)
            counted = counting.bill.statements / (plan.counted * STEPS)
            trips = counting.bill.trips / plan.counted
        long = {}
        if plan.share and contender.long:
            marks = servers.home / "marks"
            client.ask("long", steps=int(contender.long * plan.share), marks=str(marks))
            long = growth([float(line) for line in marks.read_text().split()])
            marks.unlink()
        enqueue = _at_the_door(started, contender, plan.enqueued) if plan.enqueued else {}
    return Round(plan.runs * STEPS, seconds, meter.bill, single["step"], single["start"], counted, trips, long, enqueue)


def _at_the_door(started: Started, contender: Contender, runs: int) -> dict[str, float]:
    """Measure how fast one client enqueues; nobody works meanwhile, as nothing else is to be measured."""
    if contender.door == "none":
        return {}
    for role, pid in started.roots.items():
        if role != "Restate":
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
    found = {"one by one": runs / started.client.ask("enqueue", runs=runs)["seconds"]}
    if contender.door == "bulk":
        found["in bulk"] = runs * 10 / started.client.ask("bulk", runs=runs * 10)["seconds"]
    return found

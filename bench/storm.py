"""A recovery storm: thousands of orphans at once beside live traffic, drained by the real scan, relay and workers.

`python bench/storm.py --orphans 10000 --tenants 50 --rate 100 --in-flight 50`; `--outage` has their dependency fail in
the middle of it; `--quick` is a small one. Writes a table, a picture and all raw samples. The exit code is 1 when what
holds exactly does not hold (the cap, no orphan lost, nothing done twice); speed is printed, never asserted.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import lane_log
import orphans
import storm_picture
import storm_report
from arrivals import Arrivals, served
from dependency import Dependency
from drained import Drained, Plan
from figures import order_of_tenants
from safepoint.config.settings import load
from safepoint.ledger import lanes
from safepoint.ledger.connect import Connection, connect
from sampling import Sampler
from stack import Stack, brokers, running, until

LANE = "recovery"
SETTLE = 3.0  # seconds of live traffic that are not looked at
CONFIGURATION = """\
[lanes.recovery]
rate = {plan.rate}
burst = {plan.burst}
in_flight = {plan.in_flight}

[breakers.downstream]
window = {plan.window}
open_for = 2.0
max_open = 8.0
"""


def drain(plan: Plan, broker: str, urls: tuple[str, str]) -> Drained:
    """Prepare the storm, let it come, wait until it is over, and collect what was seen."""
    seen = Drained(plan, broker)
    with (
        tempfile.TemporaryDirectory(prefix="safepoint-bench-") as folder,
        contextlib.closing(Dependency(latency=plan.latency)) as dependency,
        connect(urls[0], name="bench") as ledger,
    ):
        configuration = Path(folder) / "safepoint.toml"
        configuration.write_text(CONFIGURATION.format(plan=plan))
        lanes.apply(ledger, load(configuration, env={}).lanes)
        orphans.make(ledger, ["warm"] * 4 * plan.in_flight, node="gone-1")
        dealt = order_of_tenants(plan.orphans, tenants=plan.tenants, skew=plan.skew)
        seen.orphans = frozenset(orphans.make(ledger, dealt, node="gone-2"))
        lane_log.watch(ledger, LANE)
        variables = {
            "SAFEPOINT_CONFIG": str(configuration),
            "SAFEPOINT_FLOWS": "storm_flows",
            "STORM_PORT": str(dependency.port),
        }
        with running(*urls, **variables) as stack:
            roles = _workers(stack, plan) | {"dependency": dependency.pid}
            _warm_up(ledger)
            with _traffic(plan, stack, roles, seen):
                _storm(ledger, dependency, seen)
            _collect(ledger, dependency, seen)
    return seen


def _workers(stack: Stack, plan: Plan) -> dict[str, int]:
    """Start one worker for the live traffic and one for the orphans; return all main processes by role."""
    online = stack.workers(1, lanes="online", concurrency=8)[0]
    # More hands than the cap has places: it must be the lane that says no.
    recovery = stack.workers(1, lanes=LANE, pool="threads", concurrency=plan.in_flight + 14)[0]
    relay, beat, control = (process.pid for process in stack.processes[:3])
    return {"relay": relay, "beat": beat, "control": control, "online": online.pid, LANE: recovery.pid}


def _warm_up(ledger: Connection) -> None:
    """Have a small storm first: every thread has its connection, every plan is made."""
    orphans.let_go(ledger, "gone-1")
    until(lambda: _open(ledger, "= 'warm'") == 0, what="the warm-up")


def _open(ledger: Connection, tenants: str) -> int:
    query = f"SELECT count(*) FROM safepoint.runs WHERE flow = 'orphan' AND finished_at IS NULL AND tenant_id {tenants}"
    row = ledger.execute(query).fetchone()  # type: ignore[arg-type]  # our own text
    assert row is not None
    return int(row[0])


@contextlib.contextmanager
def _traffic(plan: Plan, stack: Stack, roles: dict[str, int], seen: Drained) -> Iterator[None]:
    """Have live traffic, looked at, and let it come to its end."""
    sampler = Sampler(stack.ledger_url, stack.broker_url, lane=LANE, roles=roles)
    arrivals = Arrivals(stack.ledger_url, rate=plan.live, seconds=plan.live_seconds)
    sampler.start()
    arrivals.start()
    try:
        time.sleep(SETTLE)
        began = time.time()
        time.sleep(plan.before)
        seen.before = (began, time.time())
        yield
        time.sleep(1.0)  # the last second's samples
    finally:
        arrivals.stop()
        sampler.stop()
    seen.samples, seen.usages = sampler.samples, sampler.usages


def _storm(ledger: Connection, dependency: Dependency, seen: Drained) -> None:
    """Let the node's lease end, and change the dependency as the plan says until no orphan is left."""
    plan = seen.plan
    first = dependency.counts()["ok"]
    seen.released = orphans.let_go(ledger, "gone-2")
    limit = time.monotonic() + 60 + 5 * plan.orphans / plan.rate + 10 * plan.outage
    while True:
        done = dependency.counts()["ok"] - first
        if plan.outage:
            _fail(dependency, seen, done)
        else:
            _slow(dependency, seen, done)
        if done >= plan.orphans and not _open(ledger, "<> 'warm'"):
            break
        if time.monotonic() > limit:
            print(f"given up after {done} of {plan.orphans} orphans", file=sys.stderr)
            break
        time.sleep(0.1)
    seen.ended = time.time()


def _slow(dependency: Dependency, seen: Drained, done: int) -> None:
    """Be slow while the third quarter is done."""
    plan, now = seen.plan, time.time()
    if seen.slow is None and done >= plan.orphans / 2:
        dependency.set(latency=plan.slow)
        seen.slow = (now, 0.0)
    elif seen.slow is not None and not seen.slow[1] and done >= plan.orphans * 3 / 4:
        dependency.set(latency=plan.latency)
        seen.slow = (seen.slow[0], now)


def _fail(dependency: Dependency, seen: Drained, done: int) -> None:
    """Fail for a while from a third on."""
    plan, now = seen.plan, time.time()
    if seen.outage is None and done >= plan.orphans / 3:
        dependency.set(failing=True)
        seen.outage = (now, 0.0)
    elif seen.outage is not None and not seen.outage[1] and now >= seen.outage[0] + plan.outage:
        dependency.set(failing=False)
        seen.outage = (seen.outage[0], now)


def _collect(ledger: Connection, dependency: Dependency, seen: Drained) -> None:
    """Read from the ledger and the dependency what has become of everything."""
    live = "SELECT count(*) = 0 FROM safepoint.runs WHERE flow = 'live' AND finished_at IS NULL"
    until(lambda: ledger.execute(live).fetchone() == (True,), what="the last live run")
    names = {str(run) for run in seen.orphans}
    seen.calls = [call for call in dependency.calls() if call[1] in names]
    seen.moves = [move for move in lane_log.read(ledger, since=seen.released) if move.tenant.startswith("t")]
    seen.served = served(ledger)
    mine = "flow = 'orphan' AND tenant_id <> 'warm'"
    seen.ends = _counted(ledger, f"SELECT status, count(*) FROM safepoint.runs WHERE {mine} GROUP BY 1")
    steps = f"safepoint.steps WHERE run_id IN (SELECT run_id FROM safepoint.runs WHERE {mine}) AND step_id = 'call'"
    seen.attempts = _counted(ledger, f"SELECT attempt, count(*) FROM {steps} GROUP BY 1 ORDER BY 1")
    twice = """
    SELECT '', count(*) FROM (SELECT FROM safepoint.events WHERE type = 'step.committed' AND key = 'call#1'
                               GROUP BY run_id HAVING count(*) > 1) AS x
    """
    seen.committed_twice = _counted(ledger, twice)[""]
    turned = "SELECT extract(epoch FROM at)::double precision, after, why FROM safepoint.breaker_events ORDER BY id"
    seen.turns = [(row[0], row[1], row[2]) for row in ledger.execute(turned)]


def _counted(ledger: Connection, query: str) -> dict[Any, int]:
    return {row[0]: row[1] for row in ledger.execute(query)}  # type: ignore[arg-type]  # our own text


def measure(plan: Plan, *, out: Path, every: bool) -> bool:
    """Drain one storm for each broker (or the first one), print, draw and store; False when something exact broke."""
    sound = True
    names = ["valkey", "rabbitmq"] if every else ["valkey"]
    for name in names:
        with brokers() as found:  # servers of its own: what the storm before has left must not be in the way
            if name not in found:
                continue
            seen = drain(plan, name, found[name])
        stem = out / f"storm-{name}{'-outage' if plan.outage else ''}"
        out.mkdir(parents=True, exist_ok=True)
        lines = storm_report.judge(seen)
        storm_report.show(seen, lines)
        storm_report.store(seen, lines, stem.with_suffix(".json"))
        storm_picture.draw(seen, stem.with_suffix(".png"))
        print(f"\n{stem}.png, .json\n", flush=True)
        sound &= all(line.is_met is not False for line in lines if line.is_exact)
    return sound


def small(plan: Plan) -> Plan:
    """Return a plan that takes less than a minute."""
    return replace(plan, orphans=1_000, tenants=20, before=8.0, outage=plan.outage and 4.0, window=1.0)


def main(*, quick: bool) -> None:
    """Drain a storm beside live traffic."""
    _run(Plan(), quick=quick)


def outage(*, quick: bool) -> None:
    """Drain a storm whose dependency fails in the middle of it."""
    _run(Plan(outage=15.0), quick=quick)


def _run(plan: Plan, *, quick: bool) -> None:
    if not measure(small(plan) if quick else plan, out=Path("bench-results"), every=not quick):
        raise SystemExit(1)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    usual = Plan()
    for name in ("orphans", "tenants", "burst", "in_flight"):
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=getattr(usual, name))
    for name in ("skew", "rate", "latency", "slow", "live", "live_seconds", "before", "window"):
        parser.add_argument(f"--{name.replace('_', '-')}", type=float, default=getattr(usual, name))
    parser.add_argument("--outage", type=float, nargs="?", const=15.0, default=0.0, help="seconds")
    parser.add_argument("--quick", action="store_true", help="1,000 orphans of 20 tenants, less than a minute")
    parser.add_argument("--every-broker", action="store_true", help="RabbitMQ as well, if one answers")
    parser.add_argument("--out", type=Path, default=Path("bench-results"))
    return parser.parse_args()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is ended
    given = _arguments()
    chosen = Plan(**{name: getattr(given, name) for name in Plan.__dataclass_fields__})
    raise SystemExit(not measure(small(chosen) if given.quick else chosen, out=given.out, every=given.every_broker))

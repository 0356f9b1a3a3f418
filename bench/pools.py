"""Processes or threads: steps a second and memory of one worker with either pool, as docs/pools.md reads them.

Steps that wait 0.2 s, as for a model's answer, and steps that need 20 ms of a processor, by 8 and by 32 at once.
`python bench/pools.py [--broker valkey] [--quick]`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import signal
import sys
import time
from contextlib import suppress
from dataclasses import dataclass

import psutil
from safepoint.ledger.connect import Connection
from stack import Stack, brokers, running, until

STEPS = 5  # of a run
KINDS = {"waited": 0.2, "burnt": 0.02}  # seconds of one step
POOLS, SIZES = ("prefork", "threads"), (8, 32)
_DONE = "SELECT count(*) FROM safepoint.steps WHERE status = 'succeeded' AND kind = 'step' AND committed_by = %s"
_LEFT = "SELECT count(*) FROM safepoint.runs WHERE finished_at IS NULL"
_NODE = "SELECT node_id FROM safepoint.nodes WHERE pid = %s ORDER BY started_at DESC LIMIT 1"


@dataclass(frozen=True, slots=True)
class Found:
    """Steps a second, milliseconds of the worker's processor a step, and its memory in MiB."""

    rate: float
    cpu: float
    memory: float


def family(pid: int) -> list[psutil.Process]:
    """Return a process and all that it has begun."""
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def spent(pid: int) -> float:
    """Return the seconds of processor of a worker and its children."""
    times = [one.cpu_times() for one in family(pid)]
    return sum(one.user + one.system for one in times)


def memory(pid: int) -> float:
    """Return the memory of a worker and its children, what they share counted once."""
    total = 0
    for one in family(pid):
        with suppress(psutil.Error):
            total += one.memory_full_info().pss
    return total / 2**20


def measure(stack: Stack, connection: Connection, kind: str, *, pool: str, size: int, seconds: float) -> Found:
    """Keep one worker busy for so long, after it has warmed up."""
    worker = stack.workers(1, lanes="online", pool=pool, concurrency=size)[0]
    each = KINDS[kind]
    bound = size / each if kind == "waited" else min(size, psutil.cpu_count() or 1) / each
    runs = int(bound * (seconds + 5) / STEPS) + 2 * size
    wanted = json.dumps({"steps": STEPS, "seconds": each})
    row = connection.execute(_NODE, (worker.pid,)).fetchone()
    assert row is not None  # it beats
    connection.execute("SELECT safepoint.enqueue(%s, %s) FROM generate_series(1, %s)", (kind, wanted, runs))

    def done() -> int:
        counted = connection.execute(_DONE, row).fetchone()
        assert counted is not None  # a count
        return int(counted[0])

    until(lambda: done() >= 2 * size, what="a warm worker")
    before, cpu, began = done(), spent(worker.pid), time.monotonic()
    time.sleep(seconds)
    after, took, used = done(), time.monotonic() - began, spent(worker.pid) - cpu
    found = Found((after - before) / took, used * 1000 / max(after - before, 1), memory(worker.pid))
    connection.execute("SELECT safepoint.cancel_v1(run_id, 'bench') FROM safepoint.runs WHERE finished_at IS NULL")
    until(lambda: connection.execute(_LEFT).fetchone() == (0,), what="the end of all runs")
    worker.send_signal(signal.SIGTERM)
    worker.wait(timeout=60)
    return found


def run(seconds: float, *, only: str | None) -> None:
    """Print a table for each broker."""
    with brokers() as found:
        for name, urls in found.items():
            if only not in (None, name):
                continue
            print(f"\n{name}, {seconds:.0f} s each\n")
            print("| steps | pool | at once | steps/s | of the most | CPU ms/step | MiB |")
            print("| --- " * 7 + "|")
            with running(*urls) as stack, stack.connect() as connection:
                for kind, size, pool in itertools.product(KINDS, SIZES, POOLS):
                    one = measure(stack, connection, kind, pool=pool, size=size, seconds=seconds)
                    most = size / KINDS[kind] if kind == "waited" else (psutil.cpu_count() or 1) / KINDS[kind]
                    print(
                        f"| {kind} {KINDS[kind] * 1000:.0f} ms | {pool} | {size} | {one.rate:.1f}"
                        f" | {100 * one.rate / most:.0f} % | {one.cpu:.1f} | {one.memory:.0f} |",
                        flush=True,
                    )


def main(*, quick: bool) -> None:
    """Measure on every broker that answers."""
    run(5.0 if quick else 20.0, only=None)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is ended
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--broker", choices=("valkey", "rabbitmq"))
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--quick", action="store_true", help="5 seconds each")
    given = parser.parse_args()
    run(5.0 if given.quick else given.seconds, only=given.broker)

"""How long until a step goes on elsewhere: from the SIGKILL of its worker, or of its pool child, to its next claim."""

from __future__ import annotations

import os
import signal
import statistics
import time
from uuid import UUID

from safepoint.ledger.connect import Connection
from stack import Stack, brokers, running, until

LONG = 60.0  # seconds a step takes when nobody kills it


def main(*, quick: bool) -> None:
    """Print the median, the 95th percentile and the longest of each case."""
    times = 5 if quick else 20
    print("| broker | killed | n | median s | p95 s | max s |")
    print("| --- | --- | --- | --- | --- | --- |")
    with brokers() as found:
        for name, urls in found.items():
            with running(*urls) as stack:
                for victim in ("worker", "pool child"):
                    took = sorted(measure(stack, victim) for _ in range(times))
                    p95 = took[min(len(took) - 1, int(len(took) * 0.95))]
                    print(
                        f"| {name} | {victim} | {times} | {statistics.median(took):.2f} | {p95:.2f} | {took[-1]:.2f} |"
                    )


def measure(stack: Stack, victim: str) -> float:
    """Kill what executes a long step and return the seconds until it is claimed again."""
    alive = [process for process in stack.processes if "--lanes" in process.args and process.poll() is None]
    missing = 2 - sum("online,recovery" in process.args for process in alive)
    if missing > 0:
        stack.workers(missing)
    with stack.connect() as connection:
        run_id = connection.execute("SELECT safepoint.enqueue('held', %s)", (f'{{"seconds": {LONG}}}',)).fetchone()
        assert run_id is not None  # a function that returns a row always does
        main_pid, child = executing(connection, run_id[0], epoch=1)
        began = time.monotonic()
        os.kill(main_pid if victim == "worker" else child, signal.SIGKILL)
        executing(connection, run_id[0], epoch=2)
        took = time.monotonic() - began
        clean_up(connection, run_id[0])
    return took


def executing(connection: Connection, run_id: UUID, *, epoch: int) -> tuple[int, int]:
    """Wait until the step runs under an epoch; return the pids of its worker's main process and of its child."""
    query = """
    SELECT n.pid, s.owner_pid FROM safepoint.steps s JOIN safepoint.nodes n ON n.node_id = s.owner
     WHERE s.run_id = %s AND s.step_id = 'hold' AND s.status = 'running' AND s.epoch = %s
    """
    found: list[tuple[int, int]] = []

    def look() -> bool:
        row = connection.execute(query, (run_id, epoch)).fetchone()
        if row is not None:
            found.append((row[0], row[1]))
        return row is not None

    until(look, what=f"epoch {epoch}")
    return found[0]


def clean_up(connection: Connection, run_id: UUID) -> None:
    """End the run, and the process that would execute its long step for another minute."""
    row = connection.execute(
        "SELECT owner_pid FROM safepoint.steps WHERE run_id = %s AND step_id = 'hold'", (run_id,)
    ).fetchone()
    connection.execute("SELECT safepoint.cancel_v1(%s, 'bench')", (run_id,))
    if row is not None and row[0]:
        os.kill(row[0], signal.SIGKILL)
    query = "SELECT finished_at IS NOT NULL FROM safepoint.runs WHERE run_id = %s"
    until(lambda: connection.execute(query, (run_id,)).fetchone() == (True,), what="the end of the run")

"""Whether a step costs more in a long run: the time per step at the end of a history against its start, in one run."""

from __future__ import annotations

import itertools
import statistics

from safepoint.ledger.connect import Connection
from stack import brokers, running, until

WINDOW = 200  # steps at each end


def commits(connection: Connection, steps: int) -> list[float]:
    """Run that many steps one after the other and return the seconds at which they were committed."""
    run = connection.execute("SELECT safepoint.enqueue('counted', %s)", (f'{{"steps": {steps}}}',)).fetchone()
    done = "SELECT status = 'succeeded' FROM safepoint.runs WHERE run_id = %s"
    until(lambda: connection.execute(done, run).fetchone() == (True,), what=f"{steps} steps", limit=1800)
    query = """
    SELECT committed_at FROM safepoint.steps WHERE run_id = %s AND step_id = 'count' ORDER BY commit_seq
    """
    return [committed.timestamp() for (committed,) in connection.execute(query, run)]


def main(*, quick: bool) -> None:
    """Print the median time between two commits at both ends, and their ratio."""
    steps = 1000 if quick else 5000
    print("| broker | steps | first ms/step | last ms/step | ratio |")
    print("| --- | --- | --- | --- | --- |")
    with brokers() as found:
        for name, urls in found.items():
            with running(*urls) as stack, stack.connect() as connection:
                stack.workers(1)
                at = commits(connection, steps)
                gaps = [(later - earlier) * 1000 for earlier, later in itertools.pairwise(at)]
                first, last = statistics.median(gaps[10 : 10 + WINDOW]), statistics.median(gaps[-WINDOW:])
                print(f"| {name} | {steps} | {first:.2f} | {last:.2f} | {last / first:.2f} |")

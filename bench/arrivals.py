"""Live traffic at a rate that does not care how fast it is served: an open loop, with the gaps of a crowd."""

from __future__ import annotations

import json
import random
import threading
import time
from dataclasses import dataclass

from safepoint.ledger.connect import Connection, connect

__all__ = ["Arrivals", "Served", "served"]


class Arrivals(threading.Thread):
    """Enqueues runs of the flow `live` until it is stopped."""

    def __init__(self, ledger_url: str, *, rate: float, seconds: float, seed: int = 11) -> None:
        super().__init__(name="arrivals", daemon=True)
        self._url = ledger_url
        self._rate = rate
        self._input = json.dumps({"seconds": seconds})
        self._random = random.Random(seed)
        self._halt = threading.Event()
        self.count = 0

    def run(self) -> None:
        """Enqueue each run at its own time; one that is late is enqueued at once, and the next one does not wait."""
        due = time.monotonic()
        with connect(self._url, name="bench arrivals") as connection:
            while not self._halt.wait(max(0.0, due - time.monotonic())):
                tenant = f"live{self.count % 5}"
                connection.execute("SELECT safepoint.enqueue('live', %s, tenant => %s)", (self._input, tenant))
                self.count += 1
                due += self._random.expovariate(self._rate)

    def stop(self) -> None:
        """Let nobody else arrive."""
        self._halt.set()
        self.join()


@dataclass(frozen=True, slots=True)
class Served:
    """One live step: when it was ready, for how long it waited to be claimed, and how long it took to its commit."""

    at: float
    kind: str
    waited: float
    took: float


def served(connection: Connection) -> list[Served]:
    """Return all committed steps of live runs, by the ledger's own clock."""
    query = """
    SELECT extract(epoch FROM s.ready_at)::double precision, s.kind,
           extract(epoch FROM s.claimed_at - s.ready_at)::double precision,
           extract(epoch FROM s.committed_at - s.ready_at)::double precision
      FROM safepoint.steps s JOIN safepoint.runs r USING (run_id)
     WHERE r.flow = 'live' AND s.committed_at IS NOT NULL ORDER BY s.ready_at
    """
    return [Served(*row) for row in connection.execute(query)]

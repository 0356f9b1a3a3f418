"""What is looked at in between: rows in flight and messages often, memory and processor every second."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import psutil
from amqp.exceptions import ChannelError
from kombu import Connection as Broker
from safepoint.ledger.connect import Connection, connect

__all__ = ["Sample", "Sampler", "Usage"]

OFTEN, SELDOM = 0.2, 1.0  # seconds
_IN_FLIGHT = """
SELECT (SELECT count(*) FROM safepoint.steps WHERE status = 'ready' AND lane = %(lane)s AND dispatched_at IS NOT NULL)
     + (SELECT count(*) FROM safepoint.steps WHERE status = 'running' AND claimed_from = %(lane)s),
       (SELECT state FROM safepoint.breakers WHERE name = 'downstream')
"""


@dataclass(frozen=True, slots=True)
class Sample:
    """The lane at one instant: rows in flight in one snapshot, messages in the broker, the breaker's state."""

    at: float
    in_flight: int
    messages: int
    breaker: str


@dataclass(frozen=True, slots=True)
class Usage:
    """The machine and the processes by role: memory in MiB, processor as a share of one core."""

    at: float
    cpu: float  # of the whole machine, in percent
    load: float
    memory: dict[str, float] = field(default_factory=dict)
    cores: dict[str, float] = field(default_factory=dict)


class Sampler(threading.Thread):
    """Samples until it is stopped; `roles` names main processes, whose children count as theirs."""

    def __init__(self, ledger_url: str, broker_url: str, *, lane: str, roles: Mapping[str, int]) -> None:
        super().__init__(name="sampler", daemon=True)
        self._ledger_url, self._broker_url, self._lane = ledger_url, broker_url, lane
        self._roles = dict(roles)
        self._spent: dict[str, tuple[float, float]] = {}
        self._halt = threading.Event()
        self.samples: list[Sample] = []
        self.usages: list[Usage] = []

    def run(self) -> None:
        """Look, and wait."""
        psutil.cpu_percent(None)
        with connect(self._ledger_url, name="bench sampler") as ledger, Broker(self._broker_url) as broker:
            self._roles["PostgreSQL"] = psutil.Process(ledger.info.backend_pid).ppid()
            self._use()
            due = time.monotonic() + SELDOM
            while not self._halt.wait(OFTEN):
                self.samples.append(self._sample(ledger, broker))
                if time.monotonic() >= due:
                    due += SELDOM
                    self.usages.append(self._use())

    def stop(self) -> None:
        """Look no more."""
        self._halt.set()
        self.join()

    def _sample(self, ledger: Connection, broker: Broker) -> Sample:
        row = ledger.execute(_IN_FLIGHT, {"lane": self._lane}).fetchone()
        assert row is not None  # one row always
        messages = 0
        with contextlib.suppress(ChannelError):  # Redis has no queue that is empty
            messages = broker.default_channel.queue_declare(self._lane, passive=True).message_count
        return Sample(time.time(), row[0], messages, row[1] or "closed")

    def _use(self) -> Usage:
        at = time.time()
        children: dict[int, list[int]] = {}
        for process in psutil.process_iter(["ppid"]):
            children.setdefault(process.info["ppid"], []).append(process.pid)
        memory, cores = {}, {}
        for role, pid in self._roles.items():
            rss, spent = _totals(_family(pid, children))
            before, then = self._spent.get(role, (spent, at - SELDOM))
            self._spent[role] = (spent, at)
            memory[role], cores[role] = round(rss / 2**20, 1), max(0.0, spent - before) / (at - then)
        return Usage(at, psutil.cpu_percent(None), os.getloadavg()[0], memory, cores)


def _family(pid: int, children: Mapping[int, list[int]]) -> list[int]:
    found = [pid]
    for one in found:
        found += children.get(one, [])
    return found


def _totals(pids: list[int]) -> tuple[int, float]:
    rss, spent = 0, 0.0
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            times = process.cpu_times()
            rss += process.memory_info().rss
            spent += times.user + times.system
    return rss, spent

"""How long until a step begins again: a worker executes one that takes a minute, and is killed; another one is there.

Ours are measured by `takeover.py`, which asks the ledger; a peer's step says by a line in a file that it has begun.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from contenders import CONTENDERS
from environments import MissingPeerError
from own_servers import Servers
from safepoint.ledger import upgrade
from spent import family
from stack import running, until
from starting import redis_number
from takeover import measure

__all__ = ["DEATHS", "Death", "die", "our_deaths"]

_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Death:
    """A peer whose worker is killed, what there is besides, and the most seconds that are waited for."""

    contender: str
    besides: str
    limit: float
    restarts: bool = False
    is_quick: bool = True  # it comes back within seconds

    @property
    def name(self) -> str:
        """What stands in the table."""
        return f"{CONTENDERS[self.contender].name}; {self.besides}"


# Two workers where a peer can have them; where it can not, its worker is started again at once.
DEATHS = [
    Death("chain-rabbitmq", "second worker, `acks_late`, `reject_on_worker_lost`", 30),
    Death("chain-redis", "second worker, `acks_late`; visibility timeout as shipped: an hour", 30, is_quick=False),
    Death("restate", "the service started again at once", 60, restarts=True),
    Death("absurd", "second worker; claims last 120 s as shipped", 150, is_quick=False),
    Death("dbos-queue", "second worker", 60, is_quick=False),
    Death("dbos-queue", "second worker, and the first started again at once", 60, restarts=True),
]


def die(servers: Servers, death: Death) -> float | None:
    """Kill a peer's worker over a step and return the seconds until it begins again, None when it has not in time."""
    # What an earlier death has left undone must not be taken for this one.
    place = f"death-{next(_numbers)}"
    contender, marks = CONTENDERS[death.contender].elsewhere(place), servers.home / f"{place}.marks"
    with contender.run(servers, contender, workers=2) as started:
        started.client.ask("hold", marks=str(marks))
        until(lambda: len(_lines(marks)) >= 1, what=f"a step of {contender.name}", limit=30)
        number = _whose(int(_lines(marks)[0].split()[1]), started.workers)
        began = time.time()
        _kill(started.workers[number])
        if death.restarts:
            started.again(number)
        end = time.monotonic() + death.limit
        while len(_lines(marks)) < 2 and time.monotonic() < end:
            time.sleep(0.01)
        found = _lines(marks)
        for worker in started.workers:  # what executes would do so for another minute
            _kill(worker)
        return float(found[1].split()[0]) - began if len(found) > 1 else None


def our_deaths(servers: Servers, *, times: int) -> dict[str, list[float | None]]:
    """Kill our workers, and children of their pools, so many times each, on each broker."""
    found: dict[str, list[float | None]] = {}
    for broker in ("Redis", "RabbitMQ"):
        if broker not in servers.pids:
            continue
        ledger = servers.database(f"deaths-{broker.lower()}")
        upgrade.upgrade(ledger)
        url = servers.amqp_url if broker == "RabbitMQ" else redis_number(servers, 14)
        assert url is not None  # there is a process
        with running(ledger, url) as stack:
            for victim in ("worker", "pool child"):
                found[f"{broker}, {victim}"] = [measure(stack, victim) for _ in range(times)]
    return found


def missing(servers: Servers, death: Death) -> str | None:
    """Return why this death can not be had here."""
    contender = CONTENDERS[death.contender]
    absent = set(contender.servers) - servers.pids.keys()
    return f"no {', '.join(absent)} here" if absent else None


def _lines(marks: Path) -> list[str]:
    with contextlib.suppress(FileNotFoundError):
        return [line for line in marks.read_text().split("\n") if line]
    return []


def _whose(pid: int, workers: list[subprocess.Popen[bytes]]) -> int:
    for number, worker in enumerate(workers):
        if pid in family(worker.pid):
            return number
    raise MissingPeerError(f"process {pid} is none of its workers'")


def _kill(worker: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(worker.pid, signal.SIGKILL)
    worker.wait()

"""The embedded stack for a test: a ledger and a broker of its own, and real processes that it may kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

from ..config.crash import POINTS
from ..ledger.errors import SafepointError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ..config.embedded import EmbeddedStack
    from ..tasks.client import Client

__all__ = ["Crash", "NotCrashed", "Process", "Servers", "Stack"]

_TEMPLATE = "safepoint_template"
_PACKAGE = __name__.partition(".")[0]


class NotCrashed(SafepointError):  # noqa: N818  # named after what has not happened
    """No process has come to {spec} within {timeout} s."""

    spec: str
    timeout: float


class Process:
    """A worker or a relay of a test, in a process group of its own."""

    def __init__(self, command: list[str], *, env: dict[str, str], log: Path) -> None:
        self.log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(command, env=env, stdout=output, stderr=output, start_new_session=True)

    @property
    def pid(self) -> int:
        """The main process."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the main process is alive."""
        return self._process.poll() is None

    def kill(self) -> None:
        """Kill all of it with SIGKILL."""
        self._signal_group(signal.SIGKILL)
        self._process.wait()

    def terminate(self, timeout: float = 40.0) -> int:
        """Ask it to drain and wait for its end; what is left then is killed."""
        if self.is_running:
            self._process.terminate()
        try:
            return self._process.wait(timeout)
        finally:
            self._signal_group(signal.SIGKILL)

    def output(self) -> str:
        """Give what it has written."""
        return self.log.read_text(errors="replace")

    def _signal_group(self, number: int) -> None:
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            return


@dataclass(slots=True)
class Crash:
    """A crash point that is armed for the processes that start after it."""

    spec: str
    mark: Path

    @property
    def has_happened(self) -> bool:
        """Whether a process has killed itself there."""
        return self.mark.exists()

    def wait(self, timeout: float = 30.0) -> None:
        """Wait until a process has killed itself there."""
        ends = time.monotonic() + timeout
        while not self.has_happened:
            if time.monotonic() > ends:
                raise NotCrashed(spec=self.spec, timeout=timeout)
            time.sleep(0.02)


class Servers:
    """One embedded PostgreSQL and Valkey for a whole test session."""

    def __init__(self, home: Path) -> None:
        from ..config import embedded  # noqa: PLC0415  # only who asks for the stack pays for it

        self.home = home
        self._share: EmbeddedStack = embedded.ensure(home)
        self._template()

    def close(self) -> None:
        """Stop them."""
        self._share.close()

    def ledger(self) -> Iterator[str]:
        """Give the URL of an empty ledger, which is dropped afterwards."""
        name = f"ledger_{uuid4().hex[:12]}"
        self._execute(f"CREATE DATABASE {name} TEMPLATE {_TEMPLATE}")
        yield self._database(name)
        # Not WITH (FORCE): that is refused while autovacuum is in it, which plain DROP sends away by itself.
        ours = f"datname = '{name}' AND usename = current_user"
        self._execute(f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE {ours}")  # noqa: S608  # our own name
        self._execute(f"DROP DATABASE {name}")

    def broker(self) -> str:
        """Empty the broker, and give its URL."""
        import redis  # noqa: PLC0415  # as above

        with redis.Redis.from_url(self._share.broker_url) as client:
            client.flushall()
        return self._share.broker_url

    def _template(self) -> None:
        from ..ledger.upgrade import upgrade  # noqa: PLC0415  # as above

        self._execute(f"DROP DATABASE IF EXISTS {_TEMPLATE}")
        self._execute(f"CREATE DATABASE {_TEMPLATE}")
        upgrade(self._database(_TEMPLATE))

    def _execute(self, statement: str) -> None:
        import psycopg  # noqa: PLC0415  # as above

        with psycopg.connect(self._share.ledger_url, autocommit=True) as connection:
            connection.execute(statement.encode())

    def _database(self, name: str) -> str:
        return urlunsplit(urlsplit(self._share.ledger_url)._replace(path=f"/{name}"))


@dataclass(slots=True)
class Stack:
    """What `safepoint_stack` gives: URLs, a client, and processes to start and kill."""

    home: Path
    folder: Path
    ledger_url: str
    broker_url: str
    flows: tuple[str, ...] = ()
    processes: list[Process] = field(default_factory=list)
    _crash: dict[str, str] = field(default_factory=dict)
    _client: Client | None = None

    @property
    def environment(self) -> dict[str, str]:
        """What tells a process where the ledger, the broker and the flows are."""
        return {
            "SAFEPOINT_HOME": str(self.home),
            "SAFEPOINT_LEDGER_URL": self.ledger_url,
            "SAFEPOINT_BROKER_URL": self.broker_url,
            "SAFEPOINT_FLOWS": ",".join(self.flows),
        }

    @property
    def client(self) -> Client:
        """A client of this ledger."""
        from ..tasks.client import Client  # noqa: PLC0415  # who only plays flows needs no ledger

        if self._client is None:
            self._client = Client(self.ledger_url)
        return self._client

    def worker(
        self,
        *,
        pool: Literal["prefork", "threads"] = "prefork",
        concurrency: int = 2,
        lanes: Iterable[str] = ("online", "recovery"),
    ) -> Process:
        """Start a worker."""
        options = ["--pool", pool, "--concurrency", str(concurrency), "--lanes", ",".join(lanes)]
        return self.start("worker", *options)

    def relay(self) -> Process:
        """Start a relay, which also scans for orphans."""
        return self.start("relay")

    def start(self, verb: str, *options: str) -> Process:
        """Start a process of the command line."""
        places = [place for place in sys.path if place]
        env = os.environ | self.environment | self._crash | {"PYTHONPATH": os.pathsep.join(places)}
        log = self.folder / f"{verb}-{len(self.processes) + 1}.log"
        process = Process([sys.executable, "-m", _PACKAGE, verb, *options], env=env, log=log)
        self.processes.append(process)
        return process

    def crash_at(self, spec: str, *, target: Literal["child", "worker"] = "child") -> Crash:
        """Let the first process that comes there kill itself, once; it counts for processes started from now on."""
        point = spec.partition("@")[0].partition(":")[0]
        if point not in POINTS:
            msg = f"crash_at({spec!r}): there is no crash point {point!r}. Accepted: {', '.join(sorted(POINTS))}"
            raise ValueError(msg)
        mark = self.folder / f"crashed-{len(list(self.folder.glob('crashed-*')))}-{point}"
        self._crash = {
            "SAFEPOINT_CRASH_POINTS": "1",
            "SAFEPOINT_CRASH": spec,
            "SAFEPOINT_CRASH_TARGET": target,
            "SAFEPOINT_CRASH_ONCE": str(mark),
        }
        return Crash(spec, mark)

    def stop(self) -> None:
        """End every process, and close the client."""
        for process in self.processes:
            process.kill()
        if self._client is not None:
            self._client.close()

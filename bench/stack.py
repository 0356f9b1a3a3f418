"""Servers and Safepoint's own processes for a measurement: started here, ended here."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

from safepoint.config import embedded
from safepoint.ledger import upgrade
from safepoint.ledger.connect import Connection, connect

__all__ = ["Stack", "brokers", "running", "servers_of", "until"]

HERE = Path(__file__).resolve().parent


@dataclass
class Stack:
    """The ledger, one broker, and the processes that were started on them."""

    ledger_url: str
    broker_url: str
    home: Path
    variables: dict[str, str] = field(default_factory=dict)
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def environment(self, **more: str) -> dict[str, str]:
        """Return what a Safepoint process is started with."""
        return os.environ | {
            "SAFEPOINT_LEDGER_URL": self.ledger_url,
            "SAFEPOINT_BROKER_URL": self.broker_url,
            "SAFEPOINT_HOME": str(self.home),
            "TMPDIR": str(self.home),  # what killed processes leave there goes with it
            "SAFEPOINT_FLOWS": "bench_flows",
            "PYTHONPATH": f"{HERE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
            **self.variables,
            **more,
        }

    def start(self, *arguments: str, **more: str) -> subprocess.Popen[bytes]:
        """Start `safepoint …` in a session of its own, its output in the home's log."""
        with (self.home / f"{'-'.join(arguments[:3])}.log".replace("/", "_")).open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "safepoint", *arguments],
                env=self.environment(**more),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    def connect(self) -> Connection:
        """Open a connection to the ledger."""
        return connect(self.ledger_url, name="bench")

    def workers(
        self, count: int, *, lanes: str = "online,recovery", pool: str = "prefork", concurrency: int = 2
    ) -> list[subprocess.Popen[bytes]]:
        """Start workers and wait until all of them beat."""
        arguments = ("worker", "--lanes", lanes, "--pool", pool, "--concurrency", str(concurrency))
        started = [self.start(*arguments) for _ in range(count)]
        pids = [process.pid for process in started]
        with self.connect() as connection:
            query = "SELECT count(*) = %s FROM safepoint.nodes WHERE pid = ANY (%s) AND stopped_at IS NULL"
            until(lambda: connection.execute(query, (count, pids)).fetchone() == (True,), what=f"{count} workers")
        return started

    def close(self) -> None:
        """End what was started: politely, then not."""
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
        for process in self.processes:
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def until(done: Callable[[], bool], *, what: str, limit: float = 120.0) -> None:
    """Wait until something is so; a measurement that hangs ends with what it waited for."""
    end = time.monotonic() + limit
    while not done():
        if time.monotonic() > end:
            raise TimeoutError(f"waited {limit:g} s for {what}")
        time.sleep(0.02)


@contextlib.contextmanager
def rabbitmq() -> Iterator[str | None]:
    """Lend a virtual host of a RabbitMQ that answers; None when there is none, or none that we may administer."""
    host = f"bench-{uuid4().hex[:8]}"
    if shutil.which("rabbitmqctl") is None:
        yield None
        return
    made = subprocess.run(["rabbitmqctl", "-q", "add_vhost", host], capture_output=True, check=False)
    allowed = subprocess.run(
        ["rabbitmqctl", "-q", "set_permissions", "-p", host, "guest", ".*", ".*", ".*"],
        capture_output=True,
        check=False,
    )
    if made.returncode or allowed.returncode:
        yield None
        return
    try:
        yield f"amqp://guest:guest@127.0.0.1:5672/{host}"
    finally:
        subprocess.run(["rabbitmqctl", "-q", "delete_vhost", host], capture_output=True, check=False)


@contextlib.contextmanager
def servers_of(home: Path, *, configuration: str = "") -> Iterator[embedded.EmbeddedStack]:
    """Run the embedded servers of a home, PostgreSQL with these lines in its configuration besides."""
    if configuration:
        embedded.ensure(home).close()  # makes the cluster
        file = home / "postgres" / "postgresql.conf"
        text = file.read_text()
        file.write_text(text if configuration in text else text + configuration)
    with contextlib.closing(embedded.ensure(home)) as servers:
        yield servers


@contextlib.contextmanager
def brokers(*, configuration: str = "") -> Iterator[dict[str, tuple[str, str]]]:
    """Lend a ledger's URL with each broker's: an embedded PostgreSQL and Valkey, and RabbitMQ where one answers."""
    with tempfile.TemporaryDirectory(prefix="safepoint-bench-") as folder, contextlib.ExitStack() as stack:
        servers = stack.enter_context(servers_of(Path(folder) / "servers", configuration=configuration))
        upgrade.upgrade(servers.ledger_url)
        found = {"valkey": (servers.ledger_url, servers.broker_url)}
        amqp = stack.enter_context(rabbitmq())
        if amqp is None:
            print("RabbitMQ: none answers that could be administered here; left out", file=sys.stderr)
        else:
            found["rabbitmq"] = (servers.ledger_url, amqp)
        yield found


@contextlib.contextmanager
def running(ledger_url: str, broker_url: str, **variables: str) -> Iterator[Stack]:
    """Run relay, beat and the control worker, and end everything at the end; all get these variables besides."""
    with tempfile.TemporaryDirectory(prefix="safepoint-bench-") as folder:
        stack = Stack(ledger_url, broker_url, Path(folder), variables)
        try:
            stack.start("relay")
            stack.start("beat")
            stack.start("worker", "--lanes", "control", "--pool", "threads", "--concurrency", "1")
            yield stack
        finally:
            stack.close()

"""Who is compared: what each consists of, which environment and which servers it needs, how it is started and asked."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from safepoint.ledger import upgrade
from servers import Servers, end_group
from stack import Stack, running, until

__all__ = ["CONTENDERS", "Asked", "Contender", "Started"]

PEERS = Path(__file__).resolve().parent / "peers"
SLOTS = 8  # what may run at once, in every system


@dataclass
class Asked:
    """A client program: takes one line of JSON, gives one back."""

    process: subprocess.Popen[bytes]
    log: Path

    def ask(self, what: str, **arguments: object) -> Any:
        """Ask and wait for the answer."""
        assert self.process.stdin is not None  # both are pipes
        self.process.stdin.write((json.dumps({"do": what, **arguments}) + "\n").encode())
        self.process.stdin.flush()
        return self.answer()

    def answer(self) -> Any:
        """Wait for a line; a program that has ended has none."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.process.args} has ended: {self.log.read_text()[-1500:]}")
        return json.loads(line)


@dataclass
class Started:
    """A contender that runs: its client, and the main processes by what they are."""

    client: Asked
    roots: dict[str, int]


@dataclass(frozen=True)
class Contender:
    """One line of the tables."""

    name: str
    servers: tuple[str, ...]  # roles of those that it uses
    run: Callable[[Servers, Contender], contextlib.AbstractContextManager[Started]]
    is_durable: bool = True
    options: dict[str, str] = field(default_factory=dict)
    environment: str = ""  # the name of the peer's own environment; ours when empty
    remark: str = ""


@contextlib.contextmanager
def programs(log: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Lend a function that starts programs; all of them end at the end, the last one first."""
    started: list[subprocess.Popen[bytes]] = []

    def start(command: Sequence[str], *, variables: dict[str, str], cwd: Path, pipes: bool = False) -> Any:
        with log.open("ab") as out:
            process = subprocess.Popen(
                list(command),
                env=os.environ | variables,
                cwd=cwd,
                stdin=subprocess.PIPE if pipes else subprocess.DEVNULL,
                stdout=subprocess.PIPE if pipes else out,
                stderr=out,
                start_new_session=True,
            )
        started.append(process)
        return process

    try:
        yield start
    finally:
        for process in reversed(started):
            if process.stdin is not None:
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.close()
            end_group(process)


@contextlib.contextmanager
def chain(servers: Servers, contender: Contender) -> Iterator[Started]:
    """Run a plain Celery worker and the client of its chains."""
    broker = servers.amqp_url if contender.options["broker"] == "RabbitMQ" else servers.redis_url
    assert broker is not None  # who has no RabbitMQ leaves this contender out
    variables = {"BENCH_BROKER": broker, "BENCH_ANSWERS": _redis_number(servers, 15), "PYTHONPATH": str(PEERS)}
    log = servers.home / f"{contender.options['broker']}-chain.log"
    worker = [sys.executable, "-m", "celery", "-A", "chain_app", "worker", "--concurrency", str(SLOTS), "-l", "WARNING"]
    with programs(log) as start:
        main = start(worker, variables=variables, cwd=servers.home)
        client = Asked(
            start([sys.executable, str(PEERS / "chain_client.py")], variables=variables, cwd=servers.home, pipes=True),
            log,
        )
        client.answer()
        yield Started(client, {"worker": main.pid})


@contextlib.contextmanager
def ours(servers: Servers, contender: Contender) -> Iterator[Started]:
    """Run relay, beat, the control worker, a worker for steps, and a client."""
    options = contender.options
    ledger = servers.database(f"ours-{options['broker']}-{options['pool']}-{options['slice']}".lower())
    upgrade.upgrade(ledger)
    broker = servers.amqp_url if options["broker"] == "RabbitMQ" else _redis_number(servers, int(options["number"]))
    assert broker is not None
    variables = {"SAFEPOINT_LANES__ONLINE__INLINE_SLICE": options["slice"]} if options["slice"] != "0" else {}
    with running(ledger, broker, **variables) as stack, programs(servers.home / "ours-client.log") as start:
        worker = stack.workers(1, pool=options["pool"], concurrency=SLOTS)[0]
        client = Asked(
            start(
                [sys.executable, str(PEERS / "ours_client.py")],
                variables=stack.environment(),
                cwd=servers.home,
                pipes=True,
            ),
            servers.home / "ours-client.log",
        )
        client.answer()
        _until_served(stack)
        yield Started(client, {"worker": worker.pid, **_others(stack)})


def _others(stack: Stack) -> dict[str, int]:
    return {role: process.pid for role, process in zip(("relay", "beat", "control"), stack.processes, strict=False)}


def _until_served(stack: Stack) -> None:
    query = "SELECT count(*) >= 2 FROM safepoint.nodes WHERE stopped_at IS NULL"
    with stack.connect() as connection:
        until(lambda: connection.execute(query).fetchone() == (True,), what="the control worker")


def _redis_number(servers: Servers, number: int) -> str:
    parts = urlsplit(servers.redis_url)
    return urlunsplit(parts._replace(path=f"/{number}"))


def _ours(broker: str, pool: str, seconds: str, number: int) -> Contender:
    how = "one message a step" if seconds == "0" else f"in place, {seconds} s"
    return Contender(
        f"Safepoint, {how}, {broker}, {pool} 8",
        ("PostgreSQL", broker),
        ours,
        options={"broker": broker, "pool": pool, "slice": seconds, "number": str(number)},
    )


def _chain(broker: str) -> Contender:
    return Contender(
        f"Celery chain, {broker}, prefork 8",
        (broker,),
        chain,
        is_durable=False,
        options={"broker": broker},
        remark="nothing is durable but the broker's messages; acknowledged before it runs",
    )


CONTENDERS: dict[str, Contender] = {
    "chain-redis": _chain("Redis"),
    "ours-redis": _ours("Redis", "prefork", "0", 1),
    "inline-redis": _ours("Redis", "prefork", "5", 2),
    "chain-rabbitmq": _chain("RabbitMQ"),
    "ours-rabbitmq": _ours("RabbitMQ", "prefork", "0", 3),
    "ours-rabbitmq-threads": _ours("RabbitMQ", "threads", "0", 4),
    "inline-rabbitmq-threads": _ours("RabbitMQ", "threads", "5", 5),
}

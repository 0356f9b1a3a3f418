"""How a contender is started, asked and ended: its programs, its client, and whose processor time is its own."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import environments
from own_servers import Servers, end_group
from safepoint.config.process import free_port
from safepoint.ledger import upgrade
from stack import Stack, running, until

__all__ = ["Asked", "Contender", "Started", "chain", "ours", "peer", "redis_number", "restate"]

PEERS = Path(__file__).resolve().parent / "peers"
SLOTS = 8  # what may run at once, in every system


@dataclass
class Asked:
    """A program that takes one line of JSON and gives one back."""

    process: subprocess.Popen[bytes]
    log: Path

    def ask(self, what: str, **arguments: object) -> Any:
        """Ask and wait for the answer."""
        assert self.process.stdin is not None  # a pipe
        self.process.stdin.write((json.dumps({"do": what, **arguments}) + "\n").encode())
        self.process.stdin.flush()
        return self.answer()

    def answer(self) -> Any:
        """Wait for a line; a program that has ended has none."""
        assert self.process.stdout is not None  # a pipe
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.process.args!r} has ended: {self.log.read_text()[-1500:]}")
        return json.loads(line)


@dataclass
class Started:
    """A contender that runs: its client, its main processes by what they are, its workers, and one more of them."""

    client: Asked
    roots: dict[str, int]
    workers: list[subprocess.Popen[bytes]]
    again: Callable[[int], subprocess.Popen[bytes]]  # starts the worker of that number once more


@dataclass(frozen=True)
class Contender:
    """One line of the tables: the roles of servers that it uses, how it runs, and what its reader should know."""

    name: str
    servers: tuple[str, ...]
    run: Callable[..., contextlib.AbstractContextManager[Started]]
    options: dict[str, str] = field(default_factory=dict)
    environment: str = ""  # the peer's own; ours when empty
    long: int = 0  # steps of a long run; none where another form of the same system shows it
    door: str = "one"  # how it is enqueued: `one` by one, in `bulk` as well, or `none`: its caller executes
    remark: str = ""

    @property
    def place(self) -> str:
        """The name of the database, or folder, that holds what it has done."""
        return self.options.get("place", self.environment or f"ours-{self.options.get('number')}")

    def elsewhere(self, place: str) -> Contender:
        """Return the same with nothing done yet."""
        return replace(self, options=self.options | {"place": place})


class Programs:
    """Starts programs, each in a session of its own with its output in one log, and ends them in reverse."""

    def __init__(self, log: Path, variables: Mapping[str, str]) -> None:
        self.log, self.variables = log, dict(variables)
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, command: Sequence[str | Path], *, pipes: bool = False, **more: str) -> subprocess.Popen[bytes]:
        """Start one; with pipes it can be asked."""
        with self.log.open("ab") as out:
            process = subprocess.Popen(
                [str(word) for word in command],
                # Their temporary files go with the folder: Restate and killed pools leave some.
                env=os.environ | {"PYTHONPATH": str(PEERS), "TMPDIR": str(self.log.parent)} | self.variables | more,
                cwd=self.log.parent,
                stdin=subprocess.PIPE if pipes else subprocess.DEVNULL,
                stdout=subprocess.PIPE if pipes else out,
                stderr=out,
                start_new_session=True,
            )
        self._started.append(process)
        return process

    def ask(self, command: Sequence[str | Path], **more: str) -> Asked:
        """Start a program that answers, and wait until it says that it is ready."""
        asked = Asked(self.start(command, pipes=True, **more), self.log)
        asked.answer()
        return asked

    def close(self) -> None:
        """End all, the last one first."""
        for process in reversed(self._started):
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(BrokenPipeError):
                        pipe.close()
            end_group(process)


@contextlib.contextmanager
def chain(servers: Servers, contender: Contender, *, workers: int = 1) -> Iterator[Started]:
    """Run plain Celery workers and the client of their chains."""
    broker = servers.amqp_url if contender.options["broker"] == "RabbitMQ" else servers.redis_url
    assert broker is not None  # who has no RabbitMQ leaves this contender out
    variables = {"BENCH_BROKER": broker, "BENCH_ANSWERS": redis_number(servers, 15)}
    worker = [sys.executable, "-m", "celery", "-A", "chain_app", "worker", "--concurrency", str(SLOTS), "-l", "WARNING"]
    log = servers.home / f"chain-{contender.options['broker']}.log"
    with contextlib.closing(Programs(log, variables)) as programs:

        def again(number: int) -> subprocess.Popen[bytes]:
            return programs.start([*worker, "--hostname", f"bench{number}@localhost"])

        started = [again(number) for number in range(workers)]
        client = programs.ask([sys.executable, PEERS / "chain_client.py"])
        yield Started(client, {"worker": started[0].pid}, started, again)


@contextlib.contextmanager
def ours(servers: Servers, contender: Contender, *, workers: int = 1) -> Iterator[Started]:
    """Run relay, beat, the control worker, workers for steps, and a client."""
    options = contender.options
    ledger = servers.database(contender.place)
    upgrade.upgrade(ledger)
    broker = servers.amqp_url if options["broker"] == "RabbitMQ" else redis_number(servers, int(options["number"]))
    assert broker is not None
    variables = {"SAFEPOINT_LANES__ONLINE__INLINE_SLICE": options["slice"]} if options["slice"] != "0" else {}
    with running(ledger, broker, **variables) as stack:
        others = {role: one.pid for role, one in zip(("relay", "beat", "control"), stack.processes, strict=True)}

        def again(_: int) -> subprocess.Popen[bytes]:
            return stack.workers(1, pool=options["pool"], concurrency=SLOTS)[0]

        started = [again(number) for number in range(workers)]
        _until_served(stack)
        environment = {name: value for name, value in stack.environment().items() if name.startswith("SAFEPOINT")}
        with contextlib.closing(Programs(servers.home / "ours-client.log", environment)) as programs:
            client = programs.ask([sys.executable, PEERS / "ours_client.py"])
            yield Started(client, {"worker": started[0].pid, **others}, started, again)


@contextlib.contextmanager
def peer(servers: Servers, contender: Contender, *, workers: int = 1) -> Iterator[Started]:
    """Run a peer that needs PostgreSQL only: its workers, if it has any beside its client."""
    python, options = environments.ensure(contender.environment), contender.options
    variables = {"BENCH_LEDGER": servers.database(contender.place), "BENCH_SLOTS": str(SLOTS)}
    log = servers.home / f"{contender.environment}.log"
    with contextlib.closing(Programs(log, variables)) as programs:
        if "schema" in options:
            done = programs.start([python, PEERS / options["schema"]]).wait()
            if done:
                raise environments.MissingPeerError(f"its schema was refused: {log.read_text().strip()[-300:]}")

        def again(number: int) -> subprocess.Popen[bytes]:
            return programs.ask([python, PEERS / options["worker"]], BENCH_WORKER=f"worker-{number}").process

        usual = int(options.get("workers", "0"))  # none: the client executes
        count = max(workers, usual) if usual else 0
        started = [again(number) for number in range(count)]
        client = programs.ask([python, PEERS / options["client"]])
        roots = {f"worker {n}": one.pid for n, one in enumerate(started, start=1)} or {"worker": client.process.pid}
        yield Started(client, roots, started, again)


@contextlib.contextmanager
def restate(servers: Servers, contender: Contender, *, workers: int = 1) -> Iterator[Started]:
    """Run Restate's server with a log of its own, the service under Hypercorn, and a client over HTTP."""
    del workers  # one service behind one address: a second process would have to share it
    python, server = environments.ensure(contender.environment), environments.restate_server()
    ingress, admin, node, service = (free_port() for _ in range(4))
    variables = {
        "BENCH_INGRESS": f"http://127.0.0.1:{ingress}",
        "BENCH_ADMIN": f"http://127.0.0.1:{admin}",
        "BENCH_SERVICE": f"http://127.0.0.1:{service}",
        "RESTATE_INGRESS__BIND_ADDRESS": f"127.0.0.1:{ingress}",
        "RESTATE_ADMIN__BIND_ADDRESS": f"127.0.0.1:{admin}",
        "RESTATE_BIND_ADDRESS": f"127.0.0.1:{node}",
        "RESTATE_ADVERTISED_ADDRESS": f"http://127.0.0.1:{node}",
        "RESTATE_BASE_DIR": str(servers.home / contender.place),
        "RESTATE_DISABLE_TELEMETRY": "true",
        "RESTATE_LISTEN_MODE": "tcp",
        "RESTATE_LOG_FILTER": "warn",
    }
    with contextlib.closing(Programs(servers.home / "restate.log", variables)) as programs:

        def again(_: int) -> subprocess.Popen[bytes]:
            return programs.start([python, "-m", "hypercorn", "--bind", f"127.0.0.1:{service}", "restate_service:app"])

        node_process = programs.start([server])
        started = [again(0)]
        client = programs.ask([python, PEERS / "restate_client.py"])
        yield Started(client, {"worker": started[0].pid, "Restate": node_process.pid}, started, again)


def redis_number(servers: Servers, number: int) -> str:
    """Return the URL of one of Redis's databases."""
    return urlunsplit(urlsplit(servers.redis_url)._replace(path=f"/{number}"))


def _until_served(stack: Stack) -> None:
    query = "SELECT count(*) >= 2 FROM safepoint.nodes WHERE stopped_at IS NULL"
    with stack.connect() as connection:
        until(lambda: connection.execute(query).fetchone() == (True,), what="the control worker")

"""A fleet: workers, a relay, a beat on one ledger and one broker, each a real process that a test may kill.

Workers are pytest-celery's nodes. Everything that was started is ended by `close`.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import audit
import psycopg
from audit import Account, Execution
from kombu import pools
from processes import Container, LocalProcess, WorkerNode, make_container
from safepoint.config.settings import load
from safepoint.tasks.app import SCAN, make_app
from safepoint.tasks.wire import Chore, Publisher
from servers import delete_queues, eventually

__all__ = ["Fleet", "events", "trap"]

SUPPORT = Path(__file__).parent
# Short times, so that tests need not wait: a short lease is as correct as a long one, for late commits count (P35).
CONFIGURATION = """\
flows = ["journeys", "errands", "poisons"]

[worker]
lease = 5.0
beat = 1.0
drain = 1.0
step_grace = 0.5
flow_timeout = 1.0

[relay]
grace = 0.5
poll = 0.25
redispatch_after = 2.0

[scan]
interval = 0.25
confirm = 0.25
max_recoveries = 2

"""
LANES = ("online", "recovery", "control", "front", "abroad")


# The whole suite may be run with the other pool, as it may be under other lanes (`variables`).
POOL = os.environ.get("SAFEPOINT_TEST_POOL", "prefork")


def trap(point: str, *, target: str, once: Path) -> dict[str, str]:
    """Return the variables that arm one crash point; it springs once, however often its process is started anew."""
    return {
        "SAFEPOINT_CRASH_POINTS": "1",
        "SAFEPOINT_CRASH": point,
        "SAFEPOINT_CRASH_TARGET": target,
        "SAFEPOINT_CRASH_ONCE": str(once),
    }


@dataclass
class Fleet:
    """The processes of one test or one module; `env` is what all of them get."""

    folder: Path
    ledger_url: str
    broker_url: str
    env: dict[str, str] = field(default_factory=dict)
    processes: list[Container] = field(default_factory=list)
    id: str = field(default_factory=lambda: uuid4().hex[:8])

    def __post_init__(self) -> None:
        """Make the files that processes share with the test."""
        self.record.touch()
        self.gates.mkdir(exist_ok=True)
        # Queues of its own: a RabbitMQ that lets nobody make a vhost is shared with every other test.
        lanes = [f'[lanes.{lane}]\nqueue = "{lane}-{self.id}"\n' for lane in LANES]
        (self.folder / "safepoint.toml").write_text("\n".join([CONFIGURATION, *lanes]))

    @property
    def record(self) -> Path:
        """Where steps write down their executions."""
        return self.folder / "record"

    @property
    def gates(self) -> Path:
        """Where a file opens a gate."""
        return self.folder / "gates"

    def variables(self, extra: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of a process."""
        path = os.pathsep.join([str(SUPPORT), *filter(None, [os.environ.get("PYTHONPATH")])])
        return {
            "SAFEPOINT_CONFIG": str(self.folder / "safepoint.toml"),
            "SAFEPOINT_LEDGER_URL": self.ledger_url,
            "SAFEPOINT_BROKER_URL": self.broker_url,
            "SAFEPOINT_HOME": str(self.folder / "home"),
            "RECORD": str(self.record),
            "GATES": str(self.gates),
            "PYTHONPATH": path,
            # The whole suite may be run under other lanes, as with SAFEPOINT_LANES__ONLINE__INLINE_SLICE=5.
            **{name: value for name, value in os.environ.items() if name.startswith("SAFEPOINT_LANES__")},
            **self.env,
            **extra,
        }

    # Processes.

    def worker(
        self,
        *lanes: str,
        pool: str = POOL,
        concurrency: int = 2,
        wait: bool = True,
        env: Mapping[str, str] | None = None,
    ) -> WorkerNode:
        """Start a worker of these lanes."""
        command = self._command("worker", ",".join(lanes), pool, str(concurrency))
        container = make_container(command, self.variables(env or {}), self.folder)
        self.processes.append(container)
        worker = WorkerNode(container)
        if wait:
            worker.ready()
        return worker

    def relay(self, *, env: Mapping[str, str] | None = None) -> LocalProcess:
        """Start a relay; it scans for orphans as well, since no beat is there to have it done."""
        return self._start("relay", env or {})

    def beat(self) -> LocalProcess:
        """Start a beat."""
        return self._start("beat", {})

    def _start(self, role: str, env: Mapping[str, str]) -> LocalProcess:
        process = LocalProcess(self._command(role), self.variables(env), self.folder, name=role)
        process.start()
        self.processes.append(process)

        def is_ready() -> None:
            assert process.status == "running", process.logs().decode()
            assert b"ready." in process.logs()

        eventually(is_ready, timeout=30)
        return process

    def _command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "fleet_process", *arguments]

    def end(self, worker: WorkerNode) -> None:
        """End a worker that has done its part."""
        worker.teardown()
        self.processes.remove(worker.raw)

    def close(self) -> None:
        """End every process, frozen or not."""
        for process in self.processes:
            process.remove(force=True)
        if self.processes and self.broker_url.startswith("amqp"):
            delete_queues(self.broker_url, *[f"{lane}-{self.id}" for lane in LANES])
        self.processes.clear()

    @contextlib.contextmanager
    def publisher(self) -> Iterator[Publisher]:
        """Lend what sends messages to this fleet's broker."""
        app = make_app(load(self.folder / "safepoint.toml", env={}), self.broker_url)
        publisher = Publisher(app, lanes=app.lanes)
        yield publisher
        publisher.close()
        pools.reset()  # kombu keeps its pools in the process, by URL

    def ask_for_scan(self) -> None:
        """Send the chore that a beat sends."""
        with self.publisher() as publisher:
            assert publisher.send_chore(Chore(SCAN, queue=f"control-{self.id}", expires=60)) is None

    # Runs.

    def enqueue(self, flow: str, **arguments: Any) -> UUID:
        """Enqueue a run as any app that speaks SQL does."""
        with psycopg.connect(self.ledger_url, autocommit=True) as connection:
            row = connection.execute("SELECT safepoint.enqueue(%s, %s)", [flow, json.dumps(arguments)]).fetchone()
        assert row is not None
        return UUID(str(row[0]))

    def enqueue_many(self, flow: str, count: int, **arguments: Any) -> list[UUID]:
        """Enqueue runs in one transaction."""
        with psycopg.connect(self.ledger_url) as connection:
            rows = connection.execute(
                "SELECT safepoint.enqueue(%s, %s) FROM generate_series(1, %s)", [flow, json.dumps(arguments), count]
            ).fetchall()
        return [UUID(str(row[0])) for row in rows]

    def query(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """Ask the ledger something."""
        with psycopg.connect(self.ledger_url, autocommit=True) as connection:
            return connection.execute(sql, values).fetchall()  # type: ignore[arg-type]  # the tests' own statements

    def account(self, run: UUID) -> Account:
        """Return all that the ledger has of a run."""
        with audit.auditor(self.ledger_url) as connection:
            return audit.read(connection, run)

    def executions(self, run: UUID | None = None) -> list[Execution]:
        """Return what steps have written down."""
        return audit.executions(self.record, run)

    def began(self, run: UUID, key: str) -> list[Execution]:
        """Return the executions of one step."""
        return [one for one in self.executions(run) if one.key == key and one.what == "begin"]

    def hooks(self) -> list[tuple[int, float]]:
        """Return which processes have run the start hook, and when."""
        lines = [line.split() for line in self.record.read_text().splitlines()]
        return [(int(words[1]), float(words[2])) for words in lines if words[0] == "hook"]

    def open(self, gate: str) -> None:
        """Let steps that wait at a gate go on."""
        (self.gates / gate).touch()

    # Waiting.

    def until(self, condition: Callable[[], object], *, timeout: float = 30.0, every: float = 0.02) -> None:
        """Wait until a condition holds."""

        def holds() -> None:
            assert condition(), self.tell()

        eventually(holds, timeout=timeout, every=every)

    def until_status(self, run: UUID, *statuses: str, timeout: float = 30.0) -> Account:
        """Wait until a run has one of these statuses."""
        with psycopg.connect(self.ledger_url, autocommit=True) as connection:

            def has() -> None:
                row = connection.execute("SELECT status FROM safepoint.runs WHERE run_id = %s", [run]).fetchone()
                assert row is not None
                assert row[0] in statuses, f"{row}\n{self.tell(run)}"

            eventually(has, timeout=timeout)
        return self.account(run)

    def until_began(self, run: UUID, key: str, *, times: int = 1, timeout: float = 30.0) -> Execution:
        """Wait until a step's code has begun that often, and return the newest execution."""

        def has_begun() -> None:
            assert len(self.began(run, key)) >= times, self.tell(run)

        eventually(has_begun, timeout=timeout)
        return self.began(run, key)[times - 1]

    def assert_sound(self, run: UUID, *, status: str = "succeeded") -> Account:
        """Wait for the run's end, check its accounts and return them."""
        account = self.until_status(run, "succeeded", "failed", "cancelled", "held")
        assert account.run["status"] == status, self.tell(run)
        audit.assert_sound(account, self.executions(run))
        return account

    def assert_all_sound(self, runs: Sequence[UUID]) -> None:
        """Check the accounts of many runs."""
        executed = defaultdict(list)
        for one in self.executions():
            executed[one.run].append(one)
        with audit.auditor(self.ledger_url) as connection:
            for run in runs:
                audit.assert_sound(audit.read(connection, run), executed[str(run)])

    def assert_no_deadlock(self) -> None:
        """Check that no two transactions ever waited for each other (P2)."""
        assert self.query("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()") == [(0,)]

    # What a failure shows.

    def tell(self, run: UUID | None = None) -> str:
        """Say how things stand, for a test that has failed."""
        lines = []
        if run is not None:
            account = self.account(run)
            lines += [f"run {run}: {account.run['status']} {account.run['reason']} {account.run['error']}"]
            shown = (
                "key",
                "status",
                "lane",
                "epoch",
                "attempt",
                "recoveries",
                "deaths",
                "owner",
                "due_at",
                "expires_at",
            )
            lines += [str({name: str(step[name]) for name in shown}) for step in account.steps]
            lines += [
                f"{event['seq']} {event['at']} {event['type']} {event['key']} {event['data']}"
                for event in account.events
            ]
            lines += [str(one) for one in self.executions(run)]
        for process in self.processes:
            lines += [f"--- {process.name}: {process.status}", process.logs().decode(errors="replace")[-3000:]]
        return "\n".join(lines)


def events(process: Container, name: str) -> list[dict[str, Any]]:
    """Return the log lines of one event, as JSON, of a process's present start."""
    lines = [
        line[line.index("{") :] for line in process.logs().decode(errors="replace").splitlines() if '"event"' in line
    ]
    found = []
    for line in lines:
        try:
            document = json.loads(line)
        except ValueError:
            continue  # the process was killed while it wrote
        if document.get("event") == name:
            found.append(document)
    return found

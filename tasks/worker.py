"""A worker: Celery's consumer around our executor, with the node that beats for it.

Everything is made once for the main process; a pool child makes anew what must not be shared over a fork.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import threading
import time
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import psycopg
import structlog
from celery import signals
from celery.bin.base import CLIContext
from celery.bin.worker import worker as celery_worker
from celery.exceptions import Reject

from ..config import crash
from ..config.errors import ConfigError, Problem
from ..config.process import place
from ..config.resolve import Endpoints, endpoints
from ..config.settings import Settings
from ..ledger import lanes as ledger_lanes
from ..ledger import orphans, outbox, steps, upgrade
from ..ledger.connect import Connection, connect
from ..ledger.errors import LedgerUnavailable, describe
from ..ledger.key import Key
from ..ledger.nodes import Node
from ..recovery import outcomes
from ..recovery.scan import recovery_lane, scan
from . import registry as declared
from .announce import Announcer
from .app import App, make_app, worker_argv
from .board import Board
from .execute import Executor
from .forks import at_work
from .histories import Histories
from .loan import Loan, Shutdown
from .node import EXIT_GRACE, Heartbeat, new_node_id
from .performance import Performance
from .watchdog import Watchdog
from .wire import Publisher

__all__ = ["Worker", "build", "main"]

log = structlog.get_logger("safepoint.worker")
REAP = 0.25  # seconds between looks for dead pool children
SPARE_SLOTS = 8  # for the moment in which a dead child's successor lives already
PR_SET_PDEATHSIG = 1


class Worker:
    """One worker's main process and, after a fork, each of its children."""

    def __init__(self, settings: Settings, ends: Endpoints) -> None:
        self.settings = settings
        self.ends = ends
        self.node_id = new_node_id()
        self.app: App = make_app(
            settings,
            ends.broker_url,
            steps={name: step.timeout for name, step in declared.steps().items()},
            executor=self.execute,
            scan=self.scan,
            unknown=self.unknown,
        )
        self._heartbeat: Heartbeat | None = None
        self._executor: Executor | None = None
        self._scanner: Connection | None = None
        self._scanning = threading.Lock()
        self._main = os.getpid()
        signals.celeryd_after_setup.connect(self._set_up, weak=False)
        signals.worker_process_init.connect(self._begin_child, weak=False)
        signals.worker_ready.connect(self._reap_often, weak=False)
        signals.worker_shutting_down.connect(self._drain, weak=False)
        signals.worker_shutdown.connect(self._stop, weak=False)

    # What Celery calls.

    def execute(self, run: str, step: str, lane: str, _request: Any) -> None:
        """Execute the step of a message; returning acknowledges it."""
        assert self._executor is not None
        try:
            self._executor.execute(run, step, lane)
        except Shutdown:
            raise Reject("the worker ends", requeue=True) from None
        except Exception as error:  # a defect of ours, or rows that cannot be: the step goes on elsewhere, or is held
            log.exception("execute.error", run=run, step=step)
            # in place it may be another step than the message's
            self._give_up(UUID(run), self._executor.loan.executing or Key.from_wire(step), error)

    def _give_up(self, run_id: UUID, key: Key, error: BaseException) -> None:
        """Hand back a claim whose execution broke in our own code, as a death that counts: it must not go round for
        ever.
        """
        assert self._executor is not None
        loan = self._executor.loan
        me = loan.claimer()
        # then two beats will not name it, and the scan takes it (P4)
        with contextlib.suppress(psycopg.Error, LedgerUnavailable):
            for found, its, token in orphans.claims_of(loan.connection(), self.node_id):
                if (found, its) == (run_id, key):
                    loss = steps.Loss(
                        run_id,
                        key,
                        token,
                        steps.Cause.CHILD,
                        deadly=True,
                        pid=me.pid,
                        pid_start=me.pid_start,
                        evidence={"pid": me.pid, "error": describe(error)},
                    )
                    steps.lose(
                        loan.connection(),
                        loss,
                        lane=recovery_lane(self.settings),
                        max_deaths=self.settings.scan.max_recoveries,
                    )

    def unknown(self, run: str, step: str, lane: str) -> None:
        """A message of a step that this worker does not have: its row goes to a node that serves it, or waits for one
        (P15). Called on the consumer's event loop, which must not wait for a database.
        """
        threading.Thread(target=self._decline, args=(UUID(run), Key.from_wire(step), lane), daemon=True).start()

    def _decline(self, run_id: UUID, key: Key, lane: str) -> None:
        with at_work():
            try:
                with self._connect("unknown") as connection:
                    outbox.decline(connection, run_id, key, lane=lane)
            except (psycopg.Error, LedgerUnavailable) as error:  # it is due again by itself; the message was a hint
                log.warning("step.unknown", run=str(run_id), step=key.wire, error=" ".join(str(error).split())[:200])

    def scan(self) -> None:
        """The beat's chore: one round of the orphan scan."""
        with self._scanning:
            try:
                if self._scanner is None or self._scanner.closed:
                    self._scanner = self._connect("scan")
                scan(self._scanner, self.settings, by=self.node_id)
            except (psycopg.Error, LedgerUnavailable) as error:
                log.warning("scan.failed", error=" ".join(str(error).split())[:200])
                if self._scanner is not None:
                    self._scanner.close()
                self._scanner = None

    # Life.

    def run(self, *, lanes: Sequence[str], pool: str, concurrency: int, name: str = "worker") -> None:
        """Consume until a signal ends it."""
        # Not app.worker_main: that imports every command of Celery and of its plugins, Flower among them.
        arguments = worker_argv(self.settings, lanes=lanes, pool=pool, concurrency=concurrency, name=name)[1:]
        context = CLIContext(app=self.app, no_color=False, workdir=None)
        celery_worker.main(args=arguments, prog_name="celery worker", standalone_mode=False, obj=context)

    def _set_up(self, *, instance: Any, **_: Any) -> None:
        if instance.app is not self.app:
            return
        try:
            self._prepare(instance)
        except Exception as error:  # Celery would go on, with a worker that acknowledges what it cannot execute
            log.exception("worker.set_up_failed", error=str(error))
            raise SystemExit(1) from error

    def _prepare(self, instance: Any) -> None:
        queues = set(instance.app.amqp.queues.consume_from)
        lanes = tuple(name for name, lane in self.settings.lanes.items() if lane.queue in queues)
        threads = "prefork" not in f"{instance.pool_cls.__module__}"
        self._main = os.getpid()
        crash.set_main(self._main)
        dependencies = {step.uses for step in declared.steps().values() if step.uses is not None}
        board = Board(
            slots=instance.concurrency + SPARE_SLOTS,
            lanes=tuple(self.settings.lanes),
            dependencies=tuple(sorted(dependencies)),
        )
        loan = Loan(self.settings, self.ends.ledger_url, board=board, node_id=self.node_id)
        histories = Histories(
            size=self.settings.worker.cache_runs, watchdog=Watchdog(self.settings.worker.flow_timeout)
        )
        self._executor = Executor(
            self.settings,
            loan=loan,
            histories=histories,
            performance=Performance(self.settings, loan),
            publisher=Publisher(self.app, lanes=self.app.lanes),
            registry=declared.registry,
            node_id=self.node_id,
        )
        self._executor.events = Announcer(self.app, hostname=instance.hostname)
        self._board = board
        with self._connect("lanes") as connection:
            ledger_lanes.apply(connection, self.settings.lanes, window=self.settings.relay.window, only_missing=True)
            outcomes.introduce(connection, self.settings.breakers, dependencies, only_missing=True)
        self._heartbeat = Heartbeat(
            self.settings,
            self.ends.direct_url,
            self._node(lanes, concurrency=instance.concurrency),
            board,
            on_drained=self._exit_soon,
        )
        self._heartbeat.start()
        if threads:
            self._run_hooks()
        else:
            self._heartbeat.deaths.attend()

    def _node(self, lanes: tuple[str, ...], *, concurrency: int) -> Node:
        flows = declared.flows().values()
        served = sorted({f"{flow.name}@{version}" for flow in flows for version in (flow.version, *flow.accepts)})
        versions = tuple(
            {"name": flow.name, "version": flow.version, "versions": flow.frozen_versions()} for flow in flows
        )
        return Node(
            self.node_id,
            socket.gethostname(),
            os.getpid(),
            lanes=lanes,
            flows=tuple(served),
            steps=tuple(sorted(declared.steps())),
            concurrency=concurrency,
            versions=versions,
            place=place(),
        )

    def _begin_child(self, **_: Any) -> None:
        if self._executor is None or os.getpid() == self._main:
            return
        from billiard.process import current_process  # noqa: PLC0415  # only a pool child has one

        _die_with(self._main)
        slot = int(getattr(current_process(), "index", 0) or 0)
        self._executor.loan.own(slot)
        if self._heartbeat is not None:
            self._heartbeat.leave_behind()
        self._board.introduce(slot)
        self._run_hooks()

    def _run_hooks(self) -> None:
        for hook in declared.start_hooks():
            try:
                hook()
            except Exception:  # whatever a user's hook raises: a process without it must not execute steps
                log.exception("on_start.failed", hook=f"{hook.__module__}.{hook.__qualname__}")
                time.sleep(1.0)  # the pool makes another process at once: not a hundred of them a second
                os._exit(1)

    def _reap_often(self, *, sender: Any, **_: Any) -> None:
        """Have dead pool children replaced at once. Celery looks when a child's pipe closes, which the kernel does
        before the child can be waited for: half of the time it finds nothing, and looks again after five seconds.
        """
        maintain = getattr(sender.pool, "maintain_pool", None)
        if sender.app is self.app and sender.hub is not None and maintain is not None:
            sender.hub.call_repeatedly(REAP, maintain)

    def _drain(self, **_: Any) -> None:
        if self._heartbeat is not None and os.getpid() == self._main:
            self._heartbeat.drain()

    def _exit_soon(self) -> None:
        """After the last child of a drain is gone Celery has nothing to wait for; should it wait all the same, end
        it.
        """

        def end() -> None:
            time.sleep(EXIT_GRACE)
            if self._heartbeat is not None:
                self._heartbeat.stop()
            os._exit(0)

        threading.Thread(target=end, name="safepoint-exit", daemon=True).start()

    def _stop(self, **_: Any) -> None:
        if self._heartbeat is not None and os.getpid() == self._main:
            self._heartbeat.stop()

    def _connect(self, name: str) -> Connection:
        limits = self.settings.ledger
        return connect(
            self.ends.ledger_url,
            name=f"safepoint {name} {self.node_id}",
            connect_timeout=limits.connect_timeout,
            statement_timeout=limits.statement_timeout,
        )


def _die_with(parent: int) -> None:
    """End this child when its main process is killed: what it executes is taken over, and going on would only cost."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def build(settings: Settings, ends: Endpoints | None = None) -> Worker:
    """Make a worker: the ledger's schema is checked, the flows are imported.

    Raises:
        SchemaTooOld, SchemaTooNew: the database is not one that this release works on.
        ConfigError: a module of flows cannot be imported, or a step is on a lane that is not configured.
        LedgerUnavailable: the database does not answer.
    """
    ends = ends or endpoints(settings)
    upgrade.check(ends.ledger_url)
    declared.load(settings.flows)
    _check_lanes(settings)
    return Worker(settings, ends)


def _check_lanes(settings: Settings) -> None:
    """Refuse to serve a step whose lane is not configured: its messages would have no queue."""
    known = ", ".join(sorted(settings.lanes))
    problems = [
        Problem(
            f"step {name}",
            f"lane={step.lane}",
            f"there is no such lane; add [lanes.{step.lane}] to safepoint.toml",
            known,
        )
        for name, step in sorted(declared.steps().items())
        if step.lane not in settings.lanes
    ]
    if problems:
        raise ConfigError(None, *problems)


def main(settings: Settings, *, lanes: Sequence[str], pool: str, concurrency: int, name: str = "worker") -> None:
    """Run a worker in this process until a signal ends it."""
    build(settings).run(lanes=lanes, pool=pool, concurrency=concurrency, name=name)

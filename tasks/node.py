"""A node: the worker's main process as the ledger knows it. Registers, beats, watches its pool children, drains.

One statement a beat, however many steps are active (P19). A child's death is noticed by its pidfd and reported at
once (P25); the node's own
death by the session lock that falls with its connection (P21).
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Any

import psycopg
import structlog

from ..config.settings import Settings
from ..ledger import nodes, orphans, steps
from ..ledger.connect import Connection, connect
from ..ledger.errors import LedgerUnavailable
from ..recovery.evidence import MEMORY
from ..recovery.scan import recovery_lane
from .board import Board, Executing
from .death import Deaths
from .forks import at_work
from .outcomes import Outcomes

__all__ = ["Heartbeat", "new_node_id"]

log = structlog.get_logger("safepoint.node")
BACKOFF = 1.0  # seconds between attempts while the ledger does not answer
EXIT_GRACE = 5.0  # seconds that Celery gets to end after the last child of a drain is gone


def new_node_id() -> str:
    """Return an identity that no other start has."""
    return f"{socket.gethostname()}:{os.getpid()}:{token_hex(4)}"


@dataclass(slots=True)
class _Watch:
    """The pidfds of pool children: readable when the process has ended."""

    poll: select.poll = field(default_factory=select.poll)
    fds: dict[int, tuple[int, int]] = field(default_factory=dict)  # fd -> pid, slot

    def follow(self, found: Executing) -> None:
        if any(pid == found.pid for pid, _ in self.fds.values()) or found.pid == os.getpid():
            return
        try:
            fd = os.pidfd_open(found.pid)
        except (OSError, AttributeError):
            return  # it has gone already, or the system has no pidfds: two beats will tell (P4)
        self.fds[fd] = (found.pid, found.slot)
        self.poll.register(fd, select.POLLIN)

    def forget(self, fd: int) -> tuple[int, int]:
        self.poll.unregister(fd)
        os.close(fd)
        return self.fds.pop(fd)


class Heartbeat:
    """The node's background thread: `start`, `drain`, `stop`; `once` is one beat."""

    def __init__(
        self,
        settings: Settings,
        direct_url: str,
        node: nodes.Node,
        board: Board,
        *,
        on_drained: Callable[[], None] | None = None,
    ) -> None:
        self.settings = settings
        self.node = node
        self.board = board
        self.deaths = Deaths(on_death=self._wake)
        self._outcomes = Outcomes(board, settings.breakers, by=node.node_id)
        self._url = direct_url
        self._connection: Connection | None = None
        self._locked = False
        self._stop = threading.Event()
        self._drain_until: float | None = None
        self._on_drained = on_drained
        self._watch = _Watch()
        self._wake_reader, self._wake_writer = os.pipe()
        os.set_blocking(self._wake_writer, False)
        os.set_blocking(self._wake_reader, False)
        self._thread = threading.Thread(target=self._run, name="safepoint-node", daemon=True)
        self._guard = threading.Lock()

    # Life.

    def start(self) -> None:
        """Register and begin to beat; raises LedgerUnavailable when the ledger cannot be reached at all."""
        self._register()
        self._watch.poll.register(self._wake_reader, select.POLLIN)
        self._watch.poll.register(self.board.hello_reader, select.POLLIN)
        self._thread.start()

    def drain(self) -> None:
        """Take nothing new; what runs gets the drain time, then its process is ended and its step released (P22)."""
        if self._drain_until is None:
            self._drain_until = time.monotonic() + self.settings.worker.drain
            self.board.drain()
            self._wake()

    def stop(self) -> None:
        """Say goodbye: what is still held is free at once."""
        self._stop.set()
        self._wake()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(timeout=5.0)
        with self._guard, contextlib.suppress(psycopg.Error, LedgerUnavailable):
            if self._connection is None or self._connection.closed:
                self._connection = self._connect()
            nodes.stop(self._connection, self.node.node_id)
        self._disconnect()

    def leave_behind(self) -> None:
        """In a child: let go of the parent's connection, or the session lock would outlive the parent (P21)."""
        if self._connection is not None:
            with contextlib.suppress(OSError, psycopg.Error):
                os.close(self._connection.fileno())

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_writer, b"!")

    # The ledger.

    def _connect(self) -> Connection:
        limits = self.settings.ledger
        return connect(
            self._url,
            name=f"safepoint node {self.node.node_id}",
            connect_timeout=limits.connect_timeout,
            statement_timeout=min(limits.statement_timeout, self.settings.worker.lease / 3),
        )

    def _register(self) -> None:
        self._disconnect()
        self._connection = self._connect()
        self._locked = self.settings.worker.session_lock and self._take_lock(self._connection)
        found = nodes.register(self._connection, self.node, lease=self.settings.worker.lease, with_lock=self._locked)
        self.board.identify(found.incarnation)
        self.board.beaten(time.monotonic())
        if self._locked:
            self._watch.poll.register(self._connection.fileno(), select.POLLIN | select.POLLHUP)
        log.info("node.registered", node=self.node.node_id, session_lock=self._locked)

    def _take_lock(self, connection: Connection) -> bool:
        if not nodes.hold_session_lock(connection, self.node.node_id):
            return False
        # P21: behind a transaction pooler the lock is nobody's; then leases alone decide, which is slower
        # and as correct.
        with self._connect() as other:
            works = nodes.session_locks_work(connection, other, self.node.node_id)
        if not works:
            log.warning("node.session_lock_unusable", hint="a transaction pooler? set SAFEPOINT_LEDGER_DIRECT_URL")
        return works

    def _disconnect(self) -> None:
        if self._connection is None:
            return
        if self._locked:
            with contextlib.suppress(KeyError, ValueError, psycopg.Error):
                self._watch.poll.unregister(self._connection.fileno())
        with contextlib.suppress(psycopg.Error):
            self._connection.close()
        self._connection = None

    def once(self) -> nodes.Beat | None:
        """Beat once; None when the ledger did not answer."""
        try:
            with self._guard:
                if self._connection is None or self._connection.closed:
                    self._register()
                assert self._connection is not None
                found = nodes.beat(
                    self._connection,
                    self.node.node_id,
                    active=self.board.active(),
                    marks=self._marks(),
                    lease=self.settings.worker.lease,
                    draining=self._drain_until is not None,
                )
                if found.must_register and not self._stop.is_set():
                    self._register()
        except (psycopg.Error, LedgerUnavailable, OSError) as error:
            log.warning(
                "node.beat_failed",
                error=" ".join(str(error).split())[:200],
                since_beat=round(self.board.since_beat(), 1),
            )
            self._disconnect()
            return None
        self.board.beaten(time.monotonic())
        self.board.identify(found.incarnation)
        self._flush()  # after the beat, and apart from it: outcomes must not cost a lease
        return found

    def _marks(self) -> dict[str, Any]:
        executing = [found.pid for found in self.board.read() if found.token is not None]
        return {**self.board.marks(), MEMORY: self.deaths.sample(executing)}

    # The loop.

    def _run(self) -> None:
        due = time.monotonic() + self.settings.worker.beat
        while not self._stop.is_set():
            spoke = self._await_events(self._wait_for(due))
            with at_work():
                due = self._work(spoke, due)
            if self._drained:
                return

    def _work(self, spoke: list[int], due: float) -> float:
        """Do what events ask for and what is due; return when the next beat is."""
        self._heed(spoke)
        if time.monotonic() >= due or (self._drain_until is not None and not self._announced):
            self._announced = self._drain_until is not None
            answered = self.once()
            due = time.monotonic() + (
                self.settings.worker.beat if answered else min(BACKOFF, self.settings.worker.beat)
            )
        elif self._outcomes.wanted_in() == 0:
            self._flush()
        if self._drain_until is not None and time.monotonic() >= self._drain_until:
            self._end_drain()
            self._drained = True
        return due

    def _flush(self) -> None:
        """Tell the ledger what calls have come to; what it does not hear is no verdict."""
        try:
            with self._guard:
                if self._connection is not None and not self._connection.closed:
                    self._outcomes.flush(self._connection)
        except psycopg.Error as error:
            log.warning("node.outcomes_untold", error=" ".join(str(error).split())[:200])
        except Exception:  # a breaker's row that cannot be read: the log has it, and the beat goes on
            log.exception("node.outcomes_untold")

    _announced = False
    _drained = False

    def _wait_for(self, due: float) -> float:
        until = due if self._drain_until is None else min(due, self._drain_until)
        soon = self._outcomes.wanted_in()
        left = max(0.0, until - time.monotonic())
        return left if soon is None else min(left, soon)

    def _await_events(self, seconds: float) -> list[int]:
        for found in self.board.read():
            self._watch.follow(found)
        return [fd for fd, _ in self._watch.poll.poll(seconds * 1000)]

    def _heed(self, spoke: list[int]) -> None:
        for fd in spoke:
            if fd in self._watch.fds:
                self._child_ended(*self._watch.forget(fd))
            elif fd == self.board.hello_reader:
                self.board.drain_hellos()
            elif fd == self._wake_reader:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake_reader, 4096)
            else:
                self._connection_spoke(fd)
        self._look_at_the_unwatched()

    def _look_at_the_unwatched(self) -> None:
        """Where the system has no pidfds, or a child has died before it had one, the pool has seen its death."""
        watched = {pid for pid, _ in self._watch.fds.values()}
        for pid in self.deaths.seen():
            if pid not in watched:
                slot = next((found.slot for found in self.board.read() if found.pid == pid), -1)
                self._child_ended(pid, slot)

    def _connection_spoke(self, fd: int) -> None:
        # Nothing is sent to this connection unasked, so it has been closed: the session lock is gone, and
        # we are alive. Say so at once.
        if self._connection is None or self._connection.closed or self._connection.fileno() != fd:
            self._watch.poll.unregister(fd)
            return
        self._disconnect()
        if self.once() is None:
            self._stop.wait(BACKOFF)

    def _child_ended(self, pid: int, slot: int) -> None:
        held = [one for one in self.board.read() if one.slot == slot and one.pid == pid and one.token is not None]
        evidence = self.deaths.evidence(pid)
        self.board.clear(slot, pid=pid)
        for found in held:
            if self._drain_until is not None:  # P22: Celery ends its children as well
                self._give_back(found, steps.Cause.RELEASED, deadly=False, evidence=evidence)
            else:
                self._give_back(found, steps.Cause.CHILD, deadly=True, evidence=evidence)

    def _give_back(self, found: Executing, cause: steps.Cause, *, deadly: bool, evidence: dict[str, Any]) -> None:
        """Report a claim whose process has ended; if the ledger does not answer now, the scan finds it (P4)."""
        try:
            with self._guard:
                if self._connection is None or self._connection.closed:
                    self._register()
                assert self._connection is not None
                for run_id, key, token in orphans.claims_of(self._connection, self.node.node_id, found.token):
                    loss = steps.Loss(
                        run_id,
                        key,
                        token,
                        cause,
                        deadly=deadly,
                        pid=found.pid,
                        pid_start=found.pid_start,
                        evidence=evidence,
                    )
                    answer = steps.lose(
                        self._connection,
                        loss,
                        lane=recovery_lane(self.settings),
                        max_deaths=self.settings.scan.max_recoveries,
                    )
                    facts = {"cause": cause.value, "answer": answer, **evidence}
                    log.warning("lease.lost", run=str(run_id), step=key.wire, **facts)
        except (psycopg.Error, LedgerUnavailable, OSError) as error:
            log.warning("node.report_failed", error=" ".join(str(error).split())[:200], pid=found.pid)
            self._disconnect()

    def _end_drain(self) -> None:
        """The time is up: end what still runs, release its steps, then the process itself."""
        own = os.getpid()
        for found in self.board.read():
            if found.token is None or found.pid == own:
                continue
            with contextlib.suppress(ProcessLookupError):
                os.kill(found.pid, signal.SIGKILL)
            self._wait_until_gone(found.pid)
            self._give_back(found, steps.Cause.RELEASED, deadly=False, evidence={"pid": found.pid})
        threads = [found for found in self.board.read() if found.token is not None and found.pid == own]
        log.info("node.drained", node=self.node.node_id, threads_left=len(threads))
        self._stop.set()
        if threads:
            # A thread cannot be ended alone: the process goes, and the scan finds a stopped node's steps at once.
            with self._guard, contextlib.suppress(psycopg.Error, LedgerUnavailable):
                if self._connection is not None:
                    nodes.stop(self._connection, self.node.node_id)
            os._exit(0)
        if self._on_drained is not None:
            self._on_drained()

    def _wait_until_gone(self, pid: int) -> None:
        for fd, (watched, _) in list(self._watch.fds.items()):
            if watched == pid:
                poll = select.poll()
                poll.register(fd, select.POLLIN)
                poll.poll(2000)
                self._watch.forget(fd)

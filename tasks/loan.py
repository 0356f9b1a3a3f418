"""What an executor borrows from its process: a connection to the ledger, a slot on the board, the rows it has
published and not yet settled.

Each thread has its own; after a fork everything is made anew, because a connection must never be shared with the
parent.
"""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar
from uuid import UUID

import psycopg
import structlog

from ..config.settings import Settings
from ..ledger.connect import Connection, connect, is_outage
from ..ledger.key import Key
from ..ledger.steps import Claimed, Claimer, Settled
from ..recovery.breaker import Outcome
from .board import Board, process_start

__all__ = ["Loan", "Shutdown"]

log = structlog.get_logger("safepoint.loan")
T = TypeVar("T")
LONGEST_PAUSE = 2.0  # seconds between two questions to a ledger that is away
UNSETTLED = 500


class Shutdown(Exception):  # noqa: N818  # an order, not an error
    """The worker ends before the ledger has answered: the message goes back to its queue (P13)."""


class _Mine(threading.local):
    connection: Connection | None = None
    pid: int = 0
    published: list[Settled] | None = None
    slot: int = 0
    executing: Key | None = None


class Loan:
    """Connections, slots and unsettled rows of this process."""

    def __init__(
        self, settings: Settings, ledger_url: str, *, board: Board, node_id: str, slot: int | None = None
    ) -> None:
        self.settings = settings
        self.board = board
        self._url = ledger_url
        self._node_id = node_id
        self._slot = slot  # a pool child's own; None: the process has threads, which borrow one each
        self._mine = _Mine()
        self._claimer: Claimer | None = None

    def own(self, slot: int) -> None:
        """Live in a slot of one's own, as a pool child."""
        self._slot = slot

    @contextlib.contextmanager
    def slot(self, token: UUID) -> Iterator[None]:
        """Name a claim to the node's beats for as long as the block runs."""
        board, own = self.board, self._slot
        slot = self._mine.slot = board.borrow() if own is None else own
        board.begin(slot, token)
        try:
            yield
        finally:
            board.free(slot)
            board.end(slot)
            if own is None:
                board.give_back(slot)

    @property
    def executing(self) -> Key | None:
        """What this thread executes, or has last."""
        return self._mine.executing

    @executing.setter
    def executing(self, key: Key) -> None:
        self._mine.executing = key

    def expect(self, token: UUID) -> None:
        """Name the claim that is asked for with the commit of the one under way."""
        self.board.expect(self._mine.slot, token)

    def go_on(self, token: UUID) -> None:
        """Name this claim alone."""
        self.board.go_on(self._mine.slot, token)

    def may_start(self) -> bool:
        """Whether something new may start here now: nobody drains, beats come, and no step wants the node alone."""
        return not self.board.draining and not self._must_wait()

    def reserve(self) -> bool:
        """Ask, until the slot is given back, that nothing else starts on this node (P23); whether that is granted."""
        return self.board.reserve(self._mine.slot)

    def unreserve(self) -> None:
        """Let others start again."""
        self.board.free(self._mine.slot)

    def claimer(self) -> Claimer:
        """Say who claims: the node and this process."""
        if self._claimer is None or self._claimer.pid != os.getpid():
            self._claimer = Claimer(self._node_id, os.getpid(), process_start(os.getpid()))
        return self._claimer

    @property
    def incarnation(self) -> int:
        """The ledger's identity as the last beat saw it."""
        return self.board.incarnation

    def mark(self, lane: str, claimed: Claimed) -> None:
        """Tell the relay, by way of the beat, how far the lane has come (P11)."""
        dispatched = claimed.dispatched_at.timestamp() if claimed.dispatched_at else 0.0
        self.board.mark(lane, claimed=claimed.db_now.timestamp(), dispatched=dispatched)

    def count(self, dependency: str, outcome: Outcome, *, leave_for: float) -> None:
        """Tell the next beat what a call of a dependency has come to (P39)."""
        self.board.count(self._mine.slot, dependency, outcome, leave_for=leave_for)

    # Published rows: settled by the next statement that is made anyway (P17).

    def published(self, rows: Sequence[Settled]) -> None:
        """Remember rows that have been published."""
        mine = self._mine.published or []
        self._mine.published = [*mine, *rows][-UNSETTLED:]

    def take_published(self) -> list[Settled]:
        """Hand over the rows to settle. Should the statement be lost they are due again, and a duplicate is dropped."""
        rows, self._mine.published = self._mine.published or [], []
        return rows

    # The ledger.

    def ask(self, ask: Callable[[Connection], T], *, starting: bool) -> T:
        """Ask the ledger until it answers; with `starting`, a drain ends the asking, and a node without
        beats starts nothing (P20).

        Raises:
            Shutdown: the worker drains before anything has been claimed.
        """
        pause = 0.05
        while True:
            if starting:
                self._await_beats()
            try:
                return ask(self.connection())
            except (psycopg.Error, OSError) as error:
                self.disconnect()
                if not is_outage(error):
                    raise
                log.warning("ledger.away", error=" ".join(str(error).split())[:200], pause=round(pause, 2))
            except Exception as error:  # LedgerUnavailable of `connect`: the same outage, seen at its door
                if not is_outage(error):
                    raise
            if starting and self.board.draining:
                raise Shutdown
            time.sleep(pause * random.uniform(0.5, 1.0))  # jitter, no secret
            pause = min(pause * 2, LONGEST_PAUSE)

    def _await_beats(self) -> None:
        """Start nothing while two thirds of a lease have gone by without a beat: others may take us for dead soon."""
        if self.board.draining:
            raise Shutdown
        while self._must_wait():
            if self.board.draining:
                raise Shutdown
            time.sleep(0.1)

    def _must_wait(self) -> bool:
        beatless = self.board.since_beat() > self.settings.worker.lease * 2 / 3
        return beatless or self.board.is_reserved_from(self._mine.slot)

    def connection(self) -> Connection:
        """Return this thread's connection."""
        mine = self._mine
        if mine.connection is None or mine.connection.closed or mine.pid != os.getpid():
            limits = self.settings.ledger
            mine.connection = connect(
                self._url,
                name=f"safepoint {self._node_id}",
                connect_timeout=limits.connect_timeout,
                statement_timeout=limits.statement_timeout,
                generic=True,
            )
            mine.pid = os.getpid()
        return mine.connection

    def disconnect(self) -> None:
        """Drop this thread's connection; the next question opens another."""
        mine = self._mine
        if mine.connection is not None and mine.pid == os.getpid():
            with contextlib.suppress(psycopg.Error):
                mine.connection.close()
        mine.connection = None

"""A few connections to the ledger for a process that only asks now and then: an app, not a worker.

Safe between threads, and over a fork: a child leaves its parent's connections alone and opens its own.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final, TypeVar

import psycopg
from psycopg.pq import TransactionStatus

from .connect import Connection, is_outage
from .errors import LedgerUnavailable

__all__ = ["Pool"]

T = TypeVar("T")

FIRST_PAUSE: Final = 0.05  # seconds
LONGEST_PAUSE: Final = 0.5


@dataclass(slots=True)
class _Kept:
    """What one process holds."""

    places: threading.BoundedSemaphore
    idle: list[Connection] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    pid: int = field(default_factory=os.getpid)
    closed: bool = False


class Pool:
    """Up to `size` connections, opened when they are needed."""

    def __init__(self, opened: Callable[[], Connection], *, size: int = 10, patience: float = 5.0) -> None:
        self._open = opened
        self._size = size
        self._patience = patience
        self._here = _Kept(threading.BoundedSemaphore(size))

    @property
    def _kept(self) -> _Kept:
        # After a fork the lock may be held by a thread that does not exist here, and the sockets are the parent's:
        # psycopg closes a connection only in the process that opened it, so forgetting them is enough.
        if self._here.pid != os.getpid():
            self._here = _Kept(threading.BoundedSemaphore(self._size), closed=self._here.closed)
        return self._here

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """Lend a connection; one that comes back broken, or in a transaction, is thrown away."""
        kept = self._kept
        if not kept.places.acquire(timeout=self._patience):
            raise LedgerUnavailable(text=f"all {self._size} connections of this client are in use")
        try:
            connection = self._take(kept)
            try:
                yield connection
            finally:
                self._give_back(kept, connection)
        finally:
            kept.places.release()

    def _take(self, kept: _Kept) -> Connection:
        with kept.lock:
            if kept.closed:
                raise LedgerUnavailable(text="this client is closed")
            if kept.idle:
                return kept.idle.pop()
        return self._open()

    def _give_back(self, kept: _Kept, connection: Connection) -> None:
        if connection.info.transaction_status is TransactionStatus.IDLE:
            with kept.lock:
                if not kept.closed:
                    kept.idle.append(connection)
                    return
        with suppress(psycopg.Error):
            connection.close()

    def ask(self, question: Callable[[Connection], T]) -> T:
        """Ask the ledger, and ask again while the answer is lost (P3); the question must be one that may be repeated.

        Raises:
            LedgerUnavailable: it cannot be reached, or did not answer for as long as the pool is patient.
        """
        ends, pause = None, FIRST_PAUSE
        while True:
            sent = False
            try:
                with self.connection() as connection:
                    sent = True
                    return question(connection)
            except (psycopg.Error, LedgerUnavailable) as error:
                if not is_outage(error):
                    raise
                self._forget_idle()  # what broke this connection has broken them all, most likely
                ends = ends or (time.monotonic() + self._patience if sent else None)
                if ends is None or time.monotonic() + pause > ends:
                    raise self._unavailable(error, asked=ends is not None) from error
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _forget_idle(self) -> None:
        with self._kept.lock:
            idle, self._kept.idle = self._kept.idle, []
        for connection in idle:
            connection.close()

    def _unavailable(self, error: Exception, *, asked: bool) -> LedgerUnavailable:
        text = str(getattr(error, "text", "")) or " ".join(str(error).split()) or type(error).__name__
        unknown = f"; it was asked, and whether it has done so is not known after {self._patience:g} s"
        return LedgerUnavailable(text=text + (unknown if asked else ""))

    def close(self) -> None:
        """Close what is idle; what is lent is closed when it comes back."""
        self._kept.closed = True
        self._forget_idle()

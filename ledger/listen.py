"""Wakes whoever waits for a run: LISTEN on one connection for all waiting threads and tasks of a client.

A notification only saves time. Behind a pooler, or while the connection is away, nothing comes, and who waits looks for
itself now and then.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

import psycopg

from .connect import Connection
from .errors import LedgerUnavailable

__all__ = ["CHANNEL", "Listener"]

CHANNEL: Final = "safepoint_run"  # finish_v1 and hold_v1 notify it with the run's id
LINGER: Final = 10.0  # seconds that the connection is kept after the last one has stopped waiting
PAUSE: Final = 1.0  # seconds between attempts to listen again

Wake = Callable[[], object]


class Listener:
    """A thread that listens while somebody waits."""

    def __init__(self, opened: Callable[[], Connection]) -> None:
        self._open = opened
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._waiting: dict[str, list[Wake]] = {}
        self._thread: threading.Thread | None = None
        self._ours, self._theirs = socket.socketpair()
        self._closed = False

    @contextmanager
    def watch(self, run_id: str, wake: Wake) -> Iterator[None]:
        """Call `wake` whenever the run ends or is held, while the block runs; it is called from another thread."""
        if self._pid != os.getpid():
            self._reset()  # a fork takes neither the thread nor the lock's owner along
        with self._lock:
            self._waiting.setdefault(run_id, []).append(wake)
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._listen, name="safepoint-listener", daemon=True)
                self._thread.start()
        try:
            yield
        finally:
            with self._lock:
                waiting = self._waiting.get(run_id, [])  # a child forked inside the block has none
                if wake in waiting:
                    waiting.remove(wake)
                if not waiting:
                    self._waiting.pop(run_id, None)

    def close(self) -> None:
        """End the thread and its connection."""
        if self._pid != os.getpid():
            return
        with self._lock:
            self._closed, thread = True, self._thread
        with suppress(OSError):
            self._ours.send(b"x")
        if thread is not None and thread is not threading.current_thread():
            thread.join(5)
        self._ours.close()
        self._theirs.close()

    def _listen(self) -> None:
        while self._is_needed():
            try:
                with self._open() as connection:
                    connection.execute(f"LISTEN {CHANNEL}")
                    self._wake_all()  # what happened before this connection listened was told to nobody
                    self._hear(connection)
            except (psycopg.Error, LedgerUnavailable, OSError):
                # Nobody is told: they look for themselves, and learn of an outage that way.
                select.select([self._theirs], [], [], PAUSE)

    def _is_needed(self) -> bool:
        with self._lock:
            if self._closed or not self._waiting:
                self._thread = None
                return False
            return True

    def _hear(self, connection: Connection) -> None:
        last_wanted = time.monotonic()
        while True:
            readable, _, _ = select.select([connection.fileno(), self._theirs.fileno()], [], [], LINGER)
            with self._lock:
                if self._waiting:
                    last_wanted = time.monotonic()
                if self._closed or time.monotonic() - last_wanted >= LINGER:
                    return
            if connection.fileno() in readable:
                for notify in connection.notifies(timeout=0):
                    self._wake(notify.payload)

    def _wake(self, run_id: str) -> None:
        with self._lock:
            wakes = list(self._waiting.get(run_id, ()))
        for wake in wakes:
            wake()

    def _wake_all(self) -> None:
        with self._lock:
            wakes = [wake for some in self._waiting.values() for wake in some]
        for wake in wakes:
            wake()

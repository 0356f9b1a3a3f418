"""No process is forked while a thread of ours is at work: the child would inherit the locks that the thread holds just
then, of a log's stream for instance, and wait for them for ever at its first line.

Python makes anew what locks `logging` and `threading` have themselves; of streams, drivers and other people's code
nobody does.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

__all__ = ["at_work"]


class _Gate:
    """Lets threads work, and forks happen in between. The thread that forks must not be at work itself."""

    def __init__(self) -> None:
        self._idle = threading.Condition(threading.Lock())
        self._working = 0
        self._forks = False

    def begin(self) -> None:
        """Be at work; not before a fork that waits has happened, or it might wait for ever."""
        with self._idle:
            while self._forks:
                self._idle.wait()
            self._working += 1

    def end(self) -> None:
        """Be through."""
        with self._idle:
            self._working -= 1
            self._idle.notify_all()

    def shut(self) -> None:
        """Wait until nobody works, and let nobody begin."""
        self._idle.acquire()
        self._forks = True
        while self._working:
            self._idle.wait()

    def open(self) -> None:
        """Let threads begin again; in a child there are none."""
        self._forks = False
        self._idle.notify_all()
        self._idle.release()


_GATE = _Gate()
# Work is a question to the ledger and what is logged of it: a fork waits as long as that takes, seconds at most.
os.register_at_fork(before=_GATE.shut, after_in_parent=_GATE.open, after_in_child=_GATE.open)


@contextlib.contextmanager
def at_work() -> Iterator[None]:
    """Keep this process from being forked as long as the block runs, which must have no such block in it."""
    _GATE.begin()
    try:
        yield
    finally:
        _GATE.end()

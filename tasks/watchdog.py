"""Ends flow code that does not reach its next await: without it `while True: pass` in a flow keeps a worker for ever.

A flow is pure control logic and takes microseconds; the limit is for bugs. The exception is set from another
thread, which works in every
pool; code that is inside one long C call hears of it only when that returns.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time

__all__ = ["FlowStuck", "Watchdog"]

TICK = 0.5  # seconds between looks


class FlowStuck(BaseException):
    """The flow did not reach its next await within the time it has; it loops, or works where a step should."""


class Watchdog:
    """One thread a process that looks now and then whether some thread's flow code has taken too long."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self._armed: dict[int, float] = {}
        self._guard = threading.Lock()
        self._pid = 0

    def watching(self) -> Watching:
        """Bound a block's time; raises FlowStuck in it."""
        return Watching(self)

    def arm(self, thread: int) -> None:
        """Count from now what that thread does."""
        self._ensure_thread()
        with self._guard:
            self._armed[thread] = time.monotonic() + self.limit

    def disarm(self, thread: int) -> None:
        """Count no more; what has been fired and has not arrived yet never does."""
        with self._guard:
            # Not there: it has been fired, and may not have arrived yet. Cancelled under the guard, so
            # that it hits nothing outside.
            if self._armed.pop(thread, None) is None:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), None)

    def _ensure_thread(self) -> None:
        if self._pid == os.getpid():
            return
        # After a fork only the forking thread lives on: the child needs a watcher of its own.
        self._pid, self._armed, self._guard = os.getpid(), {}, threading.Lock()
        threading.Thread(target=self._run, name="safepoint-watchdog", daemon=True).start()

    def _run(self) -> None:
        mine, looked = os.getpid(), time.monotonic()
        while os.getpid() == mine:
            time.sleep(TICK)
            # Time in which the process was frozen, or got no processor, is no flow's: this thread has overslept it too.
            now, overslept = time.monotonic(), max(0.0, time.monotonic() - looked - TICK)
            looked = now
            with self._guard:
                self._armed = {thread: until + overslept for thread, until in self._armed.items()}
                for thread in [one for one, until in self._armed.items() if until < now]:
                    del self._armed[thread]
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(FlowStuck))


class Watching:
    """A block that a watchdog watches; written out because every step runs through one."""

    __slots__ = ("_thread", "_watchdog")

    def __init__(self, watchdog: Watchdog) -> None:
        self._watchdog = watchdog
        self._thread = threading.get_ident()

    def __enter__(self) -> None:
        self._watchdog.arm(self._thread)

    def __exit__(self, *_: object) -> None:
        self._watchdog.disarm(self._thread)

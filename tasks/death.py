"""How a pool child has died, as its parent sees it before anybody has waited for it: signal or exit code, peak memory.

What is known of a process is gone as soon as it has been waited for, and Celery's pool waits as soon as it can. So the
pool's own look at a child (`Deaths.attend`) is preceded by ours, which leaves the child as it is.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import signal
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

from ..config.memory import Allowance, allowance, resident
from ..recovery import evidence

__all__ = ["Death", "Deaths", "look"]

KEPT = 256  # deaths that nobody has asked for yet, of children that executed nothing
# waitid as the kernel has it takes one argument more than the C library's: what the process has used.
_WAITID = {"x86_64": 247, "aarch64": 95, "riscv64": 95}
_MAXRSS = 4  # its place in struct rusage, after two times of two numbers each; in KiB
_RUSAGE = ctypes.c_long * 18


@dataclass(frozen=True, slots=True)
class Death:
    """How a process has ended, and how many bytes it has held in memory at most."""

    signal: int | None = None
    exit_code: int | None = None
    peak: int | None = None


def look(pid: int, *, wait: bool = False) -> Death | None:
    """Return how a child of this process has died; None while it lives. It can still be waited for.

    Raises:
        ChildProcessError: there is no such child, or somebody has waited for it already.
    """
    if not hasattr(os, "waitid"):
        raise ChildProcessError("this system does not tell")  # macOS; there a death has no particulars
    options = os.WEXITED | os.WNOWAIT | (0 if wait else os.WNOHANG)
    found = os.waitid(os.P_PID, pid, options)
    if found is None:
        return None
    if found.si_code == os.CLD_EXITED:
        return Death(exit_code=found.si_status, peak=_peak(pid))
    return Death(signal=found.si_status, peak=_peak(pid))


@cache
def _kernel() -> tuple[Callable[..., int] | None, int]:
    """Return the C library's way into the kernel, and the number of waitid there: 0 where we do not know it."""
    number = _WAITID.get(platform.machine(), 0)
    return (ctypes.CDLL(None).syscall, number) if number else (None, 0)


def _peak(pid: int) -> int | None:
    syscall, number = _kernel()
    if syscall is None:
        return None
    used, how, options = _RUSAGE(), *map(ctypes.c_long, (os.P_PID, os.WEXITED | os.WNOWAIT | os.WNOHANG))
    if syscall(ctypes.c_long(number), how, ctypes.c_long(pid), None, options, ctypes.byref(used)) != 0:
        return None
    return used[_MAXRSS] * 1024 or None


def name_of(number: int) -> str:
    """Name a signal as people do."""
    with contextlib.suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"


class Deaths:
    """What the main process knows of its children's deaths, and what its beats tell of memory."""

    def __init__(self, *, on_death: Callable[[], None] = lambda: None) -> None:
        _kernel()  # now: a thread that loads a library while another one forks may leave it locked in the child
        self._on_death = on_death
        self._seen: OrderedDict[int, Death] = OrderedDict()
        self._guard = threading.Lock()
        # At the last two beats: one may fall between the kill and the death, and count it too early.
        self._allowances: deque[Allowance] = deque([allowance()], maxlen=2)

    def attend(self) -> None:
        """Look at each child of Celery's pool before the pool waits for it."""
        from billiard import popen_fork  # noqa: PLC0415  # only a worker of processes has it

        deaths = self

        class Popen(popen_fork.Popen):
            """A child that is looked at first. Never waited for unseen: it may die between a look and a wait."""

            def poll(self, flag: int = os.WNOHANG) -> int | None:
                if self.returncode is None and not deaths.see(self.pid, wait=flag != os.WNOHANG):
                    return None
                return super().poll(flag)

        # Celery has no hook between a child's death and the wait for it.
        setattr(popen_fork, "Popen", Popen)  # noqa: B010  # a class is no variable to a type checker

    def see(self, pid: int, *, wait: bool = False) -> bool:
        """Remember how a child has died; False while it lives."""
        try:
            found = look(pid, wait=wait)
        except ChildProcessError:
            return True  # somebody else's matter: let the pool find out
        if found is None:
            return False
        with self._guard:
            # Between the two looks of this one somebody may have waited for it: then the other one has seen more.
            if found.peak is not None or pid not in self._seen:
                self._seen[pid] = found
            while len(self._seen) > KEPT:
                self._seen.popitem(last=False)
        self._on_death()
        return True

    def seen(self) -> list[int]:
        """Return whose deaths nobody has asked for yet."""
        with self._guard:
            return list(self._seen)

    def take(self, pid: int) -> Death | None:
        """Return how a child has died that is known to be dead, and forget it."""
        self.see(pid)  # it leaves what was seen before somebody waited for it
        with self._guard:
            return self._seen.pop(pid, None)

    def sample(self, pids: Iterable[int]) -> dict[str, Any]:
        """Return what a beat tells of memory: should the whole worker die, nothing else will be known of it."""
        now = allowance()
        self._allowances.append(now)
        held = {str(pid): found for pid in sorted(set(pids)) if (found := resident(pid)) is not None}
        return evidence.sampled(held, allowed=now.limit)

    def evidence(self, pid: int) -> dict[str, Any]:
        """Return what is known of the death of a child."""
        found, now, before = self.take(pid) or Death(), allowance(), self._allowances[0]
        return evidence.of_child(
            pid,
            killed_by=None if found.signal is None else name_of(found.signal),
            exit_code=found.exit_code,
            resident=found.peak,
            allowed=now.limit,
            kills=None if now.kills is None or before.kills is None else now.kills - before.kills,
        )

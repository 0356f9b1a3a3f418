"""Child processes of one foreground program: started, watched, started again when they die, and ended in order.

Each leads a process group of its own, so that Ctrl-C reaches the parent alone; and only what was started here is ever
signalled.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO

__all__ = ["Child", "Children", "Plan"]

PR_SET_PDEATHSIG = 1
FIRST_DELAY = 0.5  # seconds before a child that died is started again; doubles each time it dies soon
LONGEST_DELAY = 30.0
SETTLED = 60.0  # seconds after which a child counts as well: its next death is a first one again
TICK = 0.2


@dataclass(frozen=True, slots=True)
class Plan:
    """What a child is: its name, its command, and in which round of the end it is ended, the lowest first."""

    name: str
    command: Sequence[str]
    env: Mapping[str, str]
    round: int = 0
    patience: float = 10.0  # seconds between SIGTERM and SIGKILL


@dataclass(slots=True)
class Child:
    """A plan and the process that carries it out, if one does now."""

    plan: Plan
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    delay: float = FIRST_DELAY
    start_at: float = 0.0
    rest: bytes = b""
    starts: int = 0

    @property
    def pid(self) -> int | None:
        """The process id, while it lives."""
        return None if self.process is None else self.process.pid


@dataclass(slots=True)
class Children:
    """All children; `tell` gets what is worth saying, `write` each line of a child's, `died` each death."""

    plans: Sequence[Plan]
    tell: Callable[[str], None]
    write: Callable[[str, bytes], None]
    died: Callable[[Child, int], None] | None = None
    children: list[Child] = field(default_factory=list)
    _selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)

    def start(self) -> None:
        """Start them all."""
        self.children = [Child(plan) for plan in self.plans]
        for child in self.children:
            self._spawn(child)

    def _spawn(self, child: Child) -> None:
        child.process = subprocess.Popen(
            list(child.plan.command),
            env=dict(child.plan.env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            process_group=0,
            preexec_fn=_end_with_parent(),  # noqa: PLW1509  # one thread here, and a single system call there
        )
        child.started = time.monotonic()
        child.starts += 1
        assert child.process.stdout is not None  # it is a pipe
        os.set_blocking(child.process.stdout.fileno(), False)
        self._selector.register(child.process.stdout, selectors.EVENT_READ, child)

    def tend(self, timeout: float = TICK) -> None:
        """Pass on what they write, and start again what has died, for at most this many seconds."""
        for key, _ in self._selector.select(timeout):
            self._pass_on(key.data, key.fileobj)  # type: ignore[arg-type]  # the pipe that was registered
        for child in self.children:
            if child.process is not None and child.process.poll() is not None:
                self._mourn(child)
            elif child.process is None and time.monotonic() >= child.start_at:
                self._spawn(child)
                self.tell(f"{child.plan.name} started again, pid {child.pid}")

    def _pass_on(self, child: Child, pipe: IO[bytes]) -> None:
        try:
            data = os.read(pipe.fileno(), 65_536)
        except BlockingIOError:
            return
        if not data:
            self._close(pipe)
            return
        *lines, child.rest = (child.rest + data).split(b"\n")
        for line in lines:
            self.write(child.plan.name, line)

    def _close(self, pipe: IO[bytes]) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(pipe)
        pipe.close()

    def _mourn(self, child: Child) -> None:
        """Say that a child died, and set when it is started again."""
        code = self._bury(child)
        soon = time.monotonic() - child.started < SETTLED
        child.delay = min(child.delay * 2, LONGEST_DELAY) if soon and child.starts > 1 else FIRST_DELAY
        child.start_at = time.monotonic() + child.delay
        self.tell(f"{child.plan.name} {_ending(code)}; starting it again in {child.delay:g} s")
        if self.died is not None:
            self.died(child, code)

    def _bury(self, child: Child) -> int:
        assert child.process is not None  # the caller has looked
        pipe, code = child.process.stdout, child.process.wait()
        if pipe is not None and not pipe.closed:
            # Its last words; a grandchild may still hold the pipe, so this never waits for an end of file.
            self._pass_on(child, pipe)
            if not pipe.closed:
                self._close(pipe)
        if child.rest:
            self.write(child.plan.name, child.rest)
        child.process, child.rest = None, b""
        return code

    def stop(self, *, hurry: Callable[[], bool]) -> None:
        """End them round by round: SIGTERM, patience, SIGKILL; `hurry` says that patience is over for all."""
        for number in sorted({child.plan.round for child in self.children}):
            self._stop([child for child in self.children if child.plan.round == number], hurry=hurry)
        self._selector.close()

    def _stop(self, children: Sequence[Child], *, hurry: Callable[[], bool]) -> None:
        for child in children:
            if child.process is not None:
                child.process.terminate()
        begun = time.monotonic()
        while living := [child for child in children if child.process is not None]:
            for key, _ in self._selector.select(0.05):
                self._pass_on(key.data, key.fileobj)  # type: ignore[arg-type]  # as above
            for child in living:
                late = time.monotonic() - begun > child.plan.patience
                if child.process is not None and child.process.poll() is None and (late or hurry()):
                    self._kill(child, late=late)
                if child.process is not None and child.process.poll() is not None:
                    self._bury(child)

    def _kill(self, child: Child, *, late: bool) -> None:
        assert child.process is not None  # the caller has looked
        if late:
            self.tell(f"{child.plan.name} has not ended within {child.plan.patience:g} s and is killed")
        # The whole group: a pool's children would outlive their parent otherwise.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.process.pid, signal.SIGKILL)
        child.process.wait()


def _ending(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    with contextlib.suppress(ValueError):
        return f"was ended by {signal.Signals(-code).name}"
    return f"was ended by signal {-code}"


def _end_with_parent() -> Callable[[], None] | None:
    """Have a child ended with SIGTERM should this process be killed: nobody would tend it any more."""
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None)  # loaded before the fork

    def ask() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)

    return ask

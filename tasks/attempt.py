"""Runs the code of one step, once, and says what came of it; nothing that user code raises gets past here.

A `MemoryError` or `SystemExit` in a step would end the whole worker in Celery, and then the next one; here it is
an attempt that failed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from ..ledger.errors import StepTimeout

__all__ = ["EventLoop", "Job", "Raised", "Returned", "attempt"]


@dataclass(frozen=True, slots=True)
class Job:
    """The code to be run: a step's own function, an effect's lookup, a compensation; `timeout` in seconds."""

    fn: Callable[..., Any]
    is_async: bool
    timeout: float


@dataclass(frozen=True, slots=True)
class Returned:
    """The step gave a value."""

    value: object


@dataclass(frozen=True, slots=True)
class Raised:
    """The step raised; whether it is tried again is the policy's to say."""

    error: BaseException


class EventLoop:
    """The one event loop of a process, in a thread of its own; made at the first async step, and anew after a fork."""

    def __init__(self) -> None:
        self._pid = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._guard = threading.Lock()

    def run(self, coroutine: Coroutine[Any, Any, object], *, timeout: float) -> object:
        """Run a coroutine and wait for it, at most `timeout` seconds; then it is cancelled and StepTimeout raised."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._running())
        try:
            return future.result(timeout)
        except FutureTimeout:
            if future.done():
                raise  # the step's own TimeoutError
            future.cancel()
            # it gets a moment to clean up; what it says then is moot
            with contextlib.suppress(FutureTimeout, CancelledError, Exception):
                future.result(1.0)
            raise StepTimeout(seconds=timeout) from None

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._guard:
            if self._loop is None or self._pid != os.getpid():
                self._pid, self._loop = os.getpid(), asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="safepoint-asyncio", daemon=True).start()
            return self._loop


def attempt(
    job: Job,
    args: tuple[object, ...],
    kwargs: dict[str, object],
    *,
    entered: Callable[[], AbstractContextManager[object]],
    loop: EventLoop,
) -> Returned | Raised:
    """Call the function inside its context (`entered`), sync here or async on the process's loop."""
    try:
        if not job.is_async:
            with entered():
                return Returned(job.fn(*args, **kwargs))
        return Returned(loop.run(_inside(job, args, kwargs, entered), timeout=job.timeout))
    except BaseException as error:  # noqa: BLE001  # becomes a failed attempt in the ledger, with its type and message
        return Raised(error)


async def _inside(
    job: Job,
    args: tuple[object, ...],
    kwargs: dict[str, object],
    entered: Callable[[], AbstractContextManager[object]],
) -> object:
    with entered():
        return await job.fn(*args, **kwargs)

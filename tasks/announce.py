"""Celery's task events of steps that are executed in place, so that Flower shows them like every other step (P31).

Events are no state (G12): what cannot be sent is lost, and nothing waits for it.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import TYPE_CHECKING, Any

import structlog

from .wire import Message, parcel

if TYPE_CHECKING:
    from celery import Celery

    from .turn import Turn

__all__ = ["Announcer", "Silence"]

log = structlog.get_logger("safepoint.announce")
FLUSH = 1.0  # seconds that an event may wait for others
PAUSE = 5.0  # seconds until a broker that took no event is asked again
_UNTOLD = contextlib.nullcontext()


class Silence:
    """What announces nothing."""

    def of(self, turn: Turn, *, lane: str, in_place: bool) -> contextlib.AbstractContextManager[None]:  # noqa: ARG002
        """Let the block run."""
        return _UNTOLD

    def flush(self) -> None:
        """Send what waits."""


class _Mine(threading.local):
    dispatcher: Any = None
    pid: int = 0
    flushed: float = 0.0
    away_until: float = 0.0


class Announcer(Silence):
    """Sends the events of steps in place; each thread has a connection of its own, and so has a forked process."""

    def __init__(self, app: Celery, *, hostname: str) -> None:
        self._app = app
        self._hostname = hostname
        self._mine = _Mine()

    def of(self, turn: Turn, *, lane: str, in_place: bool) -> contextlib.AbstractContextManager[None]:
        """Announce a step while the block executes it; the first one of a task has Celery's own events."""
        return self._of(turn, lane) if in_place else _UNTOLD

    def _of(self, turn: Turn, lane: str) -> _Announced:
        claimed = turn.claimed
        name = turn.step.name if turn.step is not None else claimed.key.step_id
        message = Message(str(turn.run_id), claimed.key.wire, lane, name, claimed.attempt, claimed.epoch)
        headers = parcel(message, "").headers
        self._send(
            "task-received", uuid=message.id, name=name, args=headers["argsrepr"], kwargs=headers["kwargsrepr"],
            root_id=message.run, parent_id=None, retries=headers["retries"], eta=None, expires=None,
        )  # fmt: skip
        self._send("task-started", uuid=message.id)
        return _Announced(self, message.id)

    def succeeded(self, id_: str, *, runtime: float) -> None:
        """Announce the end of a step."""
        self._send("task-succeeded", uuid=id_, result="None", runtime=runtime)
        if time.monotonic() > self._mine.flushed + FLUSH:
            self.flush()

    def _send(self, kind: str, **fields: Any) -> None:
        try:
            dispatcher = self._dispatcher()
            if dispatcher is not None:
                dispatcher.send(kind, **fields)
        except Exception as error:  # noqa: BLE001  # whatever a broker may do: a lost event is nothing (G12)
            self._lost(error)

    def flush(self) -> None:
        """Send what waits, in one message."""
        mine = self._mine
        mine.flushed = time.monotonic()
        if mine.dispatcher is not None and mine.pid == os.getpid():
            try:
                mine.dispatcher.flush()
            except Exception as error:  # noqa: BLE001  # as above
                self._lost(error)

    def _dispatcher(self) -> Any:
        mine = self._mine
        if mine.dispatcher is None or mine.pid != os.getpid():
            if time.monotonic() < mine.away_until:
                return None
            connection = self._app.connection_for_write()
            mine.dispatcher = self._app.events.Dispatcher(
                connection, hostname=self._hostname, buffer_while_offline=False, buffer_group={"task"}, buffer_limit=300
            )
            mine.pid, mine.flushed = os.getpid(), time.monotonic()
        return mine.dispatcher

    def _lost(self, error: Exception) -> None:
        log.debug("events.lost", error=str(error)[:200])
        broken, self._mine.dispatcher = self._mine.dispatcher, None
        self._mine.away_until = time.monotonic() + PAUSE
        with contextlib.suppress(Exception):  # it is thrown away
            broken.connection.collect(socket_timeout=0.1)


class _Announced:
    """A step that is announced; written out because every step in place pays for it."""

    __slots__ = ("_announcer", "_began", "_id")

    def __init__(self, announcer: Announcer, id_: str) -> None:
        self._announcer, self._id = announcer, id_

    def __enter__(self) -> None:
        self._began = time.monotonic()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:  # what breaks is told by Celery, for the whole task
            self._announcer.succeeded(self._id, runtime=time.monotonic() - self._began)

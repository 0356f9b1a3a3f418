"""The message of one step: what it carries, how it looks on the wire, and the one way to send it.

A message is a hint: it carries ids only and never a value of the user's. What this module does not build, the gate does
not let in.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Protocol
from uuid import uuid4

import orjson

from ..config.lanes import CONTROL
from .senders import AmqpSender, Parcel, RedisSender

if TYPE_CHECKING:  # Celery is imported when an app is made, not when a message is described
    from celery import Celery

__all__ = ["CONTROL", "SCAN", "Chore", "Message", "Publisher", "kind_name", "parcel"]


SCAN = "safepoint.scan"  # the task of the orphan scan, on the lane CONTROL


def kind_name(kind: str) -> str:
    """Return the Celery task name of a step of a kind that executes nothing (start, timer, signal, ...)."""
    return f"safepoint.{kind}"


@dataclass(frozen=True, slots=True)
class Message:
    """Which step is ready, and what Flower shows of it."""

    run: str
    step: str  # the step key as it goes over the wire
    lane: str
    name: str  # the Celery task: the step's name, or safepoint.<kind>
    attempt: int
    epoch: int

    @property
    def id(self) -> str:
        """The Celery task id: readable in Flower, and another one for each claim that may follow."""
        return f"{self.run}:{self.step}:{self.epoch}"


@dataclass(frozen=True, slots=True)
class Chore:
    """A task that belongs to no run, such as the orphan scan."""

    name: str
    queue: str
    expires: float  # seconds after which nobody needs it any more


def parcel(message: Message, queue: str) -> Parcel:
    """Build the protocol 2 message by hand.

    Celery's own way costs three times as much (saferepr of the arguments, merging of options, routing), and it sends
    headers that the gate would have to understand. root_id groups a run's tasks in Flower; retries is its column for
    the attempt.
    """
    headers = {
        "lang": "py",
        "task": message.name,
        "id": message.id,
        "root_id": message.run,
        "retries": max(0, message.attempt - 1),
        "argsrepr": "()",
        "kwargsrepr": f"run={message.run} step={message.step} attempt={message.attempt}",
    }
    body = orjson.dumps([[], {"run": message.run, "step": message.step, "lane": message.lane}, {}])
    return Parcel(queue=queue, id=message.id, headers=headers, body=body)


def chore_parcel(chore: Chore) -> Parcel:
    """Build the message of a chore."""
    id_ = str(uuid4())
    expires = (datetime.now(UTC) + timedelta(seconds=chore.expires)).isoformat()
    headers = {
        "lang": "py",
        "task": chore.name,
        "id": id_,
        "root_id": id_,
        "retries": 0,
        "argsrepr": "()",
        "kwargsrepr": "{}",
        "expires": expires,
    }
    return Parcel(queue=chore.queue, id=id_, headers=headers, body=b"[[],{},{}]")


class Sender(Protocol):
    """What sends parcels to one kind of broker."""

    pid: int

    def send(self, parcels: Sequence[Parcel]) -> list[Exception | None]:
        """Send parcels and return what went wrong with each."""
        ...

    def close(self) -> None:
        """Drop the connection."""


class Publisher:
    """Sends messages to their lanes' queues; each thread has a connection of its own, and so has a forked process.

    An exception in the answer means *outcome unknown*: the row stays in the outbox, a duplicate is harmless. Nothing is
    retried here, and a broker that does not answer costs a bounded time.
    """

    def __init__(self, app: Celery, *, lanes: Mapping[str, str]) -> None:
        self._app = app
        self._queues = lanes  # lane -> queue
        self._local = threading.local()
        self._inherited: list[Sender] = []

    def publish(self, messages: Sequence[Message]) -> list[Exception | None]:
        """Send each message and return, in the same order, what went wrong with it."""
        outcomes: list[Exception | None] = [None] * len(messages)
        parcels: list[Parcel] = []
        places: list[int] = []
        for place, message in enumerate(messages):
            queue = self._queues.get(message.lane)
            if queue is None:
                outcomes[place] = LookupError(f"no lane {message.lane!r}; there are {', '.join(sorted(self._queues))}")
                continue
            parcels.append(parcel(message, queue))
            places.append(place)
        if parcels:
            for place, outcome in zip(places, self._sender().send(parcels), strict=True):
                outcomes[place] = outcome
        return outcomes

    def send_chore(self, chore: Chore) -> Exception | None:
        """Send a chore and return what went wrong."""
        return self._sender().send([chore_parcel(chore)])[0]

    def close(self) -> None:
        """Close this thread's connection."""
        sender: Sender | None = getattr(self._local, "sender", None)
        self._local.sender = None
        if sender is not None and sender.pid == os.getpid():
            sender.close()

    def _sender(self) -> Sender:
        sender: Sender | None = getattr(self._local, "sender", None)
        if sender is not None and sender.pid != os.getpid():
            # The parent's socket must be neither used nor shut down by its child: it is kept and never touched again.
            self._inherited.append(sender)
            sender = None
        if sender is None:
            sender = self._local.sender = _make_sender(self._app)
        return sender


def _make_sender(app: Celery) -> Sender:
    if app.connection_for_write().transport.driver_type == "redis":
        return RedisSender(app)
    return AmqpSender(app)

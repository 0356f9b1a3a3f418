"""How parcels go to a broker: pipelined on Redis, with confirms and returns on RabbitMQ.

Both are bounded in time, never repeat anything by themselves, and drop their connection after any error, so that the
next call starts clean.
"""

from __future__ import annotations

import os
import time
from base64 import b64encode
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import amqp
import orjson
from amqp.exceptions import MessageNacked
from uuid_utils.compat import uuid4

if TYPE_CHECKING:
    from celery import Celery

__all__ = ["CONTENT_ENCODING", "CONTENT_TYPE", "TIMEOUT", "AmqpSender", "Parcel", "RedisSender", "UnroutableError"]

CONTENT_TYPE = "application/json"
CONTENT_ENCODING = "utf-8"
TIMEOUT = 5.0  # seconds for a connection, and again for one batch: a frozen broker is an error within ten
BATCH = 500  # parcels in one round trip
PERSISTENT = 2


class UnroutableError(Exception):
    """No queue took the message."""


@dataclass(frozen=True, slots=True)
class Parcel:
    """A message as it goes over the wire."""

    queue: str
    id: str
    headers: dict[str, Any]
    body: bytes

    @property
    def correlation_id(self) -> str:
        """The id as far as AMQP can carry it there (255 bytes); nobody but us reads it."""
        return self.id if len(self.id) <= 63 else sha256(self.id.encode()).hexdigest()


class RedisSender:
    """Pushes a batch in one pipeline."""

    def __init__(self, app: Celery) -> None:
        self.pid = os.getpid()
        self._app = app
        self._connection: Any = None
        self._channel: Any = None

    def send(self, parcels: Sequence[Parcel]) -> list[Exception | None]:
        """Send all parcels; what is in a batch that fails may have arrived or not."""
        outcomes: list[Exception | None] = []
        for first in range(0, len(parcels), BATCH):
            part = parcels[first : first + BATCH]
            try:
                self._push(part)
                outcomes += [None] * len(part)
            except Exception as error:  # noqa: BLE001  # the caller sees it beside each message
                self.close()
                outcomes += [error] * len(part)
        return outcomes

    def _push(self, parcels: Sequence[Parcel]) -> None:
        channel = self._channel or self._open()
        with channel.conn_or_acquire() as client:
            if len(parcels) == 1:  # as each step has it: without the pipeline around it half as much
                client.lpush(parcels[0].queue, _redis_message(parcels[0]))
                return
            with client.pipeline(transaction=False) as pipe:
                for parcel in parcels:
                    pipe.lpush(parcel.queue, _redis_message(parcel))
                pipe.execute()

    def _open(self) -> Any:
        options = {"socket_timeout": TIMEOUT, "socket_connect_timeout": TIMEOUT}
        self._connection = self._app.connection_for_write(transport_options=options)
        self._connection.ensure_connection(max_retries=0)  # kombu's default is to sleep two seconds and try again
        self._channel = self._connection.channel()
        return self._channel

    def close(self) -> None:
        """Drop the connection; the next send makes a new one."""
        connection, self._connection, self._channel = self._connection, None, None
        if connection is not None:
            with suppress(Exception):  # it is being thrown away, whatever state it is in
                connection.close()


class AmqpSender:
    """Publishes a batch, then waits for the confirms of all of it."""

    def __init__(self, app: Celery) -> None:
        self.pid = os.getpid()
        self._app = app
        self._connection: Any = None
        self._channel: Any = None
        self._declared: set[str] = set()
        self._sent = 0  # delivery tags count from 1 on each channel
        self._waiting: dict[int, int] = {}  # delivery tag -> place in the batch
        self._places: dict[str, list[int]] = {}
        self._outcomes: list[Exception | None] = []

    def send(self, parcels: Sequence[Parcel]) -> list[Exception | None]:
        """Send all parcels; one that the broker neither took nor refused in time has an unknown outcome."""
        outcomes: list[Exception | None] = []
        for first in range(0, len(parcels), BATCH):
            outcomes += self._send_batch(parcels[first : first + BATCH])
        return outcomes

    def _send_batch(self, parcels: Sequence[Parcel]) -> list[Exception | None]:
        self._outcomes, self._waiting = list[Exception | None]([None] * len(parcels)), {}
        self._places = places = defaultdict[str, list[int]](list)
        published = 0
        try:
            channel = self._ready_channel({parcel.queue for parcel in parcels})
            for place, parcel in enumerate(parcels):
                places[parcel.correlation_id].append(place)
                self._sent += 1
                self._waiting[self._sent] = place
                published = place + 1
                message = _amqp_message(parcel)
                channel.basic_publish(message, routing_key=parcel.queue, mandatory=True, timeout=TIMEOUT)
            self._wait_for_confirms()
        except Exception as error:  # noqa: BLE001  # the caller sees it beside each message
            self.close()
            for place in [*self._waiting.values(), *range(published, len(parcels))]:
                self._outcomes[place] = error
        return self._outcomes

    def _wait_for_confirms(self) -> None:
        ends = time.monotonic() + TIMEOUT
        while self._waiting:
            # settimeout(0) would make the socket non-blocking and hide that the time is over.
            self._connection.drain_events(timeout=max(0.001, ends - time.monotonic()))

    def _ready_channel(self, queues: set[str]) -> Any:
        channel = self._channel
        if channel is not None:
            try:
                # A broker that was restarted has closed this socket: seen before anything is sent, it costs nothing.
                self._connection.drain_events(timeout=0)
            except (TimeoutError, BlockingIOError):
                pass
            except Exception:  # noqa: BLE001  # unusable; connecting again shows whether the broker is there
                self.close()
                channel = None
        if channel is None or not channel.is_open:
            channel = self._open()
        for name in queues - self._declared:
            self._app.amqp.queues[name].bind(channel).declare()
            self._declared.add(name)
        return channel

    def _open(self) -> Any:
        self.close()
        # Confirms are collected here for a whole batch; kombu's own option waits for each message.
        options = {"confirm_publish": False, "read_timeout": TIMEOUT, "write_timeout": TIMEOUT}
        self._connection = self._app.connection_for_write(connect_timeout=TIMEOUT, transport_options=options)
        self._connection.ensure_connection(max_retries=0)  # kombu's default is to sleep two seconds and try again
        channel = self._connection.channel()
        channel.confirm_select()
        channel.events["basic_ack"].add(self._on_ack)
        channel.events["basic_nack"].add(self._on_nack)
        channel.events["basic_return"].add(self._on_return)
        self._channel, self._sent = channel, 0
        return channel

    def _on_ack(self, tag: int, multiple: bool) -> None:  # noqa: FBT001  # py-amqp's signature
        self._settle(tag, multiple=multiple, outcome=lambda: None)

    def _on_nack(self, tag: int, multiple: bool) -> None:  # noqa: FBT001  # py-amqp's signature
        self._settle(tag, multiple=multiple, outcome=MessageNacked)

    def _on_return(self, error: Exception, _exchange: str, routing_key: str, message: Any) -> None:
        # It comes before the message's ack, which would otherwise say that all is well.
        self._declared.discard(routing_key)
        for place in self._places.get(message.properties.get("correlation_id"), ()):
            self._outcomes[place] = UnroutableError(f"queue {routing_key!r}: {error}")

    def _settle(self, tag: int, *, multiple: bool, outcome: Callable[[], Exception | None]) -> None:
        tags = [waiting for waiting in self._waiting if waiting <= tag] if multiple else [tag]
        for settled in tags:
            place = self._waiting.pop(settled, None)
            if place is not None and self._outcomes[place] is None:
                self._outcomes[place] = outcome()

    def close(self) -> None:
        """Drop the connection without asking the broker, which may be the one that does not answer."""
        connection, self._connection, self._channel = self._connection, None, None
        self._declared.clear()
        if connection is not None:
            with suppress(Exception):  # it is being thrown away, whatever state it is in
                connection.collect(socket_timeout=0.1)


def _redis_message(parcel: Parcel) -> bytes:
    """Return kombu's envelope of a message that goes straight to its queue."""
    return orjson.dumps(
        {
            "body": b64encode(parcel.body).decode(),
            "content-encoding": CONTENT_ENCODING,
            "content-type": CONTENT_TYPE,
            "headers": parcel.headers,
            "properties": {
                "correlation_id": parcel.correlation_id,
                "delivery_mode": PERSISTENT,
                "delivery_info": {"exchange": "", "routing_key": parcel.queue},
                "priority": 0,
                "body_encoding": "base64",
                "delivery_tag": str(uuid4()),
            },
        }
    )


def _amqp_message(parcel: Parcel) -> amqp.Message:
    return amqp.Message(
        parcel.body,
        content_type=CONTENT_TYPE,
        content_encoding=CONTENT_ENCODING,
        application_headers=parcel.headers,
        correlation_id=parcel.correlation_id,
        delivery_mode=PERSISTENT,
    )

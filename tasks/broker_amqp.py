"""What RabbitMQ tells over AMQP: its version, whether it confirms a message, and how the queues are made.

A channel is closed by the first question that it refuses, so each queue has one of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from secrets import token_hex
from typing import Any

import amqp
from kombu import Connection, Queue

from ..config.settings import Settings
from .app import queues
from .broker import ASK, Queues, opened

__all__ = ["AmqpState", "look"]


@dataclass(frozen=True, slots=True)
class AmqpState:
    """A RabbitMQ as a broker."""

    name: str
    version: str
    queues: Queues
    confirms: bool  # a message that no queue takes was confirmed
    blocked: str | None  # why it takes nothing, in its own words


def look(url: str, settings: Settings) -> AmqpState:
    """Ask the server about itself and about the lanes' queues.

    Raises:
        BrokerUnavailable: it does not answer.
    """
    reasons: list[str] = []
    with opened(url, on_blocked=lambda reason: reasons.append(str(reason))) as connection:
        told: Mapping[str, Any] = getattr(connection.connection, "server_properties", {})
        waiting: dict[str, int | None] = {}
        consumers: dict[str, int] = {}
        mismatched: dict[str, str] = {}
        for queue in queues(settings, url):
            found = _count(connection, queue.name)
            waiting[queue.name] = found[0] if found else None
            if found:
                consumers[queue.name] = found[1]
                difference = _difference(connection, queue)
                if difference:
                    mismatched[queue.name] = difference
        confirms = _confirms(connection)
    return AmqpState(
        name=str(told.get("product", "AMQP")),
        version=str(told.get("version", "?")),
        queues=Queues(waiting, None, consumers, mismatched),
        confirms=confirms,
        blocked=reasons[0] if reasons else None,
    )


def _count(connection: Connection, name: str) -> tuple[int, int] | None:
    channel: Any = connection.channel()
    try:
        found = channel.queue_declare(name, passive=True)
    except amqp.NotFound:
        return None
    channel.close()
    return int(found.message_count), int(found.consumer_count)


def _difference(connection: Connection, queue: Queue) -> str | None:
    """Declare a queue that exists as workers do; the server says what is otherwise."""
    channel: Any = connection.channel()
    try:
        channel.queue_declare(queue.name, durable=True, auto_delete=False, arguments=queue.queue_arguments)
    except amqp.PreconditionFailed as error:
        return " ".join(str(error.reply_text).split())
    channel.close()
    return None


def _confirms(connection: Connection) -> bool:
    """Send a message to a queue that nobody has: only a server in an alarm does not confirm that it is dropped."""
    channel: Any = connection.channel()
    try:
        channel.basic_publish_confirm(
            amqp.Message(""), exchange="", routing_key=f"safepoint.doctor.{token_hex(8)}", confirm_timeout=ASK
        )
    except (OSError, amqp.AMQPError):  # a timeout, or a refusal
        return False
    return True

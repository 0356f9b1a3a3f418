"""What can be known of a broker: asked over the connection that workers use, with nothing changed by asking.

Every question is bounded in time by the transport's own timeouts. What a URL holds besides the place is never repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import ceil
from typing import Any

import amqp
import redis
from kombu import Connection
from kombu.exceptions import KombuError

from ..config.settings import Settings
from ..ledger.errors import BrokerUnavailable
from .app import KIND_TIMEOUT, celery_url, configuration, hard_limit

__all__ = ["Bounds", "Memory", "Queues", "bounds", "is_rabbitmq", "opened"]

ASK = 2.0  # seconds for one answer


@dataclass(frozen=True, slots=True)
class Bounds:
    """How long a message may be in one worker's hands, and when the broker takes it back (P31)."""

    step: str  # the step that may take longest
    timeout: float
    hard_limit: int
    visibility_timeout: float | None  # Redis and Valkey only


@dataclass(frozen=True, slots=True)
class Queues:
    """The lanes' queues: how many messages wait in each, how many are in hands, and who consumes."""

    waiting: Mapping[str, int | None]  # none: there is no such queue yet
    in_hands: int | None = None  # of all queues; none where the broker does not tell
    consumers: Mapping[str, int] = field(default_factory=dict)
    mismatched: Mapping[str, str] = field(default_factory=dict)  # what the broker says of a queue made otherwise


@dataclass(frozen=True, slots=True)
class Memory:
    """What a broker that keeps everything in memory has of it, in bytes; a limit of 0 is none."""

    used: int
    limit: int
    policy: str


def is_rabbitmq(url: str) -> bool:
    """Whether a broker's URL is RabbitMQ's; all others are Redis' or Valkey's."""
    return url.startswith("amqp")


def bounds(settings: Settings, url: str, steps: Mapping[str, float]) -> Bounds:
    """Give the bounds as the app of a worker with these steps (name to timeout) has them."""
    step, timeout = max([("flow code", KIND_TIMEOUT), *steps.items()], key=lambda one: one[1])
    options = configuration(settings, url, longest=timeout)["broker_transport_options"]
    return Bounds(step, timeout, ceil(hard_limit(settings, timeout)), options.get("visibility_timeout"))


def queue_names(settings: Settings) -> Sequence[str]:
    """Give the lanes' queues."""
    return sorted({lane.queue for lane in settings.lanes.values()})


@contextmanager
def opened(url: str, *, on_blocked: Callable[[Any], object] | None = None) -> Iterator[Connection]:
    """Open a connection for questions.

    Raises:
        BrokerUnavailable: it does not answer, or refuses this client.
    """
    if is_rabbitmq(url):
        options: dict[str, Any] = {
            "confirm_publish": True,
            "read_timeout": ASK,
            "write_timeout": ASK,
            "on_blocked": on_blocked,
        }
    else:
        options = {"socket_timeout": ASK, "socket_connect_timeout": ASK, "priority_steps": [0]}
    connection = Connection(celery_url(url), connect_timeout=ASK, transport_options=options)
    try:
        connection.ensure_connection(max_retries=1, interval_start=0, interval_step=0, reraise_as_library_errors=False)
        yield connection
    except (OSError, amqp.AMQPError, redis.RedisError, KombuError) as error:
        raise BrokerUnavailable(text=" ".join(str(error).split()) or type(error).__name__) from error
    finally:
        connection.collect(socket_timeout=1.0)  # not release(): a broker that hangs would be waited for

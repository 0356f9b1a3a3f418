"""The gate before Celery's own message handling (P41): what is not exactly what `wire` builds does not come in.

One malformed message ends a Celery worker, is redelivered, and ends the next one. So nothing is interpreted before it
has been compared with the one form that exists; the broker is never trusted for more than a hint.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Collection
from datetime import datetime
from typing import Any

import orjson
from celery.utils.log import get_logger
from celery.worker.consumer import Consumer

from .app import SCAN, dead_queue
from .refusals import Refusals
from .senders import CONTENT_ENCODING, CONTENT_TYPE
from .transport import UNREADABLE

__all__ = ["MAX_BODY", "GatedConsumer", "refusal"]

logger = get_logger(__name__)

MAX_BODY = 4096  # bytes
MAX_TEXT = 2048  # characters of a header
MAX_ATTEMPT = 1_000_000
TOGETHER = 0.1  # seconds that a task event waits for others
MOST = 300  # events in one message

NAME = re.compile(r"[^\s/#@\x00-\x1f\x7f-\x9f\ud800-\udfff][^\s/#\x00-\x1f\x7f-\x9f\ud800-\udfff]{0,199}")
RUN = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
STEP = re.compile(r"[^\s\x00-\x1f\x7f-\x9f\ud800-\udfff]{1,1024}")
EPOCH = re.compile(r"[0-9]{1,18}")
INSTANT = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?\+00:00")
PRINTABLE = re.compile(r"[^\x00-\x1f\x7f-\x9f\ud800-\udfff]*")

STEP_HEADERS = {"lang", "task", "id", "root_id", "retries", "argsrepr", "kwargsrepr"}
CHORE_HEADERS = STEP_HEADERS | {"expires"}
# What brokers add on a redelivery.
BROKER_HEADERS = {"redelivered", "x-delivery-count", "x-acquired-count"}


def refusal(message: Any, *, lanes: Collection[str]) -> str | None:
    """Return why a message may not come in, in a word, or None."""
    headers = message.headers
    if not isinstance(headers, dict):
        return "headers"
    if message.content_type == UNREADABLE:
        return "unreadable"
    if message.content_type != CONTENT_TYPE or message.content_encoding != CONTENT_ENCODING:
        return "content"
    body = _bytes(message.body)
    if body is None:
        return "body"
    if len(body) > MAX_BODY:
        return "size"
    if headers.get("task") == SCAN:
        return _chore_refusal(headers, body)
    return _step_refusal(headers, body, lanes)


def _step_refusal(headers: dict[str, Any], body: bytes, lanes: Collection[str]) -> str | None:
    if headers.keys() - BROKER_HEADERS != STEP_HEADERS:
        return "headers"
    values = _arguments(body)
    if values is None or values.keys() != {"run", "step", "lane"}:
        return "arguments"
    run, step, lane = values["run"], values["step"], values["lane"]
    if not (_is(RUN, run) and _is(STEP, step) and isinstance(lane, str) and lane in lanes):
        return "arguments"
    if not _is(NAME, headers["task"]) or headers["task"].startswith("celery."):
        return "task"
    name, _, epoch = headers["id"].rpartition(":") if isinstance(headers["id"], str) else ("", "", "")
    if name != f"{run}:{step}" or headers["root_id"] != run or not _is(EPOCH, epoch):
        return "id"
    return _common_refusal(headers)


def _chore_refusal(headers: dict[str, Any], body: bytes) -> str | None:
    if headers.keys() - BROKER_HEADERS != CHORE_HEADERS:
        return "headers"
    if _arguments(body) != {}:
        return "arguments"
    if not _is(RUN, headers["id"]) or headers["root_id"] != headers["id"]:
        return "id"
    if not _is(INSTANT, headers["expires"]):
        return "expires"
    datetime.fromisoformat(headers["expires"])  # a month of 13 is refused by its ValueError
    return _common_refusal(headers)


def _common_refusal(headers: dict[str, Any]) -> str | None:
    retries = headers["retries"]
    if type(retries) is not int or not 0 <= retries <= MAX_ATTEMPT:
        return "retries"
    if headers["lang"] != "py" or not (_is_text(headers["argsrepr"]) and _is_text(headers["kwargsrepr"])):
        return "text"
    return None


def _bytes(body: object) -> bytes | None:
    match body:
        case str():
            return body.encode(errors="surrogatepass")
        case bytes() | bytearray() | memoryview():
            return bytes(body)
    return None


def _is(pattern: re.Pattern[str], value: object) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None


def _is_text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= MAX_TEXT and PRINTABLE.fullmatch(value) is not None


def _arguments(body: bytes) -> dict[str, Any] | None:
    match _json(body):
        case [[], dict(values), embedded] if embedded == {}:
            return values
    return None


def _json(body: bytes) -> object:
    try:
        return orjson.loads(body)
    except ValueError:
        return None


def _parts() -> Any:
    return [
        "safepoint.tasks.commands:GatedControl" if part.endswith(":Control") else part
        for part in Consumer.Blueprint.default_steps
        # No message of ours has an ETA; for quorum queues Celery would declare 28 queues and exchanges for them.
        if not part.endswith(":DelayedDelivery")
    ]


class GatedConsumer(Consumer):
    """Celery's consumer of task messages, behind the gate."""

    class Blueprint(Consumer.Blueprint):  # type: ignore[misc, valid-type]  # the stubs call this class a variable
        """The consumer's parts, with the gated remote control in the place of Celery's."""

        default_steps = _parts()

    app: Any  # an App
    hub: Any
    event_dispatcher: Any
    _flush_events: Any
    connection: Any
    connection_errors: tuple[type[Exception], ...]
    channel_errors: tuple[type[Exception], ...]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.refusals = Refusals("message")
        self._flush_at = 0.0
        # Both take in what other workers say, which anyone could say; the ledger knows better, and a start is faster.
        super().__init__(*args, **{**kwargs, "without_mingle": True, "without_gossip": True})

    def create_task_handler(self, *args: Any, **kwargs: Any) -> Callable[[Any], None]:
        """Return the handler that compares a message with the form before Celery sees it."""
        receive = super().create_task_handler(*args, **kwargs)
        lanes = self.app.lanes
        if self.event_dispatcher is not None:
            self.event_dispatcher.buffer_limit = MOST
        self._declare_dead_queue()

        def on_message(message: Any) -> None:
            try:
                reason = refusal(message, lanes=lanes)
            except Exception as error:  # noqa: BLE001  # whatever it is: it is refused, and the log says what happened
                reason = type(error).__name__
            if reason is not None:
                self.refuse(message, reason)
                return
            self._receive(receive, message)

        return on_message

    def on_send_event_buffered(self) -> None:  # type: ignore[override]  # the stubs say it returns something
        """Send task events together: a message for each costs a tenth of a step, and nothing waits for it (G12)."""
        if self.hub is not None and time.monotonic() >= self._flush_at:
            self._flush_at = time.monotonic() + TOGETHER
            self.hub.call_soon(self.hub.call_later, TOGETHER, self._flush_events)  # timers are the loop's own thread's

    def stop(self) -> None:
        """Send the events that still wait, so that Flower sees the last steps end, and stop."""
        with contextlib.suppress(Exception):  # a lost event is nothing (G12), and a broker that is away is asked once
            self.event_dispatcher.flush(errors=False)
        super().stop()

    def _declare_dead_queue(self) -> None:
        # RabbitMQ drops what is rejected into a queue that does not exist, and nobody could look at it afterwards.
        if self.connection.transport.driver_type == "amqp":
            dead_queue().bind(self.connection.default_channel).declare()

    def _receive(self, receive: Callable[[Any], None], message: Any) -> None:
        try:
            receive(message)
        except KeyError:  # kombu counts it among the Redis connection's errors; here it is the message's
            self.refuse(message, "KeyError")
        except (*self.connection_errors, *self.channel_errors):
            raise
        except Exception as error:  # noqa: BLE001  # what passed and still breaks Celery must not end the worker
            self.refuse(message, type(error).__name__)

    def refuse(self, message: Any, reason: str) -> None:
        """Put a message away for good, count it, and say so without its content."""
        self.refusals.note(message, reason)
        if not message.acknowledged:
            message.reject_log_error(logger, self.connection_errors)

    def on_decode_error(self, message: Any, exc: Exception) -> None:
        """Refuse a message that kombu cannot decode (Celery's own handler logs all of it)."""
        self.refuse(message, type(exc).__name__)

    def on_unknown_message(self, body: object, message: Any) -> None:  # noqa: ARG002  # Celery's signature
        """Refuse a message without a task name."""
        self.refuse(message, "unknown")

    def on_invalid_task(self, body: object, message: Any, exc: Exception) -> None:  # noqa: ARG002  # as above
        """Refuse what Celery finds invalid."""
        self.refuse(message, type(exc).__name__)

    def on_unknown_task(self, body: object, message: Any, exc: Exception) -> None:  # noqa: ARG002  # as above
        """Tell the ledger that this worker does not know the step (P15).

        Celery would discard the message and say nothing, and the scan would send it again for ever.
        """
        message.ack_log_error(logger, self.connection_errors)
        values = _arguments(_bytes(message.body) or b"")
        unknown = self.app.hooks.unknown
        logger.warning("step unknown here: task=%s", message.headers["task"])
        if unknown is None or values is None:
            return
        try:
            unknown(values["run"], values["step"], values["lane"])
        except Exception:  # in the log; the row is still due in the ledger; the message was a hint
            logger.exception("the hook for unknown steps failed")

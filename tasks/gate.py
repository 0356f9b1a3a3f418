"""The gate in front of Celery's own message handling (P41): what is not exactly what `wire` builds does not come in.

One malformed message ends a Celery worker, is redelivered, and ends the next one; and every remote-control command obeys
anyone who can reach the broker. So messages are compared with the one form that exists, and commands with a short list
that reads and changes nothing.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Collection
from datetime import datetime
from typing import Any

from celery import bootsteps
from celery.utils.log import get_logger
from celery.worker import control, pidbox
from celery.worker.consumer import Consumer
from celery.worker.consumer.tasks import Tasks

from .app import SCAN
from .senders import CONTENT_ENCODING, CONTENT_TYPE

__all__ = ["ALLOWED_COMMANDS", "MAX_BODY", "GatedConsumer", "digest", "refusal"]

logger = get_logger(__name__)

MAX_BODY = 4096  # bytes
MAX_TEXT = 2048  # characters of a header
MAX_ATTEMPT = 1_000_000

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
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def digest(message: Any) -> str:
    """Return a short name for a message whose content must not be logged."""
    content = (_bytes(message.body) or b"") + repr(message.headers).encode(errors="surrogatepass")
    return hashlib.sha256(content).hexdigest()[:16]


class GatedConsumer(Consumer):
    """Celery's consumer of task messages, behind the gate."""

    class Blueprint(Consumer.Blueprint):
        """The consumer's parts, with the gated remote control in the place of Celery's."""

        default_steps = [
            f"{__name__}:GatedControl" if step.endswith(":Control") else step
            for step in Consumer.Blueprint.default_steps
            # No message of ours has an ETA; for quorum queues Celery would declare 28 queues and exchanges for them.
            if not step.endswith(":DelayedDelivery")
        ]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.refused = 0
        super().__init__(*args, **kwargs)

    def create_task_handler(self, *args: Any, **kwargs: Any) -> Callable[[Any], None]:
        """Return the handler that compares a message with the form before Celery sees it."""
        receive = super().create_task_handler(*args, **kwargs)
        lanes = self.app.lanes

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

    def _receive(self, receive: Callable[[Any], None], message: Any) -> None:
        try:
            receive(message)
        except KeyError:  # kombu counts it among the Redis connection's errors; here it is the message's
            self.refuse(message, "KeyError")
        except (*self.connection_errors, *self.channel_errors):
            raise
        except Exception as error:  # noqa: BLE001  # a message that passed and still breaks Celery must not end the worker
            self.refuse(message, type(error).__name__)

    def refuse(self, message: Any, reason: str) -> None:
        """Put a message away for good, count it, and say so without its content."""
        self.refused += 1
        logger.warning("message refused: reason=%s digest=%s total=%d", reason, digest(message), self.refused)
        if not message.acknowledged:
            message.reject_log_error(logger, self.connection_errors)

    def on_decode_error(self, message: Any, exc: Exception) -> None:
        """Refuse a message that kombu cannot decode (Celery's own handler logs all of it)."""
        self.refuse(message, type(exc).__name__)

    def on_unknown_message(self, body: object, message: Any) -> None:
        """Refuse a message without a task name."""
        self.refuse(message, "unknown")

    def on_invalid_task(self, body: object, message: Any, exc: Exception) -> None:
        """Refuse what Celery finds invalid."""
        self.refuse(message, type(exc).__name__)

    def on_unknown_task(self, body: object, message: Any, exc: Exception) -> None:
        """Tell the ledger that this worker does not know the step (P15); Celery would discard it, and the scan send it for ever."""
        message.ack_log_error(logger, self.connection_errors)
        values = _arguments(_bytes(message.body) or b"")
        unknown = self.app.hooks.unknown
        logger.warning("step unknown here: task=%s", message.headers["task"])
        if unknown is None or values is None:
            return
        try:
            unknown(values["run"], values["step"], values["lane"])
        except Exception:  # the row is still due in the ledger; the message was a hint
            logger.exception("the hook for unknown steps failed")


def _no_arguments(arguments: dict[str, Any]) -> bool:
    return not arguments


def _safe_argument(arguments: dict[str, Any]) -> bool:
    return arguments.keys() <= {"safe"} and all(
        value is None or isinstance(value, bool) for value in arguments.values()
    )


def _defaults_argument(arguments: dict[str, Any]) -> bool:
    return arguments.keys() <= {"with_defaults"} and all(isinstance(value, bool) for value in arguments.values())


def _task_items(arguments: dict[str, Any]) -> bool:
    items = arguments.get("taskinfoitems") or []
    return (
        arguments.keys() <= {"taskinfoitems"}
        and isinstance(items, list)
        and set(items) <= {"exchange", "routing_key", "rate_limit"}
    )


def _ids(arguments: dict[str, Any]) -> bool:
    ids = arguments.get("ids")
    return (
        arguments.keys() == {"ids"}
        and isinstance(ids, list)
        and len(ids) <= 100
        and all(_is_text(item) for item in ids)
    )


# What Flower and `celery inspect` ask, and nothing that changes a worker.
ALLOWED_COMMANDS: dict[str, Callable[[dict[str, Any]], bool]] = {
    "ping": _no_arguments,
    "stats": _no_arguments,
    "clock": _no_arguments,
    "active": _safe_argument,
    "reserved": _safe_argument,
    "scheduled": _safe_argument,
    "revoked": _no_arguments,
    "registered": _task_items,
    "active_queues": _no_arguments,
    "query_task": _ids,
    "conf": _defaults_argument,
    "enable_events": _no_arguments,
    "disable_events": _no_arguments,
    "heartbeat": _no_arguments,
}
COMMAND_KEYS = {"method", "arguments", "destination", "pattern", "matcher", "ticket", "reply_to"}
TOKEN = re.compile(r"[A-Za-z0-9._@\-]{1,200}")


class GatedPidbox(pidbox.Pidbox):
    """The worker's mailbox for commands: it hears those on the list, in their exact form."""

    def __init__(self, consumer: Any) -> None:
        super().__init__(consumer)
        self.refused = 0
        self.node.handlers = {name: control.Panel.data[name] for name in ALLOWED_COMMANDS}
        self._reply_exchange = self.node.mailbox.reply_exchange.name

    def on_message(self, body: Any, message: Any) -> None:
        """Obey a command of the list that is for this node; anything else changes nothing.

        The sender's clock is not taken over (a hostile one would break every later event), and nothing it names is matched as a
        pattern: a regular expression can keep a worker busy for ever.
        """
        try:
            if not self._is_command(body):
                self._refuse(message)
            elif body.get("destination") is None or self.hostname in body["destination"]:
                arguments, reply_to = body.get("arguments") or {}, body.get("reply_to")
                self.node.dispatch(body["method"], arguments, reply_to=reply_to, ticket=body.get("ticket"))
        except (*self.c.connection_errors, *self.c.channel_errors):
            self.reset()  # a reply whose queue is gone closes the channel; Celery's own mailbox does the same
        except Exception as error:  # noqa: BLE001  # a command is never worth a worker
            self._refuse(message, type(error).__name__)

    def _is_command(self, body: Any) -> bool:
        if not isinstance(body, dict) or not body.keys() <= COMMAND_KEYS or body.get("pattern") or body.get("matcher"):
            return False
        method, arguments = body.get("method"), body.get("arguments") or {}
        allowed = ALLOWED_COMMANDS.get(method) if isinstance(method, str) else None
        destination = body.get("destination")
        if destination is not None and not (
            isinstance(destination, list) and all(isinstance(node, str) for node in destination)
        ):
            return False
        return allowed is not None and isinstance(arguments, dict) and allowed(arguments) and self._is_reply(body)

    def _is_reply(self, body: dict[str, Any]) -> bool:
        reply_to, ticket = body.get("reply_to"), body.get("ticket")
        if reply_to is None:
            return ticket is None
        if not isinstance(reply_to, dict) or reply_to.keys() != {"exchange", "routing_key"}:
            return False
        # A reply declares the exchange it is sent to: it must not be one of the sender's choice.
        return (
            reply_to["exchange"] == self._reply_exchange and _is(TOKEN, reply_to["routing_key"]) and _is(TOKEN, ticket)
        )

    def _refuse(self, message: Any, reason: str = "command") -> None:
        self.refused += 1
        logger.warning("command refused: reason=%s digest=%s total=%d", reason, digest(message), self.refused)


class GatedControl(bootsteps.StartStopStep):
    """The consumer's part that listens for commands."""

    name = "Control"
    requires = (Tasks,)

    def __init__(self, c: Any, **kwargs: Any) -> None:
        self.box = GatedPidbox(c)
        self.start = self.box.start
        self.stop = self.box.stop
        self.shutdown = self.box.shutdown
        super().__init__(c, **kwargs)

    def include_if(self, c: Any) -> bool:
        """Return whether the broker can carry commands at all."""
        return bool(c.app.conf.worker_enable_remote_control and c.conninfo.supports_exchange_type("fanout"))

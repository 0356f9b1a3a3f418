"""The remote-control commands that a worker obeys: a short list that reads and changes nothing (P41).

Celery's own commands obey anyone who can reach the broker: they end workers, grow pools, limit rates, revoke tasks.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from celery import bootsteps
from celery.worker import control, pidbox
from celery.worker.consumer.tasks import Tasks

from .refusals import Refusals

__all__ = ["ALLOWED", "GatedControl", "GatedPidbox", "is_command"]

KEYS = {"method", "arguments", "destination", "pattern", "matcher", "ticket", "reply_to"}
TOKEN = re.compile(r"[A-Za-z0-9._@\-]{1,200}")
TASK_ITEMS = {"exchange", "routing_key", "rate_limit"}

Check = Callable[[dict[str, Any]], bool]


def _nothing(arguments: dict[str, Any]) -> bool:
    return not arguments


def _flag(name: str) -> Check:
    def check(arguments: dict[str, Any]) -> bool:
        return arguments.keys() <= {name} and isinstance(arguments.get(name), bool | None)

    return check


def _task_items(arguments: dict[str, Any]) -> bool:
    # Celery reads whatever attribute of a task is named here.
    items = arguments.get("taskinfoitems") or []
    return arguments.keys() <= {"taskinfoitems"} and _is_texts(items) and set(items) <= TASK_ITEMS


def _ids(arguments: dict[str, Any]) -> bool:
    return arguments.keys() == {"ids"} and _is_texts(arguments["ids"]) and len(arguments["ids"]) <= 100


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) and len(item) <= 2048 for item in value)


# What Flower and `celery inspect` ask.
ALLOWED: dict[str, Check] = {
    "ping": _nothing,
    "stats": _nothing,
    "clock": _nothing,
    "active": _flag("safe"),
    "reserved": _nothing,
    "scheduled": _nothing,
    "revoked": _nothing,
    "registered": _task_items,
    "active_queues": _nothing,
    "query_task": _ids,
    "conf": _flag("with_defaults"),
    "enable_events": _nothing,
    "disable_events": _nothing,
    "heartbeat": _nothing,
}


def is_command(body: object, *, reply_exchange: str) -> bool:
    """Whether this is a command of the list, in its exact form, whose answer goes where answers go."""
    if not isinstance(body, dict) or not body.keys() <= KEYS:
        return False
    # A pattern is a regular expression of the sender's: some keep a worker busy for ever.
    if body.get("pattern") is not None or body.get("matcher") is not None:
        return False
    method, arguments, destination = body.get("method"), body.get("arguments") or {}, body.get("destination")
    if not isinstance(method, str) or method not in ALLOWED or not isinstance(arguments, dict):
        return False
    return (
        (destination is None or _is_texts(destination))
        and ALLOWED[method](arguments)
        and _is_reply(body, reply_exchange)
    )


def _is_reply(body: dict[str, Any], reply_exchange: str) -> bool:
    reply_to, ticket = body.get("reply_to"), body.get("ticket")
    if reply_to is None:
        return ticket is None
    if not isinstance(reply_to, dict) or reply_to.keys() != {"exchange", "routing_key"}:
        return False
    # A reply declares the exchange it is sent to: it must not be one of the sender's choice.
    return reply_to["exchange"] == reply_exchange and _is_token(reply_to["routing_key"]) and _is_token(ticket)


def _is_token(value: object) -> bool:
    return isinstance(value, str) and TOKEN.fullmatch(value) is not None


class GatedPidbox(pidbox.Pidbox):
    """The worker's mailbox for commands, which hears those on the list."""

    c: Any
    hostname: str

    def __init__(self, c: Any) -> None:
        super().__init__(c)
        self.refusals = Refusals("command")
        self.node.handlers = {name: control.Panel.data[name] for name in ALLOWED}

    def start(self, c: Any) -> None:
        """Listen; what cannot be decoded is counted (Celery's handler would log all of it)."""
        super().start(c)
        self.consumer.on_decode_error = self._on_decode_error

    def _on_decode_error(self, message: Any, exc: Exception) -> None:
        self.refusals.note(message, type(exc).__name__)

    def on_message(self, body: Any, message: Any) -> None:
        """Obey a command of the list that is for this node; anything else changes nothing.

        The sender's clock is not taken over: a hostile one would break every later event.
        """
        try:
            if not is_command(body, reply_exchange=self.node.mailbox.reply_exchange.name):
                self.refusals.note(message, "command")
            elif body.get("destination") is None or self.hostname in body["destination"]:
                arguments = body.get("arguments") or {}
                self.node.dispatch(body["method"], arguments, body.get("reply_to"), body.get("ticket"))
        except (*self.c.connection_errors, *self.c.channel_errors):
            self.reset()  # a reply whose queue is gone closes the channel; Celery's own mailbox does the same
        except Exception as error:  # noqa: BLE001  # a command is never worth a worker
            self.refusals.note(message, type(error).__name__)


class GatedControl(bootsteps.StartStopStep):
    """The consumer's part that listens for commands."""

    name = "Control"
    requires = (Tasks,)

    def __init__(self, c: Any, **kwargs: Any) -> None:
        self.box = GatedPidbox(c)
        super().__init__(c, **kwargs)

    def start(self, parent: Any) -> None:
        """Begin to listen."""
        self.box.start(parent)

    def stop(self, parent: Any) -> None:
        """Stop listening, until the connection is back."""
        self.box.stop(parent)

    def shutdown(self, parent: Any) -> None:
        """Stop listening for good."""
        self.box.shutdown(parent)

    def include_if(self, parent: Any) -> bool:
        """Return whether the broker can carry commands at all."""
        return bool(parent.app.conf.worker_enable_remote_control and parent.conninfo.supports_exchange_type("fanout"))

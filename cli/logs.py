"""The log of a process: lines for people, or JSON; everything that logs in the process goes the same way.

A worker writes a line for each step, so our own lines go straight to the stream: by way of `logging` and a formatter
made for many styles one costs as much as half a step.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import orjson
import structlog

__all__ = ["configure"]

EVENT_WIDTH = 30
# Celery's two lines for each task: `step.committed` says more in one, and what goes wrong is no INFO.
CHATTY = ("celery.worker.strategy", "celery.app.trace")
QUIET = ("alembic", "amqp", "kombu", "tornado.access", *CHATTY)


def configure(form: str, *, process: str) -> None:
    """Send every log line of this process to standard error, in the form `console` or `json`."""
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        _stamp,
        _Named(process),
    ]
    structlog.configure(
        processors=[*shared, *_renderers(form)],
        logger_factory=_Lines,
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *_renderers(form)],
        )
    )
    handler.addFilter(_is_worth_a_line)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    logging.captureWarnings(capture=True)
    for name in QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)


class _Lines:
    """Writes lines to standard error, one write each."""

    def __init__(self, name: str = "safepoint") -> None:
        self.name = name

    def msg(self, line: str) -> None:
        """Write a line; that nobody reads it is no reason for a step to fail."""
        with contextlib.suppress(OSError, ValueError):  # the reader has gone, or the stream is closed
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()

    debug = info = warning = warn = error = critical = fatal = exception = log = msg


def _renderers(form: str) -> list[Any]:
    if form == "json":
        return [structlog.processors.format_exc_info, _json]
    # Plain tracebacks: the default shows the values of variables, and passwords are among them.
    if sys.stderr.isatty():
        return [structlog.dev.ConsoleRenderer(colors=True, exception_formatter=structlog.dev.plain_traceback)]
    return [structlog.processors.format_exc_info, _plain]


def _stamp(_logger: Any, _method: str, event: dict[str, Any]) -> dict[str, Any]:
    event["timestamp"] = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    return event


def _json(_logger: Any, _method: str, event: Mapping[str, Any]) -> str:
    try:
        return orjson.dumps(event, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
    except TypeError:  # half a character, or a number of more than 64 bits, in what somebody's code has raised
        return json.dumps(event, default=str)


def _plain(_logger: Any, _method: str, event: dict[str, Any]) -> str:
    """Render a line without colours: when, level, what, then the facts by name; a traceback below it."""
    level, what, logger = event.pop("level", ""), str(event.pop("event", "")), event.pop("logger", None)
    at, below = event.pop("timestamp", ""), [event.pop(part, None) for part in ("stack", "exception")]
    named = f"[{logger}] " if logger else ""
    facts = " ".join(f"{name}={_value(value)}" for name, value in sorted(event.items()))
    line = f"{at} [{level:<9}] {what:<{EVENT_WIDTH}} {named}{facts}".rstrip()
    return "\n".join([line, *(str(part) for part in below if part)])


def _value(value: Any) -> str:
    if isinstance(value, str):
        return repr(value) if not value or not set(" \t\n\r=\"'").isdisjoint(value) else value
    return repr(value)


def _is_worth_a_line(record: logging.LogRecord) -> bool:
    """Drop what Celery says of each scan: three lines a second that say nothing."""
    return record.levelno > logging.INFO or not (
        record.name.startswith("celery.") and "safepoint.scan" in record.getMessage()
    )


class _Named:
    """Says which process wrote a line, where several write into one stream."""

    def __init__(self, process: str) -> None:
        self._process = process

    def __call__(self, _logger: Any, _method: str, event: dict[str, Any]) -> dict[str, Any]:
        return {"process": self._process, **event}

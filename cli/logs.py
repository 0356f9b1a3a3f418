"""The log of a process: lines for people, or JSON; everything that logs in the process goes the same way."""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog

__all__ = ["configure"]


def configure(form: str, *, process: str) -> None:
    """Send every log line of this process to standard error, in the form `console` or `json`."""
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _Named(process),
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
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
    for name in ("alembic", "amqp", "kombu", "tornado.access"):
        logging.getLogger(name).setLevel(logging.WARNING)


def _renderers(form: str) -> list[Any]:
    if form == "json":
        return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]
    # Plain tracebacks: the default shows the values of variables, and passwords are among them.
    plain = structlog.dev.plain_traceback
    return [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=plain)]


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

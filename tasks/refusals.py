"""Counts what was refused and says so, without its content and without letting a flood of it fill the disk."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from typing import Any

from celery.utils.log import get_logger

__all__ = ["Refusals", "digest"]

logger = get_logger(__name__)

LINES = 20  # in one period
PERIOD = 10.0  # seconds


def digest(message: Any) -> str:
    """Return a short name for a message whose content must not be logged."""
    content = repr((getattr(message, "body", None), getattr(message, "headers", None)))
    return hashlib.sha256(content.encode(errors="surrogatepass")).hexdigest()[:16]


class Refusals:
    """The count of refused things of one sort."""

    def __init__(self, what: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.what = what
        self.total = 0
        self._clock = clock
        self._period_ends = 0.0
        self._lines = 0

    def note(self, message: Any, reason: str) -> None:
        """Count one, and log it unless this period has had its lines."""
        self.total += 1
        now = self._clock()
        if now >= self._period_ends:
            self._period_ends, self._lines = now + PERIOD, 0
        self._lines += 1
        if self._lines <= LINES:
            facts = (self.what, reason, digest(message), self.total)
            logger.warning("%s refused: reason=%s digest=%s total=%d", *facts)
        if self._lines == LINES:
            logger.warning("more refused %ss are counted and not logged for up to %d s", self.what, PERIOD)

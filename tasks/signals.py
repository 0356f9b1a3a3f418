"""Keeps signals out of a commit: Celery's handlers raise inside psycopg otherwise (celery#10271), and a commit would
be left half known.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

__all__ = ["masked"]

MASKED = {signal.SIGTERM, signal.SIGQUIT, signal.SIGINT, signal.SIGUSR1}


@contextlib.contextmanager
def masked() -> Iterator[None]:
    """Hold signals back for this thread; they arrive at the end of the block."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, MASKED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

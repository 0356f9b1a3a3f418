"""Keeps signals out of a commit: Celery's handlers raise inside psycopg otherwise (celery#10271), and a commit would
be left half known.
"""

from __future__ import annotations

import signal

__all__ = ["masked"]

MASKED = {signal.SIGTERM, signal.SIGQUIT, signal.SIGINT, signal.SIGUSR1}


class masked:  # noqa: N801  # used as a word, and written out because every commit pays for it
    """Hold signals back for this thread; they arrive at the end of the block."""

    __slots__ = ("_before",)

    def __enter__(self) -> None:
        self._before = signal.pthread_sigmask(signal.SIG_BLOCK, MASKED)

    def __exit__(self, *_: object) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._before)

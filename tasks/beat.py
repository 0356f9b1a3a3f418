"""Beat's scheduler: its schedule is in memory, and it sends through our own publisher, in the one form there is.

Zero, one or five beats are all correct: what they send is taken by singletons in the ledger, and any relay does the
same work when it is late.
"""

from __future__ import annotations

from typing import Any

from celery.beat import Scheduler
from celery.utils.log import get_logger

from .wire import Chore, Publisher

__all__ = ["ChoreScheduler"]

logger = get_logger(__name__)


class ChoreScheduler(Scheduler):
    """Sends the chores of the beat schedule. Intervals need no memory, so there is no file."""

    def __init__(self, app: Any, *args: Any, **kwargs: Any) -> None:
        self._publisher = Publisher(app, lanes=app.lanes)
        super().__init__(app, *args, **kwargs)

    def adjust(self, n: Any, drift: float = 0.0) -> Any:
        """Sleep for as long as nothing is due: Celery wakes 10 ms early, and asks without a pause until it is time."""
        return super().adjust(n, drift)

    def apply_async(self, entry: Any, *_: Any, advance: bool = True, **__: Any) -> None:
        """Send one chore; a broker that is away is logged, and the next interval tries again."""
        if advance:
            self.reserve(entry)
        chore = Chore(name=entry.task, queue=entry.options["queue"], expires=entry.options["expires"])
        error = self._publisher.send_chore(chore)
        if error is not None:
            logger.warning("chore not sent: name=%s error=%r", chore.name, error)

    def close(self) -> None:
        """End, and let go of the broker."""
        try:
            super().close()
        finally:
            self._publisher.close()

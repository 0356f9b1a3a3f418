"""What a node's calls of its dependencies have come to since it last told the ledger: summed on the board, flushed with
the beat, and a little after a bad call without waiting for one.
"""

from __future__ import annotations

import time

from ..config.breakers import Breakers
from ..ledger.connect import Connection
from ..recovery.breaker import Tally
from ..recovery.outcomes import record
from .board import Board

__all__ = ["Outcomes"]

PAUSE = 0.5  # seconds between two flushes that no beat has asked for


class Outcomes:
    """A node's untold outcomes."""

    def __init__(self, board: Board, configured: Breakers, *, by: str) -> None:
        self._board = board
        self._configured = configured
        self._by = by
        self._told: dict[str, Tally] = {}
        self._at = 0.0

    def wanted_in(self) -> float | None:
        """Give the seconds until bad calls are to be told, None when there are none that are not."""
        if not any(tally.bad for tally in self._untold(self._board.calls()).values()):
            return None
        return max(0.0, self._at + PAUSE - time.monotonic())

    def flush(self, connection: Connection) -> list[str]:
        """Tell the ledger; answers which breakers have opened by it."""
        calls = self._board.calls()
        untold = self._untold(calls)
        # Before they are sent: should the answer be lost, they are not told twice. No verdict rather than a false one.
        self._told, self._at = calls, time.monotonic()
        return record(connection, untold, self._configured, by=self._by)

    def _untold(self, calls: dict[str, Tally]) -> dict[str, Tally]:
        told = {name: self._told.get(name, Tally()) for name in calls}
        return {
            name: Tally(
                tally.ok - told[name].ok,
                tally.failed - told[name].failed,
                tally.throttled - told[name].throttled,
                tally.leave_for,
            )
            for name, tally in calls.items()
            if tally.volume != told[name].volume
        }

"""Lanes in the ledger: their limits, which admission reads under the lane's row lock, so that they hold over any
number of relays.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from .connect import Connection

__all__ = ["Limits", "apply"]

_INSERT = """
INSERT INTO safepoint.lanes (name, rate, burst, in_flight, "window", tokens)
VALUES (%s, %s, %s, %s, %s, coalesce(%s, 0))
ON CONFLICT (name) DO NOTHING
"""
_UPDATE = """
UPDATE safepoint.lanes
   SET rate = %s, burst = %s, in_flight = %s, "window" = %s, changed_at = safepoint.now()
 WHERE name = %s
"""


class Limits(Protocol):
    """What the configuration says of a lane."""

    @property
    def rate(self) -> float | None:
        """Admissions a second."""

    @property
    def burst(self) -> float | None:
        """Admissions at once."""

    @property
    def in_flight(self) -> int | None:
        """Steps dispatched or running at once."""

    @property
    def window(self) -> int | None:
        """Messages in the broker that nobody has claimed."""


def apply(connection: Connection, lanes: Mapping[str, Limits], *, window: int, only_missing: bool = False) -> None:
    """Write the configured lanes; `window` is the one of lanes that name none; `only_missing` leaves those that
    exist as they are.
    """
    for name in sorted(lanes):
        lane = lanes[name]
        limits = (lane.rate, lane.burst, lane.in_flight, lane.window or window)
        inserted = connection.execute(_INSERT, (name, *limits, lane.burst)).rowcount
        if not inserted and not only_missing:
            connection.execute(_UPDATE, (*limits, name))

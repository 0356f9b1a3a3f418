"""Lanes in the ledger: their limits, which admission reads under the lane's row lock, so that they hold over any number of relays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from .connect import Connection

__all__ = ["Limits", "apply"]


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
    """Write the configured lanes; `window` is the one of lanes that name none; `only_missing` leaves those that exist as they are."""
    change = "NOTHING" if only_missing else (
        'UPDATE SET rate = excluded.rate, burst = excluded.burst, in_flight = excluded.in_flight, "window" = excluded."window",'
        " changed_at = safepoint.now()"
    )  # fmt: skip
    for name in sorted(lanes):
        lane = lanes[name]
        connection.execute(
            'INSERT INTO safepoint.lanes (name, rate, burst, in_flight, "window", tokens)'
            f" VALUES (%s, %s, %s, %s, %s, coalesce(%s, 0)) ON CONFLICT (name) DO {change}",  # noqa: S608  # one of two constants
            (name, lane.rate, lane.burst, lane.in_flight, lane.window or window, lane.burst),
        )

"""Durations are seconds or timedeltas, instants are aware datetimes; everything else is refused where it is written."""

from __future__ import annotations

import math
from datetime import datetime, timedelta

from ..ledger.errors import NaiveDatetime

__all__ = ["aware", "seconds"]


def seconds(value: float | timedelta, *, what: str) -> float:
    """Give a duration in seconds."""
    given: object = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(given, bool) or not isinstance(given, (int, float)):
        msg = f"{what}: {value!r} is no duration. Accepted: seconds as a number, or a timedelta"
        raise TypeError(msg)
    if not math.isfinite(given) or given < 0:
        msg = f"{what}: {value!r} is no duration. Accepted: a finite number of seconds that is not negative"
        raise ValueError(msg)
    return float(given)


def aware(value: datetime, *, what: str) -> datetime:
    """Give an instant back, or refuse one without a time zone."""
    given: object = value
    if not isinstance(given, datetime):
        msg = f"{what}: {value!r} is no instant. Accepted: an aware datetime"
        raise TypeError(msg)
    if value.tzinfo is None or value.utcoffset() is None:
        raise NaiveDatetime(what=what, value=value)
    return value

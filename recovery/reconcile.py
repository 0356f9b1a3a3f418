"""What becomes of an effect that nobody knows about: pure, so that every case is one line of a test (G6, P32, P33).

A timeout is not "not executed": unless the other side can be asked, or knows the key, a person decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Doubt", "Way", "reconcile"]


class Way(StrEnum):
    """How an unknown effect is settled."""

    ASK = "ask"  # its lookup
    AGAIN = "again"  # sent once more under the same key: the other side answers what it did the first time
    HOLD = "hold"  # a person or a webhook


@dataclass(frozen=True, slots=True)
class Doubt:
    """What is known of an unknown effect and its other side; times in seconds."""

    has_lookup: bool = False
    asked_enough: bool = False  # the lookup's own policy says so
    idempotent: bool = False
    key_retention: float | None = None  # None: the other side remembers keys for ever
    first_sent_ago: float | None = None
    call: float = 0.0  # how long a call may last, and its request be held up on its way


def reconcile(doubt: Doubt) -> Way:
    """Decide about one unknown effect."""
    if doubt.has_lookup and not doubt.asked_enough:
        return Way.ASK
    remembered = doubt.key_retention is None or (doubt.first_sent_ago or 0.0) + doubt.call <= doubt.key_retention
    if doubt.idempotent and remembered:
        return Way.AGAIN
    return Way.HOLD

"""A run's events: numbered without gaps in the commits that they tell of, read in order, each once (G11).

On the wire an event's id is `<incarnation>-<seq>`: after a restore the numbers may be given again to other events (P8).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from .connect import Connection

__all__ = ["FINAL", "Event", "event_id", "parse_id", "read", "start_after"]

FINAL: Final = frozenset({"run.succeeded", "run.failed", "run.cancelled"})


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a run, or to one of its steps."""

    id: str  # what a client hands back after a lost connection
    run_id: str
    seq: int
    type: str
    key: str | None  # the step's
    data: dict[str, Any]
    at: datetime
    v: int = 1

    @property
    def is_final(self) -> bool:
        """Whether the run ended with it; a person may still reopen a failed one."""
        return self.type in FINAL


def event_id(incarnation: UUID, seq: int) -> str:
    """Return the id that goes over the wire."""
    return f"{incarnation}-{seq}"


def parse_id(text: str) -> tuple[UUID, int]:
    """Read what `event_id` wrote.

    Raises:
        ValueError: it is no such id.
    """
    incarnation, _, seq = text.rpartition("-")
    try:
        if not (seq.isascii() and seq.isdecimal()):
            raise ValueError(seq)
        return UUID(incarnation), int(seq)
    except ValueError:
        raise ValueError(f"after={text!r} is no event id. Accepted: <incarnation>-<seq>, or a number") from None


def start_after(connection: Connection, after: int | str) -> int:
    """Return the number after which to read, from a number or from the id of the last event seen.

    An id of another incarnation gives 0: since the ledger lost commits, that number may belong to another event.
    """
    if isinstance(after, int):
        return after
    if after.isascii() and after.isdecimal():
        return int(after)
    incarnation, seq = parse_id(after)
    row = connection.execute("SELECT incarnation FROM safepoint.identity").fetchone()
    return seq if row is not None and row[0] == incarnation else 0


def read(connection: Connection, run_id: UUID | str, *, after: int = 0, limit: int = 1000) -> list[Event]:
    """Read a run's events after a number, in order."""
    rows = connection.execute(
        # The primary key's index, in its order.
        "SELECT i.incarnation, e.seq, e.type, e.key, e.data, e.at, e.v FROM safepoint.events e, safepoint.identity i"
        " WHERE e.run_id = %s AND e.seq > %s ORDER BY e.seq LIMIT %s",
        (run_id, after, limit),
    ).fetchall()
    return [
        Event(event_id(incarnation, seq), str(run_id), seq, kind, key, data, at, v)
        for incarnation, seq, kind, key, data, at, v in rows
    ]

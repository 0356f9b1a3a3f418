"""Enqueuing a call: its options, and the port that the ledger's side fills.

A flow's module must not drag SQLAlchemy in, so `Call.enqueue` goes through here; `client` registers itself when it is
imported.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol

from .duration import aware, seconds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .budget import Budget
    from .client import Run
    from .flow import Call

__all__ = ["EnqueueOptions", "Enqueuer", "enqueuer", "set_enqueuer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EnqueueOptions:
    """What is said about a run besides its flow's own arguments."""

    tenant: str = "default"
    key: str | None = None
    deadline: float | timedelta | datetime | None = None
    budget: Budget | None = None
    priority: int = 0
    tags: Mapping[str, str] = field(default_factory=dict)
    conversation: str | None = None
    start_at: datetime | None = None
    connection: object = None

    def __post_init__(self) -> None:
        """Refuse what cannot be meant."""
        tenant: object = self.tenant
        if not tenant or not isinstance(tenant, str):
            msg = f"tenant={self.tenant!r}: accepted is a text that is not empty"
            raise ValueError(msg)
        priority: object = self.priority
        if isinstance(priority, bool) or not isinstance(priority, int):
            msg = f"priority={self.priority!r}: accepted is a whole number"
            raise TypeError(msg)
        if self.start_at is not None:
            aware(self.start_at, what="start_at")
        if isinstance(self.deadline, datetime):
            aware(self.deadline, what="deadline")
        elif self.deadline is not None:
            seconds(self.deadline, what="deadline")
        pairs: list[tuple[object, object]] = list(self.tags.items())
        wrong = [name for name, value in pairs if not (isinstance(name, str) and isinstance(value, str))]
        if wrong:
            msg = f"tags={dict(self.tags)!r}: {wrong[0]!r}: accepted are texts by text"
            raise TypeError(msg)

    @property
    def deadline_at(self) -> datetime | None:
        """The deadline, where it was given as an instant."""
        return self.deadline if isinstance(self.deadline, datetime) else None

    @property
    def deadline_in(self) -> float | None:
        """The deadline in seconds from the enqueue, by the ledger's clock, where it was given so."""
        if self.deadline is None or isinstance(self.deadline, datetime):
            return None
        return seconds(self.deadline, what="deadline")


class Enqueuer(Protocol):
    """Writes a run into the ledger."""

    def enqueue(self, call: Call[Any], options: EnqueueOptions) -> Run[Any]:
        """Enqueue in this thread."""

    async def aenqueue(self, call: Call[Any], options: EnqueueOptions) -> Run[Any]:
        """Enqueue without blocking the event loop."""


_enqueuer: list[Enqueuer] = []


def set_enqueuer(enqueuer: Enqueuer) -> None:
    """Fill the port; the last one counts."""
    _enqueuer[:] = [enqueuer]


def enqueuer() -> Enqueuer:
    """Give what fills the port; the first call imports it."""
    if not _enqueuer:
        importlib.import_module(f"{__package__}.client")
    return _enqueuer[0]

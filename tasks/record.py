"""What the pure driver is told: the run, and its committed outcomes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from .budget import Budget

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from ..ledger.key import Key

__all__ = ["Kind", "Load", "Record", "RunInfo"]

Kind = Literal["start", "advance", "cancel", "step", "effect", "timer", "signal", "approval", "child"]


class Load(Protocol):
    """Reads a stored value that is not in the row itself; gives its JSON."""

    def __call__(self, data: bytes, encoding: str, /) -> bytes:
        """Give the JSON that the stored bytes stand for."""
        ...


@dataclass(frozen=True, slots=True)
class RunInfo:
    """What a run's flow may know: all of it the same on every replay of the generation."""

    run_id: str
    tenant: str
    generation: int
    input: bytes
    encoding: str
    created_at: datetime
    deadline: datetime | None = None
    budget: Budget = field(default_factory=Budget)
    versions: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    conversation: str | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """One committed outcome; fed in the order of the commits."""

    seq: int
    key: Key
    kind: str
    status: str
    at: datetime
    input_hash: bytes | None = None
    data: bytes | None = None
    encoding: str | None = None
    error: Mapping[str, object] | None = None
    tokens: int = 0
    usd: float = 0.0

"""What the pure driver is told and what it asks: the run, its committed outcomes, and the awaits that have none yet."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from .budget import Budget

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from ..ledger.codec import Codec, Encoded
    from ..ledger.key import Key
    from .flow import Call
    from .step import Step

__all__ = ["Asked", "Kind", "Load", "Record", "RunInfo"]

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


@dataclass(frozen=True, slots=True)
class Asked:
    """Something the flow waits for that has no committed outcome yet."""

    key: Key
    kind: Kind
    name: str
    input_hash: bytes
    step: Step[..., object] | None = None
    input: Encoded | None = None  # of a step, an effect, a child
    child: Call[object] | None = None
    show: Encoded | None = None  # of an approval
    value_type: Codec[object] | None = None  # of a signal
    delay: float | None = None  # seconds: of a timer; the timeout of a signal or an approval
    until: datetime | None = None  # of a timer that was given an instant
    joins: str | None = None  # the gather it is a bare member of: alone it lets nothing new be asked

    @property
    def lane(self) -> str:
        """The lane that the step belongs to."""
        return self.step.lane if self.step else "online"

    @property
    def uses(self) -> str | None:
        """The dependency that the step uses."""
        return self.step.uses if self.step else None

    def arguments(self) -> tuple[tuple[object, ...], dict[str, object]]:
        """Decode the arguments anew: a step that changes one must not change what the flow holds."""
        if self.step is None or self.input is None:
            msg = f"{self.key} takes no arguments"
            raise TypeError(msg)
        return self.step.decode_input(self.input.data)

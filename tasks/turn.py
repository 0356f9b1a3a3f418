"""A turn: one claimed step under way, with the driver of its run and what it has said so far."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from uuid import UUID

    from ..ledger.effects import Effect
    from ..ledger.key import Key
    from ..ledger.steps import Claimed, NotYours
    from .effect import Effect as Declared
    from .histories import Replay
    from .onward import Onward
    from .performance import Performed
    from .step import Step

__all__ = ["Turn"]


@dataclass(slots=True)
class Turn:
    """One claimed step under way."""

    claimed: Claimed
    kept: Replay | None  # of a turn that only stores an outcome: nothing
    began: float
    step: Step[..., Any] | None = None
    notes: list[dict[str, Any]] = field(default_factory=list)
    artifacts: list[dict[str, Any]] = field(default_factory=list)
    said: dict[str, Any] | None = None  # what its commit says of the effect besides its outcome
    onward: Onward | None = None  # the task's right to go on in place
    follows: Claimed | NotYours | None = None  # what was claimed with the commit
    # What this claim has spent: to be charged by whatever ends it, and charged already with its parts.
    tokens: int = 0
    usd: Decimal = Decimal(0)
    parts_tokens: int = 0
    parts_usd: Decimal = Decimal(0)

    def spend(self, done: Performed) -> None:
        """Take over what a performance has said and spent."""
        self.notes += done.notes
        self.tokens += done.tokens
        self.usd += done.usd
        self.parts_tokens += done.parts_tokens
        self.parts_usd += done.parts_usd

    @property
    def charged(self) -> tuple[int, Decimal]:
        """What its step has been charged with before this claim ends: its earlier attempts, and its parts."""
        usd = Decimal(self.claimed.run.get("usd_so_far") or 0)
        return self.claimed.tokens_so_far + self.parts_tokens, usd + self.parts_usd

    @property
    def replay(self) -> Replay:
        """The run's flow as far as it has been fed."""
        assert self.kept is not None
        return self.kept

    @property
    def effect(self) -> Effect:
        """The effect that was claimed."""
        assert self.claimed.effect is not None
        return self.claimed.effect

    @property
    def declared(self) -> Declared[..., Any]:
        """Its declaration."""
        assert self.step is not None
        return self.step  # type: ignore[return-value]  # an effect's row is made for a declared effect

    @property
    def is_compensation(self) -> bool:
        """Whether it undoes another effect."""
        return self.claimed.kind == "compensation"

    @property
    def run_id(self) -> UUID:
        """The run."""
        return self.claimed.run_id

    @property
    def key(self) -> Key:
        """The step."""
        return self.claimed.key

    def now(self) -> datetime:
        """The ledger's clock, carried on by the monotonic one."""
        return self.claimed.db_now + timedelta(seconds=time.monotonic() - self.began)

"""The world of one played run: its clock, its commits, and who is next."""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Literal

from ..ledger.errors import SafepointError
from ..tasks.budget import Budget
from .memory import Artifacts
from .script import Script

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..ledger.key import Key
    from ..tasks.awaited import Asked
    from ..tasks.decision import Decision

__all__ = ["BEGIN", "Order", "Queue", "Stuck", "World", "child_id", "run_id"]

Order = Literal["fifo", "shuffle"]

BEGIN = datetime(2025, 1, 1, tzinfo=UTC)


class Stuck(SafepointError):  # noqa: N818  # named after what happened
    """The run waits for {waits} and nothing in the test answers: pass signals={{...}} or approvals={{...}}."""

    waits: str


@dataclass(slots=True)
class World:
    """What a run and its children share."""

    script: Script
    order: Order
    chance: random.Random
    clock: datetime = BEGIN
    deadline: datetime | None = None
    budget: Budget = field(default_factory=Budget)
    tenant: str = "default"
    tags: Mapping[str, str] = field(default_factory=dict)
    artifacts: Artifacts = field(default_factory=Artifacts)
    # Of the run and its children together: they share the budget.
    tokens: int = 0
    usd: float = 0.0
    retries: int = 0

    @property
    def left(self) -> Budget:
        """What nobody has spent yet."""
        return self.budget.less(tokens=self.tokens, usd=self.usd, retries=self.retries)

    def tick(self) -> datetime:
        """Let the smallest time pass that tells two commits apart."""
        self.clock += timedelta(milliseconds=1)
        return self.clock

    def jump(self, instant: datetime) -> None:
        """Go to an instant; never back."""
        self.clock = max(self.clock, instant)

    @property
    def is_over(self) -> bool:
        """Whether the deadline has passed."""
        return self.deadline is not None and self.clock >= self.deadline


class Queue:
    """The open awaits of one run, with what will answer them, and when."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._due: dict[Key, datetime] = {}
        self._answers: dict[Key, Decision | tuple[object] | None] = {}

    def add(self, asked: Asked) -> None:
        """Note an await: answers are drawn in the order in which the flow asks."""
        if asked.until is not None:
            self._due[asked.key] = asked.until
        elif asked.delay is not None:
            self._due[asked.key] = self._world.clock + timedelta(seconds=asked.delay)
        match asked.kind:
            case "signal":
                self._answers[asked.key] = self._world.script.signal(asked)
            case "approval":
                self._answers[asked.key] = self._world.script.decision(asked)
            case _:
                pass

    def next(self, asked: Mapping[Key, Asked]) -> Asked:
        """Choose the await whose outcome is committed next."""
        ready = [one for one in asked.values() if self._is_ready(one)]
        timed = [one for one in asked.values() if not self._is_ready(one) and one.key in self._due]
        soonest = min(timed, key=lambda one: self._due[one.key], default=None)
        match self._world.order:
            case "shuffle" if ready or soonest:
                # A timer may well end before a step does; among timers the earlier one is first.
                return self._world.chance.choice([*ready, *([soonest] if soonest else [])])
            case _ if ready:
                return ready[0]
            case _ if soonest is not None:
                return soonest
            case _:
                raise Stuck(waits=", ".join(str(key) for key in asked) or "nothing")

    def answer(self, asked: Asked) -> Decision | tuple[object] | None:
        """Give what answers a wait; None when its time runs out instead."""
        return self._answers.pop(asked.key, None)

    def due(self, asked: Asked) -> datetime | None:
        """Give when an await ends by itself."""
        return self._due.get(asked.key)

    def _is_ready(self, asked: Asked) -> bool:
        return asked.kind in {"step", "effect", "child"} or self._answers.get(asked.key) is not None


def run_id(seed: int) -> str:
    """Give the id of a played run: the same one for the same seed."""
    return f"00000000-0000-7000-8000-{seed % 2**48:012x}"


def child_id(parent: str, key: Key) -> str:
    """Derive a child's id from its parent and its key (P30)."""
    derived = hashlib.sha256(f"{parent}/{key.wire}".encode()).hexdigest()
    return f"00000000-0000-7000-8000-{derived[:12]}"

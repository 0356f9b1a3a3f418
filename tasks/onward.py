"""Going on in place (P31): a task that has just committed claims its run's next step with the commit, as long as it is
young, the step is of the same lane, and nobody has to wait for it. Each such step has a claim, a commit, an epoch and
events of its own; only the message is saved.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from ..ledger.commit import GoOn
from ..ledger.key import Key

if TYPE_CHECKING:
    from ..config.settings import Settings
    from .loan import Loan
    from .registry import Registry
    from .turn import Turn

__all__ = ["Onward"]

KINDS = frozenset({"step", "effect"})


@dataclass(slots=True)
class Onward:
    """One Celery task's right to go on: until its slice is over."""

    settings: Settings
    loan: Loan
    registry: Registry
    lane: str
    began: float = field(default_factory=time.monotonic)
    steps: int = 0  # executed so far

    @property
    def slice(self) -> float:
        """For how many seconds a task of this lane may begin another step."""
        lane = self.settings.lanes.get(self.lane)
        return 0.0 if lane is None else lane.inline_slice

    def claim(self, turn: Turn, asked: Sequence[dict[str, Any]]) -> GoOn | None:
        """Return the claim of the one step that follows from this turn, if this task may execute it."""
        age = time.monotonic() - self.began
        # A step that runs alone was dangerous to its neighbours: what follows it begins in the ordinary way (P23).
        if age >= self.slice or len(asked) != 1 or turn.claimed.run["alone"]:
            return None
        (row,) = asked
        step = self.registry.steps.get(row["step"])
        waits = (row.get("effect") or {}).get("requires_approval")
        if row["kind"] not in KINDS or row["lane"] != self.lane or step is None or waits or not self.loan.may_start():
            return None
        token = uuid4()
        self.loan.expect(token)
        return GoOn(
            Key(turn.key.generation, row["path"], row["step"], row["iteration"]),
            self.lane,
            self.loan.claimer(),
            token,
            step.timeout + self.settings.worker.step_grace,
            turn.replay.era,
            age,
        )

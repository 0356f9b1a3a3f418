"""Where a run stands, as its flow's code may know it: nothing in it differs on a replay."""

from __future__ import annotations

from contextvars import Context
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from .budget import Budget
    from .record import RunInfo
    from .signature import Signature

__all__ = ["Situation"]


@dataclass(slots=True)
class Situation:
    """One generation of one run, after the records that it was fed."""

    run: RunInfo
    signature: Signature
    now: datetime
    spent_tokens: int = 0
    spent_usd: float = 0.0
    notes: list[Mapping[str, object]] = field(default_factory=list)
    # Of its own: what a flow sets stays in the flow, and what a worker has set cannot steer it.
    context: Context = field(default_factory=Context)

    @property
    def budget(self) -> Budget:
        """What is left after the results that the flow has been given."""
        return self.run.budget.less(tokens=self.spent_tokens, usd=self.spent_usd)

"""A turn: one claimed step under way, with the driver of its run and what it has said so far."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from uuid import UUID

    from ..ledger.key import Key
    from ..ledger.steps import Claimed
    from .histories import Replay
    from .step import Step

__all__ = ["Turn"]


@dataclass(slots=True)
class Turn:
    """One claimed step under way."""

    claimed: Claimed
    replay: Replay
    began: float
    step: Step[..., Any] | None = None
    notes: list[dict[str, Any]] = field(default_factory=list)
    artifacts: list[dict[str, Any]] = field(default_factory=list)

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

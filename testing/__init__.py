"""What users import to test their flows and steps, without servers or with the embedded ones.

It stands beside the command line: nothing below imports it.
"""

from __future__ import annotations

from .memory import Artifacts, MemoryLedger
from .played import Called, Event, Played, ReplayDiffers
from .runner import run_flow
from .script import NoStandIn
from .step_context import step_context
from .world import Stuck

__all__ = [
    "Artifacts",
    "Called",
    "Event",
    "MemoryLedger",
    "NoStandIn",
    "Played",
    "ReplayDiffers",
    "Stuck",
    "run_flow",
    "step_context",
]

"""The workflow in DBOS."""

from __future__ import annotations

from typing import Any

from dbos import DBOS
from step_body import hold, touch

__all__ = ["QUEUE", "VERSION", "handed_on", "held"]

QUEUE, VERSION = "bench", "1"


@DBOS.step()
def hand_on(value: dict[str, Any]) -> dict[str, Any]:
    """Do nothing."""
    return touch(value)


@DBOS.step()
def keep(value: dict[str, Any]) -> dict[str, Any]:
    """Take a minute."""
    return hold(value)


@DBOS.workflow(name="handed_on")
def handed_on(value: dict[str, Any], steps: int) -> dict[str, Any]:
    """Hand a value through many steps."""
    for _ in range(steps):
        value = hand_on(value)
    return value


@DBOS.workflow(name="held")
def held(value: dict[str, Any]) -> dict[str, Any]:
    """Run one step that takes a minute."""
    return keep(value)

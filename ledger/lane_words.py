"""What keeps a step from being admitted, in words: the lane's pause, one of its limits, or other tenants' turns.

Pure: it takes what `lane_views` has read, and reads nothing itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .span import span

__all__ = ["LaneFacts", "Override", "limit_words"]


@dataclass(frozen=True, slots=True)
class Override:
    """One key of a lane that a person has set over the file; `until` none is until it is lifted."""

    key: str
    value: Any
    until: str | None
    seconds_left: float | None
    by: str
    why: str
    at: str


@dataclass(frozen=True, slots=True)
class LaneFacts:
    """How a lane stands for one tenant, by the ledger's rows and clock; a limit of None is none."""

    tenant: str
    exists: bool = True
    paused: bool = False
    limited: bool = False
    rate: float | None = None
    tokens: float | None = None  # what the bucket holds
    in_flight: int | None = None
    busy: int = 0  # sent or running
    sent: int = 0  # and not claimed
    slots: int = 0  # rows that may join them, by in_flight and by the window
    tenant_in_flight: int | None = None
    of_tenant: int = 0  # sent or running
    overrides: Mapping[str, Override] = field(default_factory=dict)


def limit_words(lane: LaneFacts, *, queued: bool) -> str:
    """Say what a step of the lane waits for: the first of what it meets. Nothing for one that goes straight out."""
    if not lane.exists:
        return "the ledger has no such lane; safepoint lanes apply, or a worker whose configuration has it, makes it"
    if lane.paused:
        return "the lane is paused" + _set_by(lane, "paused")
    if not lane.limited and not queued:
        return ""
    if lane.in_flight is not None and lane.busy >= lane.in_flight:
        return f"{lane.busy} of {lane.in_flight} are in flight" + _set_by(lane, "in_flight")
    if lane.tenant_in_flight is not None and lane.of_tenant >= lane.tenant_in_flight:
        told = f"{lane.of_tenant} of {lane.tenant_in_flight} of tenant {lane.tenant} are in flight"
        return told + _set_by(lane, "tenant_in_flight")
    if lane.rate is not None and lane.tokens is not None and lane.tokens < 1:
        used = "it lets through nothing" if lane.rate == 0 else f"its {lane.rate:g} steps a second are used up"
        return used + _set_by(lane, "rate")
    if lane.slots <= 0:
        told = f"{lane.sent} are with the workers and not claimed yet, which is all that keeps them busy"
        return told + _set_by(lane, "window")
    return _policy(lane) + "tenants take turns by their weights"


def _policy(lane: LaneFacts) -> str:
    parts = [f"{lane.rate:g} steps a second"] if lane.rate is not None else []
    parts += [f"{lane.in_flight} at once"] if lane.in_flight is not None else []
    parts += [f"{lane.tenant_in_flight} of a tenant at once"] if lane.tenant_in_flight is not None else []
    return f"it lets through {' and '.join(parts)}; " if parts else ""


def _set_by(lane: LaneFacts, key: str) -> str:
    one = lane.overrides.get(key)
    if one is None:
        return ""
    until = "until it is lifted" if one.seconds_left is None else f"for {span(one.seconds_left)} more"
    return f" (set by {one.by} {until}: {one.why})"

"""What becomes of a running step whose executor may be gone: pure, so that every case is one line of a test.

Only the ledger's clock has judged the facts; here they are weighed (P19 to P23).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Facts", "Finding", "Verdict", "judge"]


class Finding(StrEnum):
    """What is to be done about it."""

    LEAVE = "leave"
    CONFIRM = "confirm"  # a suspicion: look again after a moment
    TAKE = "take"


@dataclass(frozen=True, slots=True)
class Facts:
    """What the ledger saw of one running step and its node."""

    lease_over: bool = False
    lock_missing: bool = False
    stopped: bool = False
    expired: bool = False
    unnamed: bool = False
    neighbours: int = 0  # other running steps of the same node
    frozen: bool = False  # a time without a ledger is nobody's lease time (P20)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The finding, the cause under which the step is taken, and whether the step may have killed its process (P23)."""

    finding: Finding
    cause: str = ""
    deadly: bool = False


def judge(facts: Facts, *, confirmed: bool = False) -> Verdict:
    """Decide about one step; `confirmed` says that the same suspicion stood a moment ago."""
    if facts.frozen:
        return Verdict(Finding.LEAVE)
    if facts.expired:
        return Verdict(Finding.TAKE, "timeout")
    if facts.stopped:
        return Verdict(Finding.TAKE, "node")
    if facts.lease_over:
        return Verdict(Finding.TAKE, "lease")
    if facts.lock_missing:
        if not confirmed:
            return Verdict(Finding.CONFIRM)
        # A process that died alone with its step may have died of it; one that took others along tells nothing.
        return Verdict(Finding.TAKE, "node", deadly=facts.neighbours == 0)
    if facts.unnamed:
        return Verdict(Finding.TAKE, "unnamed")
    return Verdict(Finding.LEAVE)

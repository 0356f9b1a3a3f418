"""What a step that executes nothing comes to: what has decided its wait."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from ..ledger.codec import JSON, digest
from ..ledger.commit import Result
from ..ledger.errors import ValueNotOpened

if TYPE_CHECKING:
    from ..ledger.steps import Outcome
    from .performance import Performance
    from .turn import Turn

__all__ = ["waited"]


def waited(turn: Turn, performance: Performance) -> Result:
    """The outcome of a step that executes nothing: what decided its wait."""
    outcome = turn.claimed.outcome
    if outcome is None:
        return Result("succeeded", turn.now())
    if turn.claimed.kind == "approval":
        return _decided(turn, outcome, performance)
    if outcome.status != "succeeded":
        return Result("failed", turn.now(), error=outcome.error or {"type": "Error", "message": outcome.status})
    return Result("succeeded", turn.now(), outcome.data, outcome.encoding)


def _decided(turn: Turn, outcome: Outcome, performance: Performance) -> Result:
    """The decision on an approval: as a person has made it and nothing else, or that nobody has in time (P28)."""
    if outcome.status == "expired":
        expired = performance.expired()
        return Result("succeeded", turn.now(), expired.data, expired.encoding, expired.digest)
    made = bytes.fromhex(outcome.covers) if outcome.covers else None
    with suppress(ValueNotOpened):  # there is no codec here: the flow's own code is held with the error
        load = performance.loader(turn.claimed.run["tenant"])
        if made is not None and digest(load(outcome.data or b"", outcome.encoding or JSON)) != made:
            text = "the stored decision is not the one that was made: its digest is another"
            return Result("failed", turn.now(), error={"type": "DecisionChanged", "message": text})
    return Result("succeeded", turn.now(), outcome.data, outcome.encoding, made)

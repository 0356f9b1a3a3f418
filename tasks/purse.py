"""What a claimed step may spend of its run's budget, as the ledger has said at the claim (G7)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..ledger.errors import BudgetExceeded
from .budget import Budget

if TYPE_CHECKING:
    from ..ledger.steps import Claimed
    from .turn import Turn

__all__ = ["Purse", "budget_hold"]


@dataclass(frozen=True, slots=True)
class Purse:
    """What is left for this step, and what it lacks to be started."""

    left: Budget = field(default_factory=Budget)
    lacks: BudgetExceeded | None = None

    @classmethod
    def of(cls, claimed: Claimed) -> Purse:
        """Read it from a claim; a run without a budget bounds nothing."""
        facts: dict[str, Any] | None = claimed.run.get("purse")
        if facts is None:
            return cls()
        return cls(Budget(**facts["left"]), _lack(facts, key=str(claimed.key)) if "lacks" in facts else None)


def _lack(facts: dict[str, Any], *, key: str) -> BudgetExceeded:
    what, limit, rest, wants = (facts[name] for name in ("lacks", "limit", "rest", "wants"))
    asked = f"{key} reserves {_amount(wants)}, and " if wants else ""
    return BudgetExceeded(
        f"the run's budget of {what} is used up: {asked}{_amount(rest)} of {_amount(limit)} are left", what=what
    )


def _amount(number: float) -> str:
    return f"{number:,}" if isinstance(number, int) else f"{number:,.4f}".rstrip("0").rstrip(".")


def budget_hold(turn: Turn, error: BaseException) -> dict[str, Any] | None:
    """Say why the run is held, if its budget is used up and its flow wants a person to decide."""
    if not isinstance(error, BudgetExceeded) or turn.kept is None or turn.replay.driver.flow.on_budget != "hold":
        return None
    option = {"tokens": "--add-tokens", "usd": "--add-usd", "retries": "--add-retries"}.get(error.what, "--add-tokens")
    return {
        "code": "budget",
        "text": str(error),
        "detail": {"what": error.what, "step": str(turn.key)},
        "next": f"safepoint budget {turn.run_id} {option} N",
    }

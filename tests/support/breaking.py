"""A breaker of a test's ledger, and the ways to open, probe and read it."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from ledger_verbs import Verbs
from safepoint.config.breakers import BreakerPolicy, Breakers
from safepoint.ledger.steps import Claimed
from safepoint.recovery import outcomes
from safepoint.recovery.breaker import Outcome, State, Tally

__all__ = ["LLM", "Breaking"]

LLM = "llm"


class Breaking:
    """The breaker of `llm` in a ledger."""

    def __init__(self, verbs: Verbs, **policy: Any) -> None:
        self.verbs = verbs
        self.configured = Breakers.model_validate({"open_for": 15, "max_open": 100, "probes": 3, **policy})
        outcomes.introduce(verbs.connection, self.configured, {LLM})

    def count(self, ok: int = 0, failed: int = 0, throttled: int = 0, *, leave_for: float = 0.0) -> list[str]:
        """Flush what a node's calls have come to."""
        tally = Tally(ok, failed, throttled, leave_for)
        return outcomes.record(self.verbs.connection, {LLM: tally}, self.configured, by="node-1")

    def open(self) -> float:
        """Open it by failures; answers in how many seconds it is probed."""
        assert self.count(failed=10) == [LLM]
        return float(
            self.verbs.value("SELECT extract(epoch FROM next_probe_at - safepoint.now()) FROM safepoint.breakers")
        )

    def probe(self, claimed: Claimed, outcome: Outcome = Outcome.OK) -> State | None:
        """End a probe."""
        return outcomes.record_probe(
            self.verbs.connection, LLM, outcome, self.configured, token=claimed.token, leave_for=0.0, by="node-1"
        )

    @property
    def row(self) -> dict[str, Any]:
        """Its row."""
        return self.verbs.rows("SELECT * FROM safepoint.breakers WHERE name = %s", (LLM,))[0]

    @property
    def state(self) -> str:
        """Its state."""
        return str(self.row["state"])

    def turns(self) -> list[str]:
        """The states that it has come to, in order."""
        found = self.verbs.rows("SELECT after FROM safepoint.breaker_events WHERE name = %s ORDER BY id", (LLM,))
        return [row["after"] for row in found]

    def aside(self) -> set[UUID]:
        """The runs whose step is set aside."""
        found = self.verbs.rows(
            "SELECT run_id FROM safepoint.steps WHERE status = 'ready' AND reason->>'code' = 'breaker'"
            " AND due_at > safepoint.now() + interval '10 s'"
        )
        return {row["run_id"] for row in found}

    @property
    def policy(self) -> BreakerPolicy:
        """Its policy."""
        return self.configured.of(LLM)

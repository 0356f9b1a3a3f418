"""A run played by one executor in this process, with the ledger's clock in hand and the outside world in view."""

from __future__ import annotations

import json
import time
from datetime import timedelta
from typing import Any, Literal
from uuid import UUID

from ledger_clock import Clock
from ledger_verbs import Verbs
from safepoint.ledger.effects import begin
from safepoint.ledger.key import Key
from safepoint.ledger.steps import Claimed
from workshop import Workshop

__all__ = ["Play"]


class Play:
    """A run of one of these flows, played with the ledger's clock in hand."""

    def __init__(self, shop: Workshop, verbs: Verbs, clock: Clock, url: str) -> None:
        self.shop, self.verbs, self.clock, self.url = shop, verbs, clock, url
        self.run = UUID(int=0)

    def go(
        self, flow: str, *, stop: str | None = None, deadline: float | None = None, budget: Any = None, **given: Any
    ) -> Play:
        """Enqueue a run and play it, to where nothing is due any more or the step `stop` would be executed."""
        more: dict[str, Any] = {} if budget is None else {"budget": json.dumps(budget)}
        if deadline is not None:
            more["deadline"] = self.clock.now + timedelta(seconds=deadline)
        self.run = self.verbs.enqueue(flow=flow, input=json.dumps(given), **more)
        return self.work(stop=stop)

    def work(self, seconds: float = 0.0, stop: str | None = None) -> Play:
        """Let time pass, and play on."""
        self.clock.forward(seconds)
        self.verbs.beat()
        self.verbs.chores()
        self.shop.board.beaten(time.monotonic())
        self.shop.work(self.url, stop=stop)
        return self

    def lane(self, text: str) -> str:
        """Where a step's next claim must come from."""
        return str(self.verbs.step(self.run, self.key(text))["lane"])

    def begin(self, claimed: Claimed, *, how: Literal["send", "again"]) -> None:
        """Begin a claimed effect, as its executor would."""
        assert claimed.effect is not None
        begun = begin(
            self.verbs.connection, self.run, claimed.key, token=claimed.token, digest=claimed.effect.digest, how=how,
            timeout=10, authoritative_after=5, key_retention=None, asked_at=claimed.db_now,
        )  # fmt: skip
        assert begun.answer == "begun"

    def key(self, text: str) -> Key:
        """Read a step key."""
        return Key.from_wire(text)

    @property
    def row(self) -> dict[str, Any]:
        """The run's row."""
        return self.verbs.run(self.run)

    def effects(self) -> list[dict[str, Any]]:
        """The run's effects, the oldest first."""
        return self.verbs.rows(
            "SELECT * FROM safepoint.effects WHERE run_id = %s ORDER BY created_at, reference", (self.run,)
        )

    @property
    def effect(self) -> dict[str, Any]:
        """The run's first effect."""
        return self.effects()[0]

    def history(self) -> list[str]:
        """What the run's effects have been, in order."""
        rows = self.verbs.rows(
            "SELECT h.status FROM safepoint.effect_history h JOIN safepoint.effects e USING (idempotency_key)"
            " WHERE e.run_id = %s ORDER BY e.created_at, e.reference, h.n",
            (self.run,),
        )
        return [row["status"] for row in rows]

    def resolve(self, verdict: str, value: str | None = None, version: int | None = None) -> str:
        """Settle the first effect as a person does."""
        return str(
            self.verbs.value(
                "SELECT answer FROM safepoint.resolve_effect_v1(%s, %s, %s, %s, 'json', %s, 'person:ann', 'seen')",
                (self.effect["idempotency_key"], version, verdict, None if value is None else value.encode(), None),
            )
        )

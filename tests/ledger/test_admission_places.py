"""P12: what takes a place or a token of a limited lane and what does not, and what nobody serves stands before nobody."""

from __future__ import annotations

import pytest
from ledger_clock import Clock
from ledger_lanes import limit, orphan, sent
from ledger_verbs import Verbs, key
from safepoint.ledger import outbox
from safepoint.ledger.steps import Settled

A = key("a#1")


def tickets(rows: list[outbox.Dispatched]) -> list[Settled]:
    return [Settled(row.run_id, row.key, row.due, 10.0) for row in rows]


# Places.


@pytest.mark.parametrize("stopped", ["paused", "held"])
def test_p12_what_is_parked_takes_no_place(verbs: Verbs, clock: Clock, stopped: str) -> None:
    limit(verbs, "recovery", in_flight=1)
    first, second = orphan(verbs), orphan(verbs)
    assert sent(verbs, "recovery") == [first]

    verbs.pause(first) if stopped == "paused" else verbs.hold(first, "told")

    assert verbs.refusal(first, lane="recovery") == stopped  # its message comes all the same
    assert sent(verbs, "recovery") == [second]
    verbs.resume(first)
    assert sent(verbs, "recovery") == []
    verbs.done(second, lane="recovery")
    assert sent(verbs, "recovery") == [first]


# What waits for its time.


# What nobody serves.


# Tokens.

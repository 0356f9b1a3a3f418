"""P12: what takes a place or a token of a limited lane and what does not, and what nobody serves stands before nobody."""

from __future__ import annotations

import pytest
from ledger_clock import Clock
from ledger_lanes import crew, limit, orphan, sent
from ledger_verbs import Verbs, ask, key
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


def test_p12_what_is_lost_and_served_by_nobody_takes_no_place(verbs: Verbs, clock: Clock) -> None:
    limit(verbs, "recovery", in_flight=1)
    crew(verbs, lanes=("online", "recovery"), flows=("f@1", "f@2"))
    old, new = orphan(verbs), orphan(verbs, version="2")
    assert sent(verbs, "recovery") == [old]  # and its message is lost
    crew(verbs, lanes=("recovery",), flows=("f@2",))

    clock.forward(30)

    assert sent(verbs, "recovery") + sent(verbs, "recovery") == [new]
    crew(verbs, lanes=("recovery",), flows=("f@1", "f@2"))
    assert sent(verbs, "recovery") == []
    verbs.done(new, lane="recovery")
    assert sent(verbs, "recovery") == [old]


def test_p11_what_nobody_serves_for_a_while_is_not_sent_twice(verbs: Verbs, clock: Clock) -> None:
    """Its message is in the broker, and whoever comes back finds it there."""
    run = orphan(verbs)
    assert sent(verbs, "recovery") == [run]
    clock.forward(30)
    assert sent(verbs, "recovery") == []

    crew(verbs, lanes=("recovery",))

    assert sent(verbs, "recovery") == []


# What waits for its time.


def test_p9_an_attempt_that_fails_late_waits_for_its_time(verbs: Verbs, clock: Clock) -> None:
    """It was lost and waits on the recovery lane when its executor says that it has failed (P35)."""
    limit(verbs, "recovery", in_flight=5)
    run = verbs.begun(ask("a#1"))
    claimed = verbs.claimed(run, A)
    verbs.lose(claimed)

    verbs.retry(claimed, delay=30.0)

    assert verbs.dispatch() == []
    clock.forward(30)
    verbs.beat()
    assert [row.key for row in verbs.dispatch()] == [A]


# What nobody serves.


# Tokens.

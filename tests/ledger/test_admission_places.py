"""P12: what takes a place or a token of a limited lane, and what does not; what nobody serves stands before nobody."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from ledger_clock import Clock
from ledger_lanes import backlog, crew, limit, orphan, sent
from ledger_verbs import Verbs, ask, key
from safepoint.config.lanes import Lane
from safepoint.ledger import lanes, outbox
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


def test_p17_a_ticket_that_comes_late_gives_no_place_to_what_was_refused(verbs: Verbs, clock: Clock) -> None:
    limit(verbs, "recovery", in_flight=1)
    first, second = orphan(verbs), orphan(verbs)
    rows = verbs.dispatch(settled=False)
    clock.forward(6)  # its relay takes longer than the grace
    verbs.beat(draining=True)
    assert verbs.refusal(first, lane="recovery") == "draining"
    crew(verbs, "node-2", lanes=("recovery",))
    other = verbs.dispatch(settled=False)

    assert outbox.settle(verbs.connection, tickets(rows)) == 0

    assert len(other) == 1
    in_flight = "SELECT count(*) FROM safepoint.steps WHERE status = 'ready' AND dispatched_at IS NOT NULL"
    assert verbs.value(in_flight) == 1
    assert {first, second} >= {row.run_id for row in other}


def test_p17_a_ticket_of_a_lane_without_limits_lets_nothing_through_once_it_has_some(
    verbs: Verbs, clock: Clock
) -> None:
    run = verbs.begun(ask("a#1"), ask("b#1"))
    due = {one: verbs.step(run, key(one))["due_at"] for one in ("a#1", "b#1")}
    limit(verbs, "online", in_flight=1)

    late = [Settled(run, key(one), at, 10.0) for one, at in due.items()]

    assert outbox.settle(verbs.connection, late) == 0
    clock.forward(2)
    assert len(verbs.dispatch()) == 1


def test_p17_a_ticket_does_not_settle_what_has_joined_the_queue(verbs: Verbs, clock: Clock) -> None:
    run = verbs.begun(ask("a#1"))
    limit(verbs, "online", paused=True)  # nothing of it is sent, so it stays as it was published
    verbs.connection.execute("UPDATE safepoint.steps SET queued = 1 WHERE run_id = %s AND step_id = 'a'", (run,))
    step = verbs.step(run, A)

    assert step["queued"] == 1
    assert outbox.settle(verbs.connection, [Settled(run, A, step["due_at"], 10.0)]) == 0


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


def test_p12_a_start_for_later_is_admitted_like_any_other(verbs: Verbs, clock: Clock) -> None:
    limit(verbs, "online", window=3)
    at = clock.now + timedelta(seconds=10)
    for n in range(10):
        verbs.enqueue(start_at=at, tenant="loud", priority=n)
    quiet = verbs.enqueue(start_at=at, tenant="quiet")
    assert verbs.dispatch() == []

    clock.forward(10)
    rows = [row.run_id for row in verbs.dispatch()]

    assert len(rows) == 3
    assert quiet in rows
    assert {verbs.run(run)["priority"] for run in rows if run != quiet} == {9, 8}


@pytest.mark.parametrize("begun", ["child", "generation", "orphan"])
def test_p12_a_start_that_goes_on_with_something_stays_before_the_others(
    verbs: Verbs, clock: Clock, begun: str
) -> None:
    if begun == "child":
        run = verbs.enqueue()
        verbs.connection.execute(
            "UPDATE safepoint.runs SET parent_run_id = run_id, parent_key = 'x' WHERE run_id = %s", (run,)
        )
    else:
        run = orphan(verbs) if begun == "orphan" else verbs.enqueue()
    if begun == "generation":
        verbs.connection.execute("UPDATE safepoint.steps SET generation = 2 WHERE run_id = %s", (run,))

    verbs.connection.execute("UPDATE safepoint.steps SET queued = 0 WHERE run_id = %s", (run,))  # it was refused
    limit(verbs, "online", in_flight=0)
    limit(verbs, "recovery", in_flight=0)
    verbs.dispatch()

    assert verbs.value("SELECT queued FROM safepoint.steps WHERE run_id = %s", (run,)) == 1


# What nobody serves.


def test_p15_one_tenants_rows_that_nobody_serves_stand_before_nobody(verbs: Verbs, clock: Clock) -> None:
    limit(verbs, "tools", in_flight=1)
    crew(verbs, lanes=("tools",))
    backlog(verbs, 3000, lane="tools", tenant="a", flow="gone")
    quiet = backlog(verbs, 2, lane="tools", tenant="b")

    rounds = [sent(verbs, "tools") for _ in range(2)]

    assert rounds == [[quiet], []]


def test_p15_what_nobody_serves_stands_not_for_long_before_what_somebody_serves(verbs: Verbs, clock: Clock) -> None:
    limit(verbs, "tools", in_flight=1)
    crew(verbs, lanes=("tools",))
    backlog(verbs, 3000, lane="tools", flow="gone", priority=1)
    served = backlog(verbs, 1, lane="tools")

    rounds = [sent(verbs, "tools") for _ in range(10)]

    assert served in [run for runs in rounds for run in runs]
    assert verbs.value("SELECT count(*) FROM safepoint.steps WHERE reason->>'code' = 'no_worker'") == 3000


# Tokens.


def many_sent(verbs: Verbs, clock: Clock, *seconds: float) -> list[int]:
    found = []
    for wait in seconds:
        clock.forward(wait)
        found.append(len(sent(verbs, "tools")))
    return found


@pytest.fixture
def tools(verbs: Verbs, clock: Clock) -> Verbs:
    """A thousand steps on a lane of their own, and who would take them."""
    crew(verbs, lanes=("tools",))
    limit(verbs, "tools", window=1000)
    backlog(verbs, 1000, lane="tools")
    return verbs


@pytest.mark.parametrize(
    "values", [{"rate": 0.0}, {"rate": 0.0, "burst": 10}, {"in_flight": 0}, {"tenant_in_flight": 0}]
)
def test_p12_a_limit_of_nothing_admits_nothing(tools: Verbs, clock: Clock, values: dict[str, Any]) -> None:
    limit(tools, "tools", **values)

    assert many_sent(tools, clock, 0, 10, 1000) == [0, 0, 0]


def test_p12_a_rate_that_is_lowered_to_nothing_stops_at_once(tools: Verbs, clock: Clock) -> None:
    limit(tools, "tools", rate=5.0, burst=5)
    limit(tools, "tools", rate=0.0)

    assert many_sent(tools, clock, 0, 10) == [0, 0]


def test_p12_a_rate_that_is_raised_counts_from_now(tools: Verbs, clock: Clock) -> None:
    limit(tools, "tools", rate=1.0, burst=100)
    assert many_sent(tools, clock, 0, 10) == [100, 10]

    clock.forward(10)
    limit(tools, "tools", rate=50.0)

    assert many_sent(tools, clock, 0, 1) == [10, 50]


def test_p12_a_rate_that_is_lowered_keeps_what_had_come_in(tools: Verbs, clock: Clock) -> None:
    limit(tools, "tools", rate=10.0, burst=100)
    assert many_sent(tools, clock, 0) == [100]

    clock.forward(5)
    limit(tools, "tools", rate=1.0)

    assert many_sent(tools, clock, 0, 5) == [50, 5]


def test_p12_an_override_that_ends_takes_effect_by_itself(tools: Verbs, clock: Clock) -> None:
    lanes.apply(tools.connection, {"tools": Lane(name="tools", in_flight=4, window=1000)})
    assert lanes.override(tools.connection, "tools", {"in_flight": 2}, seconds=6, by="ann", why="gently")

    assert many_sent(tools, clock, 0, 1, 4, 1, 1) == [2, 0, 0, 2, 0]

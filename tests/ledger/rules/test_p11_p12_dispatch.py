"""P11, P12: what is sent again and what is not; who goes first; and what two relays, or a dead one, may not do."""

from __future__ import annotations

from collections import Counter, deque
from datetime import timedelta
from uuid import UUID

import pytest
from ledger_clock import Clock
from ledger_fixtures import Crowd
from ledger_verbs import Verbs, ask, key
from safepoint.ledger.outbox import Dispatched

A = key("a#1")


def limit(verbs: Verbs, lane: str, **limits: object) -> None:
    names = ", ".join(f'"{name}" = %({name})s' for name in limits)
    verbs.connection.execute(
        f"UPDATE safepoint.lanes SET {names} WHERE name = %(lane)s".encode(), {**limits, "lane": lane}
    )


def overtaking(verbs: Verbs, clock: Clock, *, dispatched: float, node: str = "node-1") -> None:
    """Beat with the mark of a claim, just now, of something that was dispatched that many seconds ago."""
    now = clock.now.timestamp()
    verbs.beat(node=node, marks={"online": [now, now - dispatched]})


# P11: no storms.


def test_p11_a_slow_drain_of_a_long_queue_sends_nothing_twice(verbs: Verbs, clock: Clock) -> None:
    """2,000 queued, 10 a second drained: every message waits far longer than the wait for a lost one."""
    limit(verbs, "online", window=1000)
    verbs.many(2000)
    sent: Counter[UUID] = Counter()
    broker: deque[Dispatched] = deque()
    newest = 0.0
    for _ in range(40):
        clock.forward(1)
        verbs.beat(marks={"online": [clock.now.timestamp(), newest]} if newest else {})
        while rows := verbs.dispatch():
            broker.extend(rows)
            sent.update(row.run_id for row in rows)
        for _ in range(10):
            claimed = verbs.claimed(broker.popleft().run_id)
            assert claimed.dispatched_at is not None
            newest = max(newest, claimed.dispatched_at.timestamp())

    assert max(sent.values()) == 1
    assert len(sent) == 1000 + 39 * 10  # the window, and what has been drained before the last look


def test_p11_what_its_lane_has_overtaken_is_sent_again(verbs: Verbs, clock: Clock) -> None:
    run = verbs.begun(ask("a#1"))
    clock.forward(1)
    verbs.dispatch()

    clock.forward(12)
    overtaking(verbs, clock, dispatched=1.5)  # 10.5 s later than ours
    again = verbs.dispatch()

    assert [row.run_id for row in again] == [run]


def test_p11_what_its_lane_has_not_overtaken_by_enough_is_not_sent_again(verbs: Verbs, clock: Clock) -> None:
    verbs.begun(ask("a#1"))
    clock.forward(1)
    verbs.dispatch()

    clock.forward(12)
    overtaking(verbs, clock, dispatched=2.5)  # 9.5 s later than ours

    assert verbs.dispatch() == []


def test_p11_what_an_idle_node_has_not_been_given_for_that_long_is_sent_again(verbs: Verbs, clock: Clock) -> None:
    run = verbs.begun(ask("a#1"))
    clock.forward(1)
    verbs.dispatch()

    clock.forward(11)
    verbs.beat()

    assert [row.run_id for row in verbs.dispatch()] == [run]


def test_p11_what_waits_behind_busy_nodes_is_not_sent_again(verbs: Verbs, clock: Clock) -> None:
    run = verbs.begun(ask("a#1"), ask("b#1"), ask("c#1"))
    busy = [verbs.claimed(run, key(text)).token for text in ("a#1", "b#1")]  # as many as the node has hands
    clock.forward(1)
    assert len(verbs.dispatch()) == 1

    for _ in range(10):
        clock.forward(11)
        verbs.beat(*busy)

        assert verbs.dispatch() == []


def test_p11_what_nobody_consumes_is_never_sent_again(verbs: Verbs, clock: Clock) -> None:
    verbs.begun(ask("a#1"))
    clock.forward(1)
    verbs.dispatch()

    for _ in range(10):
        clock.forward(100)  # the node's lease has long been over

        assert verbs.dispatch() == []


def test_p11_each_time_the_wait_doubles(verbs: Verbs, clock: Clock) -> None:
    run = verbs.begun(ask("a#1"))
    clock.forward(1)
    verbs.dispatch()
    waits = []
    for _ in range(4):
        sent = clock.now
        while not verbs.dispatch():
            clock.forward(1)
            verbs.beat()
        waits.append((clock.now - sent).total_seconds())

    assert verbs.step(run, A)["dispatches"] == 5
    assert waits == pytest.approx([11, 20, 40, 80], abs=10)  # looked at every ten seconds
    assert waits == sorted(waits)


def test_p11_a_full_window_that_its_broker_has_lost_is_sent_again(verbs: Verbs, clock: Clock) -> None:
    limit(verbs, "online", window=3)
    verbs.many(5)
    assert len(verbs.dispatch()) == 3

    clock.forward(11)
    verbs.beat()

    assert len(verbs.dispatch()) == 3  # the same three: the two others have no place yet


def test_p11_a_full_limited_lane_that_its_broker_has_lost_is_sent_again(verbs: Verbs, clock: Clock) -> None:
    limit(verbs, "recovery", in_flight=2)
    run = verbs.begun(*(ask(f"s#{n}") for n in range(1, 5)))
    for n in range(1, 5):
        verbs.lose(verbs.claimed(run, key(f"s#{n}")))
    first = {row.key for row in verbs.dispatch()}

    clock.forward(11)
    verbs.beat()

    assert len(first) == 2
    assert {row.key for row in verbs.dispatch()} == first


def test_p11_what_was_never_settled_is_sent_again_after_the_grace(verbs: Verbs, clock: Clock) -> None:
    """The relay died between its dispatch and its publish, or the broker did not answer."""
    run = verbs.begun(ask("a#1"))
    clock.forward(1)
    assert len(verbs.dispatch(settled=False)) == 1

    clock.forward(4)
    early = verbs.dispatch()
    clock.forward(1)

    assert (early, [row.run_id for row in verbs.dispatch()]) == ([], [run])


# P12: the backlog lives in the ledger.


def test_p12_starts_are_admitted_within_the_window_and_continuing_steps_go_straight_out(
    verbs: Verbs, clock: Clock
) -> None:
    limit(verbs, "online", window=3)
    going = [verbs.begun(ask("a#1")) for _ in range(5)]
    verbs.many(10)
    clock.forward(2)

    rows = verbs.dispatch()

    assert {row.run_id for row in rows if row.kind == "step"} == set(going)
    assert sum(row.kind == "start" for row in rows) == 3


def test_p12_a_claim_makes_room_for_the_next_start(verbs: Verbs) -> None:
    limit(verbs, "online", window=3)
    verbs.many(10)
    sent = verbs.dispatch()

    verbs.claimed(sent[0].run_id)

    assert len(verbs.dispatch()) == 1


def test_p12_tenants_take_turns_however_many_one_has_queued_before(verbs: Verbs, clock: Clock) -> None:
    limit(verbs, "online", window=10)
    verbs.many(3000, tenant="loud")
    clock.forward(1)
    late = {tenant: verbs.enqueue(tenant=tenant) for tenant in ("quiet", "shy")}

    first = {row.run_id for row in verbs.dispatch(limit=10)}

    assert set(late.values()) <= first
    assert len(first) + len(verbs.dispatch(limit=10)) == 10


def test_p12_equal_starts_of_many_tenants_do_not_shut_each_other_out(verbs: Verbs) -> None:
    limit(verbs, "online", window=2)
    for n in range(5):
        verbs.enqueue(tenant=f"t{n}")  # at one and the same instant

    assert len(verbs.dispatch()) == 2


def test_p12_within_a_tenant_priority_comes_first_then_the_deadline(verbs: Verbs, clock: Clock) -> None:
    limit(verbs, "online", window=3)
    verbs.many(1500)
    clock.forward(1)
    soon = verbs.enqueue(deadline=clock.now + timedelta(hours=1))
    sooner = verbs.enqueue(deadline=clock.now + timedelta(minutes=1))
    urgent = verbs.enqueue(priority=5)

    assert {row.run_id for row in verbs.dispatch()} == {urgent, sooner, soon}


def test_p12_a_run_for_later_keeps_nobody_from_starting(verbs: Verbs, clock: Clock) -> None:
    limit(verbs, "online", window=1)
    verbs.enqueue(priority=9, start_at=clock.now + timedelta(hours=1))
    now = verbs.enqueue()

    assert [row.run_id for row in verbs.dispatch()] == [now]


def test_p12_a_limited_lane_counts_what_is_sent_and_what_is_running(verbs: Verbs) -> None:
    limit(verbs, "recovery", in_flight=3)
    run = verbs.begun(*(ask(f"s#{n}", lane="recovery") for n in range(1, 7)))
    verbs.connection.execute("UPDATE safepoint.steps SET due_at = safepoint.now() WHERE status = 'ready'")
    first, second, _ = verbs.dispatch()
    running = verbs.claimed(run, first.key, lane="recovery")
    assert verbs.dispatch() == []

    verbs.commit(running)
    assert len(verbs.dispatch()) == 1
    verbs.commit(verbs.claimed(run, second.key, lane="recovery"))
    assert len(verbs.dispatch()) == 1


def test_p12_a_limited_lane_keeps_its_rate(verbs: Verbs, clock: Clock) -> None:
    limit(verbs, "recovery", rate=2.0, burst=3, tokens=3)
    verbs.begun(*(ask(f"s#{n}", lane="recovery") for n in range(1, 20)))
    clock.forward(2)

    sent = [len(verbs.dispatch())]
    for seconds in (0.0, 0.4, 0.1, 1.0, 100.0):
        clock.forward(seconds)
        verbs.beat()
        sent.append(len(verbs.dispatch()))

    assert sent == [3, 0, 0, 1, 2, 3]


def test_p12_a_paused_lane_sends_nothing(verbs: Verbs) -> None:
    limit(verbs, "online", paused=True)
    verbs.many(3)

    assert verbs.dispatch() == []


@pytest.mark.parametrize(
    ("lane", "limits"),
    [("online", {"window": 5}), ("recovery", {"in_flight": 5}), ("recovery", {"rate": 0.001, "burst": 5, "tokens": 5})],
)
def test_p12_limits_hold_when_two_relays_ask_at_once(
    crowd: Crowd, crowd_clock: Clock, lane: str, limits: dict[str, object]
) -> None:
    one, other = crowd(), crowd()
    limit(one, lane, **limits)
    if lane == "online":
        one.many(20)
    else:
        one.begun(*(ask(f"s#{n}", lane=lane) for n in range(1, 21)))
        crowd_clock.forward(2)

    with one.connection.transaction():
        first = one.dispatch()
        second = other.dispatch()

    assert (len(first), len(second)) == (5, 0)
    assert other.dispatch() == []


def test_p12_two_relays_at_once_send_each_step_once(crowd: Crowd, crowd_clock: Clock) -> None:
    one, other = crowd(), crowd()
    for _ in range(10):
        one.begun(ask("a#1"))
    crowd_clock.forward(2)

    with one.connection.transaction():
        first = one.dispatch(limit=4, settled=False)
        meanwhile = other.dispatch(settled=False)  # the lane is the first one's; it does not wait for it
    second = other.dispatch(settled=False)

    assert (len(first), meanwhile, len(second)) == (4, [], 6)
    assert {row.run_id for row in first}.isdisjoint({row.run_id for row in second})


def test_p12_a_relay_that_is_killed_leaks_no_place(crowd: Crowd, crowd_clock: Clock) -> None:
    limit(crowd(), "recovery", in_flight=2)
    one = crowd()
    one.begun(*(ask(f"s#{n}", lane="recovery") for n in range(1, 5)))
    crowd_clock.forward(2)
    one.dispatch(settled=False)
    one.connection.close()

    crowd_clock.forward(5)
    again = crowd().dispatch()

    assert len(again) == 2  # what it had taken: nobody else's place is lost, and no third one is given
    run = again[0].run_id
    for row in again:
        crowd().done(run, row.key, lane="recovery")
    assert len(crowd().dispatch()) == 2

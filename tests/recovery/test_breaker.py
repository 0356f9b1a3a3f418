"""The breaker's states: every way from one to another, and what no sequence of outcomes may come to."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from safepoint.config.breakers import BreakerPolicy
from safepoint.recovery.breaker import (
    JITTER,
    Admission,
    Breaker,
    Outcome,
    State,
    Tally,
    admit,
    judge,
    probed,
    reset,
    trip,
)

POLICY = BreakerPolicy(ratio=0.5, window=60, min_volume=10, probes=3, open_for=15, max_open=100)
OPEN = Breaker(State.OPEN, opened_at=0.0, probe_at=15.0, pause=15.0, opens=1)
HALF = replace(OPEN, state=State.HALF_OPEN)


def fed(breaker: Breaker, *tallies: Tally, now: float = 0.0, jitter: float = 0.0, policy: BreakerPolicy = POLICY):
    for tally in tallies:
        breaker = judge(breaker, tally, policy=policy, now=now, jitter=jitter)
    return breaker


def told(breaker: Breaker, *outcomes: Outcome, now: float = 20.0, leave_for: float = 0.0) -> Breaker:
    for outcome in outcomes:
        breaker = probed(breaker, outcome, policy=POLICY, now=now, jitter=0.0, leave_for=leave_for)
    return breaker


def admitted(breaker: Breaker, *, now: float, live: int = 0) -> Admission:
    return admit(breaker, policy=POLICY, now=now, live=live)


# Closed.


@pytest.mark.parametrize(
    ("tally", "state"),
    [
        (Tally(ok=100), State.CLOSED),
        (Tally(failed=9), State.CLOSED),  # too few to tell anything
        (Tally(failed=10), State.OPEN),
        (Tally(throttled=10), State.OPEN),
        (Tally(ok=5, failed=3, throttled=2), State.OPEN),  # half of ten
        (Tally(ok=6, failed=3, throttled=2), State.CLOSED),
        (Tally(ok=5, failed=4), State.CLOSED),
    ],
)
def test_enough_of_enough_calls_open_it(tally: Tally, state: State) -> None:
    assert fed(Breaker(), tally).state is state


def test_calls_that_fail_in_a_row_open_what_has_been_well_for_the_whole_window() -> None:
    well = fed(Breaker(), Tally(ok=1000))

    assert fed(well, Tally(failed=12), Tally(throttled=7)).state is State.CLOSED
    assert fed(well, Tally(failed=12), Tally(ok=1, failed=5), Tally(failed=15)).state is State.CLOSED
    opened = fed(well, Tally(failed=12), Tally(throttled=8))
    assert (opened.state, opened.why) == (State.OPEN, "20 calls in a row failed")


def test_it_says_what_has_opened_it() -> None:
    assert fed(Breaker(), Tally(ok=1, failed=8, throttled=3)).why == (
        "11 of 12 calls failed within 60 s, 3 of them throttled"
    )


def test_outcomes_of_many_nodes_and_moments_are_summed() -> None:
    breaker = Breaker()
    for second in range(9):
        breaker = fed(breaker, Tally(failed=1), now=float(second))

    assert breaker.state is State.CLOSED
    assert fed(breaker, Tally(failed=1), now=9.0).state is State.OPEN


def test_what_the_window_has_left_behind_does_not_count() -> None:
    breaker = fed(Breaker(), Tally(failed=9), now=0.0)

    assert fed(breaker, Tally(failed=1), now=59.0).state is State.OPEN
    assert fed(breaker, Tally(failed=1), now=66.1).seen() == Tally(failed=1)


def test_a_clock_set_back_leaves_no_outcomes_in_the_future() -> None:
    breaker = fed(Breaker(), Tally(failed=9), now=4000.0)

    assert fed(breaker, Tally(ok=1), now=10.0).seen() == Tally(ok=1)


# Open.


def test_an_open_one_lets_nothing_through_until_its_pause_is_over() -> None:
    opened = fed(Breaker(), Tally(failed=10), now=100.0)

    assert (opened.opened_at, opened.probe_at) == (100.0, 115.0)
    assert [admitted(opened, now=now) for now in (100.0, 114.9, 115.0)] == [
        Admission.WAIT, Admission.WAIT, Admission.PROBE,
    ]  # fmt: skip


def test_what_calls_that_began_before_come_to_moves_it_no_more() -> None:
    assert fed(OPEN, Tally(ok=1000), now=20.0) == OPEN
    assert fed(HALF, Tally(failed=1000), now=20.0) == HALF


@pytest.mark.parametrize("jitter", [0.0, 0.5, 0.999])
def test_each_pause_is_twice_the_last_up_to_its_maximum_less_some_jitter(jitter: float) -> None:
    breaker, pauses = fed(Breaker(), Tally(failed=10), jitter=jitter), []
    for _ in range(5):
        pauses.append(breaker.pause)
        half = replace(breaker, state=State.HALF_OPEN)
        breaker = probed(half, Outcome.FAILED, policy=POLICY, now=0.0, jitter=jitter)

    assert pauses == pytest.approx([pause * (1 - JITTER * jitter) for pause in (15, 30, 60, 100, 100)])


def test_one_that_fails_again_soon_after_it_has_closed_goes_on_backing_off() -> None:
    closed = told(HALF, Outcome.OK, Outcome.OK, Outcome.OK, now=20.0)

    assert fed(closed, Tally(failed=10), now=119.0).pause == 30.0
    assert fed(closed, Tally(failed=10), now=121.0).pause == 15.0


@pytest.mark.parametrize(("asked", "pause"), [(5.0, 15.0), (40.0, 40.0), (9999.0, 100.0)])
def test_it_is_left_alone_for_as_long_as_it_has_asked_but_not_for_ever(asked: float, pause: float) -> None:
    assert fed(Breaker(), Tally(throttled=10, leave_for=asked)).pause == pause


# Half open.


def test_as_many_probes_go_as_are_still_wanted() -> None:
    assert [admitted(HALF, now=20.0, live=live) for live in range(4)] == [
        Admission.PROBE, Admission.PROBE, Admission.PROBE, Admission.WAIT,
    ]  # fmt: skip
    assert admitted(replace(HALF, good=2), now=20.0, live=1) is Admission.WAIT


def test_enough_good_probes_close_it() -> None:
    assert told(HALF, Outcome.OK, Outcome.OK).state is State.HALF_OPEN
    assert told(HALF, Outcome.OK, Outcome.OK, Outcome.OK).state is State.CLOSED


@pytest.mark.parametrize("bad", [Outcome.FAILED, Outcome.THROTTLED])
def test_one_bad_probe_opens_it_again(bad: Outcome) -> None:
    again = told(HALF, Outcome.OK, Outcome.OK, bad)

    assert (again.state, again.probe_at, again.opens, again.good) == (State.OPEN, 50.0, 2, 0)


# By hand.


def test_a_person_opens_it_for_a_while_or_until_it_is_reset() -> None:
    a_while, for_good = (trip(Breaker(), now=0.0, until=until, why="ann") for until in (60.0, math.inf))

    assert [admitted(a_while, now=now) for now in (59.0, 60.0)] == [Admission.WAIT, Admission.PROBE]
    assert admitted(for_good, now=1e12) is Admission.WAIT


def test_a_reset_one_has_forgotten_everything() -> None:
    again = reset(now=50.0, why="ann")

    assert (again.state, again.seen(), again.opens) == (State.CLOSED, Tally(), 0)
    assert fed(again, Tally(failed=10), now=51.0).pause == 15.0


# Any sequence.


class Calls(RuleBasedStateMachine):
    """Calls, outcomes and time, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.breaker, self.now, self.live = Breaker(), 0.0, 0

    def turn(self, after: Breaker) -> None:
        before, self.breaker = self.breaker, after
        if before.state is not after.state:
            self.live = 0
        ways = {
            State.CLOSED: {State.CLOSED, State.OPEN},
            State.OPEN: {State.OPEN},
            State.HALF_OPEN: {State.HALF_OPEN, State.OPEN, State.CLOSED},
        }
        assert after.state in ways[before.state]

    @rule(seconds=st.floats(0, 200))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    @rule(ok=st.integers(0, 20), failed=st.integers(0, 20), throttled=st.integers(0, 5), jitter=st.floats(0, 0.999))
    def flush(self, ok: int, failed: int, throttled: int, jitter: float) -> None:
        self.turn(judge(self.breaker, Tally(ok, failed, throttled), policy=POLICY, now=self.now, jitter=jitter))

    @rule()
    def claim(self) -> None:
        before = self.breaker
        match admit(before, policy=POLICY, now=self.now, live=self.live):
            case Admission.GO:
                assert before.state is State.CLOSED
            case Admission.PROBE:
                assert before.state is State.HALF_OPEN or self.now >= (before.probe_at or 0)
                if before.state is State.OPEN:
                    self.breaker = replace(before, state=State.HALF_OPEN)
                self.live += 1

    @precondition(lambda self: self.live)
    @rule(outcome=st.sampled_from([*Outcome, None]), jitter=st.floats(0, 0.999))
    def end_probe(self, outcome: Outcome | None, jitter: float) -> None:
        self.live -= 1
        if outcome is not None:
            self.turn(probed(self.breaker, outcome, policy=POLICY, now=self.now, jitter=jitter))

    @invariant()
    def keeps_its_bounds(self) -> None:
        breaker = self.breaker
        assert self.live + breaker.good <= POLICY.probes or breaker.state is not State.HALF_OPEN
        assert breaker.pause <= POLICY.max_open
        assert (breaker.state is State.CLOSED) == (breaker.probe_at is None)
        assert all(bucket.start <= self.now for bucket in breaker.buckets)
        assert len(breaker.buckets) <= 11

    @invariant()
    def never_waits_for_ever(self) -> None:
        if self.breaker.state is State.OPEN and self.breaker.probe_at is not None:
            assert admit(self.breaker, policy=POLICY, now=self.breaker.probe_at, live=0) is Admission.PROBE


TestCalls = Calls.TestCase


@given(st.lists(st.tuples(st.floats(0, 30), st.integers(0, 3), st.integers(0, 3)), max_size=40))
def test_it_never_opens_while_most_calls_succeed(calls: list[tuple[float, int, int]]) -> None:
    breaker, now = Breaker(), 0.0
    for seconds, more, failed in calls:
        now += seconds
        breaker = judge(breaker, Tally(ok=failed + more + 1, failed=failed), policy=POLICY, now=now, jitter=0.0)

    assert breaker.state is State.CLOSED

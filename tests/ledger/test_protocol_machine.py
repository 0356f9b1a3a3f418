"""Random schedules of the protocol's verbs against the real ledger, with an in-memory model as the oracle.

Every answer and every row must be the oracle's; and whatever has happened, fair progress then ends the run (G2).
`SAFEPOINT_MACHINE_EXAMPLES` sets how many schedules are tried.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from ledger_clock import Clock
from ledger_oracle import LEASE, TIMEOUT
from ledger_twins import Held, Message, Twins
from safepoint.ledger.connect import Connection, connect
from safepoint.ledger.steps import Cause

EXAMPLES = int(os.environ.get("SAFEPOINT_MACHINE_EXAMPLES", "100"))
ANY = st.integers(0, 1000)  # which of several, modulo how many there are
RECENT = st.sampled_from([0, 0, 0, 1, 1, 2, 3, 5, 8])  # which of several, counted from the newest, which matter most
RARELY = st.sampled_from([False] * 9 + [True])
SOMETIMES = st.sampled_from([False, False, True])


class Protocol(RuleBasedStateMachine):
    """The verbs as rules; every interleaving of them is a schedule."""

    connection: Connection
    clock: Clock

    def __init__(self) -> None:
        super().__init__()
        self.twins = Twins(self.connection, self.clock)
        self.messages: list[Message] = []
        self.held: list[Held] = []

    def teardown(self) -> None:
        try:
            self._end_by_fair_progress()
        finally:
            self.twins.forget()

    @initialize(is_bare=st.booleans(), steps=st.integers(0, 5), is_signalled=st.booleans(), on=ANY)
    def get_far(self, is_bare: bool, steps: int, is_signalled: bool, on: int) -> None:
        """A schedule begins anywhere in the run's life, with what is ready in somebody's hands."""
        self.twins.is_bare = is_bare
        if is_signalled:
            self.twins.signal("early")
        for _ in range(steps):
            self._hand_out(0)
            if self.held:
                self._end(self.held.pop(0), publishes=True)
        self._hand_out(on)

    def _hand_out(self, on: int) -> None:
        self.messages += self.twins.publish(is_settled=True)
        while self.messages:
            self._receive(self.messages.pop(), on)

    # The broker.

    @rule(is_settled=st.booleans())
    def publish(self, is_settled: bool) -> None:
        self.messages += self.twins.publish(is_settled=is_settled)

    @precondition(lambda self: self.messages)
    @rule(which=ANY)
    def duplicate(self, which: int) -> None:
        self.messages.append(self.messages[which % len(self.messages)])

    @precondition(lambda self: self.messages)
    @rule(which=ANY)
    def lose(self, which: int) -> None:
        self.messages.pop(which % len(self.messages))

    # Executors.

    @rule(on=ANY)
    def hand_out(self, on: int) -> None:
        """The usual way: the relay sends, a worker claims whatever there is."""
        self._hand_out(on)

    @precondition(lambda self: self.messages)
    @rule(which=ANY, on=ANY)
    def claim(self, which: int, on: int) -> None:
        self._receive(self.messages.pop(which % len(self.messages)), on)

    def _receive(self, message: Message, on: int) -> Held | None:
        held = Held(message.key, uuid4(), self.twins.names[on % 2], message.lane, self.twins.oracle.history)
        if not self.twins.claim(held):
            return None
        self.held.append(held)
        return held

    def _newest(self, which: int) -> Held:
        return self.held[-1 - which % len(self.held)]

    @precondition(lambda self: self.held)
    @rule(which=RECENT)
    def claim_again(self, which: int) -> None:
        """P4: the answer was lost and the claim is repeated, or its first sending arrives late."""
        self.twins.claim(self._newest(which))

    @precondition(lambda self: self.held)
    @rule(which=RECENT, publishes=st.booleans())
    def commit(self, which: int, publishes: bool) -> None:
        """Of a live executor, a zombie, or a request that arrives late: they all look the same."""
        self._end(self._newest(which), publishes=publishes)

    def _end(self, held: Held, *, publishes: bool) -> None:
        answer = self.twins.commit(held)
        if answer.verdict == "stale":
            held.history = self.twins.oracle.history  # P26: read again, and advance again next time
        if publishes:
            self.messages += self.twins.publish_fast(answer)

    @precondition(lambda self: self.held)
    @rule(which=RECENT, delay=st.sampled_from([0.0, 3.0]))
    def raise_and_retry(self, which: int, delay: float) -> None:
        self.twins.retry(self._newest(which), delay)

    @precondition(lambda self: self.held)
    @rule(which=RECENT)
    def give_back(self, which: int) -> None:
        self.twins.release(self._newest(which))

    @precondition(lambda self: self.held)
    @rule(which=RECENT)
    def die(self, which: int) -> None:
        """The executor is gone: beats no longer name its claim."""
        self._newest(which).is_gone = True

    # Nodes and the scan.

    @rule(on=ANY, drains=RARELY)
    def beat(self, on: int, drains: bool) -> None:
        name = self.twins.names[on % 2]
        active = [held.token for held in self.held if held.node == name and not held.is_gone]
        lost = self.twins.beat(name, active, drains=drains and on % 2 == 1)  # somebody must be left to work
        self.held = [replace(held, is_gone=held.is_gone or held.token in lost) for held in self.held]

    @rule(seconds=st.sampled_from([1.0, 4.0, LEASE + 1, TIMEOUT + 1]))
    def expire(self, seconds: float) -> None:
        self.twins.pass_time(seconds)

    @precondition(lambda self: self.held)
    @rule(which=RECENT, cause=st.sampled_from([Cause.LEASE, Cause.TIMEOUT, Cause.UNNAMED, Cause.CHILD]))
    def take_over(self, which: int, cause: Cause) -> None:
        """A finding that may be stale or wrong: it is confirmed under the locks."""
        held = self._newest(which)
        self.twins.lose(held.key, held.token, cause)

    @rule()
    def scan(self) -> None:
        self.twins.scan()

    # People.

    @rule(really=SOMETIMES)
    def cancel(self, really: bool) -> None:
        if really:
            self.twins.cancel()

    @rule(really=SOMETIMES)
    def pause(self, really: bool) -> None:
        if really:
            self.twins.pause()

    @rule()
    def resume(self) -> None:
        self.twins.resume()

    @rule(dedupe=st.sampled_from(["first", "second"]))
    def signal(self, dedupe: str) -> None:
        self.twins.signal(dedupe)

    @invariant()
    def ledger_and_oracle_are_equal(self) -> None:
        self.twins.compare()

    def _end_by_fair_progress(self) -> None:
        """G2: everybody has died and every message is lost; what is left goes on by itself."""
        oracle = self.twins.oracle
        self.messages.clear()
        self.held = [replace(held, is_gone=True) for held in self.held]
        self.twins.resume()
        for _ in range(60):
            if oracle.is_final:
                break
            self.twins.pass_time(4.0)
            for name in self.twins.names:
                self.twins.beat(name, [], drains=False)
            if oracle.consumed == 0:
                self.twins.signal(f"at {oracle.now}")
            self.twins.scan()
            self.messages += self.twins.publish(is_settled=True)
            self._work_through()
        self.twins.compare()
        assert oracle.status == ("cancelled" if oracle.is_cancelled else "succeeded")

    def _work_through(self) -> None:
        while self.messages:
            held = self._receive(self.messages.pop(), 0)
            while held is not None and self.twins.oracle.rows[held.key].status == "running":
                self._end(held, publishes=True)


@pytest.fixture
def connection(ledger_url: str) -> Iterator[Connection]:
    with connect(ledger_url, name="machine") as opened:
        opened.execute("SET synchronous_commit = off")  # nothing here is to survive the server
        opened.execute("INSERT INTO safepoint.lanes (name) VALUES ('online'), ('recovery') ON CONFLICT DO NOTHING")
        opened.execute("UPDATE safepoint.lanes SET rate = NULL, burst = NULL, in_flight = NULL")
        yield opened


BOUNDS = settings(
    max_examples=EXAMPLES,
    stateful_step_count=50,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)


def machine_on(connection: Connection) -> type[Protocol]:
    return type("Machine", (Protocol,), {"connection": connection, "clock": Clock(connection)})


@pytest.mark.slow
@pytest.mark.timeout(900)  # a failure is shrunk for up to five minutes
def test_no_schedule_of_the_ledgers_verbs_differs_from_the_oracle(connection: Connection) -> None:
    run_state_machine_as_test(machine_on(connection), settings=BOUNDS)


def test_p15_what_nobody_serves_is_asked_about_as_seldom_as_the_oracle_says(connection: Connection) -> None:
    """Found by the machine: two looks without a worker, the second one after a longer wait."""
    schedule = machine_on(connection)()

    schedule.get_far(is_bare=False, steps=0, is_signalled=False, on=0)
    schedule.expire(LEASE + 1)
    schedule.raise_and_retry(which=0, delay=0.0)
    schedule.publish(is_settled=False)
    schedule.expire(LEASE + 2)
    schedule.publish(is_settled=False)

    schedule.teardown()


GUARDS = [
    ("commit_v1", "OR s.claim_token IS DISTINCT FROM p_token", ""),
    ("commit_v1", "p_from <> r.state_version AND NOT stopping", "false"),
    ("commit_v1", "IF p_joins IS NOT NULL AND NOT stopping", "IF false"),
    ("insert_steps_v1", "IF FOUND THEN", "IF false THEN"),
    ("lose_v1", "IF NOT coalesce(gone, false) THEN RETURN 'alive'; END IF;", ""),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "guard", "instead"), GUARDS, ids=["token", "state version", "open count", "mailbox", "second look"]
)
def test_without_this_guard_some_schedule_differs(
    connection: Connection, function: str, guard: str, instead: str
) -> None:
    row = connection.execute(
        "SELECT pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = 'safepoint'::regnamespace AND proname = %s",
        (function,),
    ).fetchone()
    assert row
    assert guard in row[0]
    connection.execute(row[0].replace(guard, instead))
    bounds = settings(BOUNDS, max_examples=500, derandomize=True, phases=[Phase.generate])

    with pytest.raises(AssertionError):
        run_state_machine_as_test(machine_on(connection), settings=bounds)

"""Random schedules of claims, deaths, late answers and repeats against a budget that two runs share (G7, P38).

After every step the ledger's books balance, and agree with what a fake model really counted.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from books import Attempt, Books
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from ledger_verbs import Verbs
from safepoint.ledger.connect import Connection, connect

EXAMPLES = int(os.environ.get("SAFEPOINT_MACHINE_EXAMPLES", "100")) // 2
ANY = st.integers(0, 1000)  # which of several, modulo how many there are
LIMIT, RESERVE = 60, 20


class Spending(RuleBasedStateMachine):
    """Six steps of two runs, one budget that is enough for three of them at a time."""

    connection: Connection

    def __init__(self) -> None:
        super().__init__()
        verbs = Verbs(self.connection)
        verbs.node()
        self.books = Books(verbs, limit=LIMIT, reserve=RESERVE)
        self.attempts: list[Attempt] = []

    def _one(self, which: int) -> Attempt:
        return self.attempts[which % len(self.attempts)]

    def teardown(self) -> None:
        self.connection.execute("DELETE FROM safepoint.runs")

    @rule(which=ANY)
    def claim(self, which: int) -> None:
        places = self.books.places()
        attempt = self.books.claim(*places[which % len(places)])
        if attempt is not None:
            for one in self.attempts:  # whoever had the step before will not be heard any more
                if (one.claimed.run_id, one.claimed.key) == (attempt.claimed.run_id, attempt.claimed.key):
                    self.books.ended(one, told=False)
            self.attempts.append(attempt)

    @precondition(lambda self: self.attempts)
    @rule(which=ANY, tokens=st.integers(1, RESERVE))
    def call_the_model(self, which: int, tokens: int) -> None:
        if not self._one(which).is_over:
            self.books.call(self._one(which), tokens)

    @precondition(lambda self: self.attempts)
    @rule(which=ANY)
    def commit_a_part(self, which: int) -> None:
        if not self._one(which).is_over:
            self.books.part(self._one(which))

    @precondition(lambda self: self.attempts)
    @rule(which=ANY, status=st.sampled_from(["succeeded", "failed"]))
    def commit(self, which: int, status: str) -> None:
        self.books.commit(self._one(which), status)

    @precondition(lambda self: self.attempts)
    @rule(which=ANY)
    def retry(self, which: int) -> None:
        self.books.retry(self._one(which))

    @precondition(lambda self: self.attempts)
    @rule(which=ANY)
    def release(self, which: int) -> None:
        attempt = self._one(which)
        if not attempt.is_lost:
            self.books.release(attempt)

    @precondition(lambda self: self.attempts)
    @rule(which=ANY)
    def take_over(self, which: int) -> None:
        self.books.lose(self._one(which))

    @invariant()
    def the_books_balance(self) -> None:
        self.books.assert_balanced(self.attempts)


@pytest.fixture
def connection(ledger_url: str) -> Iterator[Connection]:
    with connect(ledger_url, name="machine") as opened:
        opened.execute("SET synchronous_commit = off")  # nothing here is to survive the server
        opened.execute("INSERT INTO safepoint.lanes (name) VALUES ('online'), ('recovery') ON CONFLICT DO NOTHING")
        yield opened


BOUNDS = settings(
    max_examples=EXAMPLES,
    stateful_step_count=40,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)


def machine_on(connection: Connection) -> type[Spending]:
    return type("Machine", (Spending,), {"connection": connection})


@pytest.mark.slow
@pytest.mark.timeout(900)  # a failure is shrunk for up to five minutes
def test_no_schedule_unbalances_the_books(connection: Connection) -> None:
    run_state_machine_as_test(machine_on(connection), settings=BOUNDS)


GUARDS = [
    ("lose_v1", "PERFORM waste_v1(r.budget_id, s);", ""),
    ("spend_v1", "IF s.lost_tokens <> 0 OR s.lost_usd <> 0 THEN", "IF false THEN"),
    ("spend_part_v1", "reserved_tokens = reserved_tokens - held_tokens, reserved_usd", "reserved_usd"),
    ("reserve_v1", "b.spent_tokens - b.reserved_tokens < wants_tokens", "b.spent_tokens < wants_tokens"),
    (
        "release_v1",
        "PERFORM spend_v1(r.budget_id, s, p_tokens, p_usd, 0);",
        "PERFORM spend_v1(r.budget_id, s, 0, 0, 0);",
    ),
    ("create_runs_v1", "SELECT p.budget_id FROM", "SELECT NULL::uuid FROM"),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "guard", "instead"), GUARDS, ids=["waste", "late", "part", "in flight", "release", "children"]
)
def test_without_this_some_schedule_unbalances_the_books(
    connection: Connection, function: str, guard: str, instead: str
) -> None:
    row = connection.execute(
        "SELECT pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = 'safepoint'::regnamespace AND proname = %s",
        (function,),
    ).fetchone()
    assert row
    assert guard in row[0]
    connection.execute(row[0].replace(guard, instead))
    bounds = settings(BOUNDS, max_examples=300, derandomize=True, phases=[Phase.generate])

    with pytest.raises((AssertionError, KeyError, TypeError)):
        run_state_machine_as_test(machine_on(connection), settings=bounds)

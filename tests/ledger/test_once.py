"""Named parts of a step: committed by themselves, fenced by the claim, charged once (P38)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from prepared import FIRST, NODE, START, Ledger, prepared, step
from safepoint.ledger import commit, control, once, steps
from safepoint.ledger.codec import Encoded
from safepoint.ledger.connect import connect
from safepoint.ledger.errors import LeaseLost

ONE, OTHER = Encoded.of(b"1"), Encoded.of(b"2")


@dataclass
class Claimed:
    """A step that this test executes."""

    ledger: Ledger
    run: UUID

    @property
    def token(self) -> UUID:
        return self.ledger.tokens[FIRST]

    def put(self, value: Encoded = ONE, *, name: str = "part", **more: Any) -> Encoded | None:
        more.setdefault("token", self.token)
        return once.put(self.ledger.connection, self.run, FIRST, name=name, value=value, **more)

    def get(self, name: str = "part") -> Encoded | None:
        return once.get(self.ledger.connection, self.run, FIRST, name=name)

    def spent(self) -> tuple[Any, ...]:
        row = self.ledger.connection.execute(
            "SELECT r.spent_tokens, r.spent_usd, s.tokens, s.usd FROM safepoint.runs r"
            " JOIN safepoint.steps s USING (run_id) WHERE run_id = %s AND step_id = 'look'",
            [self.run],
        ).fetchone()
        assert row is not None
        return row

    def lose(self) -> None:
        loss = steps.Loss(self.run, FIRST, self.token, steps.Cause.CHILD, pid=1, pid_start=1)
        assert steps.lose(self.ledger.connection, loss, lane="online", max_deaths=5) == "lost"


@pytest.fixture
def claimed(ledger_url: str) -> Iterator[Claimed]:
    with prepared(ledger_url) as ledger:
        run = ledger.started(step(FIRST))
        ledger.claim(run, FIRST)
        yield Claimed(ledger, run)


def test_a_part_is_read_as_it_was_written(claimed: Claimed):
    assert claimed.get() is None
    assert claimed.put(Encoded.of(b'{"a": "\\u0000"}')) is None
    assert claimed.get() == Encoded.of(b'{"a": "\\u0000"}')


def test_p38_the_first_writer_wins_and_the_loser_reads(claimed: Claimed):
    claimed.put(ONE)

    assert claimed.put(OTHER) == ONE
    assert claimed.get() == ONE


def test_parts_of_other_names_and_steps_are_apart(claimed: Claimed):
    claimed.put(ONE)

    assert claimed.put(OTHER, name="another") is None
    assert once.get(claimed.ledger.connection, claimed.run, START, name="part") is None


def test_what_a_part_has_cost_is_charged_in_its_transaction(claimed: Claimed):
    claimed.put(tokens=70, usd=Decimal("0.5"))

    assert claimed.spent() == (70, Decimal("0.5"), 70, Decimal("0.5"))


def test_p3_a_repeat_after_a_lost_answer_charges_nothing_again(claimed: Claimed):
    claimed.put(tokens=70)

    assert claimed.put(tokens=70) is None
    assert claimed.spent()[0] == 70


def test_a_loser_is_not_charged_for_what_it_did_not_write(claimed: Claimed):
    claimed.put(ONE, tokens=70)
    claimed.put(OTHER, tokens=50)

    assert claimed.spent()[0] == 70


def test_the_steps_commit_adds_to_what_its_parts_have_cost(claimed: Claimed):
    claimed.put(tokens=70)
    claimed.ledger.commit(claimed.run, FIRST, data=b"1", tokens=5)

    assert claimed.spent()[0] == claimed.spent()[2] == 75


def test_a_part_survives_the_retry_of_its_step(claimed: Claimed):
    claimed.put(ONE, tokens=70)
    commit.retry(
        claimed.ledger.connection, claimed.run, FIRST, token=claimed.token, node=NODE, error={"type": "X"}, delay=0.0
    )
    claimed.ledger.claim(claimed.run, FIRST)

    assert claimed.get() == ONE
    assert claimed.put(OTHER) == ONE
    assert claimed.spent()[0] == 70


@pytest.mark.parametrize("how", ["other token", "retried", "committed", "claimed again", "run is final"])
def test_g3_who_has_lost_the_step_writes_nothing(claimed: Claimed, how: str):
    mine, ledger = claimed.token, claimed.ledger
    match how:
        case "other token":
            mine = uuid4()
        case "retried":
            commit.retry(ledger.connection, claimed.run, FIRST, token=mine, node=NODE, error={"type": "X"}, delay=0.0)
        case "committed":
            ledger.commit(claimed.run, FIRST, data=b"1")
        case "claimed again":
            claimed.lose()
            ledger.claim(claimed.run, FIRST)
        case _:
            ending = commit.Ending("failed", error={"type": "X"})
            ledger.commit(claimed.run, FIRST, data=b"1", ending=ending)

    with pytest.raises(LeaseLost) as caught:
        claimed.put(tokens=70, token=mine)

    assert (caught.value.run_id, caught.value.key) == (str(claimed.run), "look#1")
    assert claimed.get() is None
    assert claimed.spent()[0] == 0


def test_p35_who_was_taken_for_dead_still_writes_while_nobody_has_claimed(claimed: Claimed):
    claimed.lose()

    assert claimed.put() is None


def test_a_part_of_a_cancelled_run_is_stored_while_the_step_runs(claimed: Claimed):
    control.cancel(claimed.ledger.connection, claimed.run, by="test")

    assert claimed.put() is None


def test_p1_a_part_waits_for_the_run_before_it_looks(
    claimed: Claimed, ledger_url: str, eventually: Callable[..., None]
):
    with psycopg.connect(ledger_url) as other, ThreadPoolExecutor(1) as pool:
        other.execute("SELECT FROM safepoint.runs WHERE run_id = %s FOR UPDATE", [claimed.run])
        mine = claimed.token
        writing = pool.submit(claimed.put, token=mine)

        def waits() -> None:
            row = other.execute("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'").fetchone()
            assert row
            assert row[0]

        eventually(waits)
        other.execute(
            "UPDATE safepoint.steps SET claim_token = gen_random_uuid() WHERE run_id = %s AND step_id = 'look'",
            [claimed.run],
        )
        other.commit()
        with pytest.raises(LeaseLost):
            writing.result(5)


def test_several_parts_at_once_of_one_name_leave_one_row(claimed: Claimed, ledger_url: str):
    start = threading.Barrier(4)

    def write(n: int) -> Encoded | None:
        with connect(ledger_url, name="test") as own:
            start.wait()
            value = Encoded.of(str(n).encode())
            return once.put(own, claimed.run, FIRST, token=claimed.token, name="part", value=value, tokens=10)

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(write, range(4)))

    stands = claimed.get()
    assert found.count(None) == 1
    assert {one.data for one in found if one} == {stands.data if stands else None}
    assert claimed.spent()[0] == 10

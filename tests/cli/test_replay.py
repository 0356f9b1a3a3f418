"""`replay`: today's code against a run's history, without changing anything."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
import replayable
from prepared import START, Ledger
from safepoint.ledger import history
from safepoint.ledger.commit import Ending
from safepoint.ledger.key import Key
from safepoint.tasks.driver import Driver
from safepoint.tasks.histories import record_of, run_info
from safepoint.tasks.outcome import Returned
from safepoint.tasks.record import Record
from safepoint.tasks.rows import row_of

Run = Callable[..., Any]


@pytest.fixture(autouse=True)
def here(clean: pytest.MonkeyPatch) -> None:
    clean.setenv("SAFEPOINT_FLOWS", "replayable")
    clean.setitem(replayable.MODE, "now", "as it was")


def advance(ledger: Ledger, run: UUID, key: Key, kind: str = "step", data: bytes | None = None) -> None:
    """Commit a step as an executor does: claim, feed the flow, write what it asks for."""
    ledger.claim(run, key)
    past = history.read(ledger.connection, run)
    info = run_info(run, past.run, generation=1, data=past.input, encoding=past.input_encoding)
    driver = Driver(replayable.replayed, run=info)
    for row in past.rows:
        driver.feed(record_of(row))
    driver.take_new()
    hash_ = driver.asked[key].input_hash if key in driver.asked else None
    driver.feed(Record(past.state_version + 1, key, kind, "succeeded", datetime.now(UTC), hash_, data, "json"))  # type: ignore[arg-type]  # one of the kinds
    outcome = driver.outcome
    ending = Ending("succeeded", outcome.encoded.data, "json", b"d") if isinstance(outcome, Returned) else None
    asked = [row_of(one, run_id=run) for one in driver.take_new()]
    ledger.commit(run, key, data=data, asked=asked, ending=ending)
    driver.close()


@pytest.fixture
def half(ledger: Ledger) -> UUID:
    """A run whose first step is committed and whose second one is open."""
    ledger.register(flows=("replayed@1",))
    made = ledger.enqueue(flow="replayed", input='{"alert": 1}')
    advance(ledger, made, START, "start")
    advance(ledger, made, Key(1, "", "replay_look", 1), data=b'"seen 1"')
    return made


def test_the_same_code_agrees_and_says_where_it_stands(half: UUID, run: Run) -> None:
    ran = run("replay", half, "--json")

    assert ran.code == 0
    assert (ran.document["outcome"], ran.document["diverged"]) == ("agrees", False)
    assert (ran.document["version"], ran.document["code_version"], ran.document["records"]) == ("1", "2", 2)
    assert ran.document["stands_at"] == ["replay_look#2"]
    assert "It stands at: replay_look#2" in run("replay", half).out


def test_a_finished_run_agrees_when_the_flow_ends_as_it_did(ledger: Ledger, half: UUID, run: Run) -> None:
    advance(ledger, half, Key(1, "", "replay_look", 2), data=b'"seen 11"')

    ran = run("replay", half, "--json")

    assert (ran.code, ran.document["outcome"], ran.document["status"]) == (0, "ended", "succeeded")


@pytest.mark.parametrize(
    ("mode", "outcome", "told"),
    [
        ("another step", "diverges", "replay_peek#1"),
        ("another input", "diverges", "with input"),
        ("shorter", "diverges", "succeeded"),
        ("a bug", "breaks", "RuntimeError"),
        ("endless", "breaks", ""),
    ],
)
def test_changed_code_is_found(
    half: UUID, run: Run, clean: pytest.MonkeyPatch, mode: str, outcome: str, told: str
) -> None:
    clean.setitem(replayable.MODE, "now", mode)
    clean.setenv("SAFEPOINT_WORKER__FLOW_TIMEOUT", "0.2")

    ran = run("replay", half, "--json")

    assert (ran.code, ran.document["outcome"]) == (1, outcome)
    assert told in ran.document["text"]
    assert ran.document["diverged"] == (outcome == "diverges")


def test_replay_changes_nothing(ledger: Ledger, half: UUID, run: Run) -> None:
    before = ledger.read(half)

    run("replay", half)

    assert ledger.read(half) == before


def test_code_that_is_not_here_is_named(ledger: Ledger, run: Run) -> None:
    made = ledger.enqueue()

    ran = run("replay", made)

    assert ran.code == 1
    assert "triage@1" in ran.err
    assert "SAFEPOINT_FLOWS" in ran.err

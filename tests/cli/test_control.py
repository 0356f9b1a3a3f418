"""`cancel`, `pause`, `resume`, `retry`, `signal`, `sweep`: what they change, what they refuse."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest
from prepared import FIRST, NODE, Ledger, step
from safepoint.ledger import nodes

Run = Callable[..., Any]


def test_a_queued_run_is_cancelled_at_once(ledger: Ledger, run: Run) -> None:
    made = ledger.enqueue()

    ran = run("cancel", made, "--json")

    assert (ran.code, ran.document) == (0, {"run_id": str(made), "status": "cancelled"})
    assert ledger.read(made)["status"] == "cancelled"


def test_pause_and_resume_name_who_did_it(ledger: Ledger, run: Run) -> None:
    made = ledger.started(step(FIRST))

    paused, resumed = run("pause", made), run("resume", made, "--by", "ada")

    assert (paused.code, resumed.code) == (0, 0)
    assert f"safepoint resume {made}" in paused.out
    events = ledger.connection.execute("SELECT data FROM safepoint.events WHERE type = 'run.resumed'").fetchall()
    assert events == [({"by": "ada"},)]


def test_resume_lifts_one_hold_and_names_the_other(ledger: Ledger, run: Run) -> None:
    made = ledger.started(step(FIRST))
    for code in ("flow_error", "poison"):
        ledger.connection.execute("SELECT safepoint.hold_v1(%s, %s, 'told', NULL, NULL)", [made, code])

    ran = run("resume", made, "--code", "poison")

    assert "Something else holds it" in ran.out
    assert [one["code"] for one in ledger.reasons(made)] == ["flow_error"]


@pytest.mark.parametrize("verb", ["cancel", "pause", "resume", "retry", "signal"])
def test_a_final_run_is_not_moved(ledger: Ledger, run: Run, verb: str) -> None:
    made = ledger.enqueue()
    ledger.change(made, status="succeeded", finished_at=datetime.now(UTC))

    ran = run(verb, made, *(["go"] if verb == "signal" else []))

    assert ran.code == 1
    assert f"{verb} is not possible" in ran.err
    assert len(ran.err.splitlines()) == 1


@pytest.mark.parametrize("verb", ["cancel", "pause", "resume", "retry"])
def test_a_run_that_does_not_exist_is_said_so(ledger: Ledger, run: Run, verb: str) -> None:
    ran = run(verb, uuid4())

    assert (ran.code, "There is no run" in ran.err) == (1, True)


def test_retry_reopens_a_failed_run(ledger: Ledger, run: Run) -> None:
    made = ledger.enqueue()
    ledger.change(made, status="failed", finished_at=datetime.now(UTC))

    ran = run("retry", made)

    assert ran.code == 0
    assert ledger.read(made)["attempt"] == 2


def test_a_signal_is_delivered_stored_and_taken_once(ledger: Ledger, run: Run) -> None:
    made = ledger.started(step(FIRST, "signal", reason={"code": "signal"}))

    answers = [
        run("signal", made, "look", '{"yes": 1}', "--key", "k", "--json").document["answer"],
        run("signal", made, "look", '{"yes": 1}', "--key", "k", "--json").document["answer"],
        run("signal", made, "other", "--json").document["answer"],
    ]

    assert answers == ["delivered", "duplicate", "stored"]


@pytest.mark.parametrize(
    ("arguments", "told"), [(("go", "yes"), "needs its quotes"), (("a b", "1"), "cannot be a name")]
)
def test_a_wrong_signal_is_wrong_usage(ledger: Ledger, run: Run, arguments: tuple[str, ...], told: str) -> None:
    ran = run("signal", ledger.enqueue(), *arguments)

    assert ran.code == 2
    assert told in " ".join(ran.err.replace("│", " ").split())


def test_sweep_takes_what_a_dead_node_held(ledger: Ledger, run: Run) -> None:
    made = ledger.started(step(FIRST))
    ledger.claim(made, FIRST)
    nodes.stop(ledger.connection, NODE)

    ran = run("sweep", "--json")

    assert set(ran.document) == {"expired", "undelivered", "unsettled", "due"}
    assert ran.document["expired"] == 1
    assert run("sweep").code == 0

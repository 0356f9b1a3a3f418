"""P23: a step is held as poison with the evidence of those deaths that count, and of no others."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from ledger_clock import Clock
from ledger_verbs import Verbs, ask, key
from safepoint.ledger.steps import Cause

A, B = key("a#1"), key("b#1")


def die(verbs: Verbs, run: UUID, *, max_deaths: int = 99, which: str = "a#1", **more: Any) -> str:
    """Claim the step and report its process dead."""
    verbs.node(lock=True)
    claimed = verbs.claimed(run, key(which), lane=verbs.step(run, key(which))["lane"])
    return verbs.lose(claimed, **{"cause": Cause.CHILD, "deadly": True, "max_deaths": max_deaths, **more})


def evidence(verbs: Verbs, run: UUID, which: str = "a#1") -> list[dict[str, Any]]:
    """Return the evidence with the step."""
    reason = verbs.step(run, key(which))["reason"]
    assert reason["code"] == "poison"
    found: list[dict[str, Any]] = reason["detail"]["evidence"]
    return found


def test_p23_a_poison_step_is_held_with_each_of_its_deaths(verbs: Verbs, clock: Clock) -> None:
    run = verbs.begun(ask("a#1"))
    for number in (1, 2):
        die(verbs, run, max_deaths=1, evidence={"dead": True, "pid": number, "signal": "SIGKILL"})

    first, last = evidence(verbs, run)

    assert (first["pid"], last["pid"]) == (1, 2)
    assert last == {**last, "signal": "SIGKILL", "cause": "child", "epoch": 2, "ran": 0.0}
    assert {"node", "at"} <= set(last)
    assert verbs.run(run)["reason"]["detail"] == verbs.step(run, A)["reason"]["detail"]
    assert verbs.run(run)["reason"]["detail"]["deaths"] == 2


def test_p23_deaths_with_others_beside_are_told_and_what_is_no_death_is_not(verbs: Verbs, clock: Clock) -> None:
    run = verbs.begun(ask("a#1"))
    for cause in (Cause.NODE, Cause.RELEASED, Cause.NODE):
        die(verbs, run, cause=cause, deadly=False)
    die(verbs, run, cause=Cause.NODE, max_deaths=0, evidence={"pid": 4})

    found = evidence(verbs, run)

    assert [(one["epoch"], one.get("shared", False)) for one in found] == [(1, True), (3, True), (4, False)]
    assert verbs.run(run)["reason"]["detail"]["shared_deaths"] == 2


def test_p23_after_a_resume_neither_its_deaths_nor_their_evidence_are_held_against_it(verbs: Verbs) -> None:
    run = verbs.begun(ask("a#1"))
    for _ in range(2):
        die(verbs, run, max_deaths=1)
    verbs.resume(run)

    assert die(verbs, run, max_deaths=1) == "lost"
    assert die(verbs, run, max_deaths=1) == "poison"
    assert [one["epoch"] for one in evidence(verbs, run)] == [3, 4]


def test_p23_two_poison_steps_of_a_run_keep_their_own_evidence(verbs: Verbs) -> None:
    run = verbs.begun(ask("a#1"), ask("b#1"))
    b = verbs.claimed(run, B)
    die(verbs, run, max_deaths=0, evidence={"signal": "SIGKILL"})
    verbs.lose(b, deadly=True, max_deaths=0, evidence={"exit_code": 3})

    assert [one["signal"] for one in evidence(verbs, run)] == ["SIGKILL"]
    assert [one["exit_code"] for one in evidence(verbs, run, "b#1")] == [3]


def test_p23_the_evidence_of_many_deaths_is_that_of_the_last_twenty(verbs: Verbs) -> None:
    run = verbs.begun(ask("a#1"))
    for number in range(25):
        die(verbs, run, max_deaths=24, evidence={"pid": number})

    assert [one["pid"] for one in evidence(verbs, run)] == list(range(5, 25))
    assert verbs.run(run)["reason"]["detail"]["deaths"] == 25


@pytest.mark.parametrize(("elapsed", "deaths"), [(9, 1), (10, 0)])
def test_p24_a_process_that_was_ended_for_its_steps_timeout_is_no_death(
    verbs: Verbs, clock: Clock, elapsed: int, deaths: int
) -> None:
    run = verbs.begun(ask("a#1"))
    claimed = verbs.claimed(run, A, timeout=10.0)
    clock.forward(elapsed)

    assert verbs.lose(claimed, Cause.CHILD, deadly=True, max_deaths=3) == "lost"

    row = verbs.step(run, A)
    assert (row["deaths"], row["recoveries"], row["pending_error"] is None) == (deaths, deaths, deaths == 1)

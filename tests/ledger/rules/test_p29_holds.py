"""P29, P36: holds gate claims, not commits; what a cancel and a deadline leave; what may be reopened."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from ledger_clock import Clock
from ledger_verbs import PARKED, Verbs, ask, key
from safepoint.ledger import control
from safepoint.ledger.commit import Ending, Result

A, B = key("a#1"), key("b#1")


# P29: holds gate claims, not commits.


def test_p29_several_reasons_stand_at_once_and_resume_clears_only_its_own(verbs: Verbs) -> None:
    run = verbs.begun(ask("a#1"))
    verbs.hold(run, "diverged")
    verbs.hold(run, "budget")
    verbs.pause(run)

    statuses = [verbs.resume(run, code) for code in ("budget", "paused", "diverged")]

    assert statuses == ["held", "held", "running"]
    assert verbs.claimed(run, A)


@pytest.mark.parametrize("order", [("diverged", "paused"), ("paused", "diverged")])
def test_p29_while_one_reason_stands_nothing_is_claimed(verbs: Verbs, order: tuple[str, str]) -> None:
    run = verbs.begun(ask("a#1"))
    verbs.hold(run, "diverged")
    verbs.pause(run)

    verbs.resume(run, order[0])

    assert verbs.refusal(run, A) in ("held", "paused")
    assert verbs.step(run, A)["due_at"] == PARKED


@pytest.mark.parametrize("stop", [Verbs.pause, lambda verbs, run: verbs.hold(run, "diverged")])
def test_p29_what_runs_when_its_run_is_stopped_is_committed_and_what_follows_waits(
    verbs: Verbs, stop: Callable[..., object]
) -> None:
    run = verbs.begun(ask("a#1"))
    claimed = verbs.claimed(run, A)
    stop(verbs, run)

    answer = verbs.commit(claimed, asked=[ask("b#1")])

    assert (answer.verdict, [row.due for row in answer.rows]) == ("committed", [None])  # nothing to publish
    assert (verbs.statuses(run)["a#1"], verbs.step(run, B)["due_at"]) == ("succeeded", PARKED)


@pytest.mark.parametrize("stop", [Verbs.pause, lambda verbs, run: verbs.hold(run, "diverged")])
@pytest.mark.parametrize("end", [Verbs.retry, Verbs.release, Verbs.lose])
def test_p29_what_comes_back_to_a_stopped_run_waits_with_it(
    verbs: Verbs, stop: Callable[..., object], end: Callable[..., object]
) -> None:
    run = verbs.begun(ask("a#1"))
    claimed = verbs.claimed(run, A)
    stop(verbs, run)

    end(verbs, claimed)

    assert verbs.step(run, A)["due_at"] == PARKED
    verbs.resume(run)
    assert verbs.claimed(run, A, lane=verbs.step(run, A)["lane"])


def test_p29_a_cancel_while_a_step_runs_stores_its_result_and_asks_for_nothing(verbs: Verbs) -> None:
    run = verbs.begun(ask("a#1"))
    claimed = verbs.claimed(run, A)
    assert verbs.cancel(run) == "cancelling"

    answer = verbs.commit(claimed, asked=[ask("b#1")])

    assert (answer.verdict, answer.run_status) == ("committed", "cancelling")
    assert verbs.statuses(run) == {"@start#1": "succeeded", "a#1": "succeeded", "@cancel#1": "ready"}
    assert verbs.done(run, key("@cancel#1"), ending="cancelled").run_status == "cancelled"


def test_p29_a_run_is_final_only_when_nothing_of_it_runs(verbs: Verbs) -> None:
    run = verbs.begun(ask("a#1"))
    claimed = verbs.claimed(run, A)
    verbs.cancel(run)

    assert verbs.done(run, key("@cancel#1"), ending="cancelled").run_status == "cancelling"
    assert verbs.commit(claimed).run_status == "cancelled"


@pytest.mark.parametrize("end", [Verbs.retry, Verbs.release, Verbs.lose])
def test_p29_a_step_that_comes_back_to_a_cancelled_run_is_dropped_and_the_run_ends(
    verbs: Verbs, end: Callable[..., object]
) -> None:
    run = verbs.begun(ask("a#1"))
    claimed = verbs.claimed(run, A)
    verbs.cancel(run)
    verbs.done(run, key("@cancel#1"), ending="cancelled")

    end(verbs, claimed)

    assert (verbs.run(run)["status"], verbs.statuses(run)["a#1"]) == ("cancelled", "cancelled")


def test_p29_a_cancelled_flows_clean_up_runs_and_its_others_do_not(verbs: Verbs) -> None:
    run = verbs.begun(ask("a#1"))
    verbs.hold(run, "diverged")  # a cancel does not wait for a person
    verbs.cancel(run)

    verbs.done(run, key("@cancel#1"), asked=[ask("tidy#1")])

    assert verbs.refusal(run, A) == "stale: cancelled"
    assert verbs.done(run, key("tidy#1"), ending="cancelled").run_status == "cancelled"


def test_p29_a_clean_up_that_outlasts_its_grace_is_over(verbs: Verbs, clock: Clock) -> None:
    run = verbs.begun(ask("a#1"))
    verbs.cancel(run)
    clock.forward(30)

    assert verbs.chores(cancel_grace=30.0).ended == 1
    assert verbs.run(run)["status"] == "cancelled"


def test_p29_a_deadline_ends_a_held_or_paused_run_too(verbs: Verbs, clock: Clock) -> None:
    held, paused = (verbs.begun(ask("a#1"), deadline=clock.now + timedelta(seconds=10)) for _ in range(2))
    verbs.hold(held, "diverged")
    verbs.pause(paused)
    clock.forward(10)

    assert verbs.chores().ended == 2
    assert {verbs.run(run)["status"] for run in (held, paused)} == {"failed"}


def test_p29_a_deadline_waits_for_what_runs_and_takes_its_result(verbs: Verbs, clock: Clock) -> None:
    run = verbs.begun(ask("a#1"), deadline=clock.now + timedelta(seconds=10))
    claimed = verbs.claimed(run, A)
    clock.forward(10)
    verbs.chores()
    waiting = verbs.run(run)["status"]

    answer = verbs.commit(claimed, asked=[ask("b#1")])

    assert (waiting, answer.verdict, answer.run_status) == ("cancelling", "committed", "failed")


@pytest.mark.parametrize("order", [("flow_error", "paused"), ("paused", "flow_error"), (None,)])
def test_p29_mended_code_is_asked_in_whatever_order_the_reasons_are_lifted(
    verbs: Verbs, order: tuple[str | None, ...]
) -> None:
    run = verbs.begun(ask("a#1"), ask("b#1"))
    # What follows was not asked for.
    verbs.done(run, A, hold={"code": "flow_error", "text": "a bug", "next": "mend it"})
    verbs.pause(run)

    for code in order:
        verbs.resume(run, code)

    assert verbs.statuses(run)["@advance#1"] == "ready"
    assert verbs.done(run, key("@advance#1"), asked=[ask("c#1")]).verdict == "committed"
    assert verbs.claimed(run, B)


def test_p29_a_flow_error_holds_the_run_and_keeps_the_result_that_led_to_it(verbs: Verbs) -> None:
    run = verbs.begun(ask("a#1"))

    answer = verbs.done(run, A, hold={"code": "flow_error", "text": "a bug", "next": "mend it"})

    assert (answer.run_status, verbs.statuses(run)["a#1"]) == ("held", "succeeded")
    verbs.resume(run)
    assert [record.key for record in verbs.claimed(run, key("@advance#1")).history][-1] == A


# P36, as far as it exists.


def test_p36_a_run_that_failed_while_it_was_cancelled_is_not_reopened(verbs: Verbs) -> None:
    run = verbs.begun(ask("a#1"))
    verbs.cancel(run)
    verbs.done(run, key("@cancel#1"), ending=Ending("failed", error={"type": "Boom", "message": "boom"}))

    assert control.reopen(verbs.connection, run, by="test").startswith("refused")


def test_p36_a_run_that_failed_while_it_was_paused_goes_on_when_it_is_reopened(verbs: Verbs) -> None:
    run = verbs.begun(ask("a#1"))
    claimed = verbs.claimed(run, A)
    verbs.pause(run)
    error = {"type": "Boom", "message": "boom", "step": "a#1"}
    failed = Result("failed", verbs.run(run)["created_at"], error=error)
    verbs.commit(claimed, result=failed, ending=Ending("failed", error=error))

    assert control.reopen(verbs.connection, run, by="test") == "running"

    assert verbs.claimed(run, A).attempt == 1

"""P22 to P25: draining, poison, timeouts, and whose child has died."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

import pytest
from ledger_clock import Clock
from ledger_verbs import LEASE, NODE, PARKED, Verbs, ask, key
from safepoint.ledger import nodes
from safepoint.ledger.effects import begin
from safepoint.ledger.steps import Cause, Claimed

A, B = key("a#1"), key("b#1")


def two_running(verbs: Verbs) -> tuple[UUID, Claimed, Claimed]:
    run = verbs.begun(ask("a#1"), ask("b#1"))
    return run, verbs.claimed(run, A), verbs.claimed(run, B)


# P22: draining.


def test_p22_a_draining_node_claims_nothing_and_stays_draining(verbs: Verbs) -> None:
    run = verbs.enqueue()
    verbs.beat(draining=True)
    verbs.beat()

    assert verbs.refusal(run) == "draining"


def test_p22_what_a_draining_node_runs_it_may_commit(verbs: Verbs) -> None:
    claimed = verbs.claimed(verbs.enqueue())
    verbs.beat(claimed.token, draining=True)

    assert verbs.commit(claimed).verdict == "committed"


@pytest.mark.parametrize("release", [Verbs.release, lambda verbs, claimed: verbs.lose(claimed, Cause.RELEASED)])
def test_p22_a_release_counts_neither_an_attempt_nor_a_recovery(verbs: Verbs, release: Callable[..., object]) -> None:
    run = verbs.begun(ask("a#1"))

    release(verbs, verbs.claimed(run, A))

    row = verbs.step(run, A)
    assert (row["status"], row["attempt"], row["recoveries"], row["deaths"]) == ("ready", 1, 0, 0)
    assert verbs.claimed(run, A).epoch == 2


def test_p22_a_step_is_released_only_for_the_process_that_ran_it(verbs: Verbs) -> None:
    run = verbs.begun(ask("a#1"))
    claimed = verbs.claimed(run, A, pid=7, pid_start=70)

    assert verbs.lose(claimed, Cause.RELEASED, pid=8, pid_start=70) == "alive"
    assert verbs.lose(claimed, Cause.RELEASED, pid=7, pid_start=70) == "lost"


def test_p22_an_effect_that_was_executing_is_released_as_unknown(verbs: Verbs) -> None:
    run = verbs.begun(ask("a#1", "effect", request="e30=", encoding="json"))
    claimed = verbs.claimed(run, A)
    assert claimed.effect is not None
    begun = begin(
        verbs.connection, run, A, token=claimed.token, digest=claimed.effect.digest, how="send", timeout=60.0,
        authoritative_after=0.0, key_retention=None, asked_at=claimed.db_now,
    )  # fmt: skip
    assert begun.answer == "begun"

    verbs.lose(claimed, Cause.RELEASED)

    assert verbs.value("SELECT status FROM safepoint.effects") == "unknown"


def test_p22_a_node_that_said_goodbye_holds_nothing(verbs: Verbs) -> None:
    _, a, _ = two_running(verbs)
    nodes.stop(verbs.connection, NODE)

    assert [orphan.stopped for orphan in verbs.look().orphans] == [True, True]
    assert verbs.lose(a, Cause.NODE) == "lost"


# P23: poison.


def test_p23_a_step_that_killed_its_process_too_often_is_held(verbs: Verbs) -> None:
    run = verbs.begun(ask("a#1"))
    answers = []
    for n in range(3):
        claimed = verbs.claimed(run, A, lane="recovery" if n else "online")
        answers.append(verbs.lose(claimed, Cause.CHILD, deadly=True, max_deaths=2))

    assert answers == ["lost", "lost", "poison"]
    assert verbs.run(run)["holds"]["poison"]["code"] == "poison"
    assert (verbs.run(run)["status"], verbs.step(run, A)["due_at"]) == ("held", PARKED)


@pytest.mark.parametrize("cause", [Cause.LEASE, Cause.NODE, Cause.UNNAMED, Cause.RELEASED])
def test_p23_what_the_step_cannot_be_the_cause_of_does_not_count(verbs: Verbs, clock: Clock, cause: Cause) -> None:
    run = verbs.begun(ask("a#1"))
    for _ in range(10):
        claimed = verbs.claimed(run, A, lane=verbs.step(run, A)["lane"], timeout=1e6)
        match cause:
            case Cause.LEASE:
                clock.forward(LEASE)
            case Cause.NODE:
                nodes.stop(verbs.connection, NODE)
            case Cause.UNNAMED:
                for _ in range(2):
                    clock.forward(1)
                    verbs.beat()
        assert verbs.lose(claimed, cause, max_deaths=0) == "lost"
        verbs.node()

    assert (verbs.step(run, A)["deaths"], verbs.step(run, A)["attempt"]) == (0, 1)


def test_p23_a_person_who_resumes_gives_a_poison_step_all_its_chances_again(verbs: Verbs) -> None:
    run = verbs.begun(ask("a#1"))
    verbs.lose(verbs.claimed(run, A), deadly=True, max_deaths=0)

    verbs.resume(run)

    assert (verbs.step(run, A)["status"], verbs.step(run, A)["deaths"]) == ("ready", 0)
    assert verbs.done(run, A, lane="recovery").verdict == "committed"


def test_p23_neither_claims_nor_commits_of_others_are_lost_while_a_poison_step_is_held(verbs: Verbs) -> None:
    run, a, b = two_running(verbs)
    verbs.lose(a, deadly=True, max_deaths=0)

    assert verbs.commit(b).verdict == "committed"  # P29: held gates claims, not commits
    assert verbs.refusal(run, A, lane="recovery") == "stale: held"
    verbs.resume(run)
    assert verbs.claimed(run, A, lane="recovery").recoveries == 1


# P24: the scan ends an attempt, it does not judge it.


def test_p24_a_timed_out_attempt_is_recorded_and_counts_as_no_recovery(verbs: Verbs, clock: Clock) -> None:
    run = verbs.begun(ask("a#1"))
    claimed = verbs.claimed(run, A, timeout=10.0)
    clock.forward(10)

    assert verbs.lose(claimed, Cause.TIMEOUT) == "lost"

    row = verbs.step(run, A)
    assert (row["attempt"], row["recoveries"], row["deaths"]) == (1, 0, 0)
    verbs.node()
    assert verbs.claimed(run, A, lane="recovery").pending_error == row["pending_error"]
    assert row["pending_error"]["type"] == "StepTimeout"


def test_p24_a_result_that_came_in_after_all_forgets_the_timeout(verbs: Verbs, clock: Clock) -> None:
    run = verbs.begun(ask("a#1"))
    claimed = verbs.claimed(run, A, timeout=10.0)
    clock.forward(10)
    verbs.lose(claimed, Cause.TIMEOUT)

    assert verbs.commit(claimed).late
    assert (verbs.step(run, A)["status"], verbs.step(run, A)["pending_error"]) == ("succeeded", None)


# P25: whose child has died.


@pytest.mark.parametrize(("pid", "pid_start"), [(8, 70), (7, 71), (None, 70), (7, None)])
def test_p25_a_dead_childs_step_is_taken_by_pid_and_start_time_together(
    verbs: Verbs, pid: int | None, pid_start: int | None
) -> None:
    run = verbs.begun(ask("a#1"))
    claimed = verbs.claimed(run, A, pid=7, pid_start=70)

    assert verbs.lose(claimed, Cause.CHILD, pid=pid, pid_start=pid_start) == "alive"
    assert verbs.lose(claimed, Cause.CHILD, pid=7, pid_start=70) == "lost"


def test_p25_a_report_about_an_earlier_claim_of_the_step_takes_nothing(verbs: Verbs) -> None:
    run = verbs.begun(ask("a#1"))
    earlier = verbs.claimed(run, A)
    verbs.release(earlier)
    verbs.claimed(run, A)

    assert verbs.lose(earlier, Cause.CHILD) == "moved"
    assert verbs.statuses(run)["a#1"] == "running"

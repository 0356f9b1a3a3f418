"""P35: a commit that comes late."""

from __future__ import annotations

import pytest
from ledger_clock import Clock
from ledger_verbs import NODE, PARKED, Verbs, ask, key
from safepoint.ledger import nodes
from safepoint.ledger.steps import Cause

A, B = key("a#1"), key("b#1")


# P35: late commits.


@pytest.mark.parametrize("cause", [Cause.CHILD, Cause.LEASE, Cause.TIMEOUT, Cause.NODE])
def test_p35_a_commit_that_comes_late_is_accepted_while_nobody_has_claimed(
    verbs: Verbs, clock: Clock, cause: Cause
) -> None:
    run = verbs.begun(ask("a#1"))
    claimed = verbs.claimed(run, A, timeout=10.0)
    clock.forward(20)
    if cause is Cause.NODE:
        nodes.stop(verbs.connection, NODE)
    assert verbs.lose(claimed, cause) == "lost"

    answer = verbs.commit(claimed, asked=[ask("b#1")])

    assert (answer.verdict, answer.late, [row.status for row in answer.rows]) == ("committed", True, ["ready"])
    assert verbs.events(run).count("step.committed") == 1
    verbs.node()
    assert verbs.refusal(run, A, lane="recovery") == "stale: succeeded"


def test_p35_a_commit_that_comes_late_is_refused_once_somebody_has_claimed(verbs: Verbs) -> None:
    run = verbs.begun(ask("a#1"))
    claimed = verbs.claimed(run, A)
    verbs.lose(claimed)
    owner = verbs.claimed(run, A, lane="recovery")

    assert verbs.commit(claimed).verdict == "lost"
    assert verbs.commit(owner).verdict == "committed"


def test_p35_a_late_commit_takes_the_hold_of_its_poison_away_and_no_other(verbs: Verbs) -> None:
    run = verbs.begun(ask("a#1"), ask("b#1"))
    claimed = verbs.claimed(run, A)
    verbs.lose(claimed, deadly=True, max_deaths=0)
    verbs.hold(run, "budget")

    assert verbs.commit(claimed).late

    assert set(verbs.run(run)["holds"]) == {"budget"}
    assert verbs.step(run, B)["due_at"] == PARKED
    verbs.resume(run)
    assert verbs.claimed(run, B)


def test_p35_a_late_retry_is_taken_like_a_late_commit(verbs: Verbs) -> None:
    run = verbs.begun(ask("a#1"))
    claimed = verbs.claimed(run, A)
    verbs.lose(claimed)

    assert verbs.retry(claimed).verdict == "retried"
    assert (verbs.step(run, A)["lane"], verbs.step(run, A)["attempt"]) == ("online", 2)

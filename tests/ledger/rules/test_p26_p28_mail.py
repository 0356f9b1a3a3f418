"""P26 to P28: advances count from the state that stands, mail is never lost, and a wait is decided once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID

import psycopg
import pytest
from ledger_clock import Clock
from ledger_fixtures import Crowd
from ledger_verbs import PARKED, Verbs, ask, key

A, B, GO = (key(text) for text in ("a#1", "b#1", "go#1"))
MEMBERS = [key(f"gather#1.{n}/m#1") for n in (1, 2, 3)]


def gathered(verbs: Verbs) -> UUID:
    return verbs.begun(*(ask(str(member), joins="gather#1") for member in MEMBERS))


# P26: an advance counts only from the state that stands.


def test_p26_a_commit_that_advanced_from_an_older_state_writes_nothing(verbs: Verbs) -> None:
    run = verbs.begun(ask("a#1"), ask("b#1"))
    a, b = verbs.claimed(run, A), verbs.claimed(run, B)
    verbs.commit(a, asked=[ask("after-a#1")])
    before = verbs.events(run), verbs.run(run)

    answer = verbs.commit(b, advanced_from=b.state_version, asked=[ask("after-b#1")])

    assert answer.verdict == "stale"
    assert (verbs.events(run), verbs.run(run)) == before
    assert verbs.statuses(run)["b#1"] == "running"
    assert verbs.commit(b, asked=[ask("after-b#1")]).verdict == "committed"


def test_p26_a_member_of_a_gather_that_is_not_the_last_need_not_advance(verbs: Verbs) -> None:
    run = gathered(verbs)
    claims = [verbs.claimed(run, member) for member in MEMBERS]

    answers = [verbs.commit(claimed, joins="gather#1").verdict for claimed in claims]

    assert answers == ["committed", "committed", "stale"]  # who is last has to advance
    assert verbs.commit(claims[2], asked=[ask("join#1")]).verdict == "committed"


def test_p26_a_member_that_waits_for_its_retry_is_still_open(verbs: Verbs) -> None:
    run = gathered(verbs)
    claims = [verbs.claimed(run, member) for member in MEMBERS]
    verbs.retry(claims[0], delay=1000)

    assert verbs.commit(claims[1], joins="gather#1").verdict == "committed"
    assert verbs.commit(claims[2], joins="gather#1").verdict == "committed"


def test_p26_members_of_another_gather_do_not_count(verbs: Verbs) -> None:
    run = verbs.begun(ask("gather#1.1/m#1", joins="gather#1"), ask("gather#2.1/m#1", joins="gather#2"))

    last = verbs.claimed(run, key("gather#1.1/m#1"))

    assert verbs.commit(last, joins="gather#1").verdict == "stale"


def test_p26_the_history_comes_in_the_order_of_the_commits(verbs: Verbs) -> None:
    run = gathered(verbs)
    for member in (MEMBERS[1], MEMBERS[0]):
        verbs.commit(verbs.claimed(run, member), joins="gather#1")

    history = verbs.claimed(run, MEMBERS[2]).history

    assert [str(record.key) for record in history] == ["@start#1", str(MEMBERS[1]), str(MEMBERS[0])]


# P27: mail.


def test_p27_a_signal_before_the_wait_is_kept_for_it(verbs: Verbs) -> None:
    run = verbs.enqueue()

    assert verbs.signal(run, data=b"early") == "stored"
    verbs.done(run, asked=[ask("go#1", "signal")])

    outcome = verbs.claimed(run, GO).outcome
    assert outcome is not None
    assert outcome.data == b"early"


def test_p27_a_signal_between_the_advance_and_its_commit_is_not_lost(verbs: Verbs) -> None:
    run = verbs.enqueue()
    claimed = verbs.claimed(run)
    version = verbs.run(run)["state_version"]  # the flow has been advanced from here

    verbs.signal(run)
    answer = verbs.commit(claimed, advanced_from=version, asked=[ask("go#1", "signal")])

    assert answer.verdict == "committed"  # mail does not make an advance stale
    assert verbs.statuses(run)["go#1"] == "ready"


def test_p27_each_signal_is_taken_by_one_wait_in_the_order_they_came(verbs: Verbs) -> None:
    run = verbs.enqueue()
    for data in (b"1", b"2", b"3"):
        verbs.signal(run, data=data)
    verbs.done(run, asked=[ask("go#1", "signal")])
    taken = []
    for n in (1, 2, 3):
        claimed = verbs.claimed(run, key(f"go#{n}"))
        assert claimed.outcome is not None
        taken.append(claimed.outcome.data)
        verbs.commit(claimed, asked=[ask(f"go#{n + 1}", "signal", name="go")])

    assert taken == [b"1", b"2", b"3"]
    assert verbs.statuses(run)["go#4"] == "waiting"


def test_p27_the_same_signal_twice_is_one(verbs: Verbs) -> None:
    run = verbs.begun(ask("go#1", "signal"))

    assert verbs.signal(run, dedupe="once") == "delivered"
    assert verbs.signal(run, dedupe="once") == "duplicate"
    assert verbs.value("SELECT count(*) FROM safepoint.mailbox") == 1


def test_p27_mail_of_another_name_or_kind_decides_nothing(verbs: Verbs) -> None:
    run = verbs.begun(ask("go#1", "signal"))

    assert verbs.signal(run, "stop") == "stored"
    assert verbs.signal(run, kind="child") == "stored"
    assert verbs.statuses(run)["go#1"] == "waiting"


def test_p27_a_decision_is_no_mail(verbs: Verbs) -> None:
    run = verbs.begun(ask("go#1", "approval"))

    with pytest.raises(psycopg.errors.InvalidParameterValue, match=r"approval is no mail\. Accepted: signal, child"):
        verbs.signal(run, kind="approval")


@pytest.mark.parametrize("hold", [Verbs.pause, lambda verbs, run: verbs.hold(run, "diverged")])
def test_p27_a_signal_to_a_stopped_run_is_taken_and_waits_with_it(verbs: Verbs, hold: Callable[..., object]) -> None:
    run = verbs.begun(ask("go#1", "signal"))
    hold(verbs, run)

    assert verbs.signal(run) == "delivered"
    assert verbs.step(run, GO)["due_at"] == PARKED
    verbs.resume(run)
    assert verbs.claimed(run, GO).outcome is not None


def test_p27_no_interleaving_of_a_signal_and_the_commit_of_its_wait_loses_it(crowd: Crowd) -> None:
    """A thousand times at once, before and after each other by turns."""
    committer, sender, check = crowd(), crowd(), crowd()
    for verbs in (committer, sender):
        verbs.connection.execute("SET synchronous_commit = off")
    check.many(1000)
    runs = [row["run_id"] for row in check.rows("SELECT run_id FROM safepoint.runs")]
    claims = {run: committer.claimed(run) for run in runs}
    barrier, asked = threading.Barrier(2, timeout=30), [ask("go#1", "signal")]

    def send() -> list[str]:
        answers = []
        for start in range(0, 1000, 10):
            barrier.wait()
            answers += [sender.signal(run) for run in reversed(runs[start : start + 10])]
        return answers

    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(send)
        for n, run in enumerate(runs):
            if n % 10 == 0:
                barrier.wait()
            committer.commit(claims[run], advanced_from=0, asked=asked)
        answers = sent.result(timeout=30)

    waits = check.rows("SELECT status, count(*) FROM safepoint.steps WHERE step_id = 'go' GROUP BY status")
    unread = check.value("SELECT count(*) FROM safepoint.mailbox WHERE consumed_at IS NULL")
    assert ({row["status"]: row["count"] for row in waits}, unread) == ({"ready": 1000}, 0)
    assert set(answers) == {"stored", "delivered"}  # both have happened, or this shows nothing


# P28: one guarded update decides a wait; what people decide is in test_p28_decisions.


def test_p28_an_expiry_is_an_outcome_and_no_approval(verbs: Verbs, clock: Clock) -> None:
    run = verbs.begun(ask("ok#1", "approval", delay=10.0))
    clock.forward(10)
    verbs.chores()

    outcome = verbs.claimed(run, key("ok#1")).outcome

    assert outcome is not None
    assert (outcome.status, outcome.data) == ("expired", None)


def test_p28_a_decided_wait_does_not_expire(verbs: Verbs, clock: Clock) -> None:
    run = verbs.begun(ask("ok#1", "approval", delay=10.0))
    verbs.decide(run, "ok")
    clock.forward(60)

    assert verbs.chores().fired == 0
    assert verbs.step(run, key("ok#1"))["outcome"]["status"] == "succeeded"


def test_p28_neither_pause_nor_restart_nor_sweep_decides_a_wait(verbs: Verbs, clock: Clock) -> None:
    run = verbs.begun(ask("ok#1", "approval", delay=1000.0), ask("nap#1", "timer", delay=1000.0))
    for _ in range(5):
        clock.forward(60)
        verbs.pause(run)
        verbs.look()
        verbs.chores()
        verbs.resume(run)

    assert set(verbs.statuses(run).values()) == {"succeeded", "waiting"}


def test_p28_a_wait_that_expires_while_its_run_is_paused_is_decided_and_waits(verbs: Verbs, clock: Clock) -> None:
    run = verbs.begun(ask("nap#1", "timer", delay=10.0))
    verbs.pause(run)
    clock.forward(10)

    assert verbs.chores().fired == 1
    assert (verbs.step(run, key("nap#1"))["status"], verbs.step(run, key("nap#1"))["due_at"]) == ("ready", PARKED)

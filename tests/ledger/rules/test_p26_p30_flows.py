"""P26 to P30, P35: advances, mail, waits, holds, cancels, children, and commits that come late."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from ledger_clock import Clock
from ledger_fixtures import Crowd
from ledger_verbs import NODE, PARKED, Verbs, ask, key
from safepoint.ledger import control, nodes
from safepoint.ledger.commit import Ending, Result
from safepoint.ledger.key import Key
from safepoint.ledger.steps import Cause
from safepoint.tasks.rows import child_id

A, B, GO, SUB = (key(text) for text in ("a#1", "b#1", "go#1", "sub#1"))
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
    assert verbs.signal(run, kind="approval") == "stored"
    assert verbs.statuses(run)["go#1"] == "waiting"


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


# P28: one guarded update decides a wait.


def test_p28_who_comes_second_decides_nothing(verbs: Verbs) -> None:
    run = verbs.begun(ask("ok#1", "approval"))
    first = verbs.signal(run, "ok", kind="approval", data=b"yes", sender="ann")

    second = verbs.signal(run, "ok", kind="approval", data=b"no", sender="bob")

    assert (first, second) == ("delivered", "decided")
    outcome = verbs.claimed(run, key("ok#1")).outcome
    assert outcome is not None
    assert (outcome.data, outcome.sender) == (b"yes", "ann")


def test_p28_an_expiry_is_an_outcome_and_no_approval(verbs: Verbs, clock: Clock) -> None:
    run = verbs.begun(ask("ok#1", "approval", delay=10.0))
    clock.forward(10)
    verbs.chores()

    outcome = verbs.claimed(run, key("ok#1")).outcome

    assert outcome is not None
    assert (outcome.status, outcome.data) == ("expired", None)


@pytest.mark.parametrize("first", ["decided", "expired"])
def test_p28_a_decision_that_comes_second_is_none_for_the_next_question(verbs: Verbs, clock: Clock, first: str) -> None:
    run = verbs.begun(ask("ok#1", "approval", delay=10.0))
    if first == "decided":
        verbs.signal(run, "ok", kind="approval", data=b"no")
    clock.forward(10)

    late = verbs.signal(run, "ok", kind="approval", data=b"yes")
    verbs.chores()
    verbs.node()
    verbs.done(run, key("ok#1"), asked=[ask("ok#2", "approval", name="ok")])

    assert late == "decided"
    assert verbs.statuses(run)["ok#2"] == "waiting"


def test_p28_a_decision_before_its_question_is_kept_for_it(verbs: Verbs) -> None:
    run = verbs.enqueue()

    assert verbs.signal(run, "ok", kind="approval", data=b"yes", dedupe="once") == "stored"
    verbs.done(run, asked=[ask("ok#1", "approval")])

    assert verbs.statuses(run)["ok#1"] == "ready"
    assert verbs.signal(run, "ok", kind="approval", data=b"yes", dedupe="once") == "duplicate"


def test_p28_a_decided_wait_does_not_expire(verbs: Verbs, clock: Clock) -> None:
    run = verbs.begun(ask("ok#1", "approval", delay=10.0))
    verbs.signal(run, "ok", kind="approval", data=b"yes")
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


def test_p29_a_flow_error_holds_the_run_and_keeps_the_result_that_led_to_it(verbs: Verbs) -> None:
    run = verbs.begun(ask("a#1"))

    answer = verbs.done(run, A, hold={"code": "flow_error", "text": "a bug", "next": "mend it"})

    assert (answer.run_status, verbs.statuses(run)["a#1"]) == ("held", "succeeded")
    verbs.resume(run)
    assert [record.key for record in verbs.claimed(run, key("@advance#1")).history][-1] == A


# P30: children.


def sub(run: UUID, text: str = "sub#1") -> dict[str, Any]:
    facts = {"flow": "f", "version": "1", "input": "e30=", "encoding": "json", "hash": "00", "versions": {}}
    return ask(text, "child", child={"run_id": str(child_id(run, key(text))), **facts})


@pytest.fixture
def family(verbs: Verbs) -> tuple[UUID, UUID]:
    """A parent that waits for its child."""
    run = verbs.enqueue()
    verbs.done(run, asked=[sub(run)])
    return run, child_id(run, SUB)


def test_p30_a_childs_id_is_derived_from_its_parent_and_its_step() -> None:
    run = uuid4()

    assert child_id(run, SUB) == child_id(run, SUB)
    assert len({child_id(run, SUB), child_id(uuid4(), SUB), child_id(run, Key(2, "", "sub", 1)), child_id(run, B)}) == 4


@pytest.mark.parametrize(
    ("ending", "status", "error"),
    [
        (Ending("succeeded", b"7", "json"), "succeeded", None),
        (Ending("failed", error={"type": "Boom", "message": "boom"}), "failed", "Boom"),
        ("cancelled", "failed", "Cancelled"),
    ],
    ids=["succeeded", "failed", "cancelled"],
)
def test_p30_a_childs_end_reaches_its_parent_by_mail(
    verbs: Verbs, family: tuple[UUID, UUID], ending: Ending | str, status: str, error: str | None
) -> None:
    parent, child = family
    verbs.done(child, ending=ending)
    assert verbs.statuses(parent)["sub#1"] == "waiting"  # it is a row of the outbox until then

    assert verbs.chores().delivered == 1

    outcome = verbs.claimed(parent, SUB).outcome
    assert outcome is not None
    assert (outcome.status, (outcome.error or {}).get("type")) == (status, error)


def test_p30_a_cancel_travels_down(verbs: Verbs, family: tuple[UUID, UUID]) -> None:
    parent, child = family
    verbs.done(child, asked=[ask("a#1"), sub(child)])
    grandchild = child_id(child, SUB)

    verbs.cancel(parent)
    verbs.chores()
    verbs.chores()

    assert [verbs.run(run)["status"] for run in (parent, child, grandchild)] == [
        "cancelling",
        "cancelling",
        "cancelled",
    ]


def test_p30_a_child_that_a_clean_up_has_begun_ends_with_its_parent(verbs: Verbs, clock: Clock) -> None:
    run = verbs.begun(ask("a#1"))
    verbs.cancel(run)
    verbs.done(run, key("@cancel#1"), asked=[sub(run)])
    clock.forward(60)

    for _ in range(2):
        verbs.chores()

    assert {row["status"] for row in verbs.rows("SELECT status FROM safepoint.runs")} == {"cancelled"}


def test_p30_a_parents_deadline_travels_down(verbs: Verbs, clock: Clock) -> None:
    run = verbs.enqueue(deadline=clock.now + timedelta(seconds=10))
    verbs.done(run, asked=[sub(run)])
    clock.forward(10)

    verbs.chores()
    verbs.chores()

    assert {row["status"] for row in verbs.rows("SELECT status FROM safepoint.runs")} <= {"failed", "cancelled"}


def test_p30_a_child_that_a_person_reopens_before_its_parent_heard_has_not_ended(
    verbs: Verbs, family: tuple[UUID, UUID]
) -> None:
    parent, child = family
    verbs.done(child, asked=[ask("a#1")])
    error = {"type": "Boom", "message": "boom", "step": "a#1"}
    failed = Result("failed", verbs.run(child)["created_at"], error=error)
    verbs.done(child, A, result=failed, ending=Ending("failed", error=error))

    assert control.reopen(verbs.connection, child, by="test") == "running"

    assert verbs.chores().delivered == 0
    assert (verbs.statuses(parent)["sub#1"], verbs.statuses(child)["a#1"]) == ("waiting", "ready")
    verbs.done(child, A, ending="succeeded")
    verbs.chores()
    assert verbs.step(parent, SUB)["outcome"]["status"] == "succeeded"


def test_p30_a_child_whose_parent_has_heard_is_not_reopened(verbs: Verbs, family: tuple[UUID, UUID]) -> None:
    _, child = family
    verbs.done(child, ending=Ending("failed", error={"type": "Boom", "message": "boom"}))
    verbs.chores()

    assert control.reopen(verbs.connection, child, by="test").startswith("refused")


@pytest.mark.parametrize("gone", ["parent", "child"])
def test_p30_a_run_that_is_gone_does_not_stop_the_deliveries_of_others(
    verbs: Verbs, family: tuple[UUID, UUID], gone: str
) -> None:
    parent, child = family
    verbs.done(child, ending="succeeded")
    other = verbs.enqueue()
    verbs.done(other, asked=[sub(other)])
    verbs.done(child_id(other, SUB), ending="succeeded")
    verbs.connection.execute("DELETE FROM safepoint.runs WHERE run_id = %s", (parent if gone == "parent" else child,))

    verbs.chores()

    assert verbs.statuses(other)["sub#1"] == "ready"
    assert verbs.value("SELECT count(*) FROM safepoint.outbox_messages") == 0


def test_p30_a_commit_that_is_repeated_makes_one_child(verbs: Verbs) -> None:
    run = verbs.enqueue()
    claimed = verbs.claimed(run)

    answers = [verbs.commit(claimed, asked=[sub(run)], advanced_from=0).verdict for _ in range(2)]

    assert answers == ["committed", "already"]
    assert verbs.value("SELECT count(*) FROM safepoint.runs WHERE parent_run_id = %s", (run,)) == 1


# Generations.


def test_a_new_generation_starts_over_and_keeps_nothing_open_of_the_old_one(verbs: Verbs, clock: Clock) -> None:
    run = verbs.begun(ask("a#1"), ask("go#1", "signal"))
    ending = Ending("continued", b'{"n": 2}', "json", b"h")

    answer = verbs.done(run, A, ending=ending)

    assert [row.key.wire for row in answer.rows] == ["g2:@start#1"]
    assert verbs.statuses(run) == {
        "@start#1": "succeeded", "a#1": "succeeded", "go#1": "cancelled", "g2:@start#1": "ready"
    }  # fmt: skip
    assert verbs.dispatch() == []  # P17: its committer publishes it
    claimed = verbs.claimed(run, Key(2, "", "@start", 1))
    assert (claimed.history, claimed.run_input) == ((), b'{"n": 2}')


def test_a_new_generation_of_a_paused_run_waits_with_it(verbs: Verbs) -> None:
    run = verbs.begun(ask("a#1"))
    claimed = verbs.claimed(run, A)
    verbs.pause(run)

    answer = verbs.commit(claimed, ending=Ending("continued", b"{}", "json", b"h"))

    assert [row.due for row in answer.rows] == [None]
    verbs.resume(run)
    assert verbs.claimed(run, Key(2, "", "@start", 1))


def test_a_key_of_an_older_generation_is_another_step(verbs: Verbs) -> None:
    run = verbs.begun(ask("a#1"), ask("b#1"))
    zombie = verbs.claimed(run, B)
    verbs.done(run, A, ending=Ending("continued", b"{}", "json", b"h"))
    verbs.done(run, Key(2, "", "@start", 1), asked=[ask("b#1")])

    verbs.commit(zombie, joins=None, advanced_from=None)

    assert verbs.statuses(run)["g2:b#1"] == "ready"
    assert verbs.claimed(run, Key(2, "", "b", 1)).history[-1].key.generation == 2


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

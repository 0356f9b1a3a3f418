"""P14 to P18: refusals with reasons, nodes that serve, tickets, and one NOTIFY."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from ledger_clock import Clock
from ledger_fixtures import Crowd
from ledger_verbs import START, Verbs, ask, key
from safepoint.ledger import nodes, outbox
from safepoint.ledger.steps import Settled

A = key("a#1")


# P14: refusals have reasons, and never move a step away.


def done(verbs: Verbs, run: UUID) -> None:
    verbs.done(run, A, asked=[ask("b#1")])


def later(verbs: Verbs, run: UUID) -> None:
    verbs.retry(verbs.claimed(run, A), delay=30.0)


def at_its_deadline(verbs: Verbs, run: UUID) -> None:
    verbs.connection.execute("UPDATE safepoint.runs SET deadline = safepoint.now() WHERE run_id = %s", (run,))


def drain(verbs: Verbs, run: UUID) -> None:
    verbs.beat(draining=True)


def serve_nothing(verbs: Verbs, run: UUID) -> None:
    verbs.connection.execute("UPDATE safepoint.nodes SET flows = '{}'")


REFUSALS: list[tuple[Callable[[Verbs, UUID], Any], str]] = [
    (done, "stale: succeeded"),
    (lambda verbs, run: verbs.claimed(run, A), "stale: running"),
    (lambda verbs, run: verbs.cancel(run), "stale: cancelled"),
    (lambda verbs, run: verbs.lose(verbs.claimed(run, A)), "stale: lane recovery"),
    (later, "later"),
    (lambda verbs, run: verbs.pause(run), "paused"),
    (lambda verbs, run: verbs.hold(run, "diverged"), "held"),
    (at_its_deadline, "deadline"),
    (drain, "draining"),
    (serve_nothing, "version"),
]
IDS = [reason for _, reason in REFUSALS]


@pytest.mark.parametrize(("change", "reason"), REFUSALS, ids=IDS)
def test_p14_a_refusal_says_why_and_counts_nothing(
    verbs: Verbs, clock: Clock, change: Callable[[Verbs, UUID], Any], reason: str
) -> None:
    run = verbs.begun(ask("a#1"))
    change(verbs, run)
    before = verbs.step(run, A)

    assert verbs.refusal(run, A) == reason
    after = verbs.step(run, A)
    counted = ("status", "attempt", "recoveries", "deaths", "epoch", "claim_token", "lane")
    assert {name: after[name] for name in counted} == {name: before[name] for name in counted}


@pytest.mark.parametrize(("change", "reason"), REFUSALS, ids=IDS)
def test_p14_a_message_replayed_for_ever_does_not_push_its_step_away(
    verbs: Verbs, clock: Clock, change: Callable[[Verbs, UUID], Any], reason: str
) -> None:
    run = verbs.begun(ask("a#1"))
    change(verbs, run)
    before = verbs.step(run, A)["due_at"]

    for _ in range(5):
        clock.forward(1)
        verbs.refusal(run, A)

    after = verbs.step(run, A)["due_at"]
    assert before is None or after <= before


def test_p14_what_only_this_node_refuses_is_sent_to_another_one(verbs: Verbs, clock: Clock) -> None:
    run = verbs.begun(ask("a#1"))
    clock.forward(1)
    verbs.dispatch()
    verbs.node("node-2")
    verbs.beat(draining=True)

    assert verbs.refusal(run, A) == "draining"

    assert [row.key for row in verbs.dispatch()] == [A]
    verbs.claimed(run, A, node="node-2")


@pytest.mark.parametrize("stop", ["pause", "hold"])
def test_p14_while_a_run_is_stopped_nothing_of_it_is_sent(verbs: Verbs, clock: Clock, stop: str) -> None:
    run = verbs.begun(ask("a#1"), ask("go#1", "signal"), ask("nap#1", "timer", delay=1.0))
    verbs.pause(run) if stop == "pause" else verbs.hold(run, "budget")
    verbs.signal(run)
    clock.forward(2)
    verbs.chores()

    for _ in range(10):
        clock.forward(11)
        verbs.beat()
        assert verbs.dispatch() == []

    verbs.resume(run)
    assert {str(row.key) for row in verbs.dispatch()} == {"a#1", "go#1", "nap#1"}


def test_p14_what_a_step_asks_for_while_its_run_is_paused_is_not_sent(verbs: Verbs, clock: Clock) -> None:
    run = verbs.begun(ask("a#1"))
    claimed = verbs.claimed(run, A)
    verbs.signal(run, "early")
    verbs.pause(run)
    verbs.commit(claimed, asked=[ask("b#1"), ask("early#1", "signal")])
    clock.forward(60)
    verbs.beat()
    while_paused = verbs.dispatch()

    verbs.resume(run)

    assert while_paused == []
    assert {str(row.key) for row in verbs.dispatch()} == {"b#1", "early#1"}


# P15: nothing is sent that nobody serves.


@pytest.mark.parametrize(
    "serves", [{"flows": ("f@2",)}, {"lanes": ("recovery",)}, {"steps": ("b",)}], ids=["version", "lane", "step"]
)
def test_p15_what_no_live_node_serves_waits_and_says_so(verbs: Verbs, clock: Clock, serves: dict[str, Any]) -> None:
    run = verbs.begun(ask("a#1"))
    verbs.connection.execute("DELETE FROM safepoint.nodes")
    verbs.node("other", **serves)
    clock.forward(1)

    assert verbs.dispatch() == []
    assert verbs.step(run, A)["reason"]["code"] == "no_worker"


def test_p15_a_backlog_that_nobody_serves_keeps_nobody_else_from_starting(verbs: Verbs, clock: Clock) -> None:
    for _ in range(300):
        verbs.enqueue(version="9", priority=9)
    served = verbs.enqueue()

    sent: list[UUID] = []
    for _ in range(60):  # six seconds, as a relay looks
        clock.forward(0.1)
        sent += [row.run_id for row in verbs.dispatch(limit=10)]

    assert sent == [served]


def test_p15_what_nobody_serves_is_asked_about_ever_more_seldom(verbs: Verbs, clock: Clock) -> None:
    run = verbs.enqueue(version="9")
    waits = []
    for _ in range(6):
        verbs.dispatch()
        waits.append((verbs.step(run)["due_at"] - clock.now).total_seconds())
        clock.forward(waits[-1])
        verbs.beat()

    assert waits[0] == 5 < waits[-1]
    assert waits == sorted(waits)
    clock.forward(3600)
    verbs.beat()
    verbs.dispatch()
    assert (verbs.step(run)["due_at"] - clock.now).total_seconds() == 60


def test_p15_a_node_that_registers_is_asked_at_once(verbs: Verbs, clock: Clock) -> None:
    run = verbs.begun(ask("a#1"))
    nodes.stop(verbs.connection, "node-1")
    clock.forward(1)
    assert verbs.dispatch() == []

    verbs.node("node-2")

    assert [row.run_id for row in verbs.dispatch()] == [run]
    assert verbs.step(run, A)["reason"] is None


def test_p15_a_draining_node_serves_nothing(verbs: Verbs, clock: Clock) -> None:
    verbs.begun(ask("a#1"))
    verbs.beat(draining=True)
    clock.forward(1)

    assert verbs.dispatch() == []


def test_p15_a_registration_does_not_wake_what_is_paused(verbs: Verbs, clock: Clock) -> None:
    run = verbs.begun(ask("a#1"))
    nodes.stop(verbs.connection, "node-1")
    clock.forward(1)
    verbs.dispatch()
    verbs.pause(run)

    verbs.node("node-2")

    assert verbs.dispatch() == []


# P16: every advance runs under a claim.


def test_p16_a_process_without_code_enqueues_a_step_that_starts_the_run(verbs: Verbs) -> None:
    run = verbs.enqueue()

    assert verbs.statuses(run) == {"@start#1": "ready"}
    assert verbs.claimed(run).kind == "start"


@pytest.mark.parametrize(
    ("wait", "decide", "outcome"),
    [
        (ask("w#1", "signal"), lambda verbs, run: verbs.signal(run, "w"), {"status": "succeeded"}),
        (
            ask("w#1", "approval"),
            lambda verbs, run: verbs.decide(run, "w", by="ann"),
            {"status": "succeeded", "sender": "ann"},
        ),
        (ask("w#1", "timer", delay=0.0), lambda verbs, run: verbs.chores(), {"status": "succeeded"}),
        (ask("w#1", "approval", delay=0.0), lambda verbs, run: verbs.chores(), {"status": "expired"}),
    ],
    ids=["signal", "approval", "timer", "expiry"],
)
def test_p16_a_wait_becomes_ready_with_its_outcome_in_what_decides_it(
    verbs: Verbs, wait: dict[str, Any], decide: Callable[[Verbs, UUID], Any], outcome: dict[str, str]
) -> None:
    run = verbs.begun(wait)
    assert verbs.refusal(run, key("w#1")) == "stale: waiting"

    decide(verbs, run)

    claimed = verbs.claimed(run, key("w#1"))
    assert claimed.outcome is not None
    assert (claimed.outcome.status, claimed.outcome.sender) == (outcome["status"], outcome.get("sender"))


# P17: grace, tickets, one NOTIFY.


def test_p17_what_its_committer_publishes_is_due_a_grace_later(verbs: Verbs, clock: Clock) -> None:
    run = verbs.begun(ask("a#1"))

    assert verbs.step(run, A)["due_at"] == clock.now + timedelta(seconds=1)
    assert verbs.dispatch() == []
    clock.forward(1)
    assert len(verbs.dispatch()) == 1


def test_p17_a_wait_that_finds_its_mail_is_its_committers_to_publish(verbs: Verbs, clock: Clock) -> None:
    run = verbs.enqueue()
    verbs.signal(run)

    answer = verbs.done(run, asked=[ask("go#1", "signal")])

    assert [(row.status, row.due) for row in answer.rows] == [
        ("ready", verbs.step(run, key("go#1"))["due_at"].isoformat())
    ]
    assert verbs.dispatch() == []  # not yet the relay's


def test_p17_a_ticket_settles_the_row_and_no_later_one(verbs: Verbs, clock: Clock) -> None:
    run = verbs.begun(ask("a#1"))
    clock.forward(1)
    (row,) = verbs.dispatch(settled=False)
    verbs.retry(verbs.claimed(run, A))  # the same step, another row of the outbox

    settled = outbox.settle(verbs.connection, [Settled(run, A, row.due, 10.0)])

    assert settled == 0
    assert verbs.step(run, A)["dispatched_at"] is None
    assert [one.attempt for one in verbs.dispatch()] == [2]


def test_p17_a_row_that_somebody_holds_is_not_waited_for(crowd: Crowd, crowd_clock: Clock) -> None:
    one, other = crowd(), crowd()
    run = one.begun(ask("a#1"))
    crowd_clock.forward(1)
    (row,) = one.dispatch(settled=False)

    with one.connection.transaction():
        one.claimed(run, A)
        assert outbox.settle(other.connection, [Settled(run, A, row.due, 10.0)]) == 0


def test_p17_an_enqueue_wakes_the_relay_once_and_a_commit_does_not(crowd: Crowd) -> None:
    one, relay = crowd(), crowd()
    relay.connection.execute("LISTEN safepoint_relay")

    with one.connection.transaction():
        runs = [one.enqueue() for _ in range(10)]
    woken = list(relay.connection.notifies(timeout=5, stop_after=1)) + list(relay.connection.notifies(timeout=0.05))
    one.done(runs[0], asked=[ask("a#1")])
    after = list(relay.connection.notifies(timeout=0.05))

    assert (len(woken), after) == (1, [])


# P18: the client makes the run id.


def test_p18_a_client_that_repeats_its_enqueue_gets_its_run(crowd: Crowd) -> None:
    run = uuid4()
    lost, again = crowd(), crowd()
    lost.enqueue(run_id=run)  # and its answer did not arrive

    assert again.enqueue(run_id=run) == run
    assert again.statuses(run) == {START.wire: "ready"}
    assert again.events(run) == ["run.queued"]


def test_p18_a_client_that_repeats_while_the_run_already_runs_changes_nothing(verbs: Verbs) -> None:
    run = uuid4()
    verbs.enqueue(run_id=run)
    verbs.done(run, asked=[ask("a#1")])
    before = verbs.run(run)

    verbs.enqueue(run_id=run)

    assert verbs.run(run) == before

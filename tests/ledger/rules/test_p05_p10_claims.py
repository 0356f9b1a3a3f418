"""P3, P5 to P10: the fence, what is durable, whose clock decides, which ledger this is, from which lane steps come."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from uuid import uuid4

import psycopg
import pytest
from ledger_clock import Clock
from ledger_fixtures import Crowd
from ledger_verbs import LEASE, Verbs, ask, key
from safepoint.ledger.steps import Cause, Claimed

A = key("a#1")


# P5: the fence is the claim token.


def test_p05_a_token_that_another_claim_replaced_commits_nothing(verbs: Verbs) -> None:
    run = verbs.begun(ask("a#1"))
    zombie = verbs.claimed(run, A)
    verbs.lose(zombie)
    owner = verbs.claimed(run, A, lane="recovery")

    assert verbs.commit(zombie).verdict == "lost"
    assert verbs.retry(zombie).verdict == "lost"
    assert not verbs.release(zombie)
    assert verbs.commit(owner).verdict == "committed"


def test_p05_the_right_epoch_with_a_wrong_token_commits_nothing(verbs: Verbs) -> None:
    run = verbs.begun(ask("a#1"))
    claimed = verbs.claimed(run, A)

    answer = verbs.commit(replace(claimed, token=uuid4()))

    assert answer.verdict == "lost"
    assert verbs.statuses(run)["a#1"] == "running"


def test_p05_of_two_workers_who_race_for_a_step_one_wins_a_thousand_times(crowd: Crowd) -> None:
    check, racers = crowd(), [crowd(), crowd()]
    for racer in racers:
        racer.connection.execute("SET synchronous_commit = off")
    check.many(1000)
    runs = [row["run_id"] for row in check.rows("SELECT run_id FROM safepoint.runs")]
    barrier = threading.Barrier(2, timeout=30)

    def race(verbs: Verbs) -> list[bool]:
        won = []
        for n, run in enumerate(runs):
            if n % 10 == 0:
                barrier.wait()
            won.append(isinstance(verbs.claim(run), Claimed))
        return won

    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(race, racers)

    assert [a + b for a, b in zip(one, other, strict=True)] == [1] * 1000
    assert check.value("SELECT count(*) FROM safepoint.steps WHERE epoch = 1 AND status = 'running'") == 1000
    assert any(one)
    assert any(other)  # both have won, or this was no race


def test_p05_every_claim_has_a_later_epoch(verbs: Verbs) -> None:
    run = verbs.begun(ask("a#1"))

    epochs = []
    for _ in range(3):
        claimed = verbs.claimed(run, A)
        epochs.append(claimed.epoch)
        verbs.release(claimed)

    assert epochs == [1, 2, 3]


def test_p05_every_end_of_a_claim_clears_its_token(verbs: Verbs) -> None:
    ends: list[Callable[..., object]] = [verbs.commit, verbs.retry, verbs.release]
    for end in ends:
        run = verbs.begun(ask("a#1"))
        claimed = verbs.claimed(run, A)

        end(claimed)

        assert verbs.step(run, A)["claim_token"] is None
        assert verbs.commit(claimed).verdict in ("already", "lost")


def test_p03_what_is_sent_again_answers_that_it_has_been(verbs: Verbs) -> None:
    run = verbs.begun(ask("a#1"), ask("b#1"))
    a, b = verbs.claimed(run, A), verbs.claimed(run, key("b#1"))

    committed = [verbs.commit(a).verdict for _ in range(3)]
    retried = [verbs.retry(b).verdict for _ in range(3)]

    assert committed == ["committed", "already", "already"]
    assert retried == ["retried", "already", "already"]
    assert (verbs.run(run)["state_version"], verbs.step(run, key("b#1"))["attempt"]) == (2, 2)


@pytest.mark.parametrize(("kind", "durable"), [("step", "off"), ("effect", "on")])
def test_p05_a_claim_commits_asynchronously_unless_it_is_an_effects(verbs: Verbs, kind: str, durable: str) -> None:
    run = verbs.begun(ask("a#1", kind, request="e30=", encoding="json"))
    verbs.connection.execute("SET LOCAL synchronous_commit = on")

    verbs.claimed(run, A)

    assert verbs.value("SHOW synchronous_commit") == durable


# P6: what a client has seen is durable.


def test_p06_a_claim_writes_no_event(verbs: Verbs) -> None:
    run = verbs.begun(ask("nap#1", "timer", delay=0.0))
    verbs.chores()
    assert verbs.run(run)["status"] == "running"
    before = verbs.events(run)

    verbs.claimed(run, key("nap#1"))

    assert verbs.events(run) == before


def test_p06_what_writes_events_commits_synchronously(verbs: Verbs) -> None:
    verbs.connection.execute("SET LOCAL synchronous_commit = on")
    run = verbs.enqueue()
    claimed = verbs.claimed(run)
    verbs.connection.execute("SET LOCAL synchronous_commit = on")  # the next transaction of a real connection
    for write in (
        lambda: verbs.commit(claimed, asked=[ask("a#1"), ask("go#1", "signal")]),
        lambda: verbs.signal(run),
        lambda: verbs.pause(run),
        lambda: verbs.resume(run),
        lambda: verbs.cancel(run),
    ):
        before = len(verbs.events(run))
        write()

        assert verbs.value("SHOW synchronous_commit") == "on"
        assert len(verbs.events(run)) >= before


# P7: the clock decides, after the locks are held.


def test_p07_a_deadline_has_passed_before_any_scan_came_by(verbs: Verbs, clock: Clock) -> None:
    run = verbs.enqueue(deadline=clock.now)

    assert verbs.refusal(run) == "deadline"


def test_p07_a_commit_past_the_deadline_is_stored_and_asks_for_nothing(verbs: Verbs, clock: Clock) -> None:
    run = verbs.enqueue(deadline=clock.now.replace(minute=1))
    claimed = verbs.claimed(run)
    clock.forward(61)

    answer = verbs.commit(claimed, asked=[ask("a#1")])

    assert (answer.verdict, answer.run_status, answer.rows) == ("committed", "failed", ())
    assert verbs.run(run)["error"]["type"] == "DeadlineExceeded"


def test_p07_an_expired_wait_takes_no_mail(verbs: Verbs, clock: Clock) -> None:
    run = verbs.begun(ask("go#1", "signal", delay=10.0))
    clock.forward(10)

    assert verbs.signal(run) == "stored"
    assert verbs.chores().fired == 1
    assert verbs.step(run, key("go#1"))["outcome"]["status"] == "failed"


def test_p07_a_lease_that_was_renewed_since_the_finding_is_not_over(verbs: Verbs, clock: Clock) -> None:
    claimed = verbs.claimed(verbs.enqueue())
    clock.forward(LEASE)
    found = verbs.look(lease=1000).orphans
    verbs.beat(claimed.token)

    assert [orphan.lease_over for orphan in found] == [True]
    assert verbs.lose(claimed, Cause.LEASE) == "alive"


def test_p07_a_claim_that_waited_for_the_lock_reads_the_clock_after_it(
    crowd: Crowd, crowd_clock: Clock, eventually: Callable[..., None]
) -> None:
    one, other, watch = crowd(), crowd(), crowd()
    run = one.enqueue(deadline=crowd_clock.now.replace(minute=1))

    with ThreadPoolExecutor(1) as pool:
        with one.connection.transaction():
            one.connection.execute("SELECT FROM safepoint.runs WHERE run_id = %s FOR NO KEY UPDATE", (run,))
            refused = pool.submit(other.refusal, run)
            eventually(lambda: assert_one_waits(watch))
            crowd_clock.forward(60)
        answer = refused.result(timeout=10)

    assert answer == "deadline"


def assert_one_waits(watch: Verbs) -> None:
    assert watch.waiting_backends() == 1


# P8: the ledger is another one.


def test_p08_another_timeline_is_another_incarnation_and_freezes_takeovers(verbs: Verbs, clock: Clock) -> None:
    verbs.look()
    before = verbs.value("SELECT incarnation FROM safepoint.identity")
    verbs.connection.execute("UPDATE safepoint.identity SET timeline = '000000FF'")

    found = verbs.look()

    assert verbs.value("SELECT incarnation FROM safepoint.identity") != before
    assert found.frozen
    assert verbs.beat().incarnation != before  # every node hears of it with its next beat


# P9: the lane of the next claim.


def test_p09_a_lost_step_is_claimed_from_the_recovery_lane_and_then_from_its_own(verbs: Verbs) -> None:
    run = verbs.begun(ask("a#1"))
    verbs.lose(verbs.claimed(run, A))

    assert verbs.refusal(run, A) == "stale: lane recovery"  # the old message, redelivered a thousand times
    claimed = verbs.claimed(run, A, lane="recovery")
    assert verbs.step(run, A)["lane"] == "online"
    verbs.retry(claimed)
    verbs.claimed(run, A)


def test_p09_neither_retry_nor_release_nor_resume_changes_the_lane(verbs: Verbs) -> None:
    run = verbs.begun(ask("a#1", lane="recovery"), ask("b#1"))

    verbs.retry(verbs.claimed(run, A, lane="recovery"))
    verbs.release(verbs.claimed(run, key("b#1")))
    verbs.pause(run)
    verbs.resume(run)

    assert (verbs.step(run, A)["lane"], verbs.step(run, key("b#1"))["lane"]) == ("recovery", "online")


def test_p09_a_step_that_a_draining_worker_gives_back_keeps_its_lane(verbs: Verbs) -> None:
    run = verbs.begun(ask("a#1"))

    verbs.lose(verbs.claimed(run, A), Cause.RELEASED)

    assert verbs.step(run, A)["lane"] == "online"


def test_p09_a_due_timer_keeps_its_lane(verbs: Verbs) -> None:
    run = verbs.begun(ask("nap#1", "timer", delay=0.0))

    verbs.chores()

    assert verbs.step(run, key("nap#1"))["lane"] == "online"


# P10: nothing outside the scan.


def test_p10_a_ready_step_that_is_never_due_is_refused_by_the_database(verbs: Verbs) -> None:
    run = verbs.enqueue()

    with pytest.raises(psycopg.errors.CheckViolation, match="steps_ready_is_due"):
        verbs.connection.execute("UPDATE safepoint.steps SET due_at = NULL WHERE run_id = %s", (run,))


def test_p10_a_lost_recovery_message_is_sent_again(verbs: Verbs, clock: Clock) -> None:
    run = verbs.begun(ask("a#1"))
    verbs.lose(verbs.claimed(run, A))
    assert [row.lane for row in verbs.dispatch()] == ["recovery"]

    clock.forward(11)
    verbs.beat()

    assert [row.key for row in verbs.dispatch()] == [A]


def test_p10_a_run_without_an_open_step_gets_an_advance_and_an_alarm(verbs: Verbs, clock: Clock) -> None:
    run = verbs.begun(ask("a#1"))
    verbs.connection.execute("DELETE FROM safepoint.steps WHERE run_id = %s AND step_id = 'a'", (run,))
    clock.forward(60)
    verbs.beat()

    assert verbs.chores().revived == 1
    assert [row.kind for row in verbs.dispatch()] == ["advance"]


def test_p10_a_paused_run_without_an_open_step_is_left_alone(verbs: Verbs, clock: Clock) -> None:
    run = verbs.begun(ask("a#1"))
    verbs.connection.execute("DELETE FROM safepoint.steps WHERE run_id = %s AND step_id = 'a'", (run,))
    verbs.pause(run)
    clock.forward(60)

    assert verbs.chores().revived == 0
    verbs.resume(run)
    assert verbs.statuses(run)["@advance#1"] == "ready"


@pytest.mark.parametrize("state", ["ready", "dispatched", "claimed", "retried", "lost", "waiting"])
def test_p10_whatever_a_live_step_is_in_somebody_looks_at_it(verbs: Verbs, clock: Clock, state: str) -> None:
    run = verbs.begun(ask("a#1", "signal", delay=5.0) if state == "waiting" else ask("a#1"))
    if state == "dispatched":
        verbs.dispatch()
    elif state not in ("ready", "waiting"):
        claimed = verbs.claimed(run, A)
        {"claimed": lambda _: None, "retried": verbs.retry, "lost": verbs.lose}[state](claimed)

    clock.forward(100)  # the node is dead by now
    seen = (*verbs.look(lease=1000).orphans, *(() if verbs.chores().fired == 0 else ("timer",)))
    verbs.node("node-2")
    clock.forward(11)
    verbs.beat(node="node-2")

    assert seen or [row.key for row in verbs.dispatch() if row.run_id == run] == [A]


@pytest.mark.parametrize(("limits", "lane"), [({}, "recovery"), ({"in_flight": 2}, "tools")])
def test_p09_what_is_lost_of_a_limited_lane_of_ones_own_comes_back_to_it(
    verbs: Verbs, limits: dict[str, int], lane: str
) -> None:
    """Its caps are kept, and its steps execute where its workers are."""
    verbs.connection.execute(
        "INSERT INTO safepoint.lanes (name, in_flight) VALUES ('tools', %s)", (limits.get("in_flight"),)
    )
    run = verbs.begun(ask("a#1", lane="tools"))
    verbs.node("node-2", lanes=("tools",))
    verbs.dispatch()
    verbs.lose(verbs.claimed(run, A, lane="tools"))

    assert verbs.step(run, A)["lane"] == lane

"""P1, P2: lock, then look; and in one order. Each schedule has its two transactions open at the same time."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from ledger_fixtures import Crowd
from ledger_verbs import START, Verbs, ask, key
from safepoint.ledger.steps import Cause, Claimed, NotYours, Settled

A, B, JOIN = key("gather#1.0/a#1"), key("gather#1.1/b#1"), key("join#1")
GATHER = "gather#1"
Meet = Callable[..., tuple[Any, Any]]


@pytest.fixture
def meet(eventually: Callable[..., None]) -> Meet:
    """Runs one verb in a transaction left open, starts another, sees it wait, commits the first, answers both."""

    def run(
        one: Verbs, first: Callable[[], object], other: Verbs, second: Callable[[], object], watch: Verbs
    ) -> tuple[object, object]:
        with ThreadPoolExecutor(1) as pool:
            with one.connection.transaction():
                earlier = first()
                later: Future[object] = pool.submit(second)
                eventually(lambda: watched(watch))
            return earlier, later.result(timeout=10)

    return run


def watched(watch: Verbs) -> None:
    assert watch.waiting_backends() == 1


def gathered(verbs: Verbs) -> UUID:
    return verbs.begun(ask(str(A), joins=GATHER), ask(str(B), joins=GATHER))


# The join of a gather.


def test_p01_a_sibling_that_commits_at_the_same_time_does_not_lose_the_join(crowd: Crowd, meet: Meet) -> None:
    one, other, watch = crowd(), crowd(), crowd()
    run = gathered(one)
    a, b = one.claimed(run, A), one.claimed(run, B)

    first, second = meet(one, lambda: one.commit(a, joins=GATHER), other, lambda: other.commit(b, joins=GATHER), watch)
    last = other.commit(b, asked=[ask("join#1")])

    assert "join#1" in one.statuses(run)
    assert (first.verdict, second.verdict, last.verdict) == ("committed", "stale", "committed")


NAIVE = """
WITH done AS (
    UPDATE safepoint.steps SET status = 'succeeded', commit_seq = %(seq)s, claim_token = NULL, due_at = NULL
     WHERE run_id = %(run)s AND step_id = %(step)s AND claim_token = %(token)s RETURNING run_id
), counted AS (
    UPDATE safepoint.runs SET state_version = state_version + 1 WHERE run_id IN (SELECT run_id FROM done)
), joined AS (
    INSERT INTO safepoint.steps (run_id, generation, path, step_id, iteration, tenant_id, kind, name, status, lane,
                                 home_lane, due_at, ready_at, created_at)
        SELECT run_id, 1, '', 'join', 1, 'default', 'step', 'join', 'ready', 'online', 'online', now(), now(), now()
          FROM done WHERE NOT EXISTS (SELECT FROM safepoint.steps o WHERE o.run_id = %(run)s AND o.joins = 'gather#1'
                                         AND o.step_id <> %(step)s AND o.status = 'running')
    RETURNING 1
) SELECT count(*) FROM joined"""


def test_p01_the_naive_form_in_one_statement_does_lose_the_join(crowd: Crowd, meet: Meet) -> None:
    one, other, watch = crowd(), crowd(), crowd()
    run = gathered(one)
    a, b = one.claimed(run, A), one.claimed(run, B)

    def commit(verbs: Verbs, step: Claimed, seq: int) -> int:
        values = {"run": run, "step": step.key.step_id, "token": step.token, "seq": seq}
        return int(verbs.value(NAIVE, values))

    joins = meet(one, lambda: commit(one, a, 2), other, lambda: commit(other, b, 3), watch)

    assert joins == (0, 0)  # each has seen the other one running, and nobody goes on
    assert "join#1" not in one.statuses(run)


# Claim and cancel.


def test_p01_a_claim_that_waited_for_a_cancel_is_refused(crowd: Crowd, meet: Meet) -> None:
    one, other, watch = crowd(), crowd(), crowd()
    run = one.begun(ask("a#1"))

    _, answer = meet(one, lambda: one.cancel(run), other, lambda: other.claim(run, key("a#1")), watch)

    assert answer == NotYours("stale: cancelled")


@pytest.mark.parametrize(
    ("stop", "reason"), [(Verbs.pause, "paused"), (lambda verbs, run: verbs.hold(run, "diverged"), "held")]
)
def test_p01_a_claim_that_waited_for_a_pause_or_a_hold_is_refused(
    crowd: Crowd, meet: Meet, stop: Callable[[Verbs, UUID], object], reason: str
) -> None:
    one, other, watch = crowd(), crowd(), crowd()
    run = one.begun(ask("a#1"))

    _, answer = meet(one, lambda: stop(one, run), other, lambda: other.claim(run, key("a#1")), watch)

    assert answer == NotYours(reason)


def test_p01_a_cancel_that_waited_for_a_claim_leaves_the_step_to_its_claimer(crowd: Crowd, meet: Meet) -> None:
    one, other, watch = crowd(), crowd(), crowd()
    run = one.begun(ask("a#1"))

    claimed, answer = meet(one, lambda: one.claimed(run, key("a#1")), other, lambda: other.cancel(run), watch)

    assert answer == "cancelling"
    assert one.statuses(run)["a#1"] == "running"
    assert isinstance(claimed, Claimed)
    assert one.commit(claimed, asked=[ask("b#1")]).verdict == "committed"  # P29: stored, and nothing follows
    assert "b#1" not in one.statuses(run)


# Commit and signal.


def test_p01_a_signal_that_waited_for_the_commit_of_its_wait_is_delivered(crowd: Crowd, meet: Meet) -> None:
    one, other, watch = crowd(), crowd(), crowd()
    run = one.enqueue()
    start = one.claimed(run)

    _, answer = meet(
        one, lambda: one.commit(start, asked=[ask("go#1", "signal")]), other, lambda: other.signal(run), watch
    )

    assert answer == "delivered"
    assert one.statuses(run)["go#1"] == "ready"


def test_p01_a_commit_that_waited_for_a_signal_finds_it_in_the_mailbox(crowd: Crowd, meet: Meet) -> None:
    one, other, watch = crowd(), crowd(), crowd()
    run = one.enqueue()
    start = one.claimed(run)

    _, answer = meet(
        one, lambda: one.signal(run), other, lambda: other.commit(start, asked=[ask("go#1", "signal")]), watch
    )

    assert [row.status for row in answer.rows] == ["ready"]
    assert one.statuses(run)["go#1"] == "ready"


def test_p01_a_takeover_that_waited_for_the_commit_finds_that_the_step_has_moved(crowd: Crowd, meet: Meet) -> None:
    one, other, watch = crowd(), crowd(), crowd()
    run = one.begun(ask("a#1"))
    claimed = one.claimed(run, key("a#1"))

    _, answer = meet(one, lambda: one.commit(claimed), other, lambda: other.lose(claimed), watch)

    assert answer == "moved"
    assert one.statuses(run)["a#1"] == "succeeded"


def test_p01_a_commit_that_waited_for_the_next_claim_has_lost(crowd: Crowd, meet: Meet) -> None:
    one, other, watch = crowd(), crowd(), crowd()
    run = one.begun(ask("a#1"))
    zombie = one.claimed(run, key("a#1"))
    one.lose(zombie)

    _, answer = meet(
        one, lambda: one.claimed(run, key("a#1"), lane="recovery"), other, lambda: other.commit(zombie), watch
    )

    assert answer.verdict == "lost"


# One order.


def test_p02_sessions_that_meet_everywhere_never_deadlock(crowd: Crowd) -> None:
    watch, verbs = crowd(), [crowd() for _ in range(4)]
    runs = [watch.begun(*(ask(f"s#{n}") for n in range(1, 9)), ask("go#1", "signal")) for _ in range(3)]
    before = deadlocks(watch)
    errors: list[BaseException] = []

    threads = [threading.Thread(target=disturb, args=(one, runs, n, errors)) for n, one in enumerate(verbs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert errors == []
    assert deadlocks(watch) == before


def disturb(verbs: Verbs, runs: list[UUID], seed: int, errors: list[BaseException]) -> None:
    """Do a hundred things at random; what one has published the next one settles."""
    rng, tickets = random.Random(seed), list[Settled]()
    held: list[Claimed] = []
    try:
        for _ in range(100):
            run, of = rng.choice(runs), key(f"s#{rng.randint(1, 8)}")
            match rng.randint(0, 7):
                case 0 | 1:
                    answer = verbs.claim(run, of, lane=rng.choice(["online", "recovery"]), settle=tickets)
                    tickets = []
                    held += [answer] if isinstance(answer, Claimed) else []
                case 2 if held:
                    verbs.retry(held.pop(rng.randrange(len(held))))
                case 3 if held:
                    verbs.lose(rng.choice(held), Cause.CHILD)
                case 4:
                    tickets += [Settled(row.run_id, row.key, row.due, 0.0) for row in verbs.dispatch(settled=False)]
                case 5:
                    verbs.signal(run)
                    verbs.chores()
                case 6:
                    verbs.pause(run)
                    verbs.resume(run)
                case _:
                    verbs.beat(*(one.token for one in held))
    except BaseException as error:  # noqa: BLE001  # the test's thread sees it
        errors.append(error)


def deadlocks(verbs: Verbs) -> int:
    with suppress(psycopg.errors.UndefinedFunction):
        verbs.connection.execute("SELECT pg_stat_force_next_flush()")
    return int(verbs.value("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"))


def test_p02_a_batch_goes_past_a_run_that_somebody_holds(crowd: Crowd, crowd_clock: object) -> None:
    one, other = crowd(), crowd()
    held, free = (one.begun(ask("nap#1", "timer", delay=0.0)) for _ in range(2))

    with one.connection.transaction():
        one.connection.execute("SELECT FROM safepoint.runs WHERE run_id = %s FOR NO KEY UPDATE", (held,))
        done = other.chores()

    assert done.fired == 1
    assert (one.statuses(held)["nap#1"], one.statuses(free)["nap#1"]) == ("waiting", "ready")


def test_p02_the_end_of_a_child_does_not_wait_for_its_parent(crowd: Crowd) -> None:
    one, other = crowd(), crowd()
    parent = one.begun(child("sub#1"))
    run = child_of(one, parent)
    ended = one.claimed(run)

    with one.connection.transaction():
        one.connection.execute("SELECT FROM safepoint.runs WHERE run_id = %s FOR NO KEY UPDATE", (parent,))
        answer = other.commit(ended, ending="succeeded")
        skipped = other.chores().delivered

    assert (answer.run_status, skipped) == ("succeeded", 0)
    assert one.chores().delivered == 1
    assert one.statuses(parent)["sub#1"] == "ready"


def child(text: str) -> dict[str, object]:
    run = {"run_id": str(uuid4()), "flow": "f", "version": "1", "input": "e30=", "encoding": "json", "hash": "00"}
    return ask(text, "child", child={**run, "versions": {}})


def child_of(verbs: Verbs, parent: UUID) -> UUID:
    found = verbs.value("SELECT run_id FROM safepoint.runs WHERE parent_run_id = %s", (parent,))
    return UUID(str(found))


def test_p01_a_start_is_claimed_by_one_of_two_who_ask_at_once(crowd: Crowd, meet: Meet) -> None:
    one, other, watch = crowd(), crowd(), crowd()
    run = one.enqueue()

    winner, loser = meet(one, lambda: one.claim(run, START), other, lambda: other.claim(run, START), watch)

    assert isinstance(winner, Claimed)
    assert loser == NotYours("stale: running")

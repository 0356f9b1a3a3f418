"""Schedules that broke a rule of the protocol once, each with real connections and named by its rule."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from uuid import UUID, uuid4

import pytest
from ledger_clock import EPOCH, Clock
from safepoint.ledger import control, nodes, outbox
from safepoint.ledger.commit import Ending, Result, commit, retry
from safepoint.ledger.connect import Connection, connect
from safepoint.ledger.key import Key
from safepoint.ledger.steps import Cause, Claimed, Claimer, Loss, NotYours, Settled, claim, lose

START, A, B, GO = (Key.parse(text) for text in ("@start#1", "gather#1.0/a#1", "gather#1.1/b#1", "go#1"))
OK = Result("succeeded", EPOCH, b"1", "json")
WORKER = Claimer("worker", 1, 1)


@pytest.fixture
def connection(ledger_url: str) -> Iterator[Connection]:
    with connect(ledger_url, name="test") as opened:
        opened.execute("INSERT INTO safepoint.lanes (name) VALUES ('online'), ('recovery') ON CONFLICT DO NOTHING")
        yield opened


@pytest.fixture
def clock(connection: Connection) -> Clock:
    clock = Clock(connection)
    node = nodes.Node(WORKER.node, "host", 1, ("online", "recovery"), ("f@1",), concurrency=2)
    nodes.register(connection, node, lease=15.0, with_lock=False)
    return clock


@pytest.fixture
def run(connection: Connection, clock: Clock) -> UUID:
    return enqueue(connection)


def enqueue(connection: Connection) -> UUID:
    row = connection.execute("SELECT safepoint.enqueue('f', '{}', version => '1')").fetchone()
    assert row
    assert isinstance(row[0], UUID)
    return row[0]


def claimed(connection: Connection, run: UUID, key: Key, *, lane: str = "online") -> UUID:
    token = uuid4()
    assert isinstance(claim(connection, run, key, lane=lane, claimer=WORKER, token=token, timeout=60.0), Claimed), (
        f"{key} is not to be had"
    )
    return token


def started(connection: Connection, run: UUID, *asked: dict[str, object]) -> None:
    token = claimed(connection, run, START)
    answer = commit(connection, run, START, token=token, node="worker", result=OK, advanced_from=0, asked=asked)
    assert answer.verdict == "committed"


def step(key: Key) -> dict[str, object]:
    row = {"path": key.path, "step": key.step_id, "iteration": key.iteration, "lane": "online"}
    return {**row, "kind": "step", "name": key.step_id, "hash": "00" * 32, "joins": "gather#1"}


def wait(key: Key) -> dict[str, object]:
    row = {"path": key.path, "step": key.step_id, "iteration": key.iteration, "lane": "online"}
    return {**row, "kind": "signal", "name": key.step_id, "reason": {"code": "signal"}}


def signal(connection: Connection, run: UUID) -> str:
    return control.mail(connection, run, kind="signal", name="go", data=b"1", encoding="json")


def test_p1_workers_that_settle_for_each_other_do_not_wait_for_each_other(
    connection: Connection, ledger_url: str, clock: Clock, eventually: Callable[..., None]
) -> None:
    runs = enqueue(connection), enqueue(connection)

    def claim_and_settle(mine: UUID, published: UUID) -> Claimed | NotYours:
        ticket = Settled(published, START, clock.now, 10.0)
        with connect(ledger_url, name="racer") as own:
            return claim(own, mine, START, lane="online", claimer=WORKER, token=uuid4(), timeout=60.0, settle=[ticket])

    with ThreadPoolExecutor(2) as pool, ExitStack() as stack:
        holders = [stack.enter_context(connect(ledger_url, name="holder", autocommit=False)) for _ in runs]
        for holder, run in zip(holders, runs, strict=True):
            holder.execute("SELECT FROM safepoint.runs WHERE run_id = %s FOR UPDATE", (run,))
        racers = [pool.submit(claim_and_settle, runs[0], runs[1]), pool.submit(claim_and_settle, runs[1], runs[0])]
        eventually(lambda: assert_waiting(connection, 2))
        for holder in holders:
            holder.rollback()
        answers = [racer.result() for racer in racers]

    assert all(isinstance(answer, Claimed) for answer in answers)


def assert_waiting(connection: Connection, wanted: int) -> None:
    row = connection.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'racer' AND wait_event_type = 'Lock'"
    ).fetchone()
    assert row == (wanted,)


def test_p7_a_claim_asks_the_clock_after_its_wait_for_the_lock(
    connection: Connection, ledger_url: str, clock: Clock, run: UUID, eventually: Callable[..., None]
) -> None:
    def claim_it() -> Claimed | NotYours:
        with connect(ledger_url, name="racer") as own:
            return claim(own, run, START, lane="online", claimer=WORKER, token=uuid4(), timeout=60.0)

    with ThreadPoolExecutor(1) as pool, connect(ledger_url, name="holder", autocommit=False) as holder:
        holder.execute("SELECT FROM safepoint.runs WHERE run_id = %s FOR UPDATE", (run,))
        racer = pool.submit(claim_it)
        eventually(lambda: assert_waiting(connection, 1))
        clock.forward(5.0)
        holder.rollback()
        answer = racer.result()

    assert isinstance(answer, Claimed)
    assert answer.db_now == clock.now


def test_p7_every_function_asks_the_one_clock(connection: Connection) -> None:
    bodies = connection.execute(
        "SELECT proname FROM pg_proc WHERE pronamespace = 'safepoint'::regnamespace AND proname <> 'now'"
        r" AND regexp_replace(prosrc, '--[^\n]*', '', 'g') ~ '(^|[^.\w])(now|clock_timestamp|statement_timestamp)\('"
    ).fetchall()

    assert bodies == []


def test_p4_the_first_sending_of_a_claim_is_refused_after_its_repetition_ended(
    connection: Connection, run: UUID
) -> None:
    token = claimed(connection, run, START)
    retry(connection, run, START, token=token, node="worker", error={"type": "Boom", "message": ""}, delay=0.0)

    late = claim(connection, run, START, lane="online", claimer=WORKER, token=token, timeout=60.0)

    assert isinstance(late, NotYours)


def test_p29_a_late_commit_of_one_poison_step_leaves_the_hold_of_another(connection: Connection, run: UUID) -> None:
    started(connection, run, step(A), step(B))
    tokens = {key: claimed(connection, run, key) for key in (A, B)}
    for key, token in tokens.items():
        loss = Loss(run, key, token, Cause.CHILD, deadly=True, pid=1, pid_start=1)
        assert lose(connection, loss, lane="recovery", max_deaths=0) == "poison"
    late = commit(connection, run, A, token=tokens[A], node="worker", result=OK, advanced_from=None, joins="gather#1")

    assert late.verdict == "committed"
    assert late.run_status == "held"
    assert control.resume(connection, run, by="test") == "running"
    claimed(connection, run, B, lane="recovery")


def test_p14_mail_that_waited_for_a_paused_runs_wait_is_not_dispatched(connection: Connection, run: UUID) -> None:
    assert signal(connection, run) == "stored"
    token = claimed(connection, run, START)
    control.pause(connection, run, by="test")
    commit(connection, run, START, token=token, node="worker", result=OK, advanced_from=0, asked=[wait(GO)])

    assert outbox.dispatch(connection, limit=10, grace=1.0, redispatch_after=10.0) == []
    control.resume(connection, run, by="test")
    assert [row.key for row in outbox.dispatch(connection, limit=10, grace=1.0, redispatch_after=10.0)] == [GO]


def test_g1_a_second_commit_under_another_claim_finds_its_lease_lost(
    connection: Connection, clock: Clock, run: UUID
) -> None:
    zombie = claimed(connection, run, START)
    clock.forward(16.0)
    lose(connection, Loss(run, START, zombie, Cause.LEASE), lane="recovery", max_deaths=5)
    owner = claimed(connection, run, START, lane="recovery")
    done = Ending("succeeded")

    assert commit(connection, run, START, token=zombie, node="worker", result=OK, advanced_from=0).verdict == "lost"
    final = commit(connection, run, START, token=owner, node="worker", result=OK, advanced_from=0, ending=done)
    assert (final.verdict, final.run_status) == ("committed", "succeeded")


def test_p35_a_late_commit_is_accepted_while_nobody_has_claimed_again(
    connection: Connection, clock: Clock, run: UUID
) -> None:
    late = claimed(connection, run, START)
    clock.forward(16.0)
    lose(connection, Loss(run, START, late, Cause.LEASE), lane="recovery", max_deaths=5)

    answer = commit(connection, run, START, token=late, node="worker", result=OK, advanced_from=0, asked=[step(A)])

    assert answer.verdict == "committed"
    assert answer.late

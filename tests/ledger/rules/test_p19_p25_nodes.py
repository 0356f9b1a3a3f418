"""P19 to P25: leases, session locks, draining, poison, and who may give back whose step."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from ledger_clock import Clock
from ledger_fixtures import Crowd
from ledger_proxy import LedgerProxy
from ledger_verbs import LEASE, NODE, PARKED, Verbs, ask, key
from safepoint.ledger import nodes
from safepoint.ledger.connect import Connection, connect
from safepoint.ledger.steps import Cause, Claimed
from safepoint.recovery.scan import scan
from safepoint.tasks.board import Board
from safepoint.tasks.node import Heartbeat
from workshop import settings_of

A, B = key("a#1"), key("b#1")


def two_running(verbs: Verbs) -> tuple[UUID, Claimed, Claimed]:
    run = verbs.begun(ask("a#1"), ask("b#1"))
    return run, verbs.claimed(run, A), verbs.claimed(run, B)


# P19: one statement a beat.


@pytest.fixture
def heartbeat(crowd: Crowd, crowded_ledger_url: str, tmp_path: Path) -> Iterator[Callable[..., Heartbeat]]:
    made: list[Heartbeat] = []

    def make(url: str = crowded_ledger_url, **worker: Any) -> Heartbeat:
        node = nodes.Node("beating", "host", 1, ("online",), ("f@1",), concurrency=100)
        board = Board(slots=100, lanes=("online",))
        made.append(Heartbeat(settings_of(tmp_path, worker=worker), url, node, board))
        return made[-1]

    yield make
    for one in made:
        one.stop()


def test_p19_a_beat_is_one_statement_however_many_steps_are_active(
    heartbeat: Callable[..., Heartbeat], crowd: Crowd, crowded_ledger_url: str
) -> None:
    with LedgerProxy(crowded_ledger_url) as proxy, ExitStack() as stack:
        node = heartbeat(proxy.url)
        assert node.once() is not None  # registers
        for slot in range(50):
            stack.enter_context(node.board.executing(slot, uuid4()))
        proxy.statements.clear()

        assert node.once() is not None

        assert list(proxy.statements.values()) == [1]
    assert len(crowd().value("SELECT active FROM safepoint.nodes WHERE node_id = 'beating'")) == 50


def test_p19_a_beat_touches_no_row_of_a_step(verbs: Verbs) -> None:
    _, a, b = two_running(verbs)
    before = verbs.rows("SELECT ctid, xmin, * FROM safepoint.steps ORDER BY path, step_id")

    verbs.beat(a.token, b.token)

    assert verbs.rows("SELECT ctid, xmin, * FROM safepoint.steps ORDER BY path, step_id") == before


def test_p19_a_beat_keeps_every_step_of_its_node(verbs: Verbs, clock: Clock) -> None:
    _, a, b = two_running(verbs)
    for _ in range(10):
        clock.forward(LEASE - 1)
        verbs.beat(a.token, b.token)

    assert not any(orphan.lease_over for orphan in verbs.look(lease=1000).orphans)
    assert (verbs.lose(a, Cause.LEASE), verbs.lose(b, Cause.LEASE)) == ("alive", "alive")


def test_p19_a_step_is_lost_when_its_own_deadline_has_passed_though_its_node_lives(verbs: Verbs, clock: Clock) -> None:
    run = verbs.begun(ask("a#1"))
    claimed = verbs.claimed(run, A, timeout=10.0)
    clock.forward(10)
    verbs.beat(claimed.token)

    assert [orphan.expired for orphan in verbs.look().orphans] == [True]
    assert verbs.lose(claimed, Cause.TIMEOUT) == "lost"


# P4: a beat names what really executes.


def test_p04_a_claim_that_two_beats_did_not_name_is_an_orphan(verbs: Verbs, clock: Clock) -> None:
    run = verbs.begun(ask("a#1"))
    clock.forward(1)
    claimed = verbs.claimed(run, A)  # its answer was lost, and its worker lives on
    found = []
    for _ in range(2):
        clock.forward(1)
        verbs.beat()
        found.append([orphan.key for orphan in verbs.look(lease=1000).orphans])

    assert found == [[], [A]]
    assert verbs.lose(claimed, Cause.UNNAMED) == "lost"


def test_p04_one_beat_that_forgot_a_claim_is_forgiven(verbs: Verbs, clock: Clock) -> None:
    run = verbs.begun(ask("a#1"))
    claimed = verbs.claimed(run, A)
    for named in ([claimed.token], [], [claimed.token], []):
        clock.forward(1)
        verbs.beat(*named)

        assert verbs.look(lease=1000).orphans == ()
        assert verbs.lose(claimed, Cause.UNNAMED) == "alive"


def test_p04_a_claim_between_two_beats_is_no_orphan(verbs: Verbs, clock: Clock) -> None:
    run = verbs.begun(ask("a#1"))
    clock.forward(1)
    verbs.beat()
    clock.forward(1)
    verbs.claimed(run, A)
    clock.forward(1)
    verbs.beat()  # was read before the claim, and arrived after it

    assert verbs.look(lease=1000).orphans == ()


# P21: a missing session lock is a suspicion.


@contextmanager
def locked_node(crowd: Crowd, url: str, name: str = "locked") -> Iterator[Connection]:
    with connect(url, name="node") as holder:
        assert nodes.hold_session_lock(holder, name)
        crowd().node(name, lock=True)
        yield holder


def test_p21_a_killed_nodes_lock_is_missing_at_once(
    crowd: Crowd, crowded_ledger_url: str, eventually: Callable[..., None]
) -> None:
    verbs = crowd()
    run = verbs.begun(ask("a#1"))
    with locked_node(crowd, crowded_ledger_url):
        claimed = verbs.claimed(run, A, node="locked")
        alive = verbs.look().orphans, verbs.lose(claimed, Cause.NODE)
    eventually(lambda: verbs.assert_unlocked("locked"))

    assert alive == ((), "alive")
    assert [orphan.lock_missing for orphan in verbs.look().orphans] == [True]
    assert verbs.lose(claimed, Cause.NODE) == "lost"


def test_p21_after_a_restart_of_the_server_a_missing_lock_says_nothing(
    crowd: Crowd, crowded_ledger_url: str, eventually: Callable[..., None]
) -> None:
    verbs = crowd()
    run = verbs.begun(ask("a#1"))
    with locked_node(crowd, crowded_ledger_url):
        claimed = verbs.claimed(run, A, node="locked")
    eventually(lambda: verbs.assert_unlocked("locked"))
    verbs.connection.execute("UPDATE safepoint.nodes SET server_started = server_started - interval '1 day'")

    assert verbs.look().orphans == ()
    assert verbs.lose(claimed, Cause.NODE) == "alive"


def test_p21_a_beat_tells_a_node_to_register_under_the_new_server(verbs: Verbs) -> None:
    assert not verbs.beat().must_register
    verbs.connection.execute("UPDATE safepoint.nodes SET server_started = server_started - interval '1 day'")

    assert verbs.beat().must_register
    verbs.node()
    assert not verbs.beat().must_register


def test_p21_a_node_whose_backend_was_terminated_takes_its_lock_again_before_anybody_takes_its_steps(
    heartbeat: Callable[..., Heartbeat], crowd: Crowd, tmp_path: Path, eventually: Callable[..., None]
) -> None:
    verbs = crowd()
    run = verbs.begun(ask("a#1"))
    node = heartbeat()
    node.start()
    claimed = verbs.claimed(run, A, node="beating")
    with node.board.executing(0, claimed.token):
        old = backend_of_lock(verbs)
        verbs.connection.execute("SELECT pg_terminate_backend(%s)", (old,))
        found = scan(verbs.connection, settings_of(tmp_path), by="test", force=True)
        eventually(lambda: assert_locked_by_another(verbs, old))

    assert found.expired == 0
    assert verbs.statuses(run)["a#1"] == "running"


def backend_of_lock(verbs: Verbs) -> int:
    return int(verbs.value("SELECT coalesce(max(pid), 0) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1"))


def assert_locked_by_another(verbs: Verbs, old: int) -> None:
    assert backend_of_lock(verbs) not in (0, old)


class Pooler:
    """What a transaction pooler makes of one session: each statement may come to another backend."""

    def __init__(self, *backends: Connection) -> None:
        self._backends = list(backends)

    def execute(self, *arguments: Any) -> Any:
        self._backends.append(self._backends.pop(0))
        return self._backends[-1].execute(*arguments)


def test_p21_a_transaction_pooler_is_noticed_and_a_direct_connection_is_not(crowd: Crowd) -> None:
    direct, other = crowd().connection, crowd().connection
    pooled: Any = Pooler(crowd().connection, crowd().connection)
    assert nodes.hold_session_lock(direct, "direct")
    assert nodes.hold_session_lock(pooled, "pooled")

    assert nodes.session_locks_work(direct, other, "direct")
    assert not nodes.session_locks_work(pooled, other, "pooled")


def test_p21_without_a_lock_leases_alone_decide(verbs: Verbs, clock: Clock) -> None:
    run = verbs.begun(ask("a#1"))
    claimed = verbs.claimed(run, A)

    assert verbs.look().orphans == ()
    clock.forward(LEASE)
    assert verbs.lose(claimed, Cause.LEASE) == "lost"


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
    verbs.connection.execute(
        "INSERT INTO safepoint.effects (idempotency_key, reference, tenant_id, run_id, generation, path, step_id,"
        " iteration, status, request, request_encoding, request_digest, created_at)"
        " VALUES ('k', 'r', 'default', %s, 1, '', 'a', 1, 'executing', '', 'json', '', safepoint.now())",
        (run,),
    )

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


def test_p20_a_beat_that_fails_is_no_beat_and_the_next_one_registers_again(
    heartbeat: Callable[..., Heartbeat], crowded_ledger_url: str
) -> None:
    with LedgerProxy(crowded_ledger_url) as proxy:
        node = heartbeat(proxy.url)
        node.once()
        node.board.beaten(time.monotonic() - 7)
        proxy.refuse()
        failed = node.once(), node.board.since_beat()
        proxy.accept()

        assert failed == (None, pytest.approx(7, abs=3))
        assert node.once() is not None
        assert node.board.since_beat() < 3


def test_p21_a_lock_of_another_database_is_not_ours(crowd: Crowd, postgres_url: str) -> None:
    verbs = crowd()
    verbs.node("elsewhere", lock=True)
    with psycopg.connect(postgres_url, autocommit=True) as other:
        other.execute("SELECT pg_advisory_lock(%s)", (nodes.lock_key("elsewhere"),))

        assert not verbs.value("SELECT safepoint.has_lock_v1(%s)", (nodes.lock_key("elsewhere"),))

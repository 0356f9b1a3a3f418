"""P4, P19 to P21: beats, leases and session locks."""

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
from ledger_verbs import LEASE, Verbs, ask, key
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


def test_p21_a_pooler_that_lends_two_clients_one_backend_in_turn_is_noticed(crowd: Crowd) -> None:
    backend = crowd().connection  # what an idle pooler makes of both: the one that was used last
    assert nodes.hold_session_lock(backend, "pooled")

    assert not nodes.session_locks_work(backend, backend, "pooled")


def test_p21_without_a_lock_leases_alone_decide(verbs: Verbs, clock: Clock) -> None:
    run = verbs.begun(ask("a#1"))
    claimed = verbs.claimed(run, A)

    assert verbs.look().orphans == ()
    clock.forward(LEASE)
    assert verbs.lose(claimed, Cause.LEASE) == "lost"


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

"""The orphan scan: any number at once, cheap when idle, killed anywhere, and patient after a time without a ledger."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import UUID

import pytest
import workshop
from ledger_clock import Clock
from ledger_fixtures import Crowd
from ledger_proxy import LedgerProxy
from ledger_verbs import LEASE, NODE, Verbs, ask, key
from safepoint.config.settings import Settings
from safepoint.ledger import nodes
from safepoint.ledger.connect import connect
from safepoint.ledger.steps import Cause, Loss, lose
from safepoint.recovery.scan import Sweep, recovery_lane, scan
from workshop import settings_of

A = key("a#1")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return settings_of(tmp_path)


def swept(verbs: Verbs, settings: Settings, **more: object) -> Sweep:
    return scan(verbs.connection, settings, by="test", wait=already(), **{"force": True, **more})  # type: ignore[arg-type]  # flags


def already() -> threading.Event:
    """A wait that is over: the clock is the test's."""
    event = threading.Event()
    event.set()
    return event


def orphaned(verbs: Verbs, count: int = 1) -> list[UUID]:
    """Runs with a step each whose node's lease is over; other nodes beat on."""
    runs = [verbs.begun(ask("a#1")) for _ in range(count)]
    for run in runs:
        verbs.claimed(run, A, timeout=1e6)
    verbs.node("node-2", lease=1e6)
    return runs


def pass_time(verbs: Verbs, clock: Clock, settings: Settings, seconds: float) -> None:
    """Let time pass as it does while scans and beats go on."""
    for _ in range(int(seconds)):
        clock.forward(1)
        verbs.beat(node="node-2")
    verbs.look(lease=settings.worker.lease)


def lost(verbs: Verbs, runs: list[UUID]) -> int:
    return sum(verbs.events(run).count("step.lost") for run in runs)


# What it does.


def test_p23_who_died_in_a_crowd_did_not_die_alone_however_few_a_scan_looks_at(
    verbs: Verbs, clock: Clock, settings: Settings
) -> None:
    """A node that went with three steps; scans that take two at a time must not meet the third one by itself."""
    runs = [verbs.begun(ask("a#1")) for _ in range(3)]
    tokens = [verbs.claimed(run, A, timeout=1e6).token for run in runs]
    verbs.node("node-2", lease=1e6)
    verbs.beat(*tokens)
    pass_time(verbs, clock, settings, LEASE)

    sweeps = [swept(verbs, settings, limit=2) for _ in range(2)]

    assert [(one.expired, one.is_full) for one in sweeps] == [(1, True), (2, False)]
    assert [verbs.step(run, A)["deaths"] for run in runs] == [0, 0, 0]


def test_a_long_scan_says_that_it_goes_on(
    verbs: Verbs, clock: Clock, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("safepoint.recovery.scan.BREATH", 1)
    orphaned(verbs, 2)
    pass_time(verbs, clock, settings, LEASE)
    told: list[object] = []

    def slow(*arguments: object, **more: object) -> str:
        told.append(verbs.value("SELECT last_scan_at = safepoint.now() FROM safepoint.identity"))
        clock.forward(100)  # another scan would be due by now
        return lose(*arguments, **more)  # type: ignore[arg-type]  # as it was called

    monkeypatch.setattr("safepoint.recovery.scan.steps.lose", slow)
    swept(verbs, settings)

    assert told == [True, True]


def test_a_scan_gives_the_steps_of_a_dead_node_to_the_recovery_lane(
    verbs: Verbs, clock: Clock, settings: Settings
) -> None:
    runs = orphaned(verbs, 3)
    pass_time(verbs, clock, settings, LEASE)

    sweep = swept(verbs, settings)

    assert (sweep.expired, sweep.undelivered) == (3, 3)
    assert {verbs.step(run, A)["lane"] for run in runs} == {"recovery"}
    assert lost(verbs, runs) == 3


def test_a_scan_leaves_a_live_nodes_steps_alone(verbs: Verbs, clock: Clock, settings: Settings) -> None:
    runs = orphaned(verbs, 3)
    pass_time(verbs, clock, settings, LEASE - 1)

    assert swept(verbs, settings).expired == 0
    assert {verbs.statuses(run)["a#1"] for run in runs} == {"running"}


def test_without_a_recovery_lane_orphans_go_to_the_ordinary_one(settings: Settings) -> None:
    bare = settings.model_copy(update={"lanes": {"online": settings.lanes["online"]}})

    assert (recovery_lane(settings), recovery_lane(bare)) == ("recovery", "online")


def test_a_scan_tells_what_it_did_in_the_public_words(verbs: Verbs, clock: Clock, settings: Settings) -> None:
    verbs.begun(ask("nap#1", "timer", delay=1.0))
    verbs.begun(ask("a#1"))
    clock.forward(2)
    verbs.node(lease=1e6)

    assert swept(verbs, settings).as_json() == {"expired": 0, "undelivered": 2, "unsettled": 0, "due": 1}


# Any number of scans.


def test_two_scans_at_once_take_each_step_once(crowd: Crowd, crowd_clock: Clock, settings: Settings) -> None:
    one, other = crowd(), crowd()
    runs = orphaned(one, 5)
    pass_time(one, crowd_clock, settings, LEASE)

    with one.connection.transaction():
        first = swept(one, settings)
        second = other.look()  # while the first one is at it

    assert (first.expired, second.ran) == (5, False)
    assert swept(other, settings).expired == 0
    assert lost(one, runs) == 5


def test_five_scans_that_have_found_the_same_take_each_step_once(
    crowd: Crowd, crowd_clock: Clock, settings: Settings
) -> None:
    one, scanners = crowd(), [crowd() for _ in range(5)]
    runs = orphaned(one, 20)
    pass_time(one, crowd_clock, settings, LEASE)
    found = one.look().orphans

    def take(verbs: Verbs) -> list[str]:
        losses = [Loss(orphan.run_id, orphan.key, orphan.token, Cause.LEASE) for orphan in found]
        return [lose(verbs.connection, loss, lane="recovery", max_deaths=5) for loss in losses]

    with ThreadPoolExecutor(5) as pool:
        answers = [answer for answers in pool.map(take, scanners) for answer in answers]

    assert (answers.count("lost"), answers.count("moved")) == (20, 80)
    assert lost(one, runs) == 20
    assert {one.step(run, A)["recoveries"] for run in runs} == {1}


def test_five_scans_at_once_take_each_step_once(crowd: Crowd, crowd_clock: Clock, settings: Settings) -> None:
    one, scanners = crowd(), [crowd() for _ in range(5)]
    runs = orphaned(one, 20)
    pass_time(one, crowd_clock, settings, LEASE)

    with ThreadPoolExecutor(5) as pool:
        sweeps = list(pool.map(lambda verbs: swept(verbs, settings), scanners))

    assert sum(sweep.expired for sweep in sweeps) == 20
    assert lost(one, runs) == 20


def test_a_scan_that_follows_another_within_the_interval_does_nothing(
    verbs: Verbs, clock: Clock, settings: Settings
) -> None:
    scan(verbs.connection, settings, by="first", wait=already())
    clock.forward(settings.scan.interval * 0.2)

    assert not scan(verbs.connection, settings, by="second", wait=already()).ran
    clock.forward(settings.scan.interval)
    assert scan(verbs.connection, settings, by="third", wait=already()).ran


DOOMED = """
import sys
from pathlib import Path
from safepoint.ledger.connect import connect
from safepoint.recovery.scan import scan
from workshop import settings_of
scan(connect(sys.argv[1], name="doomed"), settings_of(Path(sys.argv[2])), by="doomed", force=True)
"""


def test_a_scan_killed_between_two_takeovers_leaves_the_rest_to_the_next(
    crowd: Crowd, crowd_clock: Clock, settings: Settings, crowded_ledger_url: str
) -> None:
    verbs = crowd()
    runs = orphaned(verbs, 5)
    pass_time(verbs, crowd_clock, settings, LEASE)
    path = os.pathsep.join([str(Path(workshop.__file__).parent), os.environ.get("PYTHONPATH", "")])
    kill = {"SAFEPOINT_CRASH_POINTS": "1", "SAFEPOINT_CRASH": "scan.requeued:2", "PYTHONPATH": path}

    command = [sys.executable, "-c", DOOMED, crowded_ledger_url, str(settings.home)]
    done = subprocess.run(command, env={**os.environ, **kill}, capture_output=True, check=False, timeout=60)

    assert done.returncode == -signal.SIGKILL, done.stderr
    assert lost(verbs, runs) == 2
    assert swept(verbs, settings).expired == 3
    assert lost(verbs, runs) == 5


def test_an_idle_scan_is_two_statements_however_many_runs_there_are(
    crowd: Crowd, crowded_ledger_url: str, settings: Settings
) -> None:
    verbs = crowd()
    verbs.many(500)
    with LedgerProxy(crowded_ledger_url) as proxy, connect(proxy.url, name="scan") as connection:
        for _ in range(3):
            scan(connection, settings, by="test", force=True, wait=already())

        assert sorted(proxy.statements.values()) == [3, 3]


# P20: a time without a ledger is nobody's lease time.


@pytest.mark.parametrize("gap", [LEASE / 3 + 1, LEASE * 2, 3600.0])
def test_p20_after_a_gap_nothing_is_taken_over_for_one_lease(
    verbs: Verbs, clock: Clock, settings: Settings, gap: float
) -> None:
    runs = orphaned(verbs, 2)
    swept(verbs, settings)

    clock.forward(gap)  # nobody could reach the ledger: no scan, no beat
    frozen = swept(verbs, settings).expired
    pass_time(verbs, clock, settings, LEASE - 1)
    still = swept(verbs, settings).expired
    pass_time(verbs, clock, settings, 2)
    verbs.connection.execute("UPDATE safepoint.nodes SET lease_until = safepoint.now() WHERE node_id = %s", (NODE,))

    assert (frozen, still) == (0, 0)
    assert swept(verbs, settings).expired == 2
    assert lost(verbs, runs) == 2


def test_p20_who_comes_back_after_the_gap_keeps_its_steps(verbs: Verbs, clock: Clock, settings: Settings) -> None:
    runs = orphaned(verbs, 2)
    tokens = [verbs.step(run, A)["claim_token"] for run in runs]
    swept(verbs, settings)
    clock.forward(LEASE * 2)
    swept(verbs, settings)

    verbs.beat(*tokens)
    for _ in range(20):
        clock.forward(1)
        verbs.beat(*tokens)
        assert swept(verbs, settings).expired == 0

    assert lost(verbs, runs) == 0


def test_p20_a_timeout_that_passed_without_a_ledger_waits_too(verbs: Verbs, clock: Clock, settings: Settings) -> None:
    run = verbs.begun(ask("a#1"))
    verbs.claimed(run, A, timeout=10.0)  # done in time, and not to be committed for 20 seconds
    swept(verbs, settings)
    clock.forward(20)

    assert swept(verbs, settings).expired == 0
    assert verbs.statuses(run)["a#1"] == "running"


@pytest.mark.parametrize("column", ["server_started = server_started - interval '1 day'", "timeline = '000000FF'"])
def test_p20_a_restarted_or_promoted_server_freezes_takeovers(
    verbs: Verbs, clock: Clock, settings: Settings, column: str
) -> None:
    orphaned(verbs)
    pass_time(verbs, clock, settings, LEASE)
    verbs.connection.execute(f"UPDATE safepoint.identity SET {column}".encode())

    found = verbs.look()

    assert (found.frozen, len(found.orphans)) == (True, 1)
    pass_time(verbs, clock, settings, LEASE)
    assert not verbs.look().frozen


def test_p20_while_beats_go_on_a_missing_scan_is_no_gap(verbs: Verbs, clock: Clock, settings: Settings) -> None:
    orphaned(verbs)
    swept(verbs, settings)
    pass_time(verbs, clock, settings, LEASE * 3)

    assert swept(verbs, settings).expired == 1


def test_p20_a_scan_that_comes_seldom_is_no_gap_for_a_short_lease(verbs: Verbs, clock: Clock) -> None:
    """All workers are dead, and only a relay scans, every three seconds."""
    verbs.node("short", lease=5.0)
    run = verbs.begun(ask("a#1"))
    verbs.claimed(run, A, node="short", timeout=1e6)
    found = []
    for _ in range(4):
        clock.forward(3)
        found.append(verbs.look(lease=5.0, interval=3.0))

    assert not any(one.frozen for one in found)
    assert len(found[-1].orphans) == 1


def test_p20_the_first_scan_of_a_ledger_is_not_frozen(verbs: Verbs, clock: Clock) -> None:
    assert verbs.look().frozen is False


# P21: a suspicion.


@pytest.fixture
def suspect(crowd: Crowd, crowded_ledger_url: str, eventually: Callable[..., None]) -> tuple[Verbs, list[UUID]]:
    """Two steps of a node whose session has just gone."""
    verbs = crowd()
    runs = [verbs.begun(ask("a#1")) for _ in range(2)]
    with connect(crowded_ledger_url, name="node") as holder:
        nodes.hold_session_lock(holder, "killed")
        verbs.node("killed", lock=True)
        for run in runs:
            verbs.claimed(run, A, node="killed")
    eventually(lambda: verbs.assert_unlocked("killed"))
    return verbs, runs


def test_p21_a_node_whose_lock_is_gone_is_looked_at_twice_and_then_taken(
    suspect: tuple[Verbs, list[UUID]], settings: Settings
) -> None:
    verbs, runs = suspect

    assert swept(verbs, settings).expired == 2
    assert lost(verbs, runs) == 2
    assert {verbs.step(run, A)["deaths"] for run in runs} == {0}  # P23: they died together


def test_p21_a_node_that_has_its_lock_again_at_the_second_look_is_left_alone(
    suspect: tuple[Verbs, list[UUID]], settings: Settings, crowded_ledger_url: str
) -> None:
    verbs, runs = suspect
    with connect(crowded_ledger_url, name="node") as holder:

        class Moment(threading.Event):
            def wait(self, timeout: float | None = None) -> bool:
                return nodes.hold_session_lock(holder, "killed")  # its next beat comes in between

        sweep = scan(verbs.connection, settings, by="test", force=True, wait=Moment())

    assert sweep.expired == 0
    assert lost(verbs, runs) == 0


def test_p23_a_step_that_was_alone_with_its_dead_process_may_have_killed_it(
    crowd: Crowd, crowded_ledger_url: str, settings: Settings, eventually: Callable[..., None]
) -> None:
    verbs = crowd()
    run = verbs.begun(ask("a#1"))
    with connect(crowded_ledger_url, name="node") as holder:
        nodes.hold_session_lock(holder, "killed")
        verbs.node("killed", lock=True)
        claimed = verbs.claimed(run, A, node="killed", pid=7)
        marks = {"@memory": {"resident": {"7": 5, "8": 6}, "allowed": 9}}
        verbs.beat(claimed.token, node="killed", marks=marks)
    eventually(lambda: verbs.assert_unlocked("killed"))

    swept(verbs, settings)

    assert verbs.step(run, A)["deaths"] == 1
    (told,) = verbs.rows("SELECT data->'evidence' AS it FROM safepoint.events WHERE type = 'step.lost'")
    # Of a worker that nobody has seen die, what its last beat has told of the process that had the step.
    assert told["it"] == {"counted": True, "pid": 7, "resident": 5, "allowed": 9, "seen": "last beat"}


# Chores.


def test_p30_the_scan_wakes_the_parent_of_a_finished_child(verbs: Verbs, clock: Clock, settings: Settings) -> None:
    facts = {"flow": "f", "version": "1", "input": "e30=", "encoding": "json", "hash": "00", "versions": {}}
    child = UUID(int=7)
    parent = verbs.begun(ask("sub#1", "child", child={"run_id": str(child), **facts}))
    verbs.done(child, ending="succeeded")

    assert swept(verbs, settings).due == 1
    assert verbs.statuses(parent)["sub#1"] == "ready"


def test_a_scan_ends_what_has_passed_its_deadline(verbs: Verbs, clock: Clock, settings: Settings) -> None:
    run = verbs.begun(ask("a#1"), deadline=clock.now.replace(second=5))
    clock.forward(5)

    assert swept(verbs, settings).due == 1
    assert verbs.run(run)["status"] == "failed"


def test_p10_a_stalled_run_raises_an_alarm(
    verbs: Verbs, clock: Clock, settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    verbs.begun(ask("a#1"))
    verbs.connection.execute("DELETE FROM safepoint.steps WHERE step_id = 'a'")
    clock.forward(60)

    assert swept(verbs, settings).due == 1
    assert "run.stalled" in capsys.readouterr().out

"""The relay: publishes what is due, settles it, and is harmless twice, half, or dead."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import UUID

import pytest
from ledger_clock import Clock
from ledger_fixtures import Crowd
from ledger_proxy import LedgerProxy
from ledger_verbs import LEASE, Verbs, ask, key
from safepoint.config.settings import Settings
from safepoint.ledger import lanes, nodes
from safepoint.recovery import admission
from safepoint.tasks.relay import FIRST, SELDOM, WHOLE, Pass, Relay, redispatch_after
from safepoint.tasks.wire import SCAN
from workshop import Belt, settings_of

A = key("a#1")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return settings_of(tmp_path)


MakeRelay = Callable[..., tuple[Relay, Belt]]


@pytest.fixture
def relays(settings: Settings, crowded_ledger_url: str) -> Iterator[MakeRelay]:
    made: list[Relay] = []

    def make(url: str = crowded_ledger_url, *, belt: Belt | None = None, name: str = "relay") -> tuple[Relay, Belt]:
        belt = belt or Belt()
        made.append(Relay(settings, url, crowded_ledger_url, belt, name=name))  # type: ignore[arg-type]  # it publishes
        return made[-1], belt

    yield make
    for relay in made:
        relay.stop()
        relay._disconnect()


def started(verbs: Verbs, clock: Clock, count: int = 3) -> list[UUID]:
    """Runs with a step each that is due."""
    runs = [verbs.begun(ask("a#1")) for _ in range(count)]
    clock.forward(1)
    return runs


def test_a_round_publishes_what_is_due_and_settles_it(crowd: Crowd, crowd_clock: Clock, relays: MakeRelay) -> None:
    verbs = crowd()
    runs = started(verbs, crowd_clock)
    relay, belt = relays()

    done = relay.once()

    assert (done.published, done.settled, done.failed) == (3, 3, 0)
    assert sorted(message.run for message in belt.sent) == sorted(map(str, runs))
    assert {verbs.step(run, A)["dispatches"] for run in runs} == {1}
    assert relay.once().published == 0


def test_a_message_carries_ids_and_what_flower_shows(crowd: Crowd, crowd_clock: Clock, relays: MakeRelay) -> None:
    verbs = crowd()
    (run,) = started(verbs, crowd_clock, 1)
    verbs.retry(verbs.claimed(run, A))
    relay, belt = relays()

    relay.once()

    (message,) = belt.sent
    shown = (message.run, message.step, message.lane, message.name, message.attempt, message.epoch)
    assert shown == (str(run), "a#1", "online", "a", 2, 2)


def test_what_does_not_reach_the_broker_stays_due(crowd: Crowd, crowd_clock: Clock, relays: MakeRelay) -> None:
    verbs = crowd()
    runs = started(verbs, crowd_clock)
    relay, belt = relays()
    belt.broken = lambda _: True
    failed = relay.once()

    belt.broken = lambda _: False
    early = relay.once()
    crowd_clock.forward(5)
    done = relay.once()

    assert (failed.published, failed.failed, early.published, done.published) == (0, 3, 0, 3)
    assert {verbs.step(run, A)["dispatches"] for run in runs} == {1}


def test_one_message_that_fails_keeps_no_other_back(crowd: Crowd, crowd_clock: Clock, relays: MakeRelay) -> None:
    verbs = crowd()
    runs = started(verbs, crowd_clock)
    relay, belt = relays()
    belt.broken = lambda message: message.run == str(runs[1])

    done = relay.once()

    assert (done.published, done.settled, done.failed) == (2, 2, 1)
    assert verbs.step(runs[1], A)["dispatches"] == 0


def test_a_broker_that_is_away_for_long_costs_one_batch_a_round(
    crowd: Crowd, crowd_clock: Clock, relays: MakeRelay, settings: Settings
) -> None:
    verbs = crowd()
    verbs.connection.execute('UPDATE safepoint.lanes SET "window" = 1000')
    verbs.many(settings.relay.batch * 3)
    relay, belt = relays()
    tried: list[str] = []
    belt.broken = lambda message: not tried.append(message.run)  # type: ignore[func-returns-value]  # it returns None

    relay.once()

    assert len(tried) == settings.relay.batch


def test_p12_two_relays_at_once_publish_each_row_once(crowd: Crowd, crowd_clock: Clock, relays: MakeRelay) -> None:
    verbs = crowd()
    started(verbs, crowd_clock, 40)
    belt = Belt()
    both = [relays(belt=belt, name=name)[0] for name in ("one", "other")]

    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(lambda relay: relay.once(), both))

    assert sum(one.published for one in done) == 40
    assert max(Counter(message.run for message in belt.sent).values()) == 1


def test_a_relay_that_died_before_it_settled_is_a_duplicate_at_most(
    crowd: Crowd, crowd_clock: Clock, relays: MakeRelay, crowded_ledger_url: str
) -> None:
    verbs = crowd()
    (run,) = started(verbs, crowd_clock, 1)
    with LedgerProxy(crowded_ledger_url) as proxy:
        doomed, belt = relays(proxy.url)
        proxy.cut_before("settle_v1")
        with pytest.raises(Exception, match="closed"):
            doomed.once()
        verbs.claimed(run, A)  # the message has arrived
        crowd_clock.forward(5)
        again, second = relays()

        assert len(belt.sent) == 1
        assert again.once().published == 0
        assert second.sent == []


def test_a_row_that_was_sent_and_not_settled_is_sent_again(
    crowd: Crowd, crowd_clock: Clock, relays: MakeRelay, crowded_ledger_url: str
) -> None:
    verbs = crowd()
    started(verbs, crowd_clock, 1)
    with LedgerProxy(crowded_ledger_url) as proxy:
        doomed, _ = relays(proxy.url)
        proxy.cut_before("settle_v1")
        with pytest.raises(Exception, match="closed"):
            doomed.once()
    crowd_clock.forward(5)

    assert relays()[0].once().published == 1


def test_a_relay_decides_due_waits_and_brings_home_the_ends_of_children(
    crowd: Crowd, crowd_clock: Clock, relays: MakeRelay
) -> None:
    verbs = crowd()
    facts = {"flow": "f", "version": "1", "input": "e30=", "encoding": "json", "hash": "00", "versions": {}}
    child = UUID(int=7)
    run = verbs.begun(ask("nap#1", "timer", delay=2.0), ask("sub#1", "child", child={"run_id": str(child), **facts}))
    verbs.done(child, ending="succeeded")
    crowd_clock.forward(2)
    relay, belt = relays()

    relay.once()

    assert verbs.statuses(run) == {"@start#1": "succeeded", "nap#1": "ready", "sub#1": "ready"}
    assert sorted(belt.steps()) == ["nap#1", "sub#1"]


def test_p11_the_wait_for_a_message_doubles_each_time(settings: Settings) -> None:
    waits = [redispatch_after(settings, dispatches) for dispatches in range(12)]

    assert waits[:4] == [10.0, 20.0, 40.0, 80.0]
    assert max(waits) == 3600.0


def test_a_relay_scans_when_no_scan_has_come(
    crowd: Crowd, crowd_clock: Clock, relays: MakeRelay, settings: Settings
) -> None:
    verbs = crowd()
    run = verbs.begun(ask("a#1"))
    verbs.claimed(run, A, timeout=1e6)
    verbs.node("node-2", lease=1e6)
    for _ in range(int(LEASE)):
        crowd_clock.forward(1)
        verbs.beat(node="node-2")

    relays()[0]._scan_if_late()

    assert verbs.step(run, A)["lane"] == "recovery"


def test_a_lane_that_a_relay_does_not_know_holds_up_no_other(
    crowd: Crowd, crowd_clock: Clock, relays: MakeRelay
) -> None:
    verbs = crowd()
    verbs.connection.execute("INSERT INTO safepoint.lanes (name) VALUES ('abroad')")
    verbs.node("node-3", lanes=("abroad",))
    verbs.begun(ask("a#1", lane="abroad"))
    run = verbs.begun(ask("b#1"))
    crowd_clock.forward(2)
    relay, belt = relays()
    belt.unknown = {"abroad"}

    done = relay.once()

    assert (done.published, done.failed) == (1, 0)
    assert [message.run for message in belt.sent] == [str(run)]


def test_a_relay_takes_orphans_a_few_at_a_time_until_there_are_none(
    crowd: Crowd, crowd_clock: Clock, relays: MakeRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is due must not wait until thousands of them are found."""
    monkeypatch.setattr("safepoint.tasks.relay.FEW", 2)
    verbs = crowd()
    runs = [verbs.begun(ask("a#1")) for _ in range(5)]
    for run in runs:
        verbs.claimed(run, A, timeout=1e6)
    verbs.node("node-2", lease=1e6)
    for _ in range(int(LEASE)):
        crowd_clock.forward(1)
        verbs.beat(node="node-2")
    relay, taken = relays()[0], []

    for _ in range(4):
        relay._scan_if_late()
        taken.append(sum(verbs.step(run, A)["lane"] == "recovery" for run in runs))

    assert taken == [1, 2, 3, 5]


def test_p20_a_relay_does_not_go_on_with_a_scan_that_may_take_nothing(
    crowd: Crowd, crowd_clock: Clock, relays: MakeRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("safepoint.tasks.relay.FEW", 1)
    verbs = crowd()
    runs = [verbs.begun(ask("a#1")) for _ in range(3)]
    for run in runs:
        verbs.claimed(run, A, timeout=1e6)
    verbs.look()
    crowd_clock.forward(LEASE * 3)  # a time without scan and beat
    relay = relays()[0]

    relay._scan_if_late()

    assert {verbs.step(run, A)["status"] for run in runs} == {"running"}
    assert not relay._goes_on


def test_the_loop_is_woken_by_an_enqueue_and_ends_when_it_is_told(
    crowd: Crowd, relays: MakeRelay, eventually: Callable[..., None]
) -> None:
    verbs = crowd()
    relay, belt = relays()
    relay.settings = relay.settings.model_copy(
        update={"relay": relay.settings.relay.model_copy(update={"poll": 60.0})}  # nothing but a NOTIFY comes sooner
    )
    loop = threading.Thread(target=relay.run)
    loop.start()
    eventually(lambda: assert_listening(verbs))

    run = verbs.enqueue()

    eventually(lambda: assert_sent(belt, run))
    relay.stop()
    loop.join(timeout=5)
    assert not loop.is_alive()


def test_a_word_on_a_lane_wakes_the_relay(crowd: Crowd, relays: MakeRelay, eventually: Callable[..., None]) -> None:
    verbs = crowd()
    admission.pause(verbs.connection, "online", seconds=None, by="ann", why="test")
    runs = [verbs.enqueue() for _ in range(3)]
    relay, belt = relays()
    relay.settings = relay.settings.model_copy(
        update={"relay": relay.settings.relay.model_copy(update={"poll": 60.0})}  # nothing but a NOTIFY comes sooner
    )
    loop = threading.Thread(target=relay.run)
    loop.start()
    eventually(lambda: assert_listening(verbs))
    while_paused = list(belt.sent)

    admission.override(verbs.connection, "online", {"in_flight": "1"}, seconds=None, by="ann", why="test")
    admission.resume(verbs.connection, "online", by="ann", why="test")
    eventually(lambda: assert_count(belt, 1))
    lanes.lift(verbs.connection, "online", None, by="ann", why="test")
    eventually(lambda: assert_count(belt, 3))

    relay.stop()
    loop.join(timeout=5)
    assert while_paused == []
    assert {message.run for message in belt.sent} == {str(run) for run in runs}


def polling(relay: Relay, seconds: float) -> None:
    """Let this relay look so often; nobody scans late meanwhile."""
    table = relay.settings.relay.model_copy(update={"poll": seconds})
    relay.settings = relay.settings.model_copy(update={"relay": table})
    relay._scanned = relay._watched = time.monotonic()
    relay._ran = 0.0  # no step has run for a while


def test_p21_a_worker_that_died_is_scanned_for_before_its_time(
    crowd: Crowd, relays: MakeRelay, eventually: Callable[..., None]
) -> None:
    worker = crowd()
    worker.node("mortal", lock=True)
    assert nodes.hold_session_lock(worker.connection, "mortal")
    worker.claimed(worker.begun(ask("a#1")), A, node="mortal")
    relay, belt = relays()
    relay._watch()
    while_alive = list(belt.chores)

    worker.connection.close()

    def looked() -> None:
        relay._watch()
        assert {chore.name for chore in belt.chores} == {SCAN}

    eventually(looked)
    for _ in range(3 * SELDOM):  # nobody scans here: it is frozen, or there is a lot
        relay._watch()
    assert while_alive == []
    assert len(belt.chores) <= FIRST + 4
    assert belt.chores[0].queue == relay.settings.lanes["control"].queue


def test_p21_a_worker_without_work_is_nobodys_concern(crowd: Crowd, relays: MakeRelay) -> None:
    worker = crowd()
    worker.node("mortal", lock=True)
    worker.connection.close()
    relay, belt = relays()

    relay._watch()

    assert belt.chores == []


def test_an_idle_relay_asks_one_question_each_poll_until_a_whole_round(
    crowd: Crowd, relays: MakeRelay, crowded_ledger_url: str
) -> None:
    crowd()
    with LedgerProxy(crowded_ledger_url) as proxy:
        relay, _ = relays(proxy.url)
        polling(relay, 0.01)

        relay._wait(Pass())

        assert list(proxy.statements.values()) == [WHOLE]


def test_p17_what_comes_due_without_a_word_is_sent_at_the_next_poll(
    crowd: Crowd, relays: MakeRelay, eventually: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("safepoint.tasks.relay.WHOLE", 10**6)  # no whole round comes to help
    verbs = crowd()
    run = verbs.begun(ask("a#1"))
    verbs.connection.execute("UPDATE safepoint.steps SET due_at = due_at + interval '1 day' WHERE status = 'ready'")
    relay, belt = relays()
    polling(relay, 0.05)
    loop = threading.Thread(target=relay.run)
    loop.start()
    eventually(lambda: assert_listening(verbs))

    verbs.connection.execute("UPDATE safepoint.steps SET due_at = safepoint.now() WHERE status = 'ready'")

    eventually(lambda: assert_sent(belt, run))
    relay.stop()
    loop.join(timeout=5)


def assert_count(belt: Belt, count: int) -> None:
    assert len(belt.sent) == count


def assert_listening(verbs: Verbs) -> None:
    assert verbs.value("SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%%'") == 1


def assert_sent(belt: Belt, run: UUID) -> None:
    assert [message.run for message in belt.sent] == [str(run)]


def test_the_loop_outlives_a_ledger_that_is_away(
    crowd: Crowd, relays: MakeRelay, crowded_ledger_url: str, eventually: Callable[..., None]
) -> None:
    verbs = crowd()
    with LedgerProxy(crowded_ledger_url) as proxy:
        relay, belt = relays(proxy.url)
        proxy.refuse()
        loop = threading.Thread(target=relay.run)
        loop.start()
        run = verbs.enqueue()
        proxy.accept()

        eventually(lambda: assert_sent(belt, run))
        relay.stop()
        loop.join(timeout=5)

    assert not loop.is_alive()

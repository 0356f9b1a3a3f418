"""P3, P4, P13: a connection that breaks around a claim or a commit; the executor is real, a proxy cuts the wire."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from uuid import UUID

import pytest
from ledger_proxy import LedgerProxy
from ledger_verbs import START, Verbs, key
from safepoint.ledger.steps import Cause, Loss, lose
from safepoint.tasks.loan import Shutdown
from two_steps import between, calls
from workshop import Workshop, settings_of

ONE, TWO = key("lost_one#1"), key("lost_two#1")


@pytest.fixture
def proxy(crowded_ledger_url: str) -> Iterator[LedgerProxy]:
    with LedgerProxy(crowded_ledger_url) as found:
        yield found


@pytest.fixture
def verbs(crowd: Callable[[], Verbs]) -> Verbs:
    return crowd()


@pytest.fixture
def shop(proxy: LedgerProxy, verbs: Verbs, crowded_ledger_url: str, tmp_path: Path) -> Workshop:
    calls.clear()
    between.clear()
    found = Workshop(proxy.url, settings_of(tmp_path, relay={"grace": 0.0}))
    found.register(crowded_ledger_url)
    return found


def enqueue(verbs: Verbs, name: str = "lost_line") -> UUID:
    return verbs.enqueue(flow=name)


def sent(proxy: LedgerProxy, verb: str) -> int:
    return sum(count for text, count in proxy.statements.items() if verb in text)


def stands(verbs: Verbs, run: UUID) -> tuple[str, int, int]:
    """A run's status, how many events say that a step was committed, and how many numbers its events have."""
    events = verbs.events(run)
    return verbs.run(run)["status"], events.count("step.committed"), verbs.run(run)["event_seq"] - len(events)


# P3: the outcome of a commit is unknown.


@pytest.mark.parametrize("cut", ["cut_before", "cut_after"])
@pytest.mark.parametrize("commit", [1, 2, 3])
def test_p03_a_commit_whose_answer_is_lost_is_sent_again_until_it_is_answered(
    shop: Workshop, proxy: LedgerProxy, verbs: Verbs, crowded_ledger_url: str, cut: str, commit: int
) -> None:
    run = enqueue(verbs)
    for _ in range(commit - 1):
        proxy.call_before("commit_v1", lambda: None)
    getattr(proxy, cut)("commit_v1")

    shop.execute(run)
    shop.work(crowded_ledger_url)

    assert stands(verbs, run) == ("succeeded", 2, 0)
    assert (calls, proxy.cuts) == (["one", "two"], 1)
    assert sent(proxy, "commit_v1") == 3 + 1


class Lock:
    """The run's lock in the hands of a test."""

    def __init__(self, verbs: Verbs, run: UUID) -> None:
        self.verbs = verbs
        self.run = run

    def take(self) -> None:
        self.verbs.connection.execute("BEGIN")
        self.verbs.connection.execute("SELECT FROM safepoint.runs WHERE run_id = %s FOR NO KEY UPDATE", (self.run,))

    def free(self) -> None:
        self.verbs.connection.execute("COMMIT")


def test_p03_a_commit_that_its_old_backend_still_executes_is_not_made_twice(
    shop: Workshop,
    proxy: LedgerProxy,
    crowd: Callable[[], Verbs],
    crowded_ledger_url: str,
    eventually: Callable[..., None],
) -> None:
    verbs = crowd()
    run = enqueue(verbs)
    shop.execute(run)
    lock = Lock(crowd(), run)
    between.append(lock.take)
    proxy.cut_during("commit_v1")

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(shop.execute, run, ONE.wire)
        eventually(lambda: assert_waiting(verbs, 2))  # the first sending, and the one that follows it
        lock.free()
        done.result(timeout=10)
    shop.work(crowded_ledger_url)

    assert stands(verbs, run) == ("succeeded", 2, 0)
    assert calls == ["one", "two"]


def assert_waiting(verbs: Verbs, count: int) -> None:
    assert verbs.waiting_backends() == count


def test_p03_a_commit_after_somebody_elses_claim_has_lost_and_publishes_nothing(
    shop: Workshop, proxy: LedgerProxy, verbs: Verbs
) -> None:
    run = enqueue(verbs)
    shop.execute(run)
    shop.belt.sent.clear()

    def take_over() -> None:
        verbs.node("other", flows=("lost_line@1",))
        taken = verbs.step(run, ONE)
        loss = Loss(
            run, ONE, taken["claim_token"], Cause.CHILD, pid=taken["owner_pid"], pid_start=taken["owner_pid_start"]
        )
        assert lose(verbs.connection, loss, lane="recovery", max_deaths=5) == "lost"
        verbs.claimed(run, ONE, lane="recovery", node="other")

    proxy.call_before("commit_v1", take_over)
    shop.execute(run, ONE.wire)

    assert verbs.statuses(run) == {"@start#1": "succeeded", "lost_one#1": "running"}
    assert shop.belt.sent == []


@pytest.mark.parametrize("cut", ["cut_before", "cut_after"])
def test_p03_a_retry_whose_answer_is_lost_counts_one_attempt(
    shop: Workshop, proxy: LedgerProxy, verbs: Verbs, crowded_ledger_url: str, cut: str
) -> None:
    run = enqueue(verbs, "lost_retried")
    getattr(proxy, cut)("retry_v1")

    shop.work(crowded_ledger_url)

    assert (verbs.run(run)["status"], verbs.run(run)["spent_retries"]) == ("succeeded", 1)
    assert verbs.step(run, key("lost_flaky#1"))["attempt"] == 2
    assert calls == ["flaky", "flaky"]


@pytest.mark.parametrize("cut", ["cut_before", "cut_after"])
def test_p03_an_advance_under_the_lock_is_made_once_however_its_commit_is_answered(
    shop: Workshop, proxy: LedgerProxy, verbs: Verbs, crowded_ledger_url: str, cut: str
) -> None:
    run = enqueue(verbs)
    shop.execute(run)

    def somebody_commits() -> None:
        verbs.connection.execute(
            "UPDATE safepoint.runs SET state_version = state_version + 1 WHERE run_id = %s", (run,)
        )

    proxy.call_before("commit_v1", somebody_commits, times=3)
    getattr(proxy, cut)("COMMIT")
    shop.execute(run, ONE.wire)

    assert proxy.cuts == 1
    assert verbs.statuses(run) == {"@start#1": "succeeded", "lost_one#1": "succeeded", "lost_two#1": "ready"}
    shop.work(crowded_ledger_url)
    assert stands(verbs, run) == ("succeeded", 2, 0)
    assert calls == ["one", "two"]


def somebody_commits(verbs: Verbs, run: UUID) -> None:
    verbs.connection.execute("UPDATE safepoint.runs SET state_version = state_version + 1 WHERE run_id = %s", (run,))


def test_p26_after_two_misses_the_advance_is_repeated_under_the_lock_and_the_step_is_not(
    shop: Workshop, proxy: LedgerProxy, verbs: Verbs, crowded_ledger_url: str
) -> None:
    run = enqueue(verbs)
    shop.execute(run)

    def somebody_commits() -> None:
        verbs.connection.execute(
            "UPDATE safepoint.runs SET state_version = state_version + 1 WHERE run_id = %s", (run,)
        )

    proxy.call_before("commit_v1", somebody_commits, times=3)
    shop.execute(run, ONE.wire)

    assert verbs.statuses(run)["lost_two#1"] == "ready"
    assert calls == ["one"]
    assert proxy.statements["COMMIT"] == 1
    shop.work(crowded_ledger_url)
    assert verbs.run(run)["status"] == "succeeded"


def test_p26_branches_that_commit_at_once_both_go_on(shop: Workshop, verbs: Verbs, crowded_ledger_url: str) -> None:
    run = enqueue(verbs, "lost_pair")
    shop.execute(run)
    other = Workshop(crowded_ledger_url, shop.settings, belt=shop.belt)
    first, second = (f"gather#1.{n}/lost_one#1" for n in (1, 2))
    between.append(lambda: other.execute(run, second))  # the sibling is claimed and committed inside the first

    shop.execute(run, first)

    assert {row: status for row, status in verbs.statuses(run).items() if "two" in row} == {
        "gather#1.1/lost_two#1": "ready",
        "gather#1.2/lost_two#1": "ready",
    }
    shop.work(crowded_ledger_url)
    assert stands(verbs, run) == ("succeeded", 4, 0)
    assert calls.count("one") == 2


# P4: the outcome of a claim is unknown.


@pytest.mark.parametrize("cut", ["cut_before", "cut_after"])
def test_p04_a_claim_whose_answer_is_lost_is_repeated_with_its_token_and_answers_claimed(
    shop: Workshop, proxy: LedgerProxy, verbs: Verbs, cut: str
) -> None:
    run = enqueue(verbs)
    shop.execute(run)
    getattr(proxy, cut)("claim_v1")

    shop.execute(run, ONE.wire)

    assert verbs.step(run, ONE)["status"] == "succeeded"
    assert (verbs.step(run, ONE)["epoch"], calls, proxy.cuts) == (1, ["one"], 1)


def test_p04_a_claim_that_its_old_backend_still_executes_gives_the_same_right(
    shop: Workshop, proxy: LedgerProxy, crowd: Callable[[], Verbs], eventually: Callable[..., None]
) -> None:
    verbs = crowd()
    run = enqueue(verbs)
    shop.execute(run)
    lock = Lock(crowd(), run)
    proxy.cut_during("claim_v1")

    with ThreadPoolExecutor(1) as pool:
        lock.take()
        done = pool.submit(shop.execute, run, ONE.wire)
        eventually(lambda: assert_waiting(verbs, 2))
        lock.free()
        done.result(timeout=10)

    assert (verbs.step(run, ONE)["status"], verbs.step(run, ONE)["epoch"]) == ("succeeded", 1)
    assert calls == ["one"]


def test_p04_a_claim_is_named_to_the_beats_before_it_is_sent(shop: Workshop, proxy: LedgerProxy, verbs: Verbs) -> None:
    run = enqueue(verbs)
    named: list[object] = []
    proxy.call_before("claim_v1", lambda: named.extend(shop.board.active()))

    shop.execute(run)

    assert named == [verbs.step(run)["committed_token"]]
    assert shop.board.active() == []


# P13: refused is not failed.


def test_p13_a_message_is_kept_while_the_ledger_does_not_answer(
    shop: Workshop, proxy: LedgerProxy, verbs: Verbs, eventually: Callable[..., None]
) -> None:
    run = enqueue(verbs)
    proxy.refuse()

    with ThreadPoolExecutor(1) as pool:
        done: Future[None] = pool.submit(shop.execute, run)
        eventually(lambda: assert_named(shop))
        returned_meanwhile = done.done()
        proxy.accept()
        done.result(timeout=10)

    assert not returned_meanwhile  # to return is to acknowledge
    assert verbs.step(run, START)["status"] == "succeeded"


def assert_named(shop: Workshop) -> None:
    assert len(shop.board.active()) == 1


def test_p13_a_commit_is_kept_while_the_ledger_does_not_answer(
    shop: Workshop, proxy: LedgerProxy, verbs: Verbs, crowded_ledger_url: str
) -> None:
    run = enqueue(verbs)
    shop.execute(run)
    between.extend([proxy.refuse, shop.board.drain])  # a drain does not give up what has been executed

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(shop.execute, run, ONE.wire)
        with pytest.raises(TimeoutError):
            done.result(timeout=0.3)
        proxy.accept()
        done.result(timeout=10)

    assert (verbs.step(run, ONE)["status"], calls) == ("succeeded", ["one"])


def test_p13_a_worker_that_ends_before_the_ledger_answers_gives_the_message_back(
    shop: Workshop, proxy: LedgerProxy, verbs: Verbs, eventually: Callable[..., None]
) -> None:
    run = enqueue(verbs)
    proxy.refuse()

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(shop.execute, run)
        eventually(lambda: assert_named(shop))
        shop.board.drain()
        with pytest.raises(Shutdown):  # the worker rejects with requeue
            done.result(timeout=10)

    assert verbs.step(run)["status"] == "ready"


# P20: a worker that cannot beat.


def test_p20_at_two_thirds_of_a_lease_without_a_beat_nothing_is_claimed(
    shop: Workshop, verbs: Verbs, eventually: Callable[..., None]
) -> None:
    run = enqueue(verbs)
    shop.board.beaten(time.monotonic() - shop.settings.worker.lease * 0.7)

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(shop.execute, run)
        with pytest.raises(TimeoutError):
            done.result(timeout=0.3)
        epoch = verbs.step(run)["epoch"]
        shop.board.beaten(time.monotonic())
        done.result(timeout=10)

    assert (epoch, verbs.step(run)["epoch"]) == (0, 1)


def test_p20_a_step_that_runs_may_end_without_a_beat(shop: Workshop, verbs: Verbs) -> None:
    run = enqueue(verbs)
    shop.execute(run)
    between.append(lambda: shop.board.beaten(time.monotonic() - shop.settings.worker.lease * 5))

    shop.execute(run, ONE.wire)

    assert verbs.step(run, ONE)["status"] == "succeeded"

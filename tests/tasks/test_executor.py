"""The executor's side of the rules: what it caches, what it gives back, what it leaves to the next claimer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from ledger_verbs import START, Verbs, ask, key
from safepoint import flow, gather, sleep, step, wait_for
from safepoint.config.settings import load
from safepoint.ledger import control, outbox
from safepoint.ledger.steps import Cause
from safepoint.tasks.app import configuration, hard_limit
from tenacity import stop_after_attempt, wait_fixed
from workshop import Workshop, settings_of

calls: list[str] = []


@step(name="exec_big")
def big() -> str:
    return 100_000 * "x"


@step(name="exec_slow", timeout=5, wait=wait_fixed(7), stop=stop_after_attempt(2))
def slow() -> int:
    calls.append("slow")
    return 1


@step(name="exec_count")
def count(n: int) -> int:
    calls.append(f"count {n}")
    return n


@flow(name="exec_big", version="1")
async def returns_what_its_step_returns() -> str:
    return await big()


@flow(name="exec_slow", version="1")
async def waits_for_a_slow_step() -> int:
    return await slow()


@flow(name="exec_three", version="1")
async def three() -> int:
    return sum([await count(n) for n in range(3)])


@flow(name="exec_waits", version="1")
async def waits() -> int:
    await sleep(5)
    return await wait_for("go", type=int)


@flow(name="exec_sub", version="1")
async def sub() -> int:
    return await count(7)


@flow(name="exec_parent", version="1")
async def parent() -> int:
    first, second = await gather(sub(), count(1))
    return first + second


mended: list[bool] = []


@flow(name="exec_mended", version="1")
async def breaks_until_mended() -> int:
    first, second = await gather(count(1), count(2))
    if not mended:
        raise KeyError("a bug")
    return first + second + sum(await gather(count(3), count(4)))


@pytest.fixture
def verbs(crowd: Callable[[], Verbs]) -> Verbs:
    return crowd()


@pytest.fixture
def shop(verbs: Verbs, crowded_ledger_url: str, tmp_path: Path) -> Workshop:
    calls.clear()
    found = Workshop(crowded_ledger_url, settings_of(tmp_path, relay={"grace": 0.0}))
    found.register(crowded_ledger_url)
    return found


def test_a_value_that_both_the_step_and_the_flow_return_is_one_artifact(
    shop: Workshop, verbs: Verbs, crowded_ledger_url: str
) -> None:
    run = verbs.enqueue(flow="exec_big")

    shop.work(crowded_ledger_url)

    assert verbs.run(run)["status"] == "succeeded"
    assert verbs.value("SELECT count(*) FROM safepoint.artifacts") == 1


def test_mended_code_goes_on_from_the_last_step_and_asks_for_more(
    shop: Workshop, verbs: Verbs, crowded_ledger_url: str
) -> None:
    mended.clear()
    run = verbs.enqueue(flow="exec_mended")
    shop.work(crowded_ledger_url)
    assert verbs.run(run)["reason"]["code"] == "flow_error"

    mended.append(True)
    verbs.resume(run)
    shop.work(crowded_ledger_url)

    assert verbs.run(run)["status"] == "succeeded"
    assert sorted(calls) == ["count 1", "count 2", "count 3", "count 4"]


# P8: the ledger is another one.


def test_p08_a_process_that_sees_another_incarnation_drops_its_histories(shop: Workshop, verbs: Verbs) -> None:
    run = verbs.enqueue(flow="exec_three")
    shop.execute(run)
    kept = shop.histories.take(run)
    assert kept is not None
    shop.histories.keep(run, kept)

    shop.board.identify(UUID(control.restored(verbs.connection, reason="test")))
    shop.execute(run, "exec_count#1")

    assert kept.driver.seen == 1  # it was fed nothing more: the history was read anew
    assert verbs.step(run, key("exec_count#1"))["status"] == "succeeded"


def test_p08_an_executor_whose_claim_was_lost_in_a_restore_cannot_commit(shop: Workshop, verbs: Verbs) -> None:
    run = verbs.enqueue(flow="exec_three")
    claimed = verbs.claimed(run, node=shop.node.node_id)
    columns = "status = 'ready', claim_token = NULL, due_at = safepoint.now(), epoch = 0"
    verbs.connection.execute(f"UPDATE safepoint.steps SET {columns} WHERE run_id = %s", (run,))

    assert verbs.commit(claimed).verdict == "lost"
    shop.execute(run)
    assert verbs.step(run)["status"] == "succeeded"


# P15: a step that nobody here has.


def test_p15_a_row_whose_message_met_no_code_is_asked_about_again_and_never_later(verbs: Verbs) -> None:
    run = verbs.begun(ask("gone#1"))
    verbs.dispatch()
    before = verbs.step(run, key("gone#1"))["due_at"]

    for _ in range(3):
        outbox.put_back(verbs.connection, run, key("gone#1"), lane="online")

    after = verbs.step(run, key("gone#1"))
    assert after["due_at"] < before
    assert after["dispatched_at"] is None


def test_p15_a_step_whose_code_is_missing_here_is_given_back_without_an_attempt(
    shop: Workshop, verbs: Verbs, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = verbs.enqueue(flow="exec_three")
    shop.execute(run)
    monkeypatch.delitem(shop.executor._registry.steps, "exec_count")

    shop.execute(run, "exec_count#1")

    row = verbs.step(run, key("exec_count#1"))
    assert (row["status"], row["attempt"], row["recoveries"], row["deaths"]) == ("ready", 1, 0, 0)


# P16: waits execute nothing, advance and commit.


def test_p16_timers_signals_and_children_are_steps_that_only_advance(
    shop: Workshop, verbs: Verbs, crowded_ledger_url: str
) -> None:
    run = verbs.enqueue(flow="exec_waits")
    other = verbs.enqueue(flow="exec_parent")
    shop.work(crowded_ledger_url)
    verbs.connection.execute("UPDATE safepoint.steps SET due_at = safepoint.now() WHERE kind = 'timer'")
    assert verbs.signal(run, data=b"9") == "stored"

    for _ in range(3):
        verbs.chores()
        shop.work(crowded_ledger_url)

    assert (verbs.run(run)["status"], verbs.run(run)["result"]) == ("succeeded", b"9")
    assert (verbs.run(other)["status"], verbs.run(other)["result"]) == ("succeeded", b"8")
    assert sorted(calls) == ["count 1", "count 7"]


# P17: what was published here is settled by the next statement that is made anyway.


def test_p17_the_next_claim_settles_what_was_published(shop: Workshop, verbs: Verbs) -> None:
    run, other = verbs.enqueue(flow="exec_three"), verbs.enqueue(flow="exec_three")
    shop.execute(run)
    published = verbs.step(run, key("exec_count#1"))

    shop.execute(other)

    settled = verbs.step(run, key("exec_count#1"))
    assert (published["dispatched_at"], published["dispatches"]) == (None, 0)
    assert settled["dispatches"] == 1
    assert (settled["due_at"] - settled["dispatched_at"]).total_seconds() == shop.settings.relay.redispatch_after


def test_p17_what_could_not_be_published_stays_due(shop: Workshop, verbs: Verbs) -> None:
    run = verbs.enqueue(flow="exec_three")
    shop.belt.broken = lambda _: True
    shop.execute(run)

    shop.execute(verbs.enqueue(flow="exec_three"))

    row = verbs.step(run, key("exec_count#1"))
    assert (row["dispatched_at"], row["dispatches"]) == (None, 0)


# P24: a timed-out attempt is evaluated by the next claimer.


def test_p24_the_next_claimer_evaluates_the_policy_before_it_executes(shop: Workshop, verbs: Verbs) -> None:
    run = verbs.enqueue(flow="exec_slow")
    shop.execute(run)
    slow_step = key("exec_slow#1")
    late = verbs.claimed(run, slow_step, node=shop.node.node_id, timeout=0.0)
    assert verbs.lose(late, Cause.TIMEOUT) == "lost"
    assert verbs.step(run, slow_step)["attempt"] == 1

    shop.execute(run, slow_step.wire, lane="recovery")

    row = verbs.step(run, slow_step)
    assert calls == []
    assert (row["status"], row["attempt"], row["lane"]) == ("ready", 2, "online")
    assert row["ready_at"] > row["claimed_at"]


def test_p24_the_last_attempt_that_timed_out_fails_the_step(shop: Workshop, verbs: Verbs) -> None:
    run = verbs.enqueue(flow="exec_slow")
    shop.execute(run)
    slow_step = key("exec_slow#1")
    verbs.connection.execute("UPDATE safepoint.steps SET attempt = 2 WHERE step_id = 'exec_slow'")
    verbs.lose(verbs.claimed(run, slow_step, node=shop.node.node_id, timeout=0.0), Cause.TIMEOUT)

    shop.execute(run, slow_step.wire, lane="recovery")

    assert calls == []
    assert verbs.step(run, slow_step)["error"]["type"] == "StepTimeout"
    assert verbs.run(run)["status"] == "failed"


# P31: what exists of going on in place are its bounds.


@pytest.mark.parametrize(("timeout", "inline"), [(1.0, 0.0), (600.0, 0.0), (600.0, 30.0), (86_400.0, 300.0)])
def test_p31_slice_and_timeout_end_before_the_hard_limit_and_that_before_a_quarter_of_the_visibility(
    timeout: float, inline: float
) -> None:
    settings = load(env={"SAFEPOINT_LANES__ONLINE__INLINE_SLICE": str(inline)})
    limit = hard_limit(settings, timeout)
    conf = configuration(settings, "redis://localhost", longest=timeout)

    assert inline + timeout < limit
    assert limit <= conf["broker_transport_options"]["visibility_timeout"] / 4


def test_a_message_of_a_run_that_does_not_exist_is_dropped(shop: Workshop) -> None:
    shop.execute(uuid4(), START.wire)

    assert shop.belt.sent == []

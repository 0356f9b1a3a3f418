"""Budgets and deadlines as flows and people meet them, beside what a fake model really counted (G7)."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any
from uuid import uuid4

import pytest
from outside import Outside
from play import Play
from safepoint import Budget, continue_as, current, effect, flow, gather, step
from safepoint.errors import ArtifactStoreUnavailable, BudgetExceeded, DeadlineExceeded, StepFailed
from safepoint.ledger import budgets, steps
from safepoint.ledger.steps import Cause, Loss
from safepoint.tasks.performance import Performance
from tenacity import stop_after_attempt, wait_fixed

outside = Outside()
raised: list[BaseException] = []


class Model:
    """A model that counts what it is paid for."""

    def __init__(self) -> None:
        self.tokens, self.usd, self.calls = 0, Decimal(0), 0

    def ask(self, tokens: int) -> int:
        self.calls += 1
        self.tokens += tokens
        self.usd += Decimal("0.01")
        current().spend(tokens=tokens, usd=0.01)
        if raised:
            raise raised.pop(0)
        return tokens


model = Model()
PATIENT = {"stop": stop_after_attempt(9), "wait": wait_fixed(20)}


@step(name="bud_think", reserve=Budget(tokens=30, usd=0.05), wait=wait_fixed(20), stop=stop_after_attempt(9))
def think(tokens: int) -> int:
    return model.ask(tokens)


@step(name="bud_parts", reserve=Budget(tokens=30), wait=wait_fixed(20), stop=stop_after_attempt(9))
def in_parts(tokens: int) -> int:
    first = current().once("first", lambda: model.ask(tokens))
    return first + model.ask(1)


@step(name="bud_plain")
def plain(n: int) -> int:
    return n


@effect(name="bud_send", reserve=Budget(tokens=10), not_sent=(ConnectionRefusedError,), wait=wait_fixed(20))
def send(tokens: int) -> int:
    return model.ask(tokens)


@flow(name="bud_loop", version="1")
async def loop(n: int, tokens: int) -> int:
    return sum([await think(tokens) for _ in range(n)])


@flow(name="bud_held", version="1", on_budget="hold")
async def held(n: int, tokens: int) -> int:
    return sum([await think(tokens) for _ in range(n)])


@flow(name="bud_parted", version="1")
async def parted(tokens: int) -> list[int]:
    before = current().budget.tokens
    await in_parts(tokens)
    await plain(1)
    return [before or 0, current().budget.tokens or 0]


@flow(name="bud_child", version="1")
async def child(n: int, tokens: int) -> int:
    return sum([await think(tokens) for _ in range(n)])


@flow(name="bud_family", version="1")
async def family(n: int, tokens: int) -> int:
    return sum(await gather(*[child(n, tokens) for _ in range(2)], think(tokens)))


@flow(name="bud_caught", version="1")
async def catches(n: int) -> str:
    try:
        for _ in range(n):
            await think(25)
    except BudgetExceeded as error:
        return f"{error.what}: {error}"
    return "enough"


@flow(name="bud_generations", version="1")
async def generations(n: int) -> int:
    left = current().budget.tokens or 0
    await think(20)
    if n > 1:
        await continue_as(n - 1)
    return left


@flow(name="bud_sends", version="1", on_budget="hold")
async def sends() -> int:
    return await send(10)


@flow(name="bud_outage", version="1")
async def outage() -> str:
    try:
        await think(5)
    except DeadlineExceeded as error:
        await plain(1)
        return str(error)
    except StepFailed:
        return "failed"
    return "done"


@pytest.fixture
def play(playing: Callable[[Outside], Play]) -> Play:
    raised.clear()
    model.__init__()  # type: ignore[misc]  # a new one under the old name
    return playing(outside)


def shared(play: Play) -> dict[str, Any]:
    return play.verbs.rows("SELECT * FROM safepoint.budgets")[0]


def assert_exact(play: Play) -> None:
    """The ledger has counted what the model has, nothing is reserved any more, and the parts are the whole."""
    found = shared(play)
    assert (found["spent_tokens"], found["spent_usd"]) == (model.tokens, model.usd)
    assert (found["reserved_tokens"], found["reserved_usd"]) == (0, 0)
    total = "SELECT sum(spent_tokens), sum(spent_usd) FROM safepoint.runs"
    row = play.verbs.connection.execute(total).fetchone()
    assert row == (model.tokens, model.usd)


def die(play: Play, key: str) -> None:
    """Let a step be claimed and its executor be gone."""
    row = play.verbs.step(play.run, play.key(key))
    found = play.verbs.claimed(play.run, play.key(key), lane=row["lane"])
    loss = Loss(play.run, play.key(key), found.token, Cause.CHILD, pid=1, pid_start=1)
    assert steps.lose(play.verbs.connection, loss, lane="recovery", max_deaths=5) == "lost"


def test_a_run_spends_what_its_model_has_counted(play: Play) -> None:
    play.go("bud_loop", n=3, tokens=25, budget={"tokens": 1000, "usd": 1})

    assert play.row["result"] == b"75"
    assert_exact(play)


def test_retries_are_counted_and_their_spending_is_kept_apart(play: Play) -> None:
    raised.extend([ConnectionResetError(), ConnectionResetError()])
    play.go("bud_loop", n=2, tokens=25, budget={"tokens": 1000, "usd": 1, "retries": 2})
    play.work(21).work(21)

    assert play.row["status"] == "succeeded"
    assert_exact(play)
    assert (play.row["wasted_tokens"], play.row["wasted_usd"]) == (50, Decimal("0.02"))
    assert shared(play)["spent_retries"] == 2


def test_children_spend_from_one_budget(play: Play) -> None:
    play.go("bud_family", n=2, tokens=10, budget={"tokens": 1000, "usd": 1})
    play.work(1).work(1)

    assert play.row["result"] == b"50"
    assert_exact(play)
    assert play.verbs.value("SELECT count(*) FROM safepoint.budgets") == 1


def test_children_cannot_spend_more_together_than_their_root_was_given(play: Play) -> None:
    play.go("bud_family", n=5, tokens=25, budget={"tokens": 100})
    play.work(40).work(40)

    assert play.row["error"]["type"] == "BudgetExceeded"
    assert model.tokens <= 100
    assert_exact(play)


def test_a_crash_counts_at_most_what_was_reserved(play: Play) -> None:
    play.go("bud_loop", stop="bud_think#2", n=3, tokens=25, budget={"tokens": 1000, "usd": 1})
    die(play, "bud_think#2")
    die(play, "bud_think#2")
    play.work()

    found = shared(play)
    assert play.row["status"] == "succeeded"
    assert found["spent_tokens"] - model.tokens == play.row["wasted_tokens"] == 60
    assert found["reserved_tokens"] == 0


def test_a_run_that_continues_as_another_keeps_its_budget(play: Play) -> None:
    play.go("bud_generations", n=3, budget={"tokens": 90})

    assert play.row["result"] == b"50"  # what its flow was told at the beginning of the third generation
    assert_exact(play)


def test_a_run_that_continues_as_another_for_ever_ends_with_its_budget(play: Play) -> None:
    play.go("bud_generations", n=99, budget={"tokens": 90})

    assert play.row["error"]["type"] == "BudgetExceeded"
    assert model.calls == 4  # of the fourth generation's 30 reserved, 20 were spent; ten are left


def test_a_flow_may_catch_a_budget_that_is_used_up(play: Play) -> None:
    play.go("bud_caught", n=9, budget={"tokens": 60})

    text = "the run's budget of tokens is used up: bud_think#3 reserves 30, and 10 of 60 are left"
    assert play.row["result"] == f'"tokens: {text}"'.encode()
    assert model.calls == 2


def test_what_parts_of_a_step_cost_is_the_same_for_a_flow_that_is_replayed(play: Play) -> None:
    raised.append(ConnectionResetError())
    play.go("bud_parted", tokens=20, budget={"tokens": 100})
    play.work(21, stop="bud_plain#1")
    live = play.shop.histories.take(play.run)
    assert live is not None
    told = live.driver.situation.budget
    play.shop.histories.identify(999)  # another process, that has seen nothing

    play.work()

    assert play.row["result"] == f"[100,{told.tokens}]".encode()
    assert told.tokens == 100 - model.tokens
    assert_exact(play)


def test_a_run_whose_flow_says_so_is_held_until_somebody_adds(play: Play) -> None:
    play.go("bud_held", n=3, tokens=25, budget={"tokens": 60})

    assert (play.row["status"], play.row["reason"]["code"]) == ("held", "budget")
    assert "bud_think#3 reserves 30, and 10 of 60 are left" in play.row["reason"]["text"]
    assert play.row["reason"]["next"] == f"safepoint budget {play.run} --add-tokens N"
    play.verbs.resume(play.run)
    play.work()
    assert play.row["status"] == "held"  # it is no longer paused, and still has nothing

    assert budgets.add(play.verbs.connection, play.run, id_=uuid4(), tokens=20, by="ann").is_done
    assert budgets.release_held(play.verbs.connection, play.run, by="ann") == {play.run: "running"}
    play.work()

    assert (play.row["status"], play.row["result"]) == ("succeeded", b"75")
    assert_exact(play)


def test_a_run_without_a_retry_left_is_held_and_given_some(play: Play) -> None:
    raised.extend(ConnectionResetError() for _ in range(3))
    play.go("bud_held", n=1, tokens=5, budget={"retries": 1})
    play.work(21)
    assert (play.row["status"], play.row["reason"]["next"]) == ("held", f"safepoint budget {play.run} --add-retries N")

    budgets.add(play.verbs.connection, play.run, id_=uuid4(), retries=2, by="ann")
    budgets.release_held(play.verbs.connection, play.run, by="ann")
    play.work(21).work(21)

    assert play.row["status"] == "succeeded"
    assert shared(play)["spent_retries"] == 3
    assert_exact(play)


def test_an_effect_that_was_not_sent_keeps_its_key_while_its_run_is_held(play: Play) -> None:
    raised.append(ConnectionRefusedError())
    play.go("bud_sends", budget={"retries": 0})
    assert (play.row["status"], play.effect["status"]) == ("held", "pending")
    key = play.effect["idempotency_key"]

    budgets.add(play.verbs.connection, play.run, id_=uuid4(), retries=1, by="ann")
    budgets.release_held(play.verbs.connection, play.run, by="ann")
    play.work(21)

    assert (play.row["status"], play.effect["idempotency_key"]) == ("succeeded", key)
    assert_exact(play)


def test_retries_that_are_used_up_fail_the_step_with_what_it_raised(play: Play) -> None:
    raised.extend([ConnectionResetError("first"), ConnectionResetError("second")])

    play.go("bud_loop", n=1, tokens=5, budget={"retries": 1})
    play.work(21)

    assert (play.row["status"], play.row["error"]["type"]) == ("failed", "ConnectionResetError")
    error = play.verbs.step(play.run, play.key("bud_think#1"))["error"]
    assert error["stopped"] == "the run's budget of retries is used up"
    assert_exact(play)


def test_a_step_whose_outcome_cannot_be_stored_now_is_paid_for_twice_and_counted_twice(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = [True, True]

    def stored(self: Performance, *given: Any, **more: Any) -> Any:
        if model.calls and away:
            away.pop()
            raise ArtifactStoreUnavailable(url="memory:", text="away")
        return real(self, *given, **more)

    real = Performance.stored
    monkeypatch.setattr(Performance, "stored", stored)
    play.go("bud_loop", n=1, tokens=25, budget={"tokens": 1000, "usd": 1})
    play.work(6).work(6)

    assert play.row["status"] == "succeeded"
    assert model.calls == 3
    assert_exact(play)
    assert play.row["wasted_tokens"] == 50


# Deadlines.


def test_a_deadline_that_passes_in_an_outage_ends_the_run_then_and_nothing_runs_after_it(play: Play) -> None:
    raised.extend(ConnectionResetError() for _ in range(99))
    play.go("bud_loop", n=1, tokens=5, deadline=50)
    for _ in range(2):
        play.work(20)
    calls = model.calls

    assert (play.row["status"], play.row["error"]["type"]) == ("failed", "DeadlineExceeded")
    assert "ConnectionResetError" in play.row["error"]["message"]
    raised.clear()  # the outage ends
    play.work(1000)
    assert model.calls == calls == 3
    assert set(play.verbs.statuses(play.run).values()) <= {"succeeded", "failed", "cancelled"}


def test_a_flow_hears_of_a_deadline_that_no_attempt_can_meet_while_there_is_time(play: Play) -> None:
    raised.append(ConnectionResetError())

    play.go("bud_outage", deadline=15)

    assert play.row["status"] == "succeeded"
    assert b"the next attempt would begin in 20.0 s" in play.row["result"]


def test_a_deadline_that_passes_while_a_step_waits_for_a_budget_ends_the_run(play: Play) -> None:
    play.go("bud_loop", stop="bud_think#1", n=1, tokens=5, deadline=50, budget={"tokens": 40})
    other = play.verbs.connection.execute("UPDATE safepoint.budgets SET reserved_tokens = 20")
    assert other.rowcount == 1
    play.work(10)
    assert play.verbs.step(play.run, play.key("bud_think#1"))["reason"]["code"] == "budget"

    play.work(41)

    assert (play.row["status"], play.row["error"]["type"]) == ("failed", "DeadlineExceeded")
    assert model.calls == 0


def test_a_child_inherits_its_deadline(play: Play) -> None:
    raised.extend(ConnectionResetError() for _ in range(99))
    play.go("bud_family", n=1, tokens=5, deadline=50, budget={"tokens": 1000})
    for _ in range(4):
        play.work(20)

    runs = play.verbs.rows("SELECT status, error, deadline FROM safepoint.runs")
    assert len(runs) == 3
    assert len({run["deadline"] for run in runs}) == 1
    assert {run["status"] for run in runs} <= {"failed", "cancelled"}

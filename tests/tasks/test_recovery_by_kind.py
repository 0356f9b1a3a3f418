"""What is done after a failure, by what is known of it: each row of the tables that the design answers to (R08)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from outside import Outside
from play import Play
from safepoint import Lookup, Permanent, approval, current, effect, flow, gather, step
from safepoint.errors import RetryAfter, StepFailed
from safepoint.ledger import control, steps
from safepoint.ledger.steps import Cause, Loss
from tenacity import stop_after_attempt, wait_random_exponential

outside = Outside()
sent: list[str] = []
raised: list[BaseException] = []


def _maybe(what: str) -> str:
    sent.append(what)
    if raised:
        raise raised.pop(0)
    return what


@step(name="kind_model", stop=stop_after_attempt(4), wait=wait_random_exponential(multiplier=1, max=60))
def model(question: str) -> str:
    current().spend(tokens=10)
    return _maybe(f"model {question}")


@step(name="kind_pure")
def pure(n: int) -> int:
    _maybe(f"pure {n}")
    return n + 1


@step(name="kind_fresh", freshness=60)
def fresh() -> str:
    return _maybe(f"query {len(sent)}")


@effect(name="kind_blind")
def blind(what: str) -> str:
    return outside.do("blind", what, current().idempotency_key)


@effect(name="kind_asked", authoritative_after=5)
def asked(what: str) -> str:
    return outside.do("asked", what, current().idempotency_key)


@asked.lookup
def _(what: str) -> Lookup[str]:  # a lookup takes the effect's parameters
    return outside.look(current().idempotency_key)


@flow(name="kind_two", version="1")
async def two() -> str:
    return f"{await model('a')}, {await pure(1)}"


@flow(name="kind_queries", version="1")
async def queries() -> list[str]:
    first = await fresh()
    same = await fresh()
    await pure(1)
    return [first, same, await fresh()]


@flow(name="kind_send", version="1")
async def send(kind: str) -> str:
    return await {"blind": blind, "asked": asked}[kind](what="a")


@flow(name="kind_approval", version="1")
async def asks() -> bool:
    return (await approval("go", show="this")).approved


@flow(name="kind_caught", version="1")
async def catches() -> str:
    try:
        await model("a")
    except StepFailed:
        return f"caught, {await model('b')}"
    return "nothing was raised"


@flow(name="kind_gathered", version="1")
async def gathers() -> list[str]:
    return list(await gather(model("a"), model("b"), model("c")))


@pytest.fixture
def play(playing: Callable[[Outside], Play]) -> Play:
    sent.clear()
    raised.clear()
    return playing(outside)


def die(play: Play, key: str) -> None:
    """Let a claimed step's executor be gone."""
    found = play.verbs.claimed(play.run, play.key(key))
    loss = Loss(play.run, play.key(key), found.token, Cause.CHILD, pid=1, pid_start=1)
    assert steps.lose(play.verbs.connection, loss, lane="recovery", max_deaths=5) == "lost"


# S0: what is seen at recovery.


def test_s0_a_result_that_is_stored_is_used_again(play: Play) -> None:
    play.go("kind_two")

    play.shop.execute(play.run, "kind_model#1")  # its message comes once more

    assert play.row["status"] == "succeeded"
    assert sent == ["model a", "pure 1"]


def test_s0_what_was_certainly_not_executed_is_executed(play: Play) -> None:
    play.go("kind_send", stop="kind_asked#1", kind="asked")
    die(play, "kind_asked#1")  # claimed, and nothing was begun

    play.work()

    assert play.row["status"] == "succeeded"
    assert outside.count("asked") == 1


def test_s0_what_may_have_been_sent_is_looked_up_or_left_to_a_person(play: Play) -> None:
    outside.fail(TimeoutError(), done=True)
    play.go("kind_send", kind="asked").work()
    assert play.row["status"] == "succeeded"

    outside.fail(TimeoutError(), done=True)
    play.go("kind_send", kind="blind").work(seconds=1000)

    assert play.row["status"] == "held"
    assert (outside.count("asked"), outside.count("blind")) == (1, 1)


def test_s0_what_waits_for_an_approval_goes_on_waiting(play: Play) -> None:
    play.go("kind_approval")

    for _ in range(5):
        play.work(seconds=1000)
        play.verbs.chores()

    assert play.row["status"] == "waiting"
    assert play.row["reason"]["code"] == "approval"


# S4 1.4: what kind of step it is, or how it failed.


def test_s4_a_committed_step_is_read_and_skipped(play: Play) -> None:
    play.go("kind_two", stop="kind_pure#1")
    play.shop.histories.identify(999)  # another process, that has seen nothing

    play.work()

    assert sent == ["model a", "pure 1"]


def test_s4_a_pure_step_is_replayed_from_its_beginning(play: Play) -> None:
    play.go("kind_two", stop="kind_pure#1")
    die(play, "kind_pure#1")

    play.work()

    assert play.row["result"] == b'"model a, 2"'


def test_s4_a_model_call_that_was_not_committed_is_made_again_within_the_budget(play: Play) -> None:
    raised.append(ConnectionResetError())

    play.go("kind_two", budget={"tokens": 15})
    play.work(seconds=61)

    assert play.row["error"]["type"] == "BudgetExceeded"
    assert sent == ["model a", "model a"]
    assert play.row["wasted_tokens"] == 10


def test_s4_a_query_is_answered_from_the_snapshot_while_that_is_fresh(play: Play) -> None:
    play.go("kind_queries", stop="kind_pure#1")

    play.work(seconds=61)

    assert play.row["result"] == b'["query 0","query 0","query 2"]'


def test_s4_a_passing_error_is_retried_with_growing_jittered_waits_and_an_end(play: Play) -> None:
    raised.extend([ConnectionResetError(), RetryAfter(30), ConnectionResetError(), ConnectionResetError()])

    play.go("kind_two")
    waits = []
    for _ in range(3):
        step = play.verbs.step(play.run, play.key("kind_model#1"))
        waits.append((step["ready_at"] - play.clock.now).total_seconds())
        play.work(seconds=waits[-1] + 0.01)

    assert play.row["error"]["key"] == "kind_model#1"
    assert len(sent) == 4
    assert waits[1] == pytest.approx(30, abs=1)
    assert all(0 <= wait <= 60 for wait in waits)


def test_s4_a_retry_does_not_begin_after_the_deadline(play: Play) -> None:
    raised.append(RetryAfter(30))

    play.go("kind_two", deadline=20).work(seconds=21)

    assert play.row["status"] == "failed"
    assert len(sent) == 1


@pytest.mark.parametrize(
    "error", [ValueError(), PermissionError(), Permanent("the data is wrong")], ids=lambda e: type(e).__name__
)
def test_s4_an_error_of_arguments_rights_or_rules_fails_at_once(play: Play, error: BaseException) -> None:
    raised.append(error)

    play.go("kind_two")

    assert play.row["status"] == "failed"
    assert len(sent) == 1


def test_s4_an_unknown_outcome_is_asked_for_before_anything_else(play: Play) -> None:
    outside.fail(TimeoutError())

    play.go("kind_send", kind="asked")
    assert play.history() == ["pending", "executing", "unknown", "unknown"]  # asked at once, and not believed yet
    play.work(seconds=6)

    assert play.row["status"] == "succeeded"
    assert len(set(outside.tried("asked"))) == 1


def test_p36_a_person_retries_what_ended_the_run_and_nothing_else(play: Play) -> None:
    raised.extend([ValueError("a caught one"), ValueError("the last one")])
    play.go("kind_caught")
    assert play.row["status"] == "failed"

    assert control.reopen(play.verbs.connection, play.run, by="ann") == "running"
    play.work()

    assert (play.row["status"], play.row["result"]) == ("succeeded", b'"caught, model b"')
    assert sent == ["model a", "model b", "model b"]


def test_p36_a_person_retries_every_member_that_failed_in_a_gather(play: Play) -> None:
    raised.extend([ValueError(), ValueError()])
    play.go("kind_gathered")
    assert play.row["status"] == "failed"

    assert control.reopen(play.verbs.connection, play.run, by="ann") == "running"
    play.work()

    assert play.row["status"] == "succeeded"
    assert sent == ["model a", "model b", "model c", "model a", "model b"]

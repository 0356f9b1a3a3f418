"""`run_flow`: plays a run as the ledger would, and finds what a replay would find."""

from __future__ import annotations

import itertools
from contextlib import suppress
from datetime import timedelta

import pytest
from safepoint import (
    Artifact,
    Budget,
    Decision,
    Permanent,
    approval,
    continue_as,
    current,
    effect,
    flow,
    gather,
    now,
    sleep,
    step,
    wait_for,
)
from safepoint.errors import BudgetExceeded, Cancelled, RunCancelled, RunFailed, RunHeld, StepFailed
from safepoint.testing import Artifacts, NoStandIn, ReplayDiffers, Stuck, run_flow
from tenacity import stop_after_attempt, wait_fixed


class BusyError(Exception):
    pass


@step(uses="search", wait=wait_fixed(30), stop=stop_after_attempt(3))
def fetch(url: str) -> str:
    current().spend(tokens=10)
    return f"text of {url}"


@step
async def summarise(texts: list[str]) -> str:
    return " + ".join(texts)


@effect
def publish(text: str) -> str:
    raise AssertionError("a test must never come here")


@flow
async def report(urls: list[str]) -> str | None:
    texts = await gather(*[fetch(url) for url in urls])
    summary = await summarise(texts)
    decision = await approval("publish", show=summary, expires_in=60)
    return await publish(summary) if decision.approved else None


def test_a_run_is_played_with_its_own_steps_and_stand_ins():
    played = run_flow(report(["a", "b"]), steps={publish: lambda text: text.upper()}, approvals={"publish": True})

    assert played.result == "TEXT OF A + TEXT OF B"
    assert [call.key for call in played.calls] == [
        "gather#1.1/fetch#1",
        "gather#1.2/fetch#1",
        "summarise#1",
        "publish#1",
    ]
    assert [effect.arguments for effect in played.effects] == [{"text": "text of a + text of b"}]
    assert played.effects[0].idempotency_key
    assert played.tokens == 20
    assert [event.seq for event in played.events] == list(range(1, len(played.events) + 1))


@pytest.mark.parametrize("seed", range(5))
def test_an_order_is_shuffled_by_its_seed(seed: int):
    played = [
        run_flow(report(list("abcd")), steps={publish: "done"}, approvals={"publish": True}, order="shuffle", seed=seed)
        for _ in range(2)
    ]

    assert [call.key for call in played[0].calls] == [call.key for call in played[1].calls]
    assert played[0].result == "done"


@pytest.mark.parametrize(
    ("answer", "asked"),
    [
        (True, 1),
        (Decision("approved", approved=True, by="ann"), 1),
        (lambda shown: "text of a" in shown, 1),
        ([True], 1),
        (False, 0),
        (Decision("denied", approved=False), 0),
        ([], 0),  # nobody answers: it expires
    ],
)
def test_an_approval_is_answered(answer: object, asked: int):
    played = run_flow(report(["a"]), steps={publish: "done"}, approvals={"publish": answer})

    assert len(played.effects) == asked


def test_an_effect_without_a_stand_in_is_refused():
    with pytest.raises(NoStandIn, match="publish"):
        run_flow(report(["a"]), approvals={"publish": True})


def test_a_failing_step_is_retried_without_waiting():
    tries = itertools.count(1)

    def shaky(url: str) -> str:
        if next(tries) < 3:
            raise BusyError(url)
        return "at last"

    played = run_flow(report(["a"]), steps={fetch: shaky, publish: "done"}, approvals={"publish": True})

    assert [(call.attempt, type(call.error)) for call in played.calls[:3]] == [
        (1, BusyError),
        (2, BusyError),
        (3, type(None)),
    ]
    assert played.events[-1].at - played.events[0].at >= timedelta(seconds=60)


def test_what_the_run_would_raise_is_raised_with_its_causes():
    with pytest.raises(RunFailed) as failed:
        run_flow(report(["a"]), steps={fetch: BusyError("gone")})

    assert isinstance(failed.value.__cause__, StepFailed)
    assert failed.value.__cause__.attempts == 3
    assert isinstance(failed.value.__cause__.__cause__, BusyError)
    assert len(vars(failed.value)["played"].calls) == 3


def test_without_check_the_result_raises():
    played = run_flow(report(["a"]), steps={fetch: Permanent("gone")}, check=False)

    assert len(played.calls) == 1
    assert isinstance(played.error, RunFailed)
    with pytest.raises(RunFailed, match="gone"):
        _ = played.result


def test_a_stand_in_result_of_another_type_fails_as_in_a_worker():
    with pytest.raises(RunFailed, match="result: Input should be a valid string"):
        run_flow(report(["a"]), steps={fetch: 3})


@flow
async def impure(counter: list[int]) -> str:
    return await fetch(f"page-{next(_pages)}")


_pages = itertools.count()


def test_a_flow_that_replays_otherwise_is_found_out():
    with pytest.raises(ReplayDiffers, match=r"at first fetch#1 with input .*, on replay fetch#1 with input"):
        run_flow(impure([]))


@flow
async def mistaken() -> str:
    await fetch("a")
    raise LookupError("oops")


def test_a_bug_in_the_flow_holds_the_run():
    with pytest.raises(RunHeld, match=r"LookupError: oops") as held:
        run_flow(mistaken())

    assert held.value.code == "flow_error"
    assert isinstance(held.value.__cause__, LookupError)


@flow
async def patient() -> list[str]:
    began = now()
    first = await wait_for("answer", type=int)
    second = await wait_for("answer", type=int)
    await sleep(86_400)
    with suppress(TimeoutError):
        await wait_for("never", timeout=3_600)
    hours = (now() - began).total_seconds() // 3600
    return [str(first), str(second), str(hours)]


def test_time_jumps_and_signals_answer_in_turn():
    assert run_flow(patient(), signals={"answer": [1, 2]}).result == ["1", "2", "25.0"]


def test_a_wait_that_nothing_answers_says_what_to_pass():
    with pytest.raises(Stuck, match=r"waits for signal:answer#1 and nothing in the test answers: pass signals="):
        run_flow(patient())


@flow
async def counting(n: int, seen: int = 0) -> int:
    await fetch(str(n))
    if n:
        await continue_as(n - 1, seen=seen + 1)
    return seen


def test_a_flow_continues_as_new():
    played = run_flow(counting(3))

    assert (played.result, played.generation) == (3, 4)
    assert len({call.key for call in played.calls}) == 1


@flow
async def parents(urls: list[str]) -> tuple[str | None, str | None]:
    return await gather(report(urls[:1]), report(urls[1:]))


def test_children_are_played_with_the_same_stand_ins():
    played = run_flow(parents(["a", "b"]), steps={publish: lambda text: text}, approvals={"publish": True})

    assert tuple(played.result) == ("text of a", "text of b")
    assert len(played.effects) == 2
    assert len({call.idempotency_key for call in played.effects}) == 2
    assert len({call.run_id for call in played.calls}) == 2


def test_a_failed_child_fails_its_parent():
    with pytest.raises(RunFailed, match="failed: report: BusyError: away"):
        run_flow(parents(["a", "b"]), steps={fetch: BusyError("away")})


@step
def restore() -> str:
    return "undone"


@flow
async def careful() -> str:
    try:
        await fetch("a")
        await fetch("b")
    except Cancelled:
        return await restore()
    return "done"


def test_a_cancelled_run_may_clean_up():
    assert run_flow(careful(), cancel_after=1).result == "undone"
    with pytest.raises(RunCancelled):
        run_flow(report(["a"]), cancel_after=0)


def test_a_deadline_ends_a_wait():
    with pytest.raises(RunFailed, match="deadline has passed"):
        run_flow(patient(), signals={"answer": 1}, deadline=3_600)


@flow
async def buying() -> str:
    try:
        for _ in range(9):
            await fetch("a")
    except BudgetExceeded as error:
        return error.what
    return "enough"


def test_a_budget_bounds_the_steps():
    played = run_flow(buying(), budget=Budget(tokens=25))

    assert played.result == "tokens"
    assert len(played.calls) == 3


@flow
async def delegating() -> list[str]:
    return [await buying(), await buying()]


@flow
async def renewing(n: int) -> int:
    left = current().budget.tokens or 0
    await fetch("a")
    if n > 1:
        await continue_as(n - 1)
    return left


def test_children_and_generations_share_a_budget():
    played = run_flow(delegating(), budget=Budget(tokens=25))

    assert played.result == ["tokens", "tokens"]
    assert len(played.calls) == 3
    assert run_flow(renewing(2), budget=Budget(tokens=25)).result == 15


def test_a_budget_bounds_the_retries():
    with pytest.raises(RunFailed):
        run_flow(report(["a"]), steps={fetch: BusyError()}, budget=Budget(retries=1))


@flow
async def remarking() -> None:
    current().note("begin")
    await fetch("a")
    current().note("end", percent=100)


def test_notes_are_told_once():
    assert run_flow(remarking()).notes == ["begin", "end"]


@flow
async def enduring(n: int) -> int:
    for _ in range(n):
        await restore()
    return n


def test_a_long_run_is_replayed_now_and_then():
    assert run_flow(enduring(250)).result == 250


def test_a_run_is_given_an_artifact_and_gives_one_that_the_test_can_read():
    @step
    def shout(document: Artifact) -> Artifact:
        return current().artifact(document.read().upper(), name="loud.txt")

    @flow
    async def print_loudly(document: Artifact) -> Artifact:
        return await shout(document)

    uploaded = Artifacts()
    document = uploaded.add("quiet", name="quiet.txt")

    published = run_flow(print_loudly(document), artifacts=uploaded).result

    assert (published.read(), published.media_type) == (b"QUIET", "text/plain")
    assert (document.read(), document.media_type) == (b"quiet", "text/plain; charset=utf-8")


def test_a_flow_cannot_read_an_artifact():
    @flow
    async def peek(document: Artifact) -> int:
        return len(document.read())

    uploaded = Artifacts()

    with pytest.raises(RunHeld, match="reading the artifact"):
        run_flow(peek(uploaded.add(b"bytes")), artifacts=uploaded)

"""Timers, signals, approvals and child runs: what they ask for, and what they give."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from driving import BEGIN, Driving
from safepoint import Decision, approval, flow, gather, sleep, step, wait_for
from safepoint.errors import DeadlineExceeded, StepFailed
from safepoint.ledger.codec import Codec
from safepoint.tasks.outcome import Failed, FlowError


@dataclass
class Reply:
    text: str
    stars: int = 0


@flow
async def napping(delay: float) -> str:
    await sleep(delay)
    await sleep(timedelta(minutes=2))
    await sleep(datetime(2025, 1, 2, tzinfo=UTC))
    return "awake"


def test_a_timer_asks_for_seconds_or_an_instant():
    driving = Driving(napping(1.5))
    assert (driving.ask("sleep#1").delay, driving.ask("sleep#1").until) == (1.5, None)
    driving.commit("sleep#1")
    assert driving.ask("sleep#2").delay == 120.0
    driving.commit("sleep#2")
    assert (driving.ask("sleep#3").delay, driving.ask("sleep#3").until) == (None, datetime(2025, 1, 2, tzinfo=UTC))

    driving.commit("sleep#3")

    assert driving.outcome.value == "awake"


@pytest.mark.parametrize(
    ("delay", "words"),
    [
        (datetime(2025, 1, 1), "has no time zone"),  # noqa: DTZ001  # what the test is about
        (float("nan"), "finite"),
        (-1.0, "not negative"),
        ("1", "no duration"),
        (True, "no duration"),
    ],
)
def test_what_is_no_delay_is_refused_in_the_flow(delay, words: str):
    @flow(name=f"napping_{words[:3].strip()}_{type(delay).__name__}")
    async def napping_badly() -> None:
        await sleep(delay)

    outcome = Driving(napping_badly()).outcome

    assert isinstance(outcome, FlowError)
    assert words in outcome.text


def test_another_delay_is_another_input():
    assert Driving(napping(1)).ask("sleep#1").input_hash != Driving(napping(2)).ask("sleep#1").input_hash


@flow
async def waiting(limit: float | None) -> str:
    first = await wait_for("reply", type=Reply, timeout=limit)
    try:
        second = await wait_for("reply", type=Reply, timeout=5)
    except TimeoutError:
        return f"{first.text}, then nothing"
    return f"{first.text}, {second.stars}"


def test_signals_of_one_name_are_iterations_and_decoded_by_type():
    driving = Driving(waiting(None))
    assert driving.asked == ["signal:reply#1"]
    assert driving.ask("signal:reply#1").delay is None
    driving.commit("signal:reply#1", Reply("yes"))
    assert driving.ask("signal:reply#2").delay == 5.0

    driving.commit("signal:reply#2", {"text": "more", "stars": 3})

    assert driving.outcome.value == "yes, 3"


def test_a_wait_that_times_out_raises_timeout_error():
    driving = Driving(waiting(None))
    driving.commit("signal:reply#1", Reply("yes"))

    driving.put(driving.ask("signal:reply#2"), status="failed", error={"type": "TimeoutError"})

    assert driving.outcome.value == "yes, then nothing"


def test_an_uncaught_timeout_of_a_wait_fails_the_run():
    driving = Driving(waiting(1))

    driving.put(driving.ask("signal:reply#1"), status="failed", error={"type": "TimeoutError"})

    assert isinstance(driving.outcome, Failed)
    assert driving.outcome.error["code"] == "timeout"


def test_the_timeout_of_a_wait_is_no_input():
    assert Driving(waiting(1)).ask("signal:reply#1").input_hash == Driving(waiting(2)).ask("signal:reply#1").input_hash


def test_a_payload_that_does_not_fit_holds_the_run():
    driving = Driving(waiting(None))

    driving.commit("signal:reply#1", {"words": "yes"})

    assert isinstance(driving.outcome, FlowError)
    assert "signal:reply.text" in driving.outcome.text


@flow
async def asking(amount: int) -> str:
    decision = await approval("pay", show={"amount": amount}, expires_in=timedelta(hours=1))
    return f"{decision.outcome} by {decision.by}: {decision.value}"


def test_an_approval_shows_its_request_and_gives_the_decision():
    driving = Driving(asking(7))
    asked = driving.ask("approval:pay#1")
    assert (asked.kind, asked.name, asked.delay, asked.show.data) == ("approval", "pay", 3600.0, b'{"amount":7}')

    decision = Decision("approved", approved=True, by="ann", value={"amount": 5})
    driving.put(asked, status="succeeded", data=decision.encode().data, encoding="json")

    assert driving.outcome.value == "approved by ann: {'amount': 5}"


def test_what_is_shown_is_the_input_of_an_approval():
    assert Driving(asking(1)).ask("approval:pay#1").input_hash != Driving(asking(2)).ask("approval:pay#1").input_hash


def test_a_decision_cannot_contradict_itself():
    with pytest.raises(ValueError, match="accepted outcomes"):
        Decision("expired", approved=True)


@step
def part(n: int) -> int:
    return n


@flow
async def child(n: int) -> int:
    return await part(n)


@flow
async def parent(n: int) -> tuple[int, int, int]:
    return await gather(child(n), part(n), child(n + 1))


def test_an_awaited_call_is_a_child_run():
    driving = Driving(parent(3))
    assert driving.asked == ["gather#1.1/child#1", "gather#1.2/part#1", "gather#1.3/child#1"]
    asked = driving.ask("gather#1.1/child#1")
    assert (asked.kind, asked.awaited.call.flow, asked.input.data, asked.joins) == (
        "child",
        child,
        b'{"n":3}',
        "gather#1",
    )

    driving.commit("gather#1.1/child#1", 30)
    driving.commit("gather#1.2/part#1", 3)
    driving.commit("gather#1.3/child#1", 40)

    assert driving.outcome.encoded.data == b"[30,3,40]"


def test_a_failed_child_is_a_step_failure():
    @flow
    async def forgiving(n: int) -> str:
        try:
            await child(n)
        except StepFailed as error:
            return str(error)
        return "fine"

    driving = Driving(forgiving(1))
    error = {"type": "Cancelled", "message": "the child was cancelled"}
    driving.put(driving.ask("child#1"), status="cancelled", error=error)

    assert driving.outcome.value == "child failed after 1 attempt(s): Cancelled: the child was cancelled"


def test_a_deadline_reaches_every_kind_of_wait():
    driving = Driving(waiting(None))

    driving.fail("signal:reply#1", DeadlineExceeded())

    assert isinstance(driving.outcome.exc, DeadlineExceeded)


@pytest.mark.parametrize("name", ["", "a b", "a#b", "a/b", 3])
def test_a_name_that_cannot_stand_in_a_key_is_refused(name):
    with pytest.raises(ValueError, match="cannot be a name"):
        _ = wait_for(name)
    with pytest.raises(ValueError, match="cannot be a name"):
        _ = approval(name)


def test_a_wait_outside_of_a_flow_says_so():
    import asyncio

    from safepoint.errors import NotInFlow

    for awaited in (part(1), sleep(1), wait_for("x"), gather(part(1)), child(1)):
        with pytest.raises(NotInFlow, match="works only inside a flow"):
            asyncio.run(_await(awaited))


async def _await(awaited):
    return await awaited


def test_an_await_is_used_up():
    @flow
    async def twice() -> None:
        call = part(1)
        await call
        await call

    driving = Driving(twice())
    driving.commit("part#1", 1)

    assert "step part was awaited before" in driving.outcome.text
    assert driving.driver.now > BEGIN


def test_a_payload_type_is_kept_for_who_sends():
    codec = Driving(waiting(None)).ask("signal:reply#1").value_type

    assert isinstance(codec, Codec)
    assert codec.encode(Reply("a")).data == b'{"text":"a","stars":0}'

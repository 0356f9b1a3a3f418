"""What the driver refuses: bugs of a flow, awaits of something foreign, history that is another flow's."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from driving import BEGIN, Driving, double, drive, straight
from safepoint import continue_as, flow, gather
from safepoint.ledger.key import Key
from safepoint.tasks.driver import Driver
from safepoint.tasks.outcome import Diverged, Failed, FlowError, Returned
from safepoint.tasks.record import Record


@flow
async def wrong_call() -> int:
    return await double(m=3)  # type: ignore[call-arg]  # what the test is about


def test_arguments_that_do_not_fit_are_a_type_error_at_the_call():
    outcome = Driving(wrong_call()).outcome

    assert isinstance(outcome, Failed)
    assert isinstance(outcome.exc, TypeError)
    assert "double(): missing a required argument: 'n'" in str(outcome.exc)


@flow
async def buggy() -> int:
    await double(1)
    return {"a": 1}["b"]


def test_any_other_exception_is_a_bug_and_names_the_line():
    driving = Driving(buggy())

    driving.commit("double#1", 2)

    assert isinstance(driving.outcome, FlowError)
    assert driving.outcome.text.startswith("buggy: KeyError: 'b' (")
    assert "test_driver_refusals.py" in driving.outcome.text


@flow
async def exiting() -> None:
    await gather(double(1), _exit())


async def _exit() -> None:
    raise SystemExit(3)


def test_an_exit_inside_flow_code_holds_the_run_and_ends_nothing():
    outcome = Driving(exiting()).outcome

    assert isinstance(outcome, FlowError)
    assert isinstance(outcome.exc, SystemExit)


@flow
async def sleeping_with_asyncio() -> None:
    await asyncio.sleep(1)


@flow
async def yielding_with_asyncio() -> None:
    await asyncio.sleep(0)


class Foreign:
    def __await__(self):
        yield object()


@flow
async def foreign() -> None:
    await Foreign()  # type: ignore[misc]  # what the test is about


@pytest.mark.parametrize("call", [sleeping_with_asyncio(), yielding_with_asyncio(), foreign()])
def test_a_foreign_await_says_to_put_it_in_a_step(call):
    outcome = Driving(call).outcome

    assert isinstance(outcome, FlowError)
    assert "put it in a step" in outcome.text


def test_a_foreign_await_is_refused_inside_a_running_loop_too():
    async def main() -> object:
        outcome = Driving(sleeping_with_asyncio()).outcome
        await asyncio.sleep(0)  # the program's own loop is back
        return outcome

    assert isinstance(asyncio.run(main()), FlowError)


@flow
async def unencodable() -> object:
    return {"items": [1, Foreign]}


def test_a_result_that_cannot_be_encoded_fails_with_its_path():
    outcome = Driving(unencodable()).outcome

    assert isinstance(outcome, Failed)
    assert outcome.error["path"] == "result.items[1]"


def test_input_that_does_not_fit_fails_the_run():
    driving = Driving(straight(1))
    info = replace(driving.info, input=b'{"n": "x"}')

    driver = Driver(straight, run=info)
    driver.start()

    assert isinstance(driver.outcome, Failed)
    assert driver.outcome.error["type"] == "BadArguments"
    assert driver.outcome.error["path"] == "input.n"


def test_a_committed_key_that_is_not_asked_for_diverges_and_names_both_sides():
    driving = Driving(straight(1))

    driving.driver.feed(Record(1, Key(1, "", "other", 1), "step", "succeeded", BEGIN, b"\1" * 32, b"1", "json"))

    assert isinstance(driving.outcome, Diverged)
    assert "other#1 (step with input 010101010101)" in driving.outcome.committed
    assert driving.outcome.asked == "double#1 (step)"


def test_another_input_for_a_committed_key_diverges():
    driving = Driving(straight(1))

    driving.commit("double#1", 2, input_hash=b"\2" * 32)

    assert isinstance(driving.outcome, Diverged)
    assert driving.outcome.asked.startswith("double#1 (step with input ")


def test_history_that_goes_on_after_the_flow_has_returned_diverges():
    driving = drive(straight(1))
    assert isinstance(driving.outcome, Returned)

    driving.driver.feed(Record(9, Key(1, "", "double", 3), "step", "succeeded", BEGIN, None, b"1", "json"))

    assert isinstance(driving.outcome, Diverged)
    assert driving.outcome.asked == "nothing more, it has returned"


def test_corrected_code_goes_on_from_the_last_step():
    driving = Driving(buggy())
    driving.commit("double#1", 2)

    @flow(name="buggy", version="1.1")
    async def corrected() -> int:
        await double(1)
        return 7

    outcome = driving.replayed(call=corrected()).outcome
    assert isinstance(outcome, Returned)
    assert outcome.value == 7


def test_a_result_that_no_longer_decodes_holds_the_run():
    driving = Driving(straight(1))

    driving.put(driving.ask("double#1"), status="succeeded", data=b'"text"', encoding="json")

    assert isinstance(driving.outcome, FlowError)
    assert "double#1: result: the stored value does not fit" in driving.outcome.text


@flow
async def continuing_in_a_branch() -> None:
    await gather(continue_in_a_branch())


async def continue_in_a_branch() -> None:
    _ = continue_as(2)


def test_continue_as_is_refused_inside_a_gather():
    assert "not inside a gather" in Driving(continuing_in_a_branch()).outcome.text


def test_a_forgotten_await_warns_as_python_does():
    @flow
    async def forgetful() -> None:
        double(1)  # type: ignore[unused-coroutine]  # what the test is about

    with pytest.warns(RuntimeWarning, match="step double was never awaited"):
        Driving(forgetful())


@flow
async def not_awaiting() -> int:
    return double(1)  # type: ignore[return-value]  # what the test is about


@flow
async def passing_on() -> int:
    return await double(double(1))  # type: ignore[arg-type]  # what the test is about


@pytest.mark.parametrize(
    ("call", "words"), [(not_awaiting(), "what not_awaiting returns"), (passing_on(), "the argument n of double")]
)
def test_a_result_that_was_not_awaited_is_a_bug_with_words(call, words: str):
    outcome = Driving(call).outcome

    assert isinstance(outcome, FlowError)
    assert f"{words} was used without its result: write `await`" in outcome.text

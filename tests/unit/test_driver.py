"""The driver: keys, gathers, feeding and replay."""

from __future__ import annotations

import gc
import sys
import warnings
from collections.abc import Callable
from contextvars import ContextVar
from datetime import timedelta
from types import FrameType
from typing import Any

import pytest
from driving import BEGIN, Driving, double, drive, straight
from safepoint import Budget, Permanent, continue_as, current, flow, gather, now, random, sleep, step, uuid4
from safepoint.errors import BudgetExceeded, Cancelled, DeadlineExceeded, StepFailed
from safepoint.tasks.driver import Driver
from safepoint.tasks.outcome import Continued, Failed, WasCancelled


@step
def join(parts: list[int]) -> str:
    return "-".join(map(str, parts))


async def twice(n: int) -> int:
    return await double(await double(n))


@flow
async def parallel(n: int) -> str:
    one, two, three = await gather(double(n), twice(n), gather(double(1), double(2)))
    return await join([one, two, *three])


def test_an_iteration_is_counted_inside_one_path():
    driving = Driving(straight(1))
    assert driving.asked == ["double#1"]

    driving.commit("double#1", 2)

    assert driving.asked == ["double#2"]
    assert driving.ask("double#2").arguments() == ((2,), {})


def test_a_gather_asks_for_its_branches_at_once_under_their_paths():
    driving = Driving(parallel(5))

    assert driving.asked == [
        "gather#1.1/double#1",
        "gather#1.2/double#1",
        "gather#1.3/gather#1.1/double#1",
        "gather#1.3/gather#1.2/double#1",
    ]


@pytest.mark.parametrize("last", [0, -1])
def test_the_order_of_commits_changes_neither_keys_nor_result(last: int):
    driving = drive(parallel(5), choose=lambda asked: asked[last])

    assert driving.outcome.value == "10-20-2-4"
    assert {str(record.key) for record in driving.history} == {
        "@start#1",
        "gather#1.1/double#1",
        "gather#1.2/double#1",
        "gather#1.2/double#2",
        "gather#1.3/gather#1.1/double#1",
        "gather#1.3/gather#1.2/double#1",
        "join#1",
    }


def test_a_bare_member_of_a_gather_names_what_it_joins():
    driving = Driving(parallel(5))

    assert [asked.joins for asked in driving.driver.asked.values()] == [
        "gather#1",
        None,  # a coroutine: its outcome lets it ask for more
        "gather#1.3/gather#1",
        "gather#1.3/gather#1",
    ]


def test_only_what_is_new_is_taken():
    driving = Driving(parallel(5))
    assert len(driving.driver.take_new()) == 4
    assert driving.driver.take_new() == []

    driving.commit("gather#1.2/double#1", 10)

    assert [str(one.key) for one in driving.driver.take_new()] == ["gather#1.2/double#2"]


@flow
async def limited(n: int) -> list[int]:
    return await gather(*[double(i) for i in range(n)], limit=2)


def test_a_limit_starts_the_next_member_when_one_ends():
    driving = Driving(limited(4))
    assert driving.asked == ["gather#1.1/double#1", "gather#1.2/double#1"]
    assert driving.ask("gather#1.1/double#1").joins is None

    driving.commit("gather#1.2/double#1", 2)

    assert driving.asked == ["gather#1.1/double#1", "gather#1.3/double#1"]
    assert drive(limited(4)).outcome.value == [0, 2, 4, 6]


@flow
async def empty() -> list[int]:
    nothing: list[int] = await gather(*[double(i) for i in range(0)])
    return nothing


def test_an_empty_gather_is_an_empty_list():
    assert Driving(empty()).outcome.value == []


@step
def boom(n: int) -> int:
    raise RuntimeError(n)


@flow
async def failing() -> tuple[int, int, int]:
    return await gather(boom(1), double(2), boom(3))


def test_a_gather_waits_for_all_then_raises_the_first_failure_by_position():
    driving = Driving(failing())

    driving.fail("gather#1.3/boom#1", RuntimeError("third"))
    driving.fail("gather#1.1/boom#1", RuntimeError("first"))
    assert driving.outcome is None
    driving.commit("gather#1.2/double#1", 4)

    assert isinstance(driving.outcome, Failed)
    assert driving.outcome.error == {
        "type": "RuntimeError",
        "message": "first",
        "step": "boom",
        "attempts": 3,
    }


@flow
async def tolerant() -> list[str]:
    found = await gather(boom(1), double(2), return_exceptions=True)
    return [type(one).__name__ for one in found]


def test_exceptions_are_among_the_values_when_asked_for():
    driving = Driving(tolerant())

    driving.fail("gather#1.1/boom#1", RuntimeError("first"))
    driving.commit("gather#1.2/double#1", 4)

    assert driving.outcome.value == ["StepFailed", "int"]


@flow
async def catching(n: int) -> str:
    try:
        return str(await double(n))
    except (StepFailed, BudgetExceeded, DeadlineExceeded) as error:
        return f"{type(error).__name__}: {error}"


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (RuntimeError("no"), "StepFailed: double failed after 3 attempt(s): RuntimeError: no"),
        (TimeoutError("slow"), "StepFailed: double failed after 3 attempt(s): TimeoutError: slow"),
        (BudgetExceeded(what="tokens"), "BudgetExceeded: The run's budget of tokens is used up."),
        (DeadlineExceeded(), "DeadlineExceeded: The run's deadline has passed."),
    ],
)
def test_a_failed_step_raises_at_its_await(error: Exception, raised: str):
    driving = Driving(catching(1))

    driving.fail("double#1", error)

    assert driving.outcome.value == raised


def test_an_uncaught_step_failure_fails_the_run():
    driving = Driving(straight(1))

    driving.fail("double#1", RuntimeError("no"))

    assert isinstance(driving.outcome, Failed)
    assert isinstance(driving.outcome.exc, StepFailed)
    assert driving.outcome.exc.attempts == 3


@flow
async def on_purpose() -> None:
    raise Permanent("out of stock")


def test_a_flow_fails_on_purpose_with_permanent():
    outcome = Driving(on_purpose()).outcome

    assert isinstance(outcome, Failed)
    assert outcome.error["message"] == "out of stock"


@flow
async def derived() -> list[str]:
    first = now()
    await double(1)
    return [first.isoformat(), now().isoformat(), str(random().random()), str(random().random()), str(uuid4())]


def test_time_and_chance_are_derived():
    one, other = drive(derived()), drive(derived())

    assert one.outcome.value == other.outcome.value
    assert one.outcome.value[0] == BEGIN.isoformat()
    assert one.outcome.value[1] == (BEGIN + timedelta(seconds=1)).isoformat()
    assert one.outcome.value[2] != one.outcome.value[3]
    assert drive(derived(), run_id="run-2").outcome.value[4] != one.outcome.value[4]
    assert drive(derived(), generation=2).outcome.value[4] != one.outcome.value[4]


@flow
async def counting_down(n: int) -> int:
    await double(n)
    if n == 0:
        return n
    await continue_as_less(n)
    raise AssertionError


async def continue_as_less(n: int) -> None:
    try:
        await continue_as(n - 1)
    except Exception as error:  # it must not be caught here
        raise AssertionError from error


def test_continue_as_ends_the_generation_with_a_new_input():
    driving = drive(counting_down(3))

    assert isinstance(driving.outcome, Continued)
    assert driving.outcome.input.data == b'{"n":2}'
    assert driving.asked == []


@step
def undo(n: int) -> None:
    return None


@flow
async def cleaning() -> str:
    try:
        await gather(double(1), twice(2), *[double(n) for n in range(3)], limit=3)
    except Cancelled:
        await gather(undo(1), undo(2))
        return "cleaned"
    return "not cancelled"


def test_a_cancellation_is_raised_once_in_every_open_await_and_clean_up_follows():
    driving = Driving(cleaning())
    driving.driver.take_new()

    driving.cancel()
    driving.cancel()

    assert driving.asked == ["gather#2.1/undo#1", "gather#2.2/undo#1"]
    assert [str(key) for key in driving.driver.take_dropped()] == [
        "gather#1.1/double#1",
        "gather#1.2/double#1",
        "gather#1.3/double#1",
    ]
    driving.commit("gather#2.1/undo#1")
    driving.commit("gather#2.2/undo#1")
    assert driving.outcome.value == "cleaned"


def test_a_late_commit_of_what_a_cancellation_has_ended_is_no_difference():
    driving = Driving(cleaning())
    late = driving.ask("gather#1.1/double#1")
    driving.cancel()

    driving.put(late, status="succeeded", data=b"2", encoding="json")

    assert driving.outcome is None
    assert [str(key) for key in driving.replayed().asked] == driving.asked


def test_an_uncaught_cancellation_cancels_the_run():
    driving = Driving(straight(1))

    driving.cancel()

    assert isinstance(driving.outcome, WasCancelled)


def test_a_cancellation_before_the_start_runs_no_code():
    driver = Driver(straight, run=Driving(straight(1)).info)

    driver.cancel()

    assert isinstance(driver.outcome, WasCancelled)
    assert not driver.asked


@step(freshness=60)
def price(item: str) -> float:
    return 1.5


@flow
async def shopping(pause: float) -> list[float]:
    first = await price("apple")
    pear = await price("pear")
    await sleep(pause)
    return [first, pear, await price("apple")]


def test_a_fresh_result_answers_an_equal_call():
    driving = Driving(shopping(10))
    driving.commit("price#1", 1.5)
    driving.commit("price#2", 2.5)

    driving.put(driving.ask("sleep#1"), status="succeeded", at=BEGIN + timedelta(seconds=60))

    assert driving.outcome.value == [1.5, 2.5, 1.5]


def test_a_result_that_is_not_fresh_runs_as_the_next_iteration():
    driving = Driving(shopping(10))
    driving.commit("price#1", 1.5)
    driving.commit("price#2", 2.5)

    driving.put(driving.ask("sleep#1"), status="succeeded", at=BEGIN + timedelta(seconds=61))

    assert driving.asked == ["price#3"]


@flow
async def noting() -> str:
    here = current()
    here.note(f"begin {here.tenant}", percent=0)
    await double(1)
    here.note("end", percent=100)
    return f"{here.run_id} {here.budget.tokens}"


def test_notes_are_drained():
    driving = Driving(noting(), budget=Budget(tokens=100))
    assert driving.driver.take_notes() == [{"text": "begin acme", "percent": 0}]

    driving.commit("double#1", 2, tokens=30)

    assert driving.driver.take_notes() == [{"text": "end", "percent": 100}]
    assert driving.outcome.value == "run-1 70"


@flow
async def stubborn() -> None:
    try:
        await gather(double(1), twice(2), double(3), limit=2)
    finally:
        await double(4)


def test_a_driver_that_is_given_up_leaves_no_warning():
    driving = Driving(stubborn())

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        driving.driver.close()
        driving.driver.close()

    assert driving.driver._waiting == {}


@flow
async def long(n: int) -> int:
    total = 0
    for _ in range(n):
        total = await double(1)
    return total


def test_feeding_a_record_costs_the_same_however_long_the_history():
    driving = Driving(long(3_000))

    def feed(count: int) -> None:
        for _ in range(count):
            driving.put(next(iter(driving.driver.asked.values())), status="succeeded", data=b"2", encoding="json")

    feed(10)
    early = executed(lambda: feed(1))
    feed(2_000)
    late = executed(lambda: feed(1))

    assert early == late  # lines, not seconds: a rescan of the history would be thousands more


def executed(work: Callable[[], object]) -> int:
    """Count the lines that Python executes; each turn of a loop is one more, on one line too."""
    count = 0

    def trace(_frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    gc.disable()  # what it finalizes is what other tests have left
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
        gc.enable()
    return count


def test_the_count_of_lines_sees_a_scan_on_one_line():
    few, many = range(10), range(1_000)

    assert executed(lambda: [n for n in many if n < 0]) > executed(lambda: [n for n in few if n < 0]) + 900


_colour: ContextVar[str] = ContextVar("colour", default="none")


@flow
async def colouring() -> list[str]:
    before = _colour.get()
    _colour.set("red")
    await double(1)
    return [before, _colour.get()]


def test_a_flow_has_context_variables_of_its_own():
    _colour.set("blue")
    driving = Driving(colouring())
    assert _colour.get() == "blue"

    driving.commit("double#1", 2)

    assert driving.outcome.value == ["none", "red"]


def test_a_replay_keeps_only_the_inputs_of_open_awaits():
    driving = Driving(long(50))
    for _ in range(49):
        driving.put(next(iter(driving.driver.asked.values())), status="succeeded", data=b"2", encoding="json")

    assert len(driving.driver.take_new()) == 1


@flow
async def polling(n: int) -> int:
    for i in range(n):
        await price(f"item-{i}")
    return n


def test_what_is_no_longer_fresh_is_forgotten():
    driving = Driving(polling(300))
    for _ in range(200):
        driving.put(next(iter(driving.driver.asked.values())), status="succeeded", data=b"2", encoding="json")

    assert len(driving.driver.fresh._newest["price"]) == 60  # a commit each second, fresh for a minute

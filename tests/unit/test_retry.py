"""Retry decisions: tenacity's objects, evaluated without sleeping."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError
from safepoint import Permanent, step
from safepoint.errors import RetryAfter, StepTimeout
from safepoint.tasks.retry import Retry, Stop, decide
from tenacity import (
    retry_if_exception_type,
    retry_if_not_exception_type,
    stop_after_attempt,
    stop_after_delay,
    stop_before_delay,
    stop_never,
    wait_chain,
    wait_exponential,
    wait_fixed,
    wait_none,
)


@step
def plain() -> None: ...


@step(
    wait=wait_exponential(multiplier=2, max=10), stop=stop_after_attempt(3), retry=retry_if_exception_type(ValueError)
)
def tuned() -> None: ...


def decided(step, error: BaseException | None = None, *, attempt: int = 1, elapsed: float = 0.0, **left) -> Any:
    return decide(step, attempt=attempt, error=error or RuntimeError("x"), elapsed=elapsed, **left)


def test_the_default_waits_at_random_and_stops_after_five():
    verdicts = [decided(plain, attempt=attempt) for attempt in range(1, 5)]

    assert all(isinstance(verdict, Retry) and 0 <= verdict.delay <= 60 for verdict in verdicts)
    assert decided(plain, attempt=5) == Stop("attempts", "no attempt is left after 5")


def _invalid() -> ValidationError:
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(int).validate_python("x")
    return caught.value


@pytest.mark.parametrize(
    "error",
    [
        Permanent("no"),
        TypeError(),
        ValueError(),
        KeyError(),
        AttributeError(),
        NotImplementedError(),
        PermissionError(),
        AssertionError(),
        UnicodeDecodeError("utf-8", b"", 0, 1, ""),
        _invalid(),
    ],
)
def test_what_no_second_attempt_mends_is_not_retried(error: Exception):
    assert decided(plain, error).reason == "permanent"


@pytest.mark.parametrize(
    "error", [RuntimeError(), OSError(), TimeoutError(), StepTimeout(seconds=1), MemoryError(), SystemExit(1)]
)
def test_everything_else_is_retried(error: BaseException):
    assert isinstance(decided(plain, error), Retry)


def test_a_policy_of_ones_own_decides_alone():
    assert decided(tuned, ValueError(), attempt=2) == Retry(4.0)
    assert decided(tuned, RuntimeError()).reason == "permanent"
    assert decided(tuned, ValueError(), attempt=3).reason == "attempts"
    assert decided(tuned, Permanent("no")).reason == "permanent"


def test_retry_after_is_honoured_and_counts():
    assert decided(tuned, RetryAfter(33)) == Retry(33.0)
    assert decided(tuned, RetryAfter(-5)) == Retry(0.0)  # a date that is over
    assert decided(tuned, RetryAfter(33), attempt=3).reason == "attempts"


@pytest.mark.parametrize(
    ("policy", "attempt", "elapsed", "verdict"),
    [
        ({"stop": stop_after_delay(60), "wait": wait_none()}, 9, 59.0, Retry(0.0)),
        ({"stop": stop_after_delay(60), "wait": wait_none()}, 2, 60.0, Stop("attempts", "no attempt is left after 2")),
        (
            {"stop": stop_before_delay(60), "wait": wait_fixed(30)},
            2,
            31.0,
            Stop("attempts", "no attempt is left after 2"),
        ),
        ({"stop": stop_never, "wait": wait_chain(wait_fixed(1), wait_fixed(7))}, 2, 0.0, Retry(7.0)),
        (
            {"stop": stop_after_attempt(2) | stop_after_delay(5), "wait": wait_fixed(1) + wait_fixed(2)},
            1,
            0.0,
            Retry(3.0),
        ),
        (
            {"retry": retry_if_not_exception_type(RuntimeError)},
            1,
            0.0,
            Stop("permanent", "RuntimeError is not retried"),
        ),
        ({"wait": lambda state: 5 * state.attempt_number, "stop": lambda state: False}, 4, 0.0, Retry(20.0)),
    ],
)
def test_tenacitys_objects_mean_what_they_mean(policy, attempt: int, elapsed: float, verdict: Retry | Stop):
    trying = step(**policy)(lambda: None)

    assert decided(trying, attempt=attempt, elapsed=elapsed) == verdict


def test_the_runs_bounds_end_the_retries():
    assert decided(tuned, ValueError(), retries_left=0).reason == "budget"
    assert decided(tuned, ValueError(), time_left=1.0).reason == "deadline"
    assert decided(tuned, ValueError(), retries_left=1, time_left=3.0) == Retry(2.0)


@pytest.mark.parametrize(
    "policy", [{"wait": lambda state: 1 / 0}, {"wait": lambda state: -1}, {"stop": lambda state: 1 / 0}]
)
def test_a_policy_that_raises_ends_the_step_and_says_why(policy):
    verdict = decided(step(**policy)(lambda: None))

    assert verdict.reason == "policy"
    assert "the retry policy of" in verdict.text


def test_an_asynchronous_policy_is_refused():
    async def wait(state: object) -> float:
        return 1.0

    policy: Any = wait

    assert "is asynchronous" in decided(step(wait=policy)(lambda: None)).text

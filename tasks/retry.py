"""Whether a failed attempt is tried again, and when: tenacity's own objects, evaluated by us.

The delay is a row of the ledger, never a sleep.
"""

from __future__ import annotations

import functools
import inspect
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeVar

from ..ledger.errors import Permanent, RetryAfter
from .duration import seconds

if TYPE_CHECKING:
    from collections.abc import Callable

    from tenacity import RetryCallState
    from tenacity.stop import StopBaseT
    from tenacity.wait import WaitBaseT

    from .step import Step

__all__ = ["NO_RETRY", "Retry", "Stop", "decide", "is_retried", "pause", "pause_of"]

T = TypeVar("T")

# What no second attempt mends; a step with a `retry=` of its own decides by that alone.
NEVER = (
    Permanent,
    TypeError,
    ValueError,
    KeyError,
    AttributeError,
    NotImplementedError,
    PermissionError,
    AssertionError,
)


@dataclass(frozen=True, slots=True)
class Retry:
    """The step is tried again after `delay` seconds."""

    delay: float


@dataclass(frozen=True, slots=True)
class Stop:
    """The step has failed for good."""

    reason: Literal["permanent", "attempts", "budget", "deadline", "policy"]
    text: str


NO_RETRY: Final = Stop("budget", "the run's budget of retries is used up")


def decide(
    step: Step[..., object],
    *,
    attempt: int,
    error: BaseException,
    elapsed: float,
    retries_left: int | None = None,
    time_left: float | None = None,
) -> Retry | Stop:
    """Decide about an attempt (the first is 1) that ended in `error`, `elapsed` seconds after the first one began."""
    try:
        verdict = _by_policy(step, attempt=attempt, error=error, elapsed=elapsed)
    except Exception as broken:  # noqa: BLE001  # the user's policy: the step fails, and says why
        return Stop("policy", f"the retry policy of {step.name} raised {type(broken).__name__}: {broken}")
    if isinstance(verdict, Stop):
        return verdict
    if retries_left is not None and retries_left < 1:
        return NO_RETRY
    if time_left is not None and verdict.delay >= time_left:
        return Stop("deadline", f"the next attempt would begin in {verdict.delay:.1f} s, after the run's deadline")
    return verdict


def is_retried(step: Step[..., object], error: BaseException) -> bool:
    """Whether an error is one that the step's policy tries again, were it the first."""
    try:
        return _is_retried(step, error=error, state=_state(step.fn, attempt=1, error=error, elapsed=0.0))
    except Exception:  # noqa: BLE001  # the user's policy: `decide` says what is wrong with it
        return False


def pause(
    fn: Callable[..., object],
    *,
    wait: Callable[[RetryCallState], float] | WaitBaseT | None,
    stop: Callable[[RetryCallState], bool] | StopBaseT,
    attempt: int,
    elapsed: float,
    error: BaseException,
) -> float | None:
    """Give the seconds until something is tried once more after `attempt` times, or None when that was enough."""
    state = _state(fn, attempt=attempt, error=error, elapsed=elapsed)
    try:
        state.upcoming_sleep = seconds(_answer(wait or _defaults()[0], state), what="wait")
        return None if _answer(stop, state) else state.upcoming_sleep
    except Exception:  # noqa: BLE001  # the user's policy: what it cannot say is not asked for ever
        return None


def _by_policy(step: Step[..., object], *, attempt: int, error: BaseException, elapsed: float) -> Retry | Stop:
    state = _state(step.fn, attempt=attempt, error=error, elapsed=elapsed)
    if not _is_retried(step, error=error, state=state):
        return Stop("permanent", f"{type(error).__name__} is not retried")
    wait, stop = _defaults()
    if isinstance(error, RetryAfter):
        state.upcoming_sleep = pause_of(error)
    else:
        state.upcoming_sleep = seconds(_answer(step.policy.wait or wait, state), what="wait")
    if _answer(step.policy.stop or stop, state):
        return Stop("attempts", f"no attempt is left after {attempt}")
    return Retry(state.upcoming_sleep)


def pause_of(error: RetryAfter) -> float:
    """Give the seconds that the other side asks for; a date that is over, as its header may say, is no time at all."""
    given: object = error.seconds
    is_over = isinstance(given, (int, float)) and not isinstance(given, bool) and -math.inf < given < 0
    return 0.0 if is_over else seconds(error.seconds, what="RetryAfter")


def _is_retried(step: Step[..., object], *, error: BaseException, state: RetryCallState) -> bool:
    if isinstance(error, Permanent):
        return False
    if isinstance(error, RetryAfter):
        return True
    if step.policy.retry is not None:
        return bool(_answer(step.policy.retry, state))
    return not isinstance(error, NEVER)  # pydantic's ValidationError is a ValueError


def _state(fn: Callable[..., object], *, attempt: int, error: BaseException, elapsed: float) -> RetryCallState:
    from tenacity import Future, RetryCallState, Retrying  # noqa: PLC0415  # its import costs more than all of the face

    state = RetryCallState(Retrying(), fn, (), {})
    state.attempt_number = attempt
    state.outcome = Future(attempt)
    state.outcome.set_exception(error)
    # Its clock is monotonic and of this process; only the difference is read, and that is the ledger's.
    state.start_time, state.outcome_timestamp = 0.0, elapsed
    return state


def _answer(policy: Callable[[RetryCallState], T], state: RetryCallState) -> T:
    answer = policy(state)
    if inspect.iscoroutine(answer):
        answer.close()
        msg = f"{policy!r} is asynchronous. Accepted: tenacity's ordinary objects"
        raise TypeError(msg)
    return answer


@functools.cache
def _defaults() -> tuple[WaitBaseT, StopBaseT]:
    from tenacity import stop_after_attempt, wait_random_exponential  # noqa: PLC0415  # as above

    return wait_random_exponential(max=60), stop_after_attempt(5)

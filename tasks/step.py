"""Steps: one unit of work each, declared once, executed as one Celery task, committed once."""

from __future__ import annotations

import inspect
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, ParamSpec, Protocol, TypeVar, cast, overload

from ..ledger.key import checked_name
from .awaited import Asked, Awaited
from .declared import Origin, declared
from .duration import seconds
from .signature import Signature, refuse_awaitable

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping
    from datetime import timedelta
    from types import FrameType

    from tenacity import RetryCallState
    from tenacity.retry import RetryBaseT
    from tenacity.stop import StopBaseT
    from tenacity.wait import WaitBaseT

    from ..ledger.codec import Codec, Encoded
    from ..ledger.key import Key
    from .budget import Budget
    from .record import Kind, Load, Record

__all__ = ["Policy", "Step", "StepCall", "local_names", "step"]

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

TIMEOUT = 600.0


@dataclass(frozen=True, slots=True)
class Policy:
    """How a step is run: its dependency, lane and bounds, and when it is tried again (tenacity's objects, or None)."""

    uses: str | None = None
    lane: str = "online"
    timeout: float = TIMEOUT
    reserve: Budget | None = None
    freshness: float | None = None
    wait: WaitBaseT | None = None
    stop: StopBaseT | None = None
    retry: RetryBaseT | None = None

    def __post_init__(self) -> None:
        """Refuse a bound that bounds nothing."""
        if self.timeout <= 0:
            msg = f"timeout={self.timeout!r}: accepted is a positive duration"
            raise ValueError(msg)
        if self.reserve is not None and (self.reserve.retries is not None or self.reserve == type(self.reserve)()):
            msg = f"reserve={self.reserve!r}: accepted is a Budget of tokens, usd or both, for one attempt"
            raise ValueError(msg)
        for name in ("wait", "stop", "retry"):
            given = getattr(self, name)
            if given is not None and not callable(given):
                msg = f"{name}={given!r}: accepted is one of tenacity's {name} objects, or a function of its state"
                raise TypeError(msg)


class Step(Generic[P, R_co]):
    """A declared step; calling it in a flow gives a coroutine to await."""

    kind: ClassVar[Kind] = "step"
    fn: Callable[P, Any]  # the undecorated function: of an async step it gives a coroutine, which no type here tells

    def __init__(self, fn: Callable[..., object], *, name: str | None, policy: Policy, frame: FrameType) -> None:
        _check_function(fn, what=f"@{self.kind}")
        self.name = checked_name(name or fn.__name__, what=f"@{self.kind}")
        if ":" in self.name:
            msg = f"@{self.kind}: {self.name!r} cannot be a name, ':' marks the waits"
            raise ValueError(msg)
        self.fn = fn
        self.policy = policy
        self.is_async = inspect.iscoroutinefunction(fn)
        self.signature = Signature(fn, name=self.name, names=local_names(fn, frame))
        self.__name__ = fn.__name__
        self.__qualname__ = fn.__qualname__
        self.__module__ = fn.__module__
        self.__doc__ = fn.__doc__
        self.__wrapped__ = fn
        declared.add_step(self, name=self.name, origin=Origin.of(fn, frame))

    def __repr__(self) -> str:
        """Name it as what it is."""
        return f"<{self.kind} {self.name}>"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[object, object, R_co]:
        """Ask for the step in a flow; the arguments are frozen here, the step runs when this is awaited."""
        return StepCall(self, self.signature.bind(args, kwargs))

    def schema(self) -> dict[str, object]:
        """Give the JSON schema of the arguments, for a model's tools."""
        return self.signature.schema()

    def from_json(self, arguments: Mapping[str, object] | str | bytes) -> Coroutine[object, object, R_co]:
        """Make a call from arguments that a model wrote, or raise `BadArguments`."""
        args, kwargs = self.signature.read(arguments)
        return StepCall(self, self.signature.bind(args, kwargs))

    @property
    def uses(self) -> str | None:
        """The dependency it uses."""
        return self.policy.uses

    @property
    def lane(self) -> str:
        """The lane it runs on."""
        return self.policy.lane

    @property
    def timeout(self) -> float:
        """Seconds that one attempt may take."""
        return self.policy.timeout

    @property
    def reserve(self) -> Budget | None:
        """What is taken from the run's budget before it starts."""
        return self.policy.reserve

    @property
    def freshness(self) -> float | None:
        """Seconds for which its result answers an equal call of the same run."""
        return self.policy.freshness

    @property
    def result(self) -> Codec[R_co]:
        """The codec of its result."""
        return cast("Codec[R_co]", self.signature.result)

    def decode_input(self, data: bytes) -> tuple[tuple[object, ...], dict[str, object]]:
        """Decode stored arguments for a call of `fn`."""
        return self.signature.decode(data)

    def encode_result(self, value: object) -> Encoded:
        """Encode a result by the declared type, or refuse it with its path."""
        if not self.is_async:
            refuse_awaitable(value, what=f"the coroutine that {self.name}() gave (or declare it with `async def`)")
        return self.signature.result.encode(value)

    def decode_result(self, data: bytes) -> R_co:
        """Decode a committed result."""
        return self.result.decode(data)


class StepCall(Awaited[R_co]):
    """One call of a step, with its arguments encoded."""

    __slots__ = ("input", "input_hash", "kind", "name", "step", "step_id")

    def __init__(self, step: Step[..., R_co], given: Mapping[str, object]) -> None:
        self.step = step
        self.kind = step.kind
        self.name = self.step_id = step.name
        self.input = step.signature.encode(given)
        self.input_hash = step.signature.hash(self.input)
        super().__init__()

    @property
    def what(self) -> str:
        """How messages name it."""
        return f"{self.step.kind} {self.name}"

    def ask(self, key: Key, *, joins: str | None) -> Asked:
        """Ask for the step's execution."""
        return Asked(key, self, lane=self.step.lane, uses=self.step.uses, input=self.input, joins=joins)

    @property
    def freshness(self) -> float | None:
        """Seconds for which an equal call of the same run answers it."""
        return self.step.freshness

    def arguments(self) -> tuple[tuple[object, ...], dict[str, object]]:
        """Decode the arguments anew."""
        return self.step.decode_input(self.input.data)

    def value(self, record: Record, load: Load) -> R_co:
        """Decode the committed result."""
        return self.step.decode_result(load(record.data or b"null", record.encoding or "json"))


class StepDecorator(Protocol):
    """What `step(...)` with options gives."""

    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> Step[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> Step[P, R]: ...


@overload
def step(fn: Callable[P, Coroutine[Any, Any, R]], /) -> Step[P, R]: ...
@overload
def step(fn: Callable[P, R], /) -> Step[P, R]: ...
@overload
def step(
    *,
    name: str | None = None,
    uses: str | None = None,
    lane: str = "online",
    timeout: float | timedelta = TIMEOUT,
    reserve: Budget | None = None,
    freshness: float | timedelta | None = None,
    wait: Callable[[RetryCallState], float] | WaitBaseT | None = None,
    stop: Callable[[RetryCallState], bool] | StopBaseT | None = None,
    retry: Callable[[RetryCallState], bool] | RetryBaseT | None = None,
) -> StepDecorator: ...
def step(  # noqa: PLR0913  # each is an option that users write by name
    fn: Callable[..., object] | None = None,
    /,
    *,
    name: str | None = None,
    uses: str | None = None,
    lane: str = "online",
    timeout: float | timedelta = TIMEOUT,
    reserve: Budget | None = None,
    freshness: float | timedelta | None = None,
    wait: WaitBaseT | None = None,
    stop: StopBaseT | None = None,
    retry: RetryBaseT | None = None,
) -> object:
    """Declare a step: an ordinary function, sync or async, whose result is committed once."""
    policy = Policy(
        uses=uses,
        lane=lane,
        timeout=seconds(timeout, what="timeout"),
        reserve=reserve,
        freshness=None if freshness is None else seconds(freshness, what="freshness"),
        wait=wait,
        stop=stop,
        retry=retry,
    )

    def declare(fn: Callable[..., object]) -> Step[..., object]:
        return Step(fn, name=name, policy=policy, frame=sys._getframe(1 if bare is None else 2))  # noqa: SLF001  # the only way

    bare = fn
    return declare if fn is None else declare(fn)


def local_names(fn: Callable[..., object], frame: FrameType) -> dict[str, object]:
    """Give the names that a function's annotations, written as text, may mean in the function around it."""
    texts = [hint for hint in getattr(fn, "__annotations__", {}).values() if isinstance(hint, str)]
    if not texts or frame.f_locals is frame.f_globals:
        return {}
    # Only what is mentioned: the rest of the frame must not be kept alive by a declaration.
    return {name: value for name, value in frame.f_locals.items() if any(name in text for text in texts)}


def _check_function(fn: object, *, what: str) -> None:
    if isinstance(fn, Step) or not inspect.isfunction(fn):
        msg = f"{what} stands above a function, not {fn!r}"
        raise TypeError(msg)
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        msg = f"{what}: {fn.__qualname__} is a generator. Accepted: a function that returns its result"
        raise TypeError(msg)
    around, _, _ = fn.__qualname__.rpartition(".")
    first = next(iter(inspect.signature(fn).parameters), "")
    if around and not around.endswith("<locals>") and first in {"self", "cls"}:
        msg = f"{what}: {fn.__qualname__} is a method. Accepted: a function, which has no hidden state to lose"
        raise TypeError(msg)

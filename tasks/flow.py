"""Flows: `async def` functions of pure control logic, declared with a version.

A call of one is enqueued by an app, or awaited by another flow as a child run.
"""

from __future__ import annotations

import inspect
import sys
from types import MappingProxyType
from typing import TYPE_CHECKING, Generic, Literal, ParamSpec, Protocol, TypeVar, cast, overload

from ..ledger.key import checked_name
from .awaited import Asked, Awaited
from .declared import Origin, declared
from .enqueue import EnqueueOptions, enqueuer
from .signature import Signature
from .step import local_names

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping
    from datetime import datetime, timedelta
    from types import FrameType

    from ..ledger.codec import Codec, Encoded
    from ..ledger.key import Key
    from .budget import Budget
    from .record import Kind, Load, Record
    from .run import Run

__all__ = ["Call", "ChildRun", "Flow", "flow"]

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
OnBudget = Literal["fail", "hold"]

VERSIONS = frozenset({"prompt", "tool_schema", "model_policy", "index"})


class Flow(Generic[P, R_co]):
    """A declared flow; calling it gives a `Call`."""

    fn: Callable[P, Coroutine[object, object, R_co]]

    def __init__(
        self,
        fn: Callable[P, Coroutine[object, object, R_co]],
        *,
        name: str | None,
        version: str,
        accepts: Iterable[str],
        uses_versions: Mapping[str, str | Callable[[], str]],
        on_budget: OnBudget,
        frame: FrameType,
    ) -> None:
        _check_function(fn)
        self.name = checked_name(name or fn.__name__, what="@flow")
        self.version = _checked_version(version)
        self.accepts = tuple(_checked_version(one) for one in accepts)
        self.uses_versions = MappingProxyType(dict(uses_versions))
        self.on_budget = _checked_on_budget(on_budget)
        self.fn = fn
        self.signature = Signature(fn, name=self.name, names=local_names(fn, frame))
        self.__name__ = fn.__name__
        self.__qualname__ = fn.__qualname__
        self.__module__ = fn.__module__
        self.__doc__ = fn.__doc__
        self.__wrapped__ = fn
        declared.add_flow(self, origin=Origin.of(fn, frame))

    def __repr__(self) -> str:
        """Name it with its version."""
        return f"<flow {self.name}@{self.version}>"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Call[R_co]:
        """Make a call: enqueue it from an app, or await it in a flow as a child run."""
        return Call(self, self.signature.bind(args, kwargs))

    def schema(self) -> dict[str, object]:
        """Give the JSON schema of the arguments."""
        return self.signature.schema()

    def from_json(self, arguments: Mapping[str, object] | str | bytes) -> Call[R_co]:
        """Make a call from JSON arguments, or raise `BadArguments`."""
        args, kwargs = self.signature.read(arguments)
        return Call(self, self.signature.bind(args, kwargs))

    @property
    def result(self) -> Codec[R_co]:
        """The codec of its result."""
        return cast("Codec[R_co]", self.signature.result)

    def decode_input(self, data: bytes) -> tuple[tuple[object, ...], dict[str, object]]:
        """Decode stored arguments for a call of `fn`."""
        return self.signature.decode(data)

    def frozen_versions(self) -> dict[str, str]:
        """Read the versions that a new run is pinned to: values as they are, functions as they answer now."""
        return {name: str(one() if callable(one) else one) for name, one in self.uses_versions.items()}


class Call(Generic[R_co]):
    """A flow with its arguments: `.enqueue(...)` outside, `await` inside another flow."""

    __slots__ = ("flow", "input", "input_hash")

    def __init__(self, flow: Flow[..., R_co], given: Mapping[str, object]) -> None:
        self.flow = flow
        self.input: Encoded = flow.signature.encode(given)
        self.input_hash: bytes = flow.signature.hash(self.input)

    def __repr__(self) -> str:
        """Name the flow, not its arguments: they may be long, or secret."""
        return f"<call of {self.flow!r}>"

    def __await__(self) -> Generator[object, object, R_co]:
        """Run it as a child of the run whose flow awaits it."""
        return ChildRun(self).__await__()

    def enqueue(  # noqa: PLR0913  # each is an option that users write by name
        self,
        *,
        tenant: str = "default",
        key: str | None = None,
        deadline: float | timedelta | datetime | None = None,
        budget: Budget | Mapping[str, float] | None = None,
        priority: int = 0,
        tags: Mapping[str, str] | None = None,
        conversation: str | None = None,
        start_at: float | timedelta | datetime | None = None,
        connection: object = None,
    ) -> Run[R_co]:
        """Enqueue a run of it; with `connection`, in the transaction that is open there."""
        options = EnqueueOptions(
            tenant=tenant,
            key=key,
            deadline=deadline,
            budget=budget,
            priority=priority,
            tags=tags or {},
            conversation=conversation,
            start_at=start_at,
            connection=connection,
        )
        return cast("Run[R_co]", enqueuer().enqueue(self, options))

    async def aenqueue(  # noqa: PLR0913  # as above
        self,
        *,
        tenant: str = "default",
        key: str | None = None,
        deadline: float | timedelta | datetime | None = None,
        budget: Budget | Mapping[str, float] | None = None,
        priority: int = 0,
        tags: Mapping[str, str] | None = None,
        conversation: str | None = None,
        start_at: float | timedelta | datetime | None = None,
        connection: object = None,
    ) -> Run[R_co]:
        """Enqueue a run of it without blocking the event loop."""
        options = EnqueueOptions(
            tenant=tenant,
            key=key,
            deadline=deadline,
            budget=budget,
            priority=priority,
            tags=tags or {},
            conversation=conversation,
            start_at=start_at,
            connection=connection,
        )
        return cast("Run[R_co]", await enqueuer().aenqueue(self, options))


class ChildRun(Awaited[R_co]):
    """The wait of a flow for the run of another one."""

    __slots__ = ("call", "input_hash", "name", "step_id")
    kind: Kind = "child"

    def __init__(self, call: Call[R_co]) -> None:
        self.call = call
        self.name = self.step_id = call.flow.name
        self.input_hash = call.input_hash
        super().__init__()

    @property
    def what(self) -> str:
        """How messages name it."""
        return f"child run {self.name}"

    def ask(self, key: Key, *, joins: str | None) -> Asked:
        """Ask for the child."""
        return Asked(key, self, input=self.call.input, joins=joins)

    def value(self, record: Record, load: Load) -> R_co:
        """Decode the child's result."""
        return self.call.flow.result.decode(load(record.data or b"null", record.encoding or "json"))


class FlowDecorator(Protocol):
    """What `flow(...)` with options gives."""

    def __call__(self, fn: Callable[P, Coroutine[object, object, R]], /) -> Flow[P, R]: ...


@overload
def flow(fn: Callable[P, Coroutine[object, object, R]], /) -> Flow[P, R]: ...
@overload
def flow(
    *,
    name: str | None = None,
    version: str = "1",
    accepts: Iterable[str] = (),
    uses_versions: Mapping[str, str | Callable[[], str]] | None = None,
    on_budget: OnBudget = "fail",
) -> FlowDecorator: ...
def flow(
    fn: Callable[..., Coroutine[object, object, object]] | None = None,
    /,
    *,
    name: str | None = None,
    version: str = "1",
    accepts: Iterable[str] = (),
    uses_versions: Mapping[str, str | Callable[[], str]] | None = None,
    on_budget: OnBudget = "fail",
) -> object:
    """Declare a flow: an `async def` function that awaits only steps and waits.

    `on_budget` says what a used up budget does: "fail" raises `BudgetExceeded` in the flow, "hold" stops the run until
    a person adds to the budget.
    """
    bare = fn
    if isinstance(accepts, str):
        accepts = (accepts,)

    def declare(fn: Callable[..., Coroutine[object, object, object]]) -> Flow[..., object]:
        frame = sys._getframe(1 if bare is None else 2)  # noqa: SLF001  # there is no other way to where it stands
        return Flow(
            fn, name=name, version=version, accepts=accepts, uses_versions=uses_versions or {}, on_budget=on_budget,
            frame=frame,
        )  # fmt: skip

    return declare if fn is None else declare(fn)


def _checked_on_budget(given: OnBudget) -> OnBudget:
    if given not in {"fail", "hold"}:
        msg = f"@flow: on_budget={given!r}: accepted are 'fail' and 'hold'"
        raise ValueError(msg)
    return given


def _checked_version(version: object) -> str:
    if not isinstance(version, str) or not version or version.strip() != version or "@" in version:
        msg = (
            f"@flow: version={version!r} cannot be a version. Accepted: a text without '@' or blanks around it, as '2'"
        )
        raise ValueError(msg)
    return version


def _check_function(fn: object) -> None:
    if inspect.iscoroutinefunction(fn) and inspect.isfunction(fn):
        return
    if isinstance(fn, Flow) or not inspect.isfunction(fn):
        msg = f"@flow stands above an async function, not {fn!r}"
    elif inspect.isasyncgenfunction(fn):
        msg = f"@flow: {fn.__qualname__} is a generator. Accepted: an `async def` function that returns its result"
    else:
        msg = f"@flow: {fn.__qualname__} is no coroutine function: write `async def {fn.__name__}`"
    raise TypeError(msg)

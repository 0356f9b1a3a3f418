"""Effects: steps that change the outside world, with what is known about asking and undoing them."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, Protocol, TypeVar, overload

from .duration import seconds
from .step import TIMEOUT, Policy, Step

if TYPE_CHECKING:
    from datetime import timedelta
    from types import FrameType

    from tenacity.retry import RetryBaseT
    from tenacity.stop import StopBaseT
    from tenacity.wait import WaitBaseT

    from .budget import Budget
    from .lookup import Lookup
    from .record import Kind

__all__ = ["Effect", "Errors", "Safety", "effect"]

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

Errors = type[BaseException] | tuple[type[BaseException], ...] | Callable[[BaseException], bool]


@dataclass(frozen=True, slots=True)
class Safety:
    """What is known about the other side of an effect."""

    not_sent: Errors = ()
    rejected: Errors = ()
    idempotent: bool = False
    key_retention: float | None = None
    authoritative_after: float = 0.0
    requires_approval: str | None = None

    def __post_init__(self) -> None:
        """Refuse what is no set of errors."""
        for name in ("not_sent", "rejected"):
            given = getattr(self, name)
            kinds = given if isinstance(given, tuple) else (given,)
            if not (callable(given) or kinds == () or all(_is_error(kind) for kind in kinds)):
                msg = f"{name}={given!r}: accepted are exception types, or a function of the exception"
                raise TypeError(msg)
        if self.key_retention is not None and not self.idempotent:
            msg = f"key_retention={self.key_retention!r} means something only with idempotent=True"
            raise ValueError(msg)

    def is_not_sent(self, error: BaseException) -> bool:
        """Tell whether the error shows that the request never left."""
        return _matches(error, self.not_sent)

    def is_rejected(self, error: BaseException) -> bool:
        """Tell whether the error shows that the other side has refused the request."""
        return _matches(error, self.rejected)


class Effect(Step[P, R_co]):
    """A declared effect."""

    kind: ClassVar[Kind] = "effect"

    def __init__(
        self, fn: Callable[..., object], *, name: str | None, policy: Policy, safety: Safety, frame: FrameType
    ) -> None:
        super().__init__(fn, name=name, policy=policy, frame=frame)
        self.safety = safety
        self.lookup_fn: Callable[..., object] | None = None
        self.compensate_fn: Callable[..., object] | None = None

    def lookup(
        self, fn: Callable[P, Lookup[R_co] | Coroutine[Any, Any, Lookup[R_co]]], /
    ) -> Callable[P, Lookup[R_co] | Coroutine[Any, Any, Lookup[R_co]]]:
        """Declare what is asked when nobody knows whether the effect was executed; it takes the effect's parameters."""
        ours, theirs = list(inspect.signature(self.fn).parameters), list(inspect.signature(fn).parameters)
        if ours != theirs:
            msg = (
                f"@{self.name}.lookup takes the parameters of the effect ({', '.join(ours)}), not ({', '.join(theirs)})"
            )
            raise TypeError(msg)
        self.lookup_fn = _once(self.lookup_fn, fn, what=f"@{self.name}.lookup")
        return fn

    def compensate(self, fn: Callable[[R_co], R], /) -> Callable[[R_co], R]:
        """Declare what undoes the effect if the run fails or is cancelled later; it takes the effect's result."""
        try:
            inspect.signature(fn).bind(None)
        except TypeError as error:
            msg = f"@{self.name}.compensate takes the result of the effect: {error}"
            raise TypeError(msg) from None
        self.compensate_fn = _once(self.compensate_fn, fn, what=f"@{self.name}.compensate")
        return fn


class EffectDecorator(Protocol):
    """What `effect(...)` with options gives."""

    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> Effect[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> Effect[P, R]: ...


@overload
def effect(fn: Callable[P, Coroutine[Any, Any, R]], /) -> Effect[P, R]: ...
@overload
def effect(fn: Callable[P, R], /) -> Effect[P, R]: ...
@overload
def effect(
    *,
    name: str | None = None,
    uses: str | None = None,
    lane: str = "online",
    timeout: float | timedelta = TIMEOUT,
    reserve: Budget | None = None,
    wait: WaitBaseT | None = None,
    stop: StopBaseT | None = None,
    retry: RetryBaseT | None = None,
    not_sent: Errors = (),
    rejected: Errors = (),
    idempotent: bool = False,
    key_retention: float | timedelta | None = None,
    authoritative_after: float | timedelta = 0.0,
    requires_approval: str | None = None,
) -> EffectDecorator: ...
def effect(  # noqa: PLR0913  # each is an option that users write by name
    fn: Callable[..., object] | None = None,
    /,
    *,
    name: str | None = None,
    uses: str | None = None,
    lane: str = "online",
    timeout: float | timedelta = TIMEOUT,
    reserve: Budget | None = None,
    wait: WaitBaseT | None = None,
    stop: StopBaseT | None = None,
    retry: RetryBaseT | None = None,
    not_sent: Errors = (),
    rejected: Errors = (),
    idempotent: bool = False,
    key_retention: float | timedelta | None = None,
    authoritative_after: float | timedelta = 0.0,
    requires_approval: str | None = None,
) -> object:
    """Declare an effect: a step whose request is frozen before it is sent, under a key that never changes."""
    policy = Policy(
        uses=uses,
        lane=lane,
        timeout=seconds(timeout, what="timeout"),
        reserve=reserve,
        wait=wait,
        stop=stop,
        retry=retry,
    )
    safety = Safety(
        not_sent=not_sent,
        rejected=rejected,
        idempotent=idempotent,
        key_retention=None if key_retention is None else seconds(key_retention, what="key_retention"),
        authoritative_after=seconds(authoritative_after, what="authoritative_after"),
        requires_approval=requires_approval,
    )
    bare = fn

    def declare(fn: Callable[..., object]) -> Effect[..., object]:
        frame = sys._getframe(1 if bare is None else 2)  # noqa: SLF001  # there is no other way to where it stands
        return Effect(fn, name=name, policy=policy, safety=safety, frame=frame)

    return declare if fn is None else declare(fn)


def _is_error(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseException)


def _matches(error: BaseException, errors: Errors) -> bool:
    if isinstance(errors, (type, tuple)):
        return isinstance(error, errors)
    return bool(errors(error))


def _once(before: Callable[..., object] | None, fn: Callable[..., object], *, what: str) -> Callable[..., object]:
    if before is not None:
        msg = f"{what} is declared twice: {before.__module__}:{before.__qualname__}, {fn.__module__}:{fn.__qualname__}"
        raise TypeError(msg)
    return fn

"""Effects: steps that change the outside world, with what is known about asking and undoing them."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, Protocol, TypeVar, overload

from ..ledger.errors import describe
from ..ledger.text import storable
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

__all__ = ["Asking", "Effect", "Errors", "Safety", "Undoing", "effect"]

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

Errors = type[BaseException] | tuple[type[BaseException], ...] | Callable[[BaseException], bool]
AUTHORITATIVE_AFTER = 5.0  # seconds that a request may still be on its way when its sender is dead
LOOKUP_TIMEOUT = 60.0


@dataclass(frozen=True, slots=True)
class Asking:
    """How a lookup is asked: its own bounds, apart from the effect's (tenacity's objects, or None)."""

    timeout: float = LOOKUP_TIMEOUT
    wait: WaitBaseT | None = None
    stop: StopBaseT | None = None


@dataclass(frozen=True, slots=True)
class Undoing:
    """What is known about the other side of a compensation; None: the same as of its effect."""

    idempotent: bool | None = None


@dataclass(frozen=True, slots=True)
class Safety:
    """What is known about the other side of an effect."""

    not_sent: Errors = ()
    rejected: Errors = ()
    idempotent: bool = False
    key_retention: float | None = None
    authoritative_after: float = AUTHORITATIVE_AFTER
    requires_approval: str | None = None
    runbook: str | None = None
    external_id: Callable[[Any], object] | None = None

    def __post_init__(self) -> None:
        """Refuse what is no set of errors."""
        for name in ("not_sent", "rejected"):
            given = getattr(self, name)
            kinds = given if isinstance(given, tuple) else (given,)
            if iscoroutinefunction(given) or iscoroutinefunction(getattr(given, "__call__", None)):  # noqa: B004
                msg = f"{name}={given!r}: a predicate is asked at once, and cannot be async"
                raise TypeError(msg)
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


LookupFn = Callable[P, "Lookup[R] | Coroutine[Any, Any, Lookup[R]]"]


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
        self.asking = Asking()
        self.undoing = Undoing()

    def declared(self) -> dict[str, object]:
        """Give what the ledger keeps of the declaration, for whoever has to settle the effect without its code."""
        safety = self.safety
        told: dict[str, object] = {
            "lookup": self.lookup_fn is not None,
            "idempotent": safety.idempotent,
            "key_retention": safety.key_retention,
            "authoritative_after": safety.authoritative_after,
            "timeout": self.timeout,
            "compensate": self.compensate_fn is not None,
            "runbook": safety.runbook,
            "requires_approval": safety.requires_approval,
        }
        return {name: value for name, value in told.items() if value not in (None, False)}

    def named(self, value: object) -> str | None:
        """Give the other side's name of what was done, if the declaration says how to read it from the result."""
        if self.safety.external_id is None:
            return None
        try:
            return storable(str(self.safety.external_id(value)))
        except Exception as error:  # noqa: BLE001  # a name for people: its failure must not make a done effect unknown
            return f"external_id() raised {describe(error)['type']}: {describe(error)['message']}"

    @overload
    def lookup(self, fn: LookupFn[P, R_co], /) -> LookupFn[P, R_co]: ...
    @overload
    def lookup(
        self,
        *,
        timeout: float | timedelta = LOOKUP_TIMEOUT,
        wait: WaitBaseT | None = None,
        stop: StopBaseT | None = None,
    ) -> Callable[[LookupFn[P, R_co]], LookupFn[P, R_co]]: ...
    def lookup(  # type: ignore[misc]  # mypy does not see through a class's ParamSpec here
        self,
        fn: Any = None,
        /,
        *,
        timeout: float | timedelta = LOOKUP_TIMEOUT,
        wait: WaitBaseT | None = None,
        stop: StopBaseT | None = None,
    ) -> Any:
        """Declare what is asked when nobody knows whether the effect was executed; it takes the effect's parameters.

        `timeout` is the seconds that one answer may take; `wait` and `stop` are tenacity's: after `UNSURE` or an error
        it is asked again, by default with waits of up to 60 s and eight times in all, then a person decides.
        """
        asking = Asking(seconds(timeout, what="timeout"), wait, stop)

        def declare(fn: LookupFn[P, R_co]) -> LookupFn[P, R_co]:
            self._declare_lookup(fn)
            self.asking = asking
            return fn

        return declare if fn is None else declare(fn)

    def _declare_lookup(self, fn: Callable[..., object]) -> None:
        ours, theirs = list(inspect.signature(self.fn).parameters), list(inspect.signature(fn).parameters)
        if ours != theirs:
            msg = (
                f"@{self.name}.lookup takes the parameters of the effect ({', '.join(ours)}), not ({', '.join(theirs)})"
            )
            raise TypeError(msg)
        self.lookup_fn = _once(self.lookup_fn, fn, what=f"@{self.name}.lookup")

    @overload
    def compensate(self, fn: Callable[[R_co], R], /) -> Callable[[R_co], R]: ...
    @overload
    def compensate(self, *, idempotent: bool | None = None) -> Callable[[Callable[[R_co], R]], Callable[[R_co], R]]: ...
    def compensate(  # type: ignore[misc]  # as above
        self, fn: Any = None, /, *, idempotent: bool | None = None
    ) -> Any:
        """Declare what undoes the effect if the run fails or is cancelled later; it takes the effect's result.

        It is an effect of its own, with a key of its own. `idempotent` says that doing it twice does it once; when not
        given, what the effect says of its other side holds.
        """

        def declare(fn: Callable[[R_co], R]) -> Callable[[R_co], R]:
            self._declare_compensation(fn)
            self.undoing = Undoing(idempotent)
            return fn

        return declare if fn is None else declare(fn)

    def _declare_compensation(self, fn: Callable[..., object]) -> None:
        try:
            inspect.signature(fn).bind(None)
        except TypeError as error:
            msg = f"@{self.name}.compensate takes the result of the effect: {error}"
            raise TypeError(msg) from None
        self.compensate_fn = _once(self.compensate_fn, fn, what=f"@{self.name}.compensate")


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
    authoritative_after: float | timedelta = AUTHORITATIVE_AFTER,
    requires_approval: str | None = None,
    runbook: str | None = None,
    external_id: Callable[[Any], object] | None = None,
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
    authoritative_after: float | timedelta = AUTHORITATIVE_AFTER,
    requires_approval: str | None = None,
    runbook: str | None = None,
    external_id: Callable[[Any], object] | None = None,
) -> object:
    """Declare an effect: a step whose request is frozen before it is sent, under a key that never changes.

    What came of a request that was sent is unknown unless it is told: `not_sent` are the errors (types, or a predicate)
    that show that nothing left, so that it is tried again like any step; `rejected` those that show that the other side
    has refused it. `idempotent=True` says that the other side takes the key, and for `key_retention` seconds from the
    first sending (for ever when not given) the same key does nothing twice. A lookup's "not executed" is believed
    `authoritative_after` seconds after the last moment in which the request may have been sent. `requires_approval`
    ("role:oncall") lets the call wait for a decision on its frozen request. `runbook` is shown to whoever has to settle
    an unknown one; `external_id` reads the other side's name for it from the result.
    """
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
        runbook=runbook,
        external_id=external_id,
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
    return errors(error) is True


def _once(before: Callable[..., object] | None, fn: Callable[..., object], *, what: str) -> Callable[..., object]:
    if before is not None:
        msg = f"{what} is declared twice: {before.__module__}:{before.__qualname__}, {fn.__module__}:{fn.__qualname__}"
        raise TypeError(msg)
    return fn

"""What a flow awaits: a coroutine that hands itself to the driver and gets its committed outcome back."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Coroutine, Generator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar, cast

from ..ledger.errors import BudgetExceeded, Cancelled, DeadlineExceeded, SafepointError, StepFailed, WaitTimedOut
from .branch import branch, branch_or_none

if TYPE_CHECKING:
    from datetime import datetime
    from types import TracebackType

    from ..ledger.codec import Codec, Encoded
    from ..ledger.key import Key
    from .record import Kind, Load, Record

__all__ = ["Asked", "Awaited", "Suspended", "failure"]

R_co = TypeVar("R_co", covariant=True)


class Suspended(Coroutine[object, object, R_co]):
    """A coroutine of our own: it yields itself once to the driver, which sends the outcome."""

    __slots__ = ("_running", "_spent")

    @property
    @abstractmethod
    def what(self) -> str:
        """How messages name it."""

    def __init__(self) -> None:
        self._running: Generator[object, object, R_co] | None = None
        self._spent = False

    def __await__(self) -> Generator[object, object, R_co]:
        """Hand this to the driver of the run whose flow awaits it."""
        if self._spent:
            msg = f"{self.what} was awaited before: call it again for another one"
            raise RuntimeError(msg)
        self._spent = True
        branch(what=f"await {self.what}")
        return cast("R_co", (yield self))  # the driver sends what `value` has decoded

    def send(self, value: object) -> object:
        """Drive it as a coroutine of its own: as a bare member of a gather."""
        if self._running is None:
            self._running = self.__await__()
        return self._running.send(value)

    def throw(  # type: ignore[override]  # only the form that Python has kept
        self,
        error: BaseException,
        value: object = None,  # noqa: ARG002  # of the old form
        traceback: TracebackType | None = None,  # noqa: ARG002  # of the old form
    ) -> object:
        """Raise an error where it is awaited."""
        if self._running is None:
            self._spent = True
            raise error
        return self._running.throw(error)

    def close(self) -> None:
        """Give it up."""
        self._spent = True
        if self._running is not None:
            self._running.close()

    def __del__(self) -> None:
        # As with Python's own coroutines: a forgotten await is silent work that never happens.
        if not getattr(self, "_spent", True) and branch_or_none() is not None:
            warnings.warn(f"{self.what} was never awaited", RuntimeWarning, stacklevel=2)


class Awaited(Suspended[R_co]):
    """A step or a wait: it has a key, and its outcome is committed."""

    __slots__ = ()
    kind: Kind
    name: str
    step_id: str
    input_hash: bytes

    @property
    def freshness(self) -> float | None:
        """Seconds for which an equal one of the same run answers it."""
        return None

    @abstractmethod
    def ask(self, key: Key, *, joins: str | None) -> Asked:
        """Say what the flow asks for, under its key."""

    @abstractmethod
    def value(self, record: Record, load: Load) -> R_co:
        """Decode the value of a committed outcome."""

    def arguments(self) -> tuple[tuple[object, ...], dict[str, object]]:
        """Decode the arguments anew: a step that changes one must not change what the flow holds."""
        msg = f"{self.what} takes no arguments"
        raise TypeError(msg)


@dataclass(frozen=True, slots=True)
class Asked:
    """Something the flow waits for that has no committed outcome yet."""

    key: Key
    awaited: Awaited[object] = field(repr=False)
    lane: str = "online"
    uses: str | None = None
    input: Encoded | None = None  # of a step, an effect, a child
    show: Encoded | None = None  # of an approval
    value_type: Codec[object] | None = None  # of a signal
    delay: float | None = None  # seconds: of a timer; the timeout of a signal or an approval
    until: datetime | None = None  # of a timer that was given an instant
    joins: str | None = None  # the gather it is a bare member of: alone it lets nothing new be asked

    @property
    def kind(self) -> Kind:
        """What it is."""
        return self.awaited.kind

    @property
    def name(self) -> str:
        """The step's, the signal's, the approval's, or the child flow's name."""
        return self.awaited.name

    @property
    def input_hash(self) -> bytes:
        """What its outcome must have been asked with."""
        return self.awaited.input_hash

    def arguments(self) -> tuple[tuple[object, ...], dict[str, object]]:
        """Decode the arguments anew."""
        return self.awaited.arguments()


def failure(awaited: Awaited[object], record: Record) -> SafepointError | None:
    """Give what an await raises for a committed outcome that is no success."""
    if record.status == "succeeded":
        return None
    error = record.error or {}
    kind, message = str(error.get("type", "Error")), str(error.get("message", ""))
    match error.get("code"), record.kind, record.status:
        case "budget", _, _:
            return BudgetExceeded(message or None, what=error.get("what") or "tokens")
        case "deadline", _, _:
            return DeadlineExceeded(message or None)
        case ("timeout", _, _) | (_, "signal", _):
            return WaitTimedOut(name=awaited.name)
        case ("cancelled", "step" | "effect", _) | (_, "step" | "effect", "cancelled"):
            return Cancelled(message or None)
        case _:
            attempts = error.get("attempts", 1)
            return StepFailed(awaited.name, kind, message, attempts if isinstance(attempts, int) else 1)

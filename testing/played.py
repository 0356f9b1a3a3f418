"""What a played run has done: its result, its calls, its effects, its events."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from ..ledger.errors import RunCancelled, RunFailed, RunHeld, SafepointError, describe
from ..tasks.outcome import Continued, Diverged, Failed, FlowError, Returned, WasCancelled

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from ..tasks.outcome import Outcome

__all__ = ["Called", "Event", "Played", "ReplayDiffers"]

R_co = TypeVar("R_co", covariant=True)


class ReplayDiffers(SafepointError, AssertionError):  # noqa: N818  # named after what happened
    """The same history gave another state: {text}. A flow reads time, chance and files only through steps."""

    text: str


@dataclass(frozen=True, slots=True)
class Called:
    """One attempt of a step; `arguments` are all of them by name."""

    step: str
    key: str
    kind: str
    attempt: int
    args: tuple[object, ...]
    kwargs: Mapping[str, object]
    arguments: Mapping[str, object]
    result: object = None
    error: BaseException | None = None
    run_id: str = ""
    idempotency_key: str | None = None


@dataclass(frozen=True, slots=True)
class Event:
    """One event of the run, as the ledger would number it."""

    seq: int
    type: str
    at: datetime
    key: str | None = None
    data: Mapping[str, object] = field(default_factory=dict)


@dataclass(slots=True)
class Played(Generic[R_co]):
    """A run that was played to its end."""

    run_id: str
    calls: list[Called] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    tokens: int = 0
    usd: float = 0.0
    generation: int = 1
    outcome: Outcome | None = None

    @property
    def effects(self) -> list[Called]:
        """The calls of effects."""
        return [call for call in self.calls if call.kind == "effect"]

    @property
    def notes(self) -> list[str]:
        """The texts of the notes."""
        return [str(event.data["text"]) for event in self.events if event.type == "note"]

    @property
    def result(self) -> R_co:
        """The result, or what `Run.result()` would raise."""
        error = self.error
        if error is not None:
            raise error
        return cast("R_co", cast("Returned", self.outcome).value)

    @property
    def error(self) -> SafepointError | None:
        """What `Run.result()` would raise, if anything."""
        match self.outcome:
            case Returned():
                return None
            case Failed(error, exc):
                return _because(RunFailed(self.run_id, error), exc)
            case WasCancelled(exc):
                return _because(RunCancelled(run_id=self.run_id), exc)
            case FlowError(exc, text):
                return _because(RunHeld(self.run_id, {"code": "flow_error", "text": text}), exc)
            case Diverged(text):
                return RunHeld(self.run_id, {"code": "diverged", "text": text})
            case Continued() | None:
                msg = f"run {self.run_id} has not ended"
                raise RuntimeError(msg)

    def told(self) -> dict[str, object] | None:
        """Give the error as a parent's await is told of it."""
        match self.outcome:
            case Failed(error):
                return error
            case WasCancelled(exc):
                return describe(exc)
            case _:
                return None


def _because(error: SafepointError, cause: BaseException) -> SafepointError:
    error.__cause__ = cause
    error.__suppress_context__ = True
    return error

"""Every error of Safepoint: what a flow may catch, what a caller is told, and what an executor is refused with.

An error's docstring is the template of its message; what it is about are its attributes.
"""
# ruff: noqa: N818  # they are named after what happened: users catch StepFailed and raise Permanent

from __future__ import annotations

from typing import TYPE_CHECKING

from ..config.errors import ConfigError, Problem, SafepointError
from .text import storable

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

__all__ = [
    "ArgumentsMismatch", "ArtifactCorrupt", "ArtifactMissing", "ArtifactStoreUnavailable", "BadArguments",
    "BrokerUnavailable", "BudgetExceeded", "Cancelled", "ConfigError", "DeadlineExceeded", "Diverged",
    "DuplicateName", "ForeignAwait", "IdempotencyConflict", "LeaseLost", "LedgerUnavailable", "NaiveDatetime",
    "NotAwaited", "NotInFlow", "NotInStep", "Permanent", "Problem", "Refused", "RetryAfter", "RunCancelled",
    "RunFailed", "RunHeld", "RunPruned", "SafepointError", "SchemaTooNew", "SchemaTooOld", "StepFailed",
    "StepTimeout", "UnknownEffect", "UnknownFlow", "UnknownRun", "UnknownStep", "UnresolvedAnnotation",
    "ValueNotDecodable", "ValueNotEncodable", "ValueNotOpened", "ValueNotSealed", "ValueTooLarge",
    "WaitTimedOut", "WrongDatabase", "describe",
]  # fmt: skip


class Permanent(SafepointError):
    """No retry can help."""


class RetryAfter(SafepointError):
    """The other side asks to be left alone for {seconds} s."""

    seconds: float

    def __init__(self, seconds: float, message: str | None = None, /, **facts: object) -> None:
        facts.pop("seconds", None)
        super().__init__(message, seconds=seconds, **facts)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.seconds, self.args[0])


class StepFailed(SafepointError):
    """{step} failed after {attempts} attempt(s): {type}: {message}"""  # noqa: D400  # it ends in the step's words

    step: str
    type: str
    message: str
    attempts: int

    def __init__(
        self,
        step: str,
        type: str,  # noqa: A002  # the public name of the attribute
        message: str,
        attempts: int = 1,
    ) -> None:
        super().__init__(step=step, type=type, message=message, attempts=attempts)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.step, self.type, self.message, self.attempts)


class BudgetExceeded(SafepointError):
    """The run's budget of {what} is used up."""

    what: str


class DeadlineExceeded(SafepointError):
    """The run's deadline has passed."""


class Cancelled(SafepointError):
    """The run was cancelled; clean-up steps may follow."""


class WaitTimedOut(SafepointError, TimeoutError):
    """Nothing came for {name!r} in time."""

    name: str


class StepTimeout(SafepointError, TimeoutError):
    """The attempt ran longer than the step's timeout of {seconds:g} s."""

    seconds: float


class ArgumentsMismatch(SafepointError, TypeError):
    """{name}(): {text}"""  # noqa: D400  # it ends in Python's own words

    name: str
    text: str


class BadArguments(SafepointError, ValueError):
    """The arguments do not fit {name}: {text}."""

    name: str
    text: str


class NotAwaited(SafepointError, TypeError):
    """{what} was used without its result: write `await` in front of it."""

    what: str


class ForeignAwait(SafepointError, RuntimeError):
    """A flow awaits only steps and waits, not {what}: put it in a step."""

    what: str


class NotInFlow(SafepointError, RuntimeError):
    """{what} works only inside a flow."""

    what: str


class NotInStep(SafepointError, RuntimeError):
    """{what} works only inside a step: a flow holds control logic, and its code runs again on every replay."""

    what: str


class NaiveDatetime(SafepointError, ValueError):
    """{what}: {value!r} has no time zone. Accepted: an aware datetime, as in datetime.now(timezone.utc)."""

    what: str
    value: datetime


class DuplicateName(SafepointError):
    """The {kind} {name!r} at {second} has the name of the one at {first}: give it another with name=."""

    kind: str
    name: str
    first: str
    second: str


class UnresolvedAnnotation(SafepointError, TypeError):
    """{name}: the annotation {annotation} cannot be resolved ({text}): import what it names at module level."""

    name: str
    annotation: str
    text: str


class ValueNotEncodable(Permanent):
    """{path}: {text}."""

    path: str
    text: str


class ValueTooLarge(Permanent):
    """{path} has {size} bytes; at most {limit} are accepted: store it elsewhere, or as an artifact."""

    path: str
    size: int
    limit: int


class ValueNotDecodable(SafepointError):
    """{path}: the stored value does not fit the declared type: {text}."""

    path: str
    text: str


class ValueNotOpened(ValueNotDecodable):
    """The stored value cannot be opened: {text}."""


class ValueNotSealed(SafepointError):
    """The value cannot be sealed: {text}."""

    text: str


class ArtifactCorrupt(SafepointError):
    """The artifact {sha256} is not what was stored: {size} bytes with another digest."""

    sha256: str
    size: int


class ArtifactMissing(SafepointError):
    """There is no artifact {sha256} in {store}."""

    sha256: str
    store: str


class ArtifactStoreUnavailable(SafepointError):
    """The artifact store does not answer: {text}."""

    text: str


class Diverged(SafepointError):
    """The flow no longer asks for what the ledger holds: {text}."""

    text: str


class UnknownEffect(SafepointError):
    """There is no effect {key}: `safepoint effects` lists them."""

    key: str


class UnknownFlow(SafepointError):
    """There is no flow {name!r} here. Known: {known}."""

    name: str
    known: str


class UnknownRun(SafepointError):
    """There is no run {run_id}."""

    run_id: str


class RunPruned(UnknownRun):
    """Run {run_id} ({flow}, {status} on {finished_at:%Y-%m-%d}) was pruned on {pruned_at:%Y-%m-%d %H:%M} UTC."""

    flow: str
    status: str
    finished_at: datetime
    pruned_at: datetime


class UnknownStep(SafepointError):
    """There is no step {name!r} here. Known: {known}."""

    name: str
    known: str


class RunFailed(SafepointError):
    """Run {run_id} failed: {place}{type}: {message}"""  # noqa: D400  # it ends in the error's words

    run_id: str
    type: str
    message: str
    error: Mapping[str, object]

    def __init__(self, run_id: str, error: Mapping[str, object]) -> None:
        shown = {"type": str(error.get("type", "Error")), "message": str(error.get("message", ""))}
        shown["place"] = f"{error['step']}: " if error.get("step") else ""
        super().__init__(run_id=run_id, error=error, **shown)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.run_id, self.error)


class RunCancelled(SafepointError):
    """Run {run_id} was cancelled."""

    run_id: str


class RunHeld(SafepointError):
    """Run {run_id} is held and waits for a person: {text}"""  # noqa: D400  # it ends in the reason's words

    run_id: str
    code: str
    text: str
    reason: Mapping[str, object]

    def __init__(self, run_id: str, reason: Mapping[str, object]) -> None:
        shown = {"code": str(reason.get("code", "")), "text": str(reason.get("text", ""))}
        super().__init__(run_id=run_id, reason=reason, **shown)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.run_id, self.reason)


class Refused(SafepointError):
    """Run {run_id}: {verb} is not possible: {text}."""

    run_id: str
    verb: str
    text: str


class IdempotencyConflict(SafepointError):
    """The key {key!r} was used for run {run_id} with another input; one key names one input for ever."""

    key: str
    run_id: str


class WrongDatabase(SafepointError):
    """The connection leads to {found}, but the ledger is in {expected}."""

    found: str
    expected: str


class LeaseLost(SafepointError):
    """Step {key} of run {run_id} has another owner now: what this one wrote is refused."""

    run_id: str
    key: str


class LedgerUnavailable(SafepointError):
    """The ledger does not answer: {text}."""

    text: str


class BrokerUnavailable(SafepointError):
    """The broker does not answer: {text}."""

    text: str


class SchemaTooOld(SafepointError):
    """The ledger's schema is {found}; this release needs {needed}: run `safepoint db upgrade`."""

    found: str
    needed: str


class SchemaTooNew(SafepointError):
    """The ledger's schema is {found}, newer than this release knows ({needed}): install a newer release."""

    found: str
    needed: str


def describe(error: BaseException, *, attempts: int | None = None) -> dict[str, object]:
    """Give an error as the ledger stores it: its type, its message, and what a flow needs to raise it again."""
    if isinstance(error, StepFailed):
        told: dict[str, object] = {"type": error.type, "message": error.message, "step": error.step}
        attempts = error.attempts
    else:
        told = {"type": type(error).__name__, "message": _message(error)}
    match error:
        case BudgetExceeded():
            told |= {"code": "budget", "what": getattr(error, "what", None)}
        case DeadlineExceeded():
            told["code"] = "deadline"
        case Cancelled():
            told["code"] = "cancelled"
        case WaitTimedOut():
            told["code"] = "timeout"
        case ValueNotEncodable() | ValueTooLarge():
            told["path"] = error.path
        case _:
            pass
    return told if attempts is None else {**told, "attempts": attempts}


def _message(error: BaseException) -> str:
    try:
        return storable(str(error))
    except Exception:  # noqa: BLE001  # a user's __str__ may raise; the type is still told
        return f"<{type(error).__name__} that cannot be shown>"

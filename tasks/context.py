"""`current()`: what a step, or a flow, may know about its run, and what it may say about itself."""

from __future__ import annotations

import io
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol, TypeVar, overload

from ..ledger.errors import NotInStep
from .branch import Branch, branch_or_none
from .budget import Budget
from .once import Meter, StepLedger, once
from .scoped import Scoped

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Mapping
    from datetime import datetime

    from .artifact import Artifact

__all__ = ["Context", "FlowContext", "Note", "StepContext", "current", "running"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Note:
    """A word about the progress of a run, for people."""

    text: str
    percent: float | None = None

    def __post_init__(self) -> None:
        """Refuse what is no progress."""
        text: object = self.text
        if not isinstance(text, str):
            msg = f"note({self.text!r}): accepted is a text"
            raise TypeError(msg)
        if self.percent is not None and not 0 <= self.percent <= 100:
            msg = f"note(percent={self.percent!r}): accepted is 0 to 100"
            raise ValueError(msg)

    def told(self) -> dict[str, object]:
        """Give the note as an event's data."""
        told: dict[str, object] = {"text": self.text}
        return told if self.percent is None else told | {"percent": self.percent}


class Context(Protocol):
    """What `current()` gives, in a step and in a flow."""

    @property
    def run_id(self) -> str:
        """The run."""
        ...

    @property
    def tenant(self) -> str:
        """Whose run it is."""
        ...

    @property
    def generation(self) -> int:
        """How often the flow has continued as new, from 1."""
        ...

    @property
    def conversation(self) -> str | None:
        """The conversation that the run belongs to."""
        ...

    @property
    def tags(self) -> Mapping[str, str]:
        """The tags of the run."""
        ...

    @property
    def deadline(self) -> datetime | None:
        """When the run must have ended."""
        ...

    @property
    def budget(self) -> Budget:
        """What is left of the run's budget."""
        ...

    @property
    def versions(self) -> Mapping[str, str]:
        """The versions that the run is pinned to."""
        ...

    @property
    def key(self) -> str:
        """The step's key; only in a step."""
        ...

    @property
    def attempt(self) -> int:
        """Which attempt this is, from 1; only in a step."""
        ...

    @property
    def recoveries(self) -> int:
        """How often the step was taken over from a dead owner; only in a step."""
        ...

    @property
    def epoch(self) -> int:
        """The number of this claim; only in a step."""
        ...

    @property
    def idempotency_key(self) -> str:
        """What the other side may recognise this request by; only in an effect."""
        ...

    @property
    def reference(self) -> str:
        """What the other side may be asked by even when the request has changed; only in a step."""
        ...

    def note(self, text: str, percent: float | None = None) -> None:
        """Say how far it is; people see it with the next commit."""

    def spend(self, *, tokens: int = 0, usd: float = 0.0) -> None:
        """Charge the run's budget; only in a step."""

    @overload
    def once(
        self, name: str, fn: Callable[[], Coroutine[object, object, T]], *, type: object = None
    ) -> Coroutine[object, object, T]: ...
    @overload
    def once(self, name: str, fn: Callable[[], T], *, type: object = None) -> T: ...
    def once(self, name: str, fn: Callable[[], object], *, type: object = None) -> object:  # noqa: A002  # the public name
        """Commit a named part of a step at once: a retry of the step finds its value instead of calling `fn` again."""

    def artifact(
        self,
        data: bytes | str | Path | BinaryIO,
        *,
        name: str | None = None,
        media_type: str | None = None,
    ) -> Artifact:
        """Store something large; only in a step."""
        ...


class FlowContext:
    """What a flow may know: the same on every replay."""

    def __init__(self, branch: Branch) -> None:
        self._situation = branch.situation
        run = branch.situation.run
        self.run_id = run.run_id
        self.tenant = run.tenant
        self.generation = run.generation
        self.conversation = run.conversation
        self.tags = run.tags
        self.deadline = run.deadline
        self.versions = run.versions

    @property
    def budget(self) -> Budget:
        """What is left after the results that the flow has been given."""
        return self._situation.budget

    def note(self, text: str, percent: float | None = None) -> None:
        """Say how far the flow is; people see it with the next commit."""
        self._situation.notes.append(Note(text, percent).told())

    def __getattr__(self, name: str) -> object:
        """Refuse what only a step has."""
        if name in _OF_STEPS:
            raise NotInStep(what=f"current().{name}")
        raise AttributeError(name)


_OF_STEPS = frozenset(
    {"key", "attempt", "recoveries", "epoch", "idempotency_key", "reference", "spend", "once", "artifact"}
)


@dataclass(slots=True)
class StepContext:
    """What one attempt of a step may know, say and spend."""

    run_id: str
    tenant: str
    key: str
    _: KW_ONLY
    ledger: StepLedger
    generation: int = 1
    conversation: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    attempt: int = 1
    recoveries: int = 0
    epoch: int = 1
    reference: str = ""
    effect_key: str | None = None
    deadline: datetime | None = None
    budget_before: Budget = field(default_factory=Budget)
    versions: Mapping[str, str] = field(default_factory=dict)
    notes: list[dict[str, object]] = field(default_factory=list)
    meter: Meter = field(default_factory=Meter)

    @property
    def idempotency_key(self) -> str:
        """What the other side may recognise this request by."""
        if self.effect_key is None:
            msg = f"{self.key} is no effect: only @effect has an idempotency key"
            raise NotInStep(msg)
        return self.effect_key

    @property
    def budget(self) -> Budget:
        """What is left of the run's budget after what this attempt has spent."""
        tokens, usd = self.meter.whole()
        return self.budget_before.less(tokens=tokens, usd=usd)

    @property
    def spent_tokens(self) -> int:
        """Tokens to commit with the step; those inside a `once` are committed with its row."""
        return self.meter.tokens

    @property
    def spent_usd(self) -> float:
        """Money to commit with the step."""
        return self.meter.usd

    def note(self, text: str, percent: float | None = None) -> None:
        """Say how far the step is."""
        self.notes.append(Note(text, percent).told())

    def spend(self, *, tokens: int = 0, usd: float = 0.0) -> None:
        """Charge the run's budget."""
        self.meter.spend(tokens=tokens, usd=usd)

    @overload
    def once(
        self, name: str, fn: Callable[[], Coroutine[object, object, T]], *, type: object = None
    ) -> Coroutine[object, object, T]: ...
    @overload
    def once(self, name: str, fn: Callable[[], T], *, type: object = None) -> T: ...
    def once(self, name: str, fn: Callable[[], object], *, type: object = None) -> object:  # noqa: A002  # the public name
        """Commit a named part of the step at once; several may run at a time, none holds a connection meanwhile."""
        return once(name, fn, type=type, ledger=self.ledger, meter=self.meter)

    def artifact(
        self,
        data: bytes | str | Path | BinaryIO,
        *,
        name: str | None = None,
        media_type: str | None = None,
    ) -> Artifact:
        """Store bytes, a text, a file or a stream, named by its content."""
        import mimetypes  # noqa: PLC0415  # reads the system's tables; a flow's import need not

        guessed = mimetypes.guess_type(name)[0] if name else None
        fallback = "text/plain; charset=utf-8" if isinstance(data, str) else "application/octet-stream"
        with _stream(data) as stream:
            return self.ledger.artifact_put(
                stream,
                name=name or (data.name if isinstance(data, Path) else None),
                media_type=media_type or guessed or fallback,
            )


_current: ContextVar[StepContext | None] = ContextVar("safepoint_step", default=None)


def running(context: StepContext) -> Scoped[StepContext | None]:
    """Make this the current context while a step's code runs."""
    return Scoped(_current, context)


def current() -> Context:
    """Give what is known about the run whose flow or step this code belongs to."""
    here = branch_or_none()
    if here is not None:
        return FlowContext(here)  # type: ignore[return-value]  # __getattr__ refuses what only steps have
    context = _current.get()
    if context is None:
        msg = (
            "current() works only inside a flow or a step; a thread that a step starts needs contextvars.copy_context()"
        )
        raise NotInStep(msg)
    return context


@contextmanager
def _stream(data: bytes | str | Path | BinaryIO) -> Iterator[BinaryIO]:
    match data:
        case Path():
            with data.open("rb") as stream:
                yield stream
        case str():
            yield io.BytesIO(data.encode())
        case bytes():
            yield io.BytesIO(data)
        case _:
            yield data

"""Enqueuing a call: its options, and the port that the ledger's side fills.

A flow's module must not drag SQLAlchemy in, so `Call.enqueue` goes through here; `client` registers itself when it is
imported.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Protocol

from .budget import Budget
from .duration import aware, seconds

if TYPE_CHECKING:
    pass

__all__ = ["EnqueueOptions", "Enqueuer", "check_key", "enqueuer", "set_enqueuer"]

HIGHEST_PRIORITY: Final = 32_767
FARTHEST: Final = 100 * 366 * 86_400.0  # seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class EnqueueOptions:
    """What is said about a run besides its arguments; durations count from the enqueue, by the ledger's clock."""

    tenant: str = "default"
    key: str | None = None
    deadline: float | timedelta | datetime | None = None
    budget: Budget | Mapping[str, float] | None = None
    priority: int = 0
    tags: Mapping[str, str] = field(default_factory=dict)
    conversation: str | None = None
    start_at: float | timedelta | datetime | None = None
    connection: object = None

    def __post_init__(self) -> None:
        """Refuse what cannot be meant, naming the option."""
        _text(self.tenant, what="tenant", most=200)
        check_key(self.key)
        if self.conversation is not None:
            _text(self.conversation, what="conversation", most=1000)
        if isinstance(self.priority, bool) or not isinstance(self.priority, int):
            raise TypeError(f"priority={self.priority!r}: accepted is a whole number")
        if not 0 <= self.priority <= HIGHEST_PRIORITY:
            raise ValueError(
                f"priority={self.priority!r}: accepted is 0 (the default) to {HIGHEST_PRIORITY} (the first)"
            )
        for name in ("deadline", "start_at"):
            _when(getattr(self, name), what=name)
        _check_tags(self.tags)
        object.__setattr__(self, "budget", _budget(self.budget))

    def terms(self) -> dict[str, object]:
        """Return what is not a default, as the ledger's function calls it."""
        terms: dict[str, object] = {"tenant": self.tenant, "priority": self.priority}
        for name in ("key", "conversation"):
            if getattr(self, name) is not None:
                terms[name] = getattr(self, name)
        if self.tags:
            terms["tags"] = dict(self.tags)
        if isinstance(self.budget, Budget):
            terms["budget"] = {name: left for name, left in asdict(self.budget).items() if left is not None}
        for name, short in (("deadline", "deadline"), ("start_at", "start")):
            value = getattr(self, name)
            if isinstance(value, datetime):
                terms[name] = value
            elif value is not None:
                terms[f"{short}_in"] = seconds(value, what=name)
        return terms


def check_key(key: object) -> None:
    """Refuse what is no key, nor None."""
    if key is not None:
        _text(key, what="key", most=1000)


def _text(value: object, *, what: str, most: int) -> None:
    accepted = f"accepted is a text of 1 to {most} bytes without NUL characters"
    if not isinstance(value, str):
        raise TypeError(f"{what}={value!r}: {accepted}")
    try:
        size = len(value) if value.isascii() else len(value.encode())
    except UnicodeEncodeError:  # half of a surrogate pair
        size = 0
    if not 0 < size <= most or "\x00" in value:
        raise ValueError(f"{what}={value[:80]!r}: {accepted}")


def _when(value: object, *, what: str) -> None:
    if value is None:
        return
    if isinstance(value, datetime):
        aware(value, what=what)
        return
    if isinstance(value, bool) or not isinstance(value, int | float | timedelta):
        raise TypeError(f"{what}={value!r}: accepted are seconds from now, a timedelta, or an aware datetime")
    if seconds(value, what=what) > FARTHEST:
        raise ValueError(f"{what}={value!r}: accepted is at most a hundred years from now")


def _check_tags(tags: object) -> None:
    accepted = 'accepted are texts by text, as in {"team": "sre"}'
    if not isinstance(tags, Mapping):
        raise TypeError(f"tags={tags!r}: {accepted}")
    for name, value in tags.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError(f"tags={dict(tags)!r}: {name!r}: {accepted}")
        _text(name, what=f"tags[{name!r}]", most=1000)
        if value:
            _text(value, what=f"tags[{name!r}]", most=1000)


def _budget(value: object) -> Budget | None:
    if value is None or isinstance(value, Budget):
        return value
    try:
        return Budget(**value)  # type: ignore[arg-type]  # Budget itself says what it accepts
    except (TypeError, ValueError) as error:
        raise type(error)(
            f"budget={value!r}: accepted is a Budget, or a mapping of tokens, usd and retries ({error})"
        ) from None


class Enqueuer(Protocol):
    """Writes a run into the ledger; takes a `Call` and gives its `Run`, which would be a circle to name here."""

    def enqueue(self, call: Any, options: EnqueueOptions) -> object:
        """Enqueue in this thread."""
        ...

    async def aenqueue(self, call: Any, options: EnqueueOptions) -> object:
        """Enqueue without blocking the event loop."""
        ...


_enqueuer: list[Enqueuer] = []


def set_enqueuer(enqueuer: Enqueuer) -> None:
    """Fill the port; the last one counts."""
    _enqueuer[:] = [enqueuer]


def enqueuer() -> Enqueuer:
    """Give what fills the port; the first call imports it."""
    if not _enqueuer:
        importlib.import_module(f"{__package__}.client")
    return _enqueuer[0]

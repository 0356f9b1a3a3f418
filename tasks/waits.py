"""The waits of a flow: timers, signals and approvals; each is a row of the ledger that nothing but its outcome ends."""

from __future__ import annotations

from collections.abc import Coroutine
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

import orjson

from ..ledger.codec import Codec, Encoded, digest, input_hash
from ..ledger.key import checked_name
from .awaited import Asked, Awaited
from .decision import Decision
from .duration import aware, seconds

if TYPE_CHECKING:
    from ..ledger.key import Key
    from .record import Kind, Load, Record

__all__ = ["Approval", "Signal", "Timer", "approval", "sleep", "wait_for"]

T = TypeVar("T")


class Timer(Awaited[None]):
    """The wait for an instant."""

    __slots__ = ("delay", "input_hash", "until")
    kind: Kind = "timer"
    name = step_id = "sleep"

    def __init__(self, *, delay: float | None, until: datetime | None) -> None:
        self.delay = delay
        self.until = until
        self.input_hash = digest(orjson.dumps([delay, until]))
        super().__init__()

    @property
    def what(self) -> str:
        """How messages name it."""
        return "sleep"

    def ask(self, key: Key, *, joins: str | None) -> Asked:
        """Ask to be woken."""
        return Asked(key, self, delay=self.delay, until=self.until, joins=joins)

    def value(self, record: Record, load: Load) -> None:
        """Give nothing: the time has come."""


class Signal(Awaited[T]):
    """The wait for a message from outside. Its timeout is no input: a longer one changes no committed answer."""

    __slots__ = ("_codec", "input_hash", "name", "step_id", "timeout")
    kind: Kind = "signal"

    def __init__(self, name: str, *, codec: Codec[T], timeout: float | None) -> None:
        self.name = checked_name(name, what="wait_for")
        self.step_id = f"signal:{name}"
        self.timeout = timeout
        self.input_hash = digest(self.step_id.encode())
        self._codec = codec
        super().__init__()

    @property
    def what(self) -> str:
        """How messages name it."""
        return f"wait_for({self.name!r})"

    def ask(self, key: Key, *, joins: str | None) -> Asked:
        """Ask for the signal."""
        codec = cast("Codec[object]", self._codec)
        return Asked(key, self, delay=self.timeout, value_type=codec, joins=joins)

    def value(self, record: Record, load: Load) -> T:
        """Decode what was sent."""
        return self._codec.decode(load(record.data or b"null", record.encoding or "json"))


class Approval(Awaited[Decision]):
    """The wait for a person's decision on what they are shown; expiry is an outcome, never an approval."""

    __slots__ = ("expires_in", "input_hash", "name", "show", "step_id")
    kind: Kind = "approval"

    def __init__(self, name: str, *, show: Encoded, expires_in: float | None) -> None:
        self.name = checked_name(name, what="approval")
        self.step_id = f"approval:{name}"
        self.show = show
        self.expires_in = expires_in
        self.input_hash = input_hash(show.data)
        super().__init__()

    @property
    def what(self) -> str:
        """How messages name it."""
        return f"approval({self.name!r})"

    def ask(self, key: Key, *, joins: str | None) -> Asked:
        """Ask for the decision."""
        return Asked(key, self, show=self.show, delay=self.expires_in, joins=joins)

    def value(self, record: Record, load: Load) -> Decision:
        """Decode the decision."""
        return Decision.decode(load(record.data or b"null", record.encoding or "json"))


def sleep(delay: float | timedelta | datetime) -> Coroutine[object, object, None]:
    """Wait for some seconds, a timedelta, or until an aware datetime; no worker sleeps meanwhile."""
    if isinstance(delay, datetime):
        return Timer(delay=None, until=aware(delay, what="sleep"))
    return Timer(delay=seconds(delay, what="sleep"), until=None)


@overload
def wait_for(name: str, *, timeout: float | timedelta | None = None) -> Coroutine[object, object, Any]: ...
@overload
def wait_for(name: str, *, type: type[T], timeout: float | timedelta | None = None) -> Coroutine[object, object, T]: ...
def wait_for(
    name: str,
    *,
    type: object = Any,  # noqa: A002  # the public name
    timeout: float | timedelta | None = None,
) -> Coroutine[object, object, object]:
    """Wait for a signal of that name and give its payload; one that came before is not lost. Raises `TimeoutError`."""
    limit = None if timeout is None else seconds(timeout, what="timeout")
    return Signal(name, codec=Codec[object](type, root=f"signal:{name}"), timeout=limit)


def approval(
    name: str, *, show: object = None, expires_in: float | timedelta | None = None
) -> Coroutine[object, object, Decision]:
    """Wait for a person's decision on what is shown."""
    limit = None if expires_in is None else seconds(expires_in, what="expires_in")
    # One way: what is shown is read by people, the flow keeps the value that it has.
    return Approval(name, show=Codec[object](Any, root="show").show(show), expires_in=limit)

"""`once`: a named part of a step, committed by itself, so that a retry of the step does not pay for it again.

The row is fenced like every write of an executor, and the first writer wins (P38): who loses reads what stands.
"""

from __future__ import annotations

import inspect
import math
import threading
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol, get_type_hints

from ..ledger.codec import Codec, Encoded
from ..ledger.errors import ValueNotDecodable

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from .artifact import Artifact

__all__ = ["Meter", "StepLedger", "once"]


class StepLedger(Protocol):
    """What a running step writes besides its result; every call is short, and fenced by the step's claim."""

    def once_get(self, name: str, /) -> Encoded | None:
        """Give the row of that name, if there is one."""

    def once_put(self, name: str, value: Encoded, /, *, tokens: int, usd: float) -> Encoded | None:
        """Write the row with what it has cost; None if it stands, else the row of whoever was first."""

    def artifact_put(self, stream: BinaryIO, /, *, name: str | None, media_type: str) -> Artifact:
        """Store the stream."""
        ...


class Meter:
    """What an attempt has spent: apart for what is committed with the step, and in all."""

    def __init__(self, around: Meter | None = None) -> None:
        self.tokens = 0
        self.usd = 0.0
        self._around = around
        self._settled_tokens = 0
        self._settled_usd = 0.0
        self._lock = threading.Lock()

    def spend(self, *, tokens: int = 0, usd: float = 0.0) -> None:
        """Add an amount; inside a `once` it belongs to that row."""
        given: tuple[object, object] = (tokens, usd)
        if isinstance(given[0], bool) or not isinstance(given[0], int) or tokens < 0:
            msg = f"spend(tokens={tokens!r}): accepted is a whole number that is not negative"
            raise ValueError(msg)
        if isinstance(given[1], bool) or not isinstance(given[1], (int, float)) or not math.isfinite(usd) or usd < 0:
            msg = f"spend(usd={usd!r}): accepted is a finite number that is not negative"
            raise ValueError(msg)
        inner = _inner.get()
        meter = inner if inner is not None and inner.is_within(self) else self
        meter.add(tokens, float(usd))

    def add(self, tokens: int, usd: float) -> None:
        """Add an amount to this very meter."""
        with self._lock:
            self.tokens += tokens
            self.usd += usd

    def is_within(self, meter: Meter) -> bool:
        """Tell whether this meter belongs to a `once` under that one."""
        return self is meter or (self._around is not None and self._around.is_within(meter))

    def settle(self, own: Meter) -> None:
        """Note what was committed with a row and must not be committed again with the step."""
        with self._lock:
            self._settled_tokens += own.tokens
            self._settled_usd += own.usd

    def spend_again(self, own: Meter) -> None:
        """Take over what no row has committed."""
        self.add(own.tokens, own.usd)

    def whole(self) -> tuple[int, float]:
        """Give all that was spent, committed or not."""
        with self._lock:
            return self.tokens + self._settled_tokens, self.usd + self._settled_usd


_inner: ContextVar[Meter | None] = ContextVar("safepoint_meter", default=None)


def once(name: str, fn: Callable[[], object], *, type: object, ledger: StepLedger, meter: Meter) -> object:  # noqa: A002  # the public name
    """Give the committed value of that name, or call `fn` and commit what it gives."""
    row = _Row(checked_once(name), Codec[object](_type_of(fn, type), root=f"once[{name!r}]"), ledger, meter)
    if inspect.iscoroutinefunction(fn):
        return row.run_async(fn)
    found = ledger.once_get(name)
    if found is not None:
        value, was_awaited = row.read(found)
        return _ready(value) if was_awaited else value
    with row.metered() as own:
        value = fn()
    if inspect.iscoroutine(value):  # a lambda around a coroutine function
        return row.finish_async(value, own)
    return row.write(value, own, awaited=False)


@dataclass(frozen=True, slots=True)
class _Row:
    """One `once` of one step."""

    name: str
    codec: Codec[object]
    ledger: StepLedger
    meter: Meter

    async def run_async(self, fn: Callable[[], Coroutine[object, object, object]]) -> object:
        import asyncio  # noqa: PLC0415  # half of the face's import time, and only async steps need it

        # The ledger's calls block; other steps share this event loop.
        found = await asyncio.to_thread(self.ledger.once_get, self.name)
        if found is not None:
            return self.read(found)[0]
        return await self.finish_async(fn(), Meter(self.meter))

    async def finish_async(self, running: Coroutine[object, object, object], own: Meter) -> object:
        import asyncio  # noqa: PLC0415  # as above

        with self.metered(own):
            value = await running
        return await asyncio.to_thread(self.write, value, own, awaited=True)

    @contextmanager
    def metered(self, own: Meter | None = None) -> Iterator[Meter]:
        own = own or Meter(self.meter)
        token = _inner.set(own)
        try:
            yield own
        except BaseException:  # the step sees it; what was spent has no row that could carry it
            self.meter.spend_again(own)
            raise
        finally:
            _inner.reset(token)

    def write(self, value: object, own: Meter, *, awaited: bool) -> object:
        data = (_AWAITED if awaited else _PLAIN) + self.codec.encode(value).data + b"}"
        first = self.ledger.once_put(self.name, Encoded.of(data), tokens=own.tokens, usd=own.usd)
        if first is None:
            self.meter.settle(own)
            return self.codec.decode(data[len(_AWAITED if awaited else _PLAIN) : -1])
        self.meter.spend_again(own)  # paid for nothing, but paid
        return self.read(first)[0]

    def read(self, found: Encoded) -> tuple[object, bool]:
        for mark, awaited in ((_AWAITED, True), (_PLAIN, False)):
            if found.data.startswith(mark):
                return self.codec.decode(found.data[len(mark) : -1]), awaited
        raise ValueNotDecodable(path=self.codec.root, text="it was not written by `once`")


# How the value was had decides how it is given back: whoever awaits a lambda's coroutine must find one again.
_AWAITED = b'{"awaited":true,"value":'
_PLAIN = b'{"awaited":false,"value":'


def checked_once(name: str) -> str:
    """Give the name back, or refuse one that no row can have."""
    given: object = name
    if not isinstance(given, str) or not 0 < len(given) <= 200 or "\x00" in given:
        msg = f"once({name!r}): accepted is a text of 1 to 200 characters"
        raise ValueError(msg)
    return name


async def _ready(value: object) -> object:
    return value


def _type_of(fn: Callable[[], object], declared: object) -> object:
    if declared is not None:
        return declared
    try:
        return get_type_hints(inspect.unwrap(fn), include_extras=True).get("return", Any)
    except (
        NameError,
        TypeError,
        AttributeError,
    ):  # a lambda's or a partial's, or one that only a type checker can read
        return Any

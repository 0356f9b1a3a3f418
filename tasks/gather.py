"""Gather: several awaits of one flow at once, each in a branch of its own."""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine
from typing import TYPE_CHECKING, Literal, TypeVar, cast, overload

from .awaited import Suspended
from .flow import Call, ChildRun

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Gather", "gather"]

T = TypeVar("T")
T1 = TypeVar("T1")
T2 = TypeVar("T2")
T3 = TypeVar("T3")
T4 = TypeVar("T4")
T5 = TypeVar("T5")
T6 = TypeVar("T6")


class Gather(Suspended[list[object]]):
    """What the driver is handed when a flow awaits a gather."""

    __slots__ = ("limit", "members", "return_exceptions")

    def __init__(self, members: Sequence[Awaitable[object]], *, limit: int | None, return_exceptions: bool) -> None:
        self.members = tuple(_coroutine(member) for member in members)
        self.limit = limit
        self.return_exceptions = return_exceptions
        super().__init__()

    @property
    def what(self) -> str:
        """How messages name it."""
        return "gather"

    def close(self) -> None:
        """Give up the members too."""
        for member in self.members:
            member.close()
        super().close()


def _coroutine(member: object) -> Coroutine[object, object, object]:
    if isinstance(member, Coroutine):
        return member
    if isinstance(member, Call):
        return ChildRun(member)
    if isinstance(member, Awaitable):
        return _await(member)
    msg = f"gather: {member!r} cannot be awaited. Accepted: step calls, waits, child runs and coroutines"
    raise TypeError(msg)


async def _await(member: Awaitable[object]) -> object:
    return await member


@overload
def gather(  # pyright: ignore[reportOverlappingOverload]  # as asyncio's: a fixed number gives a tuple, *many a list
    a: Awaitable[T1], b: Awaitable[T2], /, *, limit: int | None = None, return_exceptions: Literal[False] = False
) -> Coroutine[object, object, tuple[T1, T2]]: ...
@overload
def gather(
    a: Awaitable[T1],
    b: Awaitable[T2],
    c: Awaitable[T3],
    /,
    *,
    limit: int | None = None,
    return_exceptions: Literal[False] = False,
) -> Coroutine[object, object, tuple[T1, T2, T3]]: ...
@overload
def gather(
    a: Awaitable[T1],
    b: Awaitable[T2],
    c: Awaitable[T3],
    d: Awaitable[T4],
    /,
    *,
    limit: int | None = None,
    return_exceptions: Literal[False] = False,
) -> Coroutine[object, object, tuple[T1, T2, T3, T4]]: ...
@overload
def gather(
    a: Awaitable[T1],
    b: Awaitable[T2],
    c: Awaitable[T3],
    d: Awaitable[T4],
    e: Awaitable[T5],
    /,
    *,
    limit: int | None = None,
    return_exceptions: Literal[False] = False,
) -> Coroutine[object, object, tuple[T1, T2, T3, T4, T5]]: ...
@overload
def gather(
    a: Awaitable[T1],
    b: Awaitable[T2],
    c: Awaitable[T3],
    d: Awaitable[T4],
    e: Awaitable[T5],
    f: Awaitable[T6],
    /,
    *,
    limit: int | None = None,
    return_exceptions: Literal[False] = False,
) -> Coroutine[object, object, tuple[T1, T2, T3, T4, T5, T6]]: ...
@overload
def gather(
    *members: Awaitable[T], limit: int | None = None, return_exceptions: Literal[False] = False
) -> Coroutine[object, object, list[T]]: ...
@overload
def gather(  # pyright: ignore[reportOverlappingOverload]  # as above
    a: Awaitable[T1], b: Awaitable[T2], /, *, limit: int | None = None, return_exceptions: Literal[True]
) -> Coroutine[object, object, tuple[T1 | Exception, T2 | Exception]]: ...
@overload
def gather(
    a: Awaitable[T1],
    b: Awaitable[T2],
    c: Awaitable[T3],
    /,
    *,
    limit: int | None = None,
    return_exceptions: Literal[True],
) -> Coroutine[object, object, tuple[T1 | Exception, T2 | Exception, T3 | Exception]]: ...
@overload
def gather(
    *members: Awaitable[T], limit: int | None = None, return_exceptions: Literal[True]
) -> Coroutine[object, object, list[T | Exception]]: ...
def gather(*members: Awaitable[object], limit: int | None = None, return_exceptions: bool = False) -> object:
    """Await several at once: step calls, waits, child runs and coroutines, any mix; at most `limit` of them at a time.

    It waits for all of them, then raises the first failure by position, or gives the failures among the values.
    """
    given: object = limit
    if given is not None and (isinstance(given, bool) or not isinstance(given, int) or given < 1):
        msg = f"gather: limit={limit!r}: accepted is a whole number from 1, or None"
        raise ValueError(msg)
    return cast("object", Gather(members, limit=limit, return_exceptions=return_exceptions))

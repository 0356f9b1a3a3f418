"""No event loop while flow code runs: what needs one is refused with words, even inside a program that has one."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn, cast

from ..ledger.errors import ForeignAwait

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["no_event_loop"]


class _NoLoop:
    """Stands where asyncio looks for its running loop."""

    def __getattr__(self, name: str) -> NoReturn:
        what = f"what asyncio gives (it asked for the loop's {name}; safepoint has a sleep and a gather of its own)"
        raise ForeignAwait(what=what)


_NO_LOOP = cast("asyncio.AbstractEventLoop", _NoLoop())


@contextmanager
def no_event_loop() -> Iterator[None]:
    """Hide a running event loop, and answer whoever asks for one."""
    # asyncio.sleep would say "no running event loop" in a worker, and would even work inside a test that has a loop.
    running = asyncio._get_running_loop()  # noqa: SLF001  # public by asyncio's documentation, for those who drive coroutines
    asyncio._set_running_loop(_NO_LOOP)  # noqa: SLF001  # as above
    try:
        yield
    finally:
        asyncio._set_running_loop(running)  # noqa: SLF001  # as above

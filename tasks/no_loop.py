"""No event loop while flow code runs: what needs one is refused with words, even inside a program that has one."""

from __future__ import annotations

import asyncio
from typing import NoReturn, cast

from ..ledger.errors import ForeignAwait

__all__ = ["no_event_loop"]


class _NoLoop:
    """Stands where asyncio looks for its running loop."""

    def __getattr__(self, name: str) -> NoReturn:
        what = f"what asyncio gives (it asked for the loop's {name}; safepoint has a sleep and a gather of its own)"
        raise ForeignAwait(what=what)


_NO_LOOP = cast("asyncio.AbstractEventLoop", _NoLoop())


class no_event_loop:  # noqa: N801  # used as a word, and written out because every step pays for it
    """Hide a running event loop, and answer whoever asks for one."""

    __slots__ = ("_running",)

    def __enter__(self) -> None:
        # asyncio.sleep would say "no running event loop" in a worker, and would even work in a test that has a loop.
        self._running = asyncio._get_running_loop()  # noqa: SLF001  # public by asyncio's documentation, for those who drive coroutines
        asyncio._set_running_loop(_NO_LOOP)  # noqa: SLF001  # as above

    def __exit__(self, *_: object) -> None:
        asyncio._set_running_loop(self._running)  # noqa: SLF001  # as above

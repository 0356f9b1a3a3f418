"""One coroutine of a run: where it stands, and how its keys are counted.

Keys, randomness and gathers are counted inside one branch, so none of them depends on which branch ends first.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING

from ..ledger.errors import NotInFlow
from ..ledger.key import Key

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from .driver import Driver
    from .gather import Group

__all__ = ["Branch", "branch", "branch_or_none"]

_branch: ContextVar[Branch | None] = ContextVar("safepoint_branch", default=None)


class Branch:
    """A coroutine that the driver sends results to, with its path and its counts."""

    __slots__ = ("_counts", "coroutine", "driver", "group", "path", "position")

    def __init__(
        self,
        driver: Driver,
        coroutine: Coroutine[object, object, object],
        *,
        path: str = "",
        group: Group | None = None,
        position: int = 0,
    ) -> None:
        self.driver = driver
        self.coroutine = coroutine
        self.path = path
        self.group = group
        self.position = position
        self._counts: Counter[str] = Counter()

    def count(self, name: str) -> int:
        """Count one more of that name in this branch; the first is 1."""
        self._counts[name] += 1
        return self._counts[name]

    def key(self, step_id: str) -> Key:
        """Give the key of the next iteration of that step in this branch."""
        return Key(self.driver.run.generation, self.path, step_id, self.count(step_id))

    def send(self, value: object, error: BaseException | None) -> object:
        """Run the coroutine to its next await, with this branch as the current one."""
        return self.driver.context.run(self._send, value, error)

    def _send(self, value: object, error: BaseException | None) -> object:
        token = _branch.set(self)
        try:
            return self.coroutine.send(value) if error is None else self.coroutine.throw(error)
        finally:
            _branch.reset(token)

    def abandon(self) -> None:
        """Close the coroutine; what its clean-up code raises concerns nobody, the run goes on elsewhere."""
        with suppress(Exception):
            self.coroutine.close()


def branch(*, what: str) -> Branch:
    """Give the branch whose code runs now, or refuse what works only in a flow."""
    found = _branch.get()
    if found is None:
        raise NotInFlow(what=what)
    return found


def branch_or_none() -> Branch | None:
    """Give the branch whose code runs now, if it is a flow's."""
    return _branch.get()

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
    from collections.abc import Coroutine, Iterator, Sequence

    from .situation import Situation

__all__ = ["Branch", "Group", "branch", "branch_or_none"]

_branch: ContextVar[Branch | None] = ContextVar("safepoint_branch", default=None)


class Branch:
    """A coroutine that the driver sends results to, with its path and its counts."""

    __slots__ = ("_counts", "coroutine", "group", "path", "position", "situation")

    def __init__(
        self,
        situation: Situation,
        coroutine: Coroutine[object, object, object],
        *,
        path: str = "",
        group: Group | None = None,
        position: int = 0,
    ) -> None:
        self.situation = situation
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
        return Key(self.situation.run.generation, self.path, step_id, self.count(step_id))

    def send(self, value: object, error: BaseException | None) -> object:
        """Run the coroutine to its next await, with this branch as the current one."""
        return self.situation.context.run(self._send, value, error)

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


class Group:
    """A gather under way: who waits for it, which members have ended, and how."""

    __slots__ = ("_ended", "_return_exceptions", "_waiting", "cancelled", "limit", "members", "name", "open", "parent")

    def __init__(
        self,
        members: Sequence[Coroutine[object, object, object]],
        *,
        parent: Branch,
        name: str,
        limit: int | None,
        return_exceptions: bool,
        cancelled: bool,
    ) -> None:
        self.members = members
        self.parent = parent
        self.name = name
        self.limit = limit
        # Whether the run was cancelled when the gather began: then it belongs to the clean-up.
        self.cancelled = cancelled
        self.open = len(members)
        self._return_exceptions = return_exceptions
        self._ended: list[tuple[object, BaseException | None]] = [(None, None)] * self.open
        self._waiting: Iterator[tuple[int, Coroutine[object, object, object]]] = iter(enumerate(members, start=1))

    def next_member(self) -> tuple[int, Coroutine[object, object, object]] | None:
        """Give the next member that has not started, with its number."""
        return next(self._waiting, None)

    def end(self, number: int, *, value: object, error: BaseException | None) -> bool:
        """Note how a member ended; tell whether all have."""
        self._ended[number - 1] = (value, error)
        self.open -= 1
        return self.open == 0

    def outcome(self) -> tuple[object, BaseException | None]:
        """Give what the await of the gather gives: the values, or the first failure by position."""
        if self._return_exceptions:
            return [value if error is None else error for value, error in self._ended], None
        first = next((error for _, error in self._ended if error is not None), None)
        return [value for value, _ in self._ended], first

    def abandon(self) -> None:
        """Close every member, those that have not started too."""
        for member in self.members:
            with suppress(Exception):
                member.close()
        self.parent.abandon()


def branch(*, what: str) -> Branch:
    """Give the branch whose code runs now, or refuse what works only in a flow."""
    found = _branch.get()
    if found is None:
        raise NotInFlow(what=what)
    return found


def branch_or_none() -> Branch | None:
    """Give the branch whose code runs now, if it is a flow's."""
    return _branch.get()

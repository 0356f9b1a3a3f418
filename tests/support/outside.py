"""The world that effects change, in this process: what was tried, what was really done, and how it answers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from safepoint import NOT_EXECUTED, Found, Lookup

__all__ = ["Outside", "Refused"]


class Refused(Exception):  # noqa: N818  # what the other side says
    """The other side has refused the request."""


class Outside:
    """One other side; with a key it does a thing once."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self._tried: list[tuple[str, str]] = []
        self._done: list[tuple[str, str, str]] = []
        self._failures: dict[str, deque[tuple[BaseException, bool]]] = {}
        self._answers: deque[object] | None = None
        self._before: Callable[[], object] | None = None

    def fail(self, error: BaseException, *, done: bool = False, on: str = "") -> None:
        """Let the next request (of that kind) raise; `done` after it was done."""
        self._failures.setdefault(on, deque()).append((error, done))

    def answers(self, answers: Sequence[object]) -> None:
        """Let lookups give these, one after the other."""
        self._answers = deque(answers)

    def before(self, hook: Callable[[], object]) -> None:
        """Call this as the next request comes in."""
        self._before = hook

    def do(self, kind: str, what: str, key: str, *, keyed: bool = False) -> str:
        """Take a request."""
        if self._before is not None:
            hook, self._before = self._before, None
            hook()
        self._tried.append((kind, key))
        failures = self._failures.get(kind) or self._failures.get("")
        error, done = failures.popleft() if failures else (None, True)
        if done and not (keyed and any(one == (kind, key) for one in ((k, own) for k, own, _ in self._done))):
            self._done.append((kind, key, what))
        if error is not None:
            raise error
        return f"did {what}"

    def look(self, key: str) -> Lookup[str]:
        """Answer a lookup by key."""
        if self._answers:
            answer = self._answers.popleft()
            if isinstance(answer, BaseException):
                raise answer
            return answer  # type: ignore[return-value]  # also nonsense
        return next((Found(f"did {what}") for _, own, what in self._done if own == key), NOT_EXECUTED)

    def count(self, kind: str) -> int:
        """How often it was really done."""
        return len(self.did(kind))

    def did(self, kind: str) -> list[str]:
        """What was really done, in order."""
        return [what for own, _, what in self._done if own == kind]

    def keys(self, kind: str) -> list[str]:
        """The keys under which it was done."""
        return [key for own, key, _ in self._done if own == kind]

    def tried(self, kind: str) -> list[str]:
        """The keys of all requests."""
        return [key for own, key in self._tried if own == kind]

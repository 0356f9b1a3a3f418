"""The root of every error that Safepoint raises, and the one for a configuration that cannot be used.

An error's docstring is the template of its message; what it is about are its attributes.
"""

from __future__ import annotations

from dataclasses import dataclass
from inspect import cleandoc

__all__ = ["ConfigError", "EmbeddedStackError", "Problem", "SafepointError"]


class SafepointError(Exception):
    """Safepoint cannot go on."""

    def __init__(self, message: str | None = None, /, **facts: object) -> None:
        self.facts = facts
        for name, value in facts.items():
            setattr(self, name, value)
        super().__init__(self._told(facts) if message is None else message)

    @classmethod
    def _told(cls, facts: dict[str, object]) -> str:
        """Fill the template; what others have said may end with a full stop of its own."""
        told = cls._template().format(**facts)
        return told[:-1] if told.endswith("..") and not told.endswith("...") else told

    @classmethod
    def _template(cls) -> str:
        # python -OO strips docstrings; the class's name is better than no message at all.
        return cleandoc(cls.__doc__ or cls.__name__)

    def __reduce__(self) -> tuple[object, ...]:
        # Exception's own way calls cls(*args), which loses the facts on their way from a pool child to its parent.
        return _rebuild, (type(self), self.args[0], self.facts)


def _rebuild(cls: type[SafepointError], message: str, facts: dict[str, object]) -> SafepointError:
    return cls(message, **facts)


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong in a configuration: where, which key, what, and what would be accepted."""

    source: str
    key: str
    text: str
    accepted: str = ""

    def __str__(self) -> str:
        line = ": ".join(part for part in (self.source, self.key, self.text) if part)
        return f"{line}. Accepted: {self.accepted}" if self.accepted else line


class ConfigError(SafepointError):
    """The configuration cannot be used."""

    problems: tuple[Problem, ...]

    def __init__(self, message: str | None = None, /, *problems: Problem, **facts: object) -> None:
        problems = problems or tuple(facts.pop("problems", ()))  # type: ignore[arg-type]  # what __reduce__ hands back
        text = message if message is not None else "\n".join(str(problem) for problem in problems)
        super().__init__(text or self._template(), problems=problems, **facts)


class EmbeddedStackError(SafepointError):
    """The embedded {server} did not start: {reason}. Its log is {log}. To use a server of your own, set {variable}."""

    server: str
    reason: str
    log: str
    variable: str

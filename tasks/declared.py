"""What the decorators of a process have declared, by name, and where each declaration stands.

It knows neither flows nor steps: both are declared here while their modules are imported, and `registry` reads them.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from ..ledger.errors import DuplicateName

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType

    from ..ledger.codec import Codec

__all__ = ["Declared", "Origin", "Versioned", "declared"]


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a declaration stands, and in which execution of the code around it."""

    file: str
    qualname: str
    line: int
    around: CodeType

    @classmethod
    def of(cls, fn: Callable[..., object], frame: FrameType) -> Origin:
        """Read where a function is declared; the frame is the one its decorator stands in."""
        code: CodeType | None = getattr(fn, "__code__", None)
        file = code.co_filename if code else "?"
        return cls(os.path.realpath(file), fn.__qualname__, code.co_firstlineno if code else 0, frame.f_code)

    @property
    def is_local(self) -> bool:
        """Whether it stands in a function, where no worker can import it."""
        return "<locals>" in self.qualname

    def may_replace(self, other: Origin) -> bool:
        """Tell whether this is the same declaration once more, and not a second one of that name.

        A module that is imported again (reload, or as `__main__` and by name) is compiled or loaded anew, so the code
        around its declarations is another object; two declarations of one execution share it.
        """
        if self.around is other.around:
            return self.is_local and self.qualname == other.qualname and self.line == other.line
        if self.is_local and other.is_local:
            return True
        return self.file == other.file and self.qualname == other.qualname

    def __str__(self) -> str:
        """Name the place as editors open it."""
        return f"{self.file}:{self.line}"


class Versioned(Protocol):
    """What is known of a flow here: enough to find the one for a run, and to read its result."""

    @property
    def name(self) -> str:
        """Its name."""
        ...

    @property
    def version(self) -> str:
        """Its version."""
        ...

    @property
    def accepts(self) -> tuple[str, ...]:
        """The older versions whose runs it goes on with."""
        ...

    @property
    def result(self) -> Codec[Any]:
        """The codec of its result."""
        ...


@dataclass(slots=True)
class Declared:
    """The declarations of a process."""

    flows: dict[tuple[str, str], Versioned] = field(default_factory=dict)
    steps: dict[str, object] = field(default_factory=dict)
    hooks: dict[str, Callable[[], object]] = field(default_factory=dict)
    _origins: dict[tuple[str, str], Origin] = field(default_factory=dict)

    def add_flow(self, flow: Versioned, *, origin: Origin) -> None:
        """Remember a flow under its name and version."""
        self._claim("flow", f"{flow.name}@{flow.version}", origin)
        self.flows[flow.name, flow.version] = flow

    def add_step(self, step: object, *, name: str, origin: Origin) -> None:
        """Remember a step under its name."""
        self._claim("step", name, origin)
        self.steps[name] = step

    def find_flow(self, name: str, version: str) -> Versioned | None:
        """Give the flow of that version, else the newest one that accepts it."""
        exact = self.flows.get((name, version))
        if exact is not None:
            return exact
        accepting = [flow for flow in self.flows.values() if flow.name == name and version in flow.accepts]
        return max(accepting, key=lambda flow: in_order(flow.version), default=None)

    def newest_flow(self, name: str) -> Versioned | None:
        """Give the newest version of a flow."""
        named = [flow for flow in self.flows.values() if flow.name == name]
        return max(named, key=lambda flow: in_order(flow.version), default=None)

    def _claim(self, kind: str, name: str, origin: Origin) -> None:
        first = self._origins.get((kind, name))
        if first is not None and not origin.may_replace(first):
            raise DuplicateName(kind=kind, name=name, first=str(first), second=str(origin))
        self._origins[kind, name] = origin


declared = Declared()


def in_order(version: str) -> list[tuple[int, int, str]]:
    """Order "2" before "10", and "2025-01" before "2025-02"."""
    parts = re.findall(r"\d+|\D+", version)
    return [(1, int(part), "") if part.isdecimal() else (0, 0, part) for part in parts]

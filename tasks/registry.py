"""Which flows, steps and start hooks this process knows: filled by the decorators while modules are imported."""

from __future__ import annotations

import importlib
import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..ledger.errors import ConfigError, DuplicateName, SafepointError, UnknownFlow, UnknownStep

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from types import CodeType, FrameType

    from .flow import Flow
    from .step import Step

__all__ = [
    "Origin",
    "Registry",
    "find_flow",
    "find_step",
    "flows",
    "load",
    "newest",
    "on_start",
    "registry",
    "start_hooks",
    "steps",
]


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


@dataclass(slots=True)
class Registry:
    """The declarations of a process."""

    flows: dict[tuple[str, str], Flow[..., Any]] = field(default_factory=dict)
    steps: dict[str, Step[..., Any]] = field(default_factory=dict)
    hooks: dict[str, Callable[[], object]] = field(default_factory=dict)
    _origins: dict[tuple[str, str], Origin] = field(default_factory=dict)

    def add_flow(self, flow: Flow[..., Any], origin: Origin) -> None:
        """Remember a flow under its name and version."""
        self._claim("flow", f"{flow.name}@{flow.version}", origin)
        self.flows[flow.name, flow.version] = flow

    def add_step(self, step: Step[..., Any], origin: Origin) -> None:
        """Remember a step under its name."""
        self._claim("step", step.name, origin)
        self.steps[step.name] = step

    def _claim(self, kind: str, name: str, origin: Origin) -> None:
        first = self._origins.get((kind, name))
        if first is not None and not origin.may_replace(first):
            raise DuplicateName(kind=kind, name=name, first=str(first), second=str(origin))
        self._origins[kind, name] = origin


registry = Registry()


def flows() -> Mapping[tuple[str, str], Flow[..., Any]]:
    """Give the known flows by name and version."""
    return registry.flows


def steps() -> Mapping[str, Step[..., Any]]:
    """Give the known steps by name."""
    return registry.steps


def find_flow(name: str, version: str) -> Flow[..., Any] | None:
    """Give the flow of that version, else the newest one that accepts it."""
    exact = registry.flows.get((name, version))
    if exact is not None:
        return exact
    accepting = [flow for flow in registry.flows.values() if flow.name == name and version in flow.accepts]
    return max(accepting, key=lambda flow: _order(flow.version), default=None)


def newest(name: str) -> Flow[..., Any]:
    """Give the newest version of a flow, which new runs start with."""
    found = [flow for flow in registry.flows.values() if flow.name == name]
    if not found:
        raise UnknownFlow(name=name, known=", ".join(sorted({flow.name for flow in registry.flows.values()})) or "none")
    return max(found, key=lambda flow: _order(flow.version))


def find_step(name: str) -> Step[..., Any]:
    """Give the step of that name."""
    found = registry.steps.get(name)
    if found is None:
        raise UnknownStep(name=name, known=", ".join(sorted(registry.steps)) or "none")
    return found


def load(modules: Iterable[str]) -> None:
    """Import the modules that hold flows and steps."""
    for module in modules:
        try:
            importlib.import_module(module)
        except SafepointError:
            raise
        except Exception as error:
            # Whatever a user's module raises while it is imported; whoever starts the process learns which one it was.
            msg = f"SAFEPOINT_FLOWS: {module} cannot be imported: {type(error).__name__}: {error}"
            raise ConfigError(msg) from error


def on_start(hook: Callable[[], object]) -> Callable[[], object]:
    """Run the function once in each process that executes steps, after the fork and before its first claim."""
    registry.hooks[f"{hook.__module__}.{hook.__qualname__}"] = hook
    return hook


def start_hooks() -> tuple[Callable[[], object], ...]:
    """Give what `on_start` has registered, in order."""
    return tuple(registry.hooks.values())


def _order(version: str) -> list[tuple[int, int, str]]:
    """Order "2" before "10", and "2025-01" before "2025-02"."""
    parts = re.findall(r"\d+|\D+", version)
    return [(1, int(part), "") if part.isdecimal() else (0, 0, part) for part in parts]

"""The flows, steps and start hooks that this process knows."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, cast

from ..ledger.errors import ConfigError, SafepointError, UnknownFlow, UnknownStep
from .declared import Declared, declared
from .flow import Flow
from .step import Step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

__all__ = [
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


class Registry:
    """The declarations of a process, as what they are."""

    def __init__(self, declarations: Declared) -> None:
        self._declarations = declarations

    @property
    def flows(self) -> Mapping[tuple[str, str], Flow[..., Any]]:
        """The flows by name and version."""
        return cast("Mapping[tuple[str, str], Flow[..., Any]]", self._declarations.flows)

    @property
    def steps(self) -> Mapping[str, Step[..., Any]]:
        """The steps by name."""
        return cast("Mapping[str, Step[..., Any]]", self._declarations.steps)


registry = Registry(declared)


def flows() -> Mapping[tuple[str, str], Flow[..., Any]]:
    """Give the known flows by name and version."""
    return registry.flows


def steps() -> Mapping[str, Step[..., Any]]:
    """Give the known steps by name."""
    return registry.steps


def find_flow(name: str, version: str) -> Flow[..., Any] | None:
    """Give the flow of that version, else the newest one that accepts it."""
    return cast("Flow[..., Any] | None", declared.find_flow(name, version))


def newest(name: str) -> Flow[..., Any]:
    """Give the newest version of a flow, which new runs start with."""
    found = declared.newest_flow(name)
    if found is None:
        raise UnknownFlow(name=name, known=", ".join(sorted({own for own, _ in declared.flows})) or "none")
    return cast("Flow[..., Any]", found)


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
        except Exception as error:  # whatever a user's module raises; who starts the process learns which one it was
            msg = f"SAFEPOINT_FLOWS: {module} cannot be imported: {type(error).__name__}: {error}"
            raise ConfigError(msg) from error


def on_start(hook: Callable[[], object]) -> Callable[[], object]:
    """Run the function once in each process that executes steps, after the fork and before its first claim."""
    declared.hooks[f"{hook.__module__}.{hook.__qualname__}"] = hook
    return hook


def start_hooks() -> tuple[Callable[[], object], ...]:
    """Give what `on_start` has registered, in order."""
    return tuple(declared.hooks.values())

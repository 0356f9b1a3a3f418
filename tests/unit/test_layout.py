"""The house: which files there are, how long they and their functions may be, and what is installed."""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = sorted(path.parent.name for path in ROOT.glob("*/__init__.py"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
NAMES = {folder: name for name, folder in PROJECT["tool"]["setuptools"]["package-dir"].items()}  # over_http: http
SOURCES = sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py")) + sorted(ROOT.glob("*.py"))


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_the_root_holds_the_face_and_the_two_entries_only():
    # A module celery.py or redis.py beside them would hide the package of that name from all that start here.
    assert {path.name for path in ROOT.glob("*.py")} <= {"__init__.py", "__main__.py", "app.py"}


def test_the_packages_are_those_of_the_tree():
    found = {"safepoint"} | {
        ".".join((NAMES.get(room, f"safepoint.{room}"), *path.parent.relative_to(ROOT / room).parts))
        for room in ROOMS
        for path in (ROOT / room).rglob("__init__.py")
    }

    assert set(PROJECT["tool"]["setuptools"]["packages"]) == found


def test_no_folder_hides_a_module_of_python():
    # `celery -A safepoint.app` puts the working directory first: started here, a folder http/ would be `import http`.
    folders = {path.name for path in ROOT.iterdir() if path.is_dir()}

    assert folders & sys.stdlib_module_names == set()


def test_every_folder_with_code_is_a_package_or_the_migrations():
    for path in SOURCES:
        assert (path.parent / "__init__.py").exists() or "migrations" in path.parts, named(path)


def test_tests_are_no_packages():
    assert not list((ROOT / "tests").rglob("__init__.py"))


def test_the_type_checker_looks_at_every_room():
    assert {*ROOMS, "__init__.py", "__main__.py", "app.py", "tests", "examples"} == set(
        PROJECT["tool"]["pyright"]["include"]
    )


def test_a_file_holds_one_noun():
    too_long = {named(path): n for path in SOURCES if (n := len(path.read_text().splitlines())) > 400}

    assert not too_long


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def test_a_function_fits_on_a_screen():
    too_long = {
        f"{named(path)}:{function.name}": length
        for path in SOURCES
        for function in functions(path)
        if (length := (function.end_lineno or 0) - function.lineno + 1) > 60
    }

    assert not too_long


def absolute(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module] if isinstance(node, ast.ImportFrom) and node.module and node.level == 0 else []


@pytest.mark.parametrize("path", SOURCES, ids=named)
def test_rooms_import_each_other_relatively(path):
    if "migrations" in path.parts:
        return  # Alembic runs them by their paths

    imported = [name for node in ast.walk(ast.parse(path.read_text())) for name in absolute(node)]

    assert not [name for name in imported if name.partition(".")[0] in {"safepoint", *ROOMS}]


def test_every_folder_of_tests_is_in_a_group_that_make_runs() -> None:
    makefile = (ROOT / "Makefile").read_text()
    groups = makefile.partition("GROUPS :=")[2].partition("\n\n")[0]
    own = makefile.partition("OWN :=")[2].partition("\n")[0].split()

    assert '"tests $(OWN:%=--ignore=%)"' in groups, "the last group takes what is in no other"
    assert [folder for folder in own if f"{folder} " not in groups and f'{folder}"' not in groups] == []

"""What the pages say is so: programs run, settings load, commands, options, variables and links exist."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from safepoint.cli.app import app
from safepoint.config.explain import variables
from safepoint.config.settings import Settings, load
from typer.main import get_command

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted(EXAMPLES.rglob("*.md"))]
PAGES = [page for page in PAGES if page.parent.name != "pages"]  # what the research agent reads
NOT_SETTINGS = {"CONFIG", "TRACEBACK", "CRASH", "CRASH_POINTS", "CRASH_TARGET", "CRASH_ONCE", "TABLE__KEY", ""}


def blocks(language: str, page: Path | None = None) -> list[str]:
    texts = [one.read_text() for one in ([page] if page else PAGES)]
    return [
        block for text in texts for block in re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    ]


def commands() -> list[list[str]]:
    lines = [line for block in blocks("console") for line in block.splitlines() if line.startswith("$ ")]
    parts = [part.strip() for line in lines for part in re.split(r";|&&", line.partition(" # ")[0].removeprefix("$ "))]
    words = [[word for word in shlex.split(part) if not re.match(r"\w+=", word)] for part in parts]
    return [line for line in words if line and line[0] == "safepoint"]


def test_the_program_on_the_first_page_runs(tmp_path: Path) -> None:
    program, app_ = blocks("python", ROOT / "README.md")
    (tmp_path / "flows.py").write_text(program)
    code = f"""
import time
time.sleep = lambda seconds: None
from flows import research
from safepoint.testing import run_flow
played = run_flow(research("why"), order="shuffle")
print(played.result)
compile({app_!r}, "app", "exec")
"""

    ran = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)

    assert ran.stdout == "why? 2 sources agree.\n", ran.stderr


def test_the_problem_the_promise_and_code_are_on_the_first_screen() -> None:
    first = "\n".join((ROOT / "README.md").read_text().splitlines()[:30])

    assert "steps are at-least-once, commits are once per step key" in first
    assert "@flow" in first


@pytest.mark.parametrize("text", blocks("toml"))
def test_settings_in_the_pages_load(text: str, tmp_path: Path) -> None:
    (tmp_path / "safepoint.toml").write_text(text)

    assert load(tmp_path / "safepoint.toml", env={}).lanes["recovery"].limited


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_commands_in_the_pages_exist(command: list[str]) -> None:
    verb: Any = get_command(app)  # a group of commands, or one of them
    words = command[1:]
    while words and hasattr(verb, "commands") and not words[0].startswith("-"):  # a group may be a command itself
        assert words[0] in verb.commands
        verb = verb.commands[words.pop(0)]

    known = {name for parameter in verb.params for name in (*parameter.opts, *parameter.secondary_opts)}
    assert {word.partition("=")[0] for word in words if word.startswith("--")} <= known


def test_variables_in_the_pages_exist() -> None:
    named = {name for page in PAGES for name in re.findall(r"SAFEPOINT_([A-Z_]*)", page.read_text())}

    known = {name.removeprefix("SAFEPOINT_") for name in variables(Settings, ["online", "recovery", "control", "gpu"])}
    assert named - known - NOT_SETTINGS == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_in_the_pages_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)]+)\)", page.read_text())

    assert [link for link in links if "://" not in link and not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_name_no_path_of_a_machine(page: Path) -> None:
    assert re.findall(r"(?<![\w.])/(?:tmp|root|home|work|Users)/\S*", page.read_text()) == []
    assert str(Path.cwd()) not in page.read_text()


def test_the_tests_that_show_a_requirement_exist() -> None:
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs" / "requirements.md").read_text()))
    files = (ROOT / "tests").rglob("test_*.py")

    assert named <= {name for file in files for name in re.findall(r"^def (test_\w+)", file.read_text(), re.MULTILINE)}

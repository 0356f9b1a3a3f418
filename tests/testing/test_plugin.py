"""The pytest plugin, as a user's own project has it: in a pytest of its own, with flows of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

PLUGIN = "safepoint.testing.plugin"

FLOWS = """
from safepoint import flow, gather, step


@step
def shout(text: str) -> str:
    return text.upper()


@step
def join(parts: list[str]) -> str:
    return " ".join(parts)


@flow
async def greet(names: list[str]) -> str:
    return await join(await gather(*[shout(name) for name in names]))
"""

TESTS = """
from greetings import greet, shout
from safepoint.testing import run_flow


def test_without_servers():
    assert run_flow(greet(["a", "b"])).result == "A B"


def test_a_killed_worker_loses_nothing(safepoint_stack, crash_at):
    crash = crash_at("commit.after@join#1")
    safepoint_stack.relay()
    safepoint_stack.worker(pool="prefork", concurrency=1)

    run = greet(["hello", "there"]).enqueue()

    crash.wait()
    assert run.result(timeout=30) == "HELLO THERE"
    assert safepoint_stack.client.run(run.id).status == "succeeded"


def test_every_test_has_a_ledger_of_its_own(safepoint_stack):
    assert safepoint_stack.client.count() == {}


def test_a_wrong_crash_point_is_refused(crash_at):
    try:
        crash_at("commit.during")
    except ValueError as error:
        assert "no crash point 'commit.during'" in str(error)
"""


@pytest.mark.postgres
@pytest.mark.slow
def test_the_fixtures_of_the_plugin(tmp_path: Path):
    (tmp_path / "greetings.py").write_text(FLOWS)
    (tmp_path / "test_greetings.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nsafepoint_flows = greetings\npythonpath = .\n")

    # An installed safepoint has registered it; in a bare checkout it is named.
    registered = any(one.value == PLUGIN for one in metadata.entry_points(group="pytest11"))
    plugin = [] if registered else ["-p", PLUGIN]

    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *plugin, str(tmp_path)],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed" in done.stdout

"""A crash point kills the process that it should, once, and nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from safepoint.config import crash
from safepoint.config.errors import ConfigError


def run(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a line after `from safepoint.config.crash import ...` in a process of its own."""
    program = f"from safepoint.config.crash import crash_point, set_main\nimport os\n{code}\nprint('alive')"
    armed = {"SAFEPOINT_CRASH_POINTS": "1"} | {f"SAFEPOINT_{name}": value for name, value in env.items()}
    return subprocess.run(
        [sys.executable, "-c", program], env=os.environ | armed, capture_output=True, text=True, check=False
    )


KEY = "g2:gather#1.2/search#1"


@pytest.mark.parametrize(
    "where", ["", "@search", "@search#1", "@gather#1.2/search#1", "@g2:gather#1.2/search#1", "@search#1:1"]
)
def test_a_step_is_named_by_any_form_of_its_key(where):
    done = run(f"crash_point('commit.after', {KEY!r})", CRASH=f"commit.after{where}")

    assert done.returncode == -signal.SIGKILL
    assert "crash point commit.after@g2:gather#1.2/search#1" in done.stderr


@pytest.mark.parametrize("spec", ["commit.before", "commit.after@other", "commit.after@search#2", "commit.after:2", ""])
def test_another_place_is_passed(spec):
    done = run(f"crash_point('commit.after', {KEY!r})", CRASH=spec)

    assert done.stdout == "alive\n"


def test_nothing_happens_without_the_switch():
    done = run("crash_point('commit.after')", CRASH="commit.after", CRASH_POINTS="0")

    assert done.stdout == "alive\n"


def test_the_nth_hit_of_the_right_step_counts():
    code = "for key in 'aba': crash_point('claim.after', f'{key}#1'); print(key, flush=True)"

    done = run(code, CRASH="claim.after@a:2, claim.before")

    assert done.stdout == "a\nb\n"


def test_a_file_remembers_each_kill_of_a_list(tmp_path: Path):
    env = {"CRASH": "claim.after,commit.after", "CRASH_ONCE": str(tmp_path / "killed")}
    code = "crash_point('claim.after'); crash_point('commit.after')"

    codes = [run(code, **env).returncode for _ in range(3)]

    assert codes == [-signal.SIGKILL, -signal.SIGKILL, 0]


def test_the_whole_worker_dies_when_it_is_the_target():
    child = "set_main(os.getpid())\nif os.fork() == 0: crash_point('commit.after')\nos.wait()"

    assert run(child, CRASH="commit.after", CRASH_TARGET="worker").returncode == -signal.SIGKILL
    assert run(child, CRASH="commit.after", CRASH_TARGET="child").stdout == "alive\n"


@pytest.mark.parametrize("env", [{"SAFEPOINT_CRASH": "commit.aftr"}, {"SAFEPOINT_CRASH_TARGET": "everybody"}])
def test_a_place_that_does_not_exist_is_an_error_that_lists_those_that_do(env):
    with pytest.raises(ConfigError, match="Accepted: "):
        crash.arm({"SAFEPOINT_CRASH_POINTS": "1", **env})
    crash.reset()

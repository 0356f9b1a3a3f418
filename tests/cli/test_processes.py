"""What `worker` and its siblings refuse, and what `--help` costs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safepoint.cli.options import lane_names
from safepoint.cli.processes import flower_password
from safepoint.config.settings import load

Run = Callable[..., Any]


def test_a_lane_that_does_not_exist_is_wrong_usage(run: Run) -> None:
    ran = run("worker", "--lanes", "online,express")

    assert ran.code == 2
    assert "express" in ran.err
    assert "control, online, recovery" in ran.err


@pytest.mark.parametrize("lanes", ["", " , "])
def test_no_lane_at_all_is_wrong_usage(run: Run, lanes: str) -> None:
    ran = run("worker", "--lanes", lanes)

    assert ran.code == 2
    assert f"--lanes: {lanes!r} names no lane. Accepted: control, online, recovery" in ran.err


def test_a_pool_that_does_not_exist_is_wrong_usage(run: Run) -> None:
    ran = run("worker", "--pool", "gevent")

    assert ran.code == 2
    assert "gevent" in ran.err or "prefork" in ran.err


@pytest.mark.parametrize("verb", ["worker", "relay"])
def test_a_ledger_that_is_away_ends_the_process(clean: pytest.MonkeyPatch, run: Run, verb: str) -> None:
    clean.setenv("SAFEPOINT_LEDGER_URL", "postgresql://me:secret@127.0.0.1:1/x")
    clean.setenv("SAFEPOINT_BROKER_URL", "redis://127.0.0.1:1/0")

    ran = run(verb)

    assert ".." not in ran.err.splitlines()[-1].replace("...", "")

    assert ran.code == 1
    assert "does not answer" in ran.err
    assert "secret" not in ran.err


def test_a_broker_that_is_not_configured_is_named(clean: pytest.MonkeyPatch, run: Run, ledger_url: str) -> None:
    clean.setenv("SAFEPOINT_LEDGER_URL", ledger_url)

    ran = run("beat")

    assert ran.code == 2
    assert "SAFEPOINT_BROKER_URL" in ran.err


def test_flowers_password_is_made_once_and_kept_from_others(tmp_path: Path) -> None:
    here = load(env={"SAFEPOINT_HOME": str(tmp_path / "home")})

    first, second = flower_password(here), flower_password(here)

    assert first == second
    assert len(first) >= 20
    assert (tmp_path / "home" / "flower.password").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "home" / ".gitignore").read_text() == "*\n"


def test_a_configured_password_is_the_one(tmp_path: Path) -> None:
    here = load(env={"SAFEPOINT_HOME": str(tmp_path / "home"), "SAFEPOINT_FLOWER__PASSWORD": "given"})

    assert flower_password(here) == "given"
    assert not (tmp_path / "home").exists()


def test_lanes_are_separated_by_commas_or_blanks() -> None:
    assert lane_names("online, recovery") == ("online", "recovery")


HEAVY = ("celery", "kombu", "sqlalchemy", "psycopg", "pydantic", "alembic", "structlog", "tenacity")


def test_help_imports_nothing_heavy() -> None:
    code = f"""
import sys
from safepoint.cli import main
try:
    main(["--help"])
except SystemExit:
    pass
print("HEAVY", [name for name in {HEAVY} if name in sys.modules])
"""

    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert ran.stdout.splitlines()[-1] == "HEAVY []"
    assert all(verb in ran.stdout for verb in ("demo", "up", "enqueue", "runs", "show", "why", "watch", "replay", "db"))


def test_flows_are_found_in_the_current_folder(tmp_path: Path) -> None:
    (tmp_path / "at_hand.py").write_text("print('imported')")
    code = "import sys; from safepoint.cli import main; sys.path.remove(''); main(['replay', 'abcd'])"
    env = {name: value for name, value in os.environ.items() if not name.startswith("SAFEPOINT_")}
    env |= {"SAFEPOINT_FLOWS": "at_hand", "SAFEPOINT_LEDGER_URL": "postgresql://127.0.0.1:1/x"}

    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )

    assert ran.stdout == "imported\n"


def test_a_traceback_is_shown_on_request(clean: pytest.MonkeyPatch, run: Run) -> None:
    clean.setenv("SAFEPOINT_LEDGER_URL", "postgresql://127.0.0.1:1/x")
    clean.setenv("SAFEPOINT_TRACEBACK", "1")

    ran = run("runs")

    assert "Traceback" in ran.err
    assert ran.err.splitlines()[-1].startswith("safepoint: The ledger does not answer")


def test_version_is_printed(run: Run) -> None:
    ran = run("--version")

    assert ran.code == 0
    assert ran.out.strip()

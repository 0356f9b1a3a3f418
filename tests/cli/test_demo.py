"""The demo itself: its workers are really killed, and nothing of it stays."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safepoint.cli import demo

Run = Callable[..., Any]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_demo_holds_and_leaves_nothing(tmp_path: Path) -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SAFEPOINT_")}
    env = {**clean, "TMPDIR": str(tmp_path)}
    tmp_path.chmod(0o711)

    command = [sys.executable, "-m", "safepoint", "demo", "--json"]
    ran = subprocess.run(command, env=env, capture_output=True, text=True, check=False)

    found = json.loads(ran.stdout)
    assert [check["text"] for check in found["checks"] if not check["holds"]] == [], ran.stderr
    assert (ran.returncode, found["holds"]) == (0, True)
    assert found["saved"] > 0
    assert len(found["recoveries"]) == 2
    assert list(tmp_path.iterdir()) == []
    assert [name for name in map(_command, Path("/proc").glob("[0-9]*")) if str(tmp_path) in name] == []


def _command(folder: Path) -> str:
    try:
        return (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def test_without_the_repository_it_says_where_the_demo_is(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(demo, "EXAMPLE", tmp_path)

    ran = run("demo")

    assert ran.code == 1
    assert "make demo" in ran.err

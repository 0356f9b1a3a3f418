"""The workers' health check, with a program in the place of the command line that lists the nodes it is told to."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "deploy" / "healthy.py"
HERE = socket.gethostname()


def node(host: str, *, silent: int) -> dict[str, str]:
    return {"host": host, "last_seen": (datetime.now(UTC) - timedelta(seconds=silent)).isoformat()}


@pytest.mark.parametrize(
    ("nodes", "code"),
    [
        ([(HERE, 2)], 0),
        ([(HERE, 900), (HERE, 2)], 0),
        ([(HERE, 60)], 1),
        ([("elsewhere", 2)], 1),
        ([], 1),
    ],
)
def test_a_worker_is_healthy_while_the_ledger_hears_from_it(tmp_path, nodes, code):
    listed = json.dumps([node(host, silent=silent) for host, silent in nodes])
    program = tmp_path / "safepoint"
    program.write_text(f"#!/bin/sh\necho '{listed}'\n")
    program.chmod(0o755)
    env = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}

    assert subprocess.run([sys.executable, str(SCRIPT)], env=env, check=False).returncode == code


def test_a_ledger_that_does_not_answer_is_not_healthy(tmp_path):
    program = tmp_path / "safepoint"
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    env = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}

    assert subprocess.run([sys.executable, str(SCRIPT)], env=env, capture_output=True, check=False).returncode != 0

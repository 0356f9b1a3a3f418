"""Flower, as `up` starts it, lists every step of the demo's run as a task of its own."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from safepoint.config.process import free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

INCIDENT = Path(__file__).parents[2] / "examples" / "incident"
STEPS = {"plan", "fetch_metrics", "fetch_logs", "diagnose", "open_ticket", "summarize"}


@contextmanager
def process(command: list[str], env: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    started = subprocess.Popen([sys.executable, *command], env=env, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        yield started
    finally:
        started.send_signal(signal.SIGTERM)
        started.wait(timeout=60)


@pytest.fixture
def env() -> Iterator[dict[str, str]]:
    with tempfile.TemporaryDirectory(prefix="safepoint-flower-") as folder:
        Path(folder).chmod(0o711)
        clean = {name: value for name, value in os.environ.items() if not name.startswith("SAFEPOINT_")}
        yield clean | {
            "SAFEPOINT_HOME": f"{folder}/home",
            "SAFEPOINT_FLOWS": "incident_agent",
            "SAFEPOINT_FLOWER__PORT": str(free_port()),
            "PYTHONPATH": os.pathsep.join([str(INCIDENT), *filter(None, [os.environ.get("PYTHONPATH")])]),
            "INCIDENT_MODEL_SECONDS": "0.1",
            "TICKETS_URL": f"http://127.0.0.1:{free_port()}",
        }


def test_flower_lists_every_step_of_a_run_and_is_read_only(
    env: dict[str, str], eventually: Callable[..., None]
) -> None:
    port = env["TICKETS_URL"].rpartition(":")[2]
    file = f"{env['SAFEPOINT_HOME']}.sqlite"
    with process([str(INCIDENT / "ticket_service.py"), "--port", port, "--file", file], env):
        with process(["-m", "safepoint", "up", "--workers", "1", "--concurrency", "2"], env):
            eventually(lambda: assert_watching(env), timeout=90, every=0.5)
            alert = (INCIDENT / "input" / "alert.json").read_text()
            safepoint(env, "enqueue", "incident", "--input", alert, "--wait", "60")
            (run,) = json.loads(safepoint(env, "runs", "--json"))

            eventually(lambda: assert_shown(env, run["run_id"]), timeout=30, every=0.5)

            with pytest.raises(urllib.error.HTTPError) as refused:
                flower(env, "/api/worker/shutdown/any", method="POST")
            with refused.value:
                assert refused.value.code in {403, 405}


def safepoint(env: dict[str, str], *arguments: str) -> str:
    command = [sys.executable, "-m", "safepoint", *arguments]
    return subprocess.run(command, env=env, check=True, capture_output=True, text=True, timeout=120).stdout


def flower(env: dict[str, str], path: str, *, method: str = "GET") -> Any:
    password = Path(env["SAFEPOINT_HOME"], "flower.password").read_text().strip()
    request = urllib.request.Request(f"http://127.0.0.1:{env['SAFEPOINT_FLOWER__PORT']}{path}", method=method)
    request.add_header("Authorization", "Basic " + base64.b64encode(f"safepoint:{password}".encode()).decode())
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)


def assert_watching(env: dict[str, str]) -> None:
    try:
        workers = flower(env, "/workers?json=1")["data"]  # known by their heartbeats: events arrive
    except OSError as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()
        raise AssertionError(f"Flower does not answer: {error}") from error
    assert any(worker["hostname"].startswith("worker-1") for worker in workers)


def assert_shown(env: dict[str, str], run_id: str) -> None:
    tasks = [task for task in flower(env, "/api/tasks").values() if run_id in (task["kwargs"] or "")]
    shown = {task["name"]: task for task in tasks}
    assert shown.keys() >= STEPS
    assert shown["diagnose"]["kwargs"] == f"run={run_id} step=diagnose#1 attempt=1"
    assert {task["state"] for task in tasks} == {"SUCCESS"}

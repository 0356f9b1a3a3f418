"""Flower over the recorder: closed to strangers, read-only, and each step readable as a task of its own."""

from __future__ import annotations

import json
import os
import socket
import sys
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from processes import Container, WorkerNode, make_container
from safepoint.tasks.wire import Message, Publisher


@dataclass
class Flower:
    """A running Flower and how to ask it."""

    port: int
    password: str
    container: Container

    def ask(self, path: str, *, method: str = "GET", password: str | None = None) -> tuple[int, Any]:
        """Return the status and the decoded answer."""
        token = b64encode(f"safepoint:{self.password if password is None else password}".encode()).decode()
        url = f"http://127.0.0.1:{self.port}{path}"
        request = urllib.request.Request(url, method=method, headers={"Authorization": f"Basic {token}"})
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                text = answer.read().decode()
                return answer.status, json.loads(text) if text.startswith("{") else text
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError as error:
            raise AssertionError("Flower does not answer yet") from error


@pytest.fixture
def flower(broker_url: str, tmp_path: Path) -> Iterator[Flower]:
    """Flower as `celery -A safepoint.app flower` starts it, with nothing configured but the broker."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    env = {
        "SAFEPOINT_LEDGER_URL": "postgresql://nobody@127.0.0.1:1/nothing",  # Flower needs no ledger
        "SAFEPOINT_BROKER_URL": broker_url,
        "SAFEPOINT_HOME": str(tmp_path / "home"),
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
    }
    command = [sys.executable, "-m", "celery", "-A", "safepoint.app", "flower", f"--port={port}"]
    container = make_container(command, env, tmp_path, name="flower")
    yield Flower(port, "", container)
    container.remove(force=True)


def test_flower_is_closed_read_only_and_shows_each_step(
    flower: Flower,
    start_recorder: Callable[..., WorkerNode],
    publisher: Publisher,
    tmp_path: Path,
    eventually: Callable[..., None],
) -> None:
    worker, run = start_recorder(pool="threads"), str(uuid4())

    def it_listens() -> None:
        assert flower.ask("/", password="wrong")[0] == 401

    eventually(it_listens, timeout=30)
    password = tmp_path / "home" / "flower.password"
    assert password.stat().st_mode & 0o777 == 0o600
    flower.password = password.read_text().strip()
    steps = ("good#1", "gather#1.1/good#1", "gather#1.2/good#1")

    def it_shows_them() -> None:
        # Events that were sent before Flower had subscribed are gone: send again until it has seen one of each.
        publisher.publish([Message(run=run, step=s, lane="online", name="good", attempt=2, epoch=1) for s in steps])
        status, tasks = flower.ask("/api/tasks")
        assert status == 200
        shown = {(task["uuid"], task["name"], task["kwargs"], task["state"]) for task in tasks.values()}
        assert shown == {(f"{run}:{step}:1", "good", f"run={run} step={step} attempt=2", "SUCCESS") for step in steps}

    eventually(it_shows_them, timeout=30, every=0.5)
    status, _ = flower.ask(f"/api/worker/shutdown/{worker.hostname()}", method="POST")
    assert status in {403, 404, 405}
    assert worker.process.status == "running"

"""A worker takes what the publisher sends, on either broker and with either pool, and comes back after a kill."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

from pytest_celery import CeleryTestSetup
from safepoint.tasks.wire import Message, Publisher


def message(run: str, *, step: str = "good#1", lane: str = "online", name: str = "good", epoch: int = 0) -> Message:
    return Message(run=run, step=step, lane=lane, name=name, attempt=1, epoch=epoch)


def executed(record: Path) -> list[str]:
    return [line.split()[1] for line in record.read_text().splitlines() if line.startswith("done ")]


def test_a_published_step_is_executed(
    celery_setup: CeleryTestSetup, publisher: Publisher, record: Path, eventually: Callable[..., None]
) -> None:
    runs = [str(uuid4()) for _ in range(50)]

    outcomes = publisher.publish([message(run) for run in runs])

    def all_ran() -> None:
        assert sorted(executed(record)) == sorted(runs)

    assert outcomes == [None] * 50
    eventually(all_ran, timeout=20)
    assert celery_setup.ready(control=True)


def test_a_killed_worker_comes_back(
    celery_setup: CeleryTestSetup, publisher: Publisher, record: Path, eventually: Callable[..., None]
) -> None:
    worker, run = celery_setup.worker, str(uuid4())
    assert worker is not None
    worker.kill("SIGKILL")

    publisher.publish([message(run)])
    worker.restart()
    worker.ready()

    def it_ran() -> None:
        assert executed(record) == [run]

    eventually(it_ran, timeout=20)

"""A worker takes what the publisher sends, on either broker and with either pool, and comes back after a kill."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest
from processes import WorkerNode
from proxy import Proxy
from pytest_celery import CeleryTestSetup
from safepoint.config.settings import Settings
from safepoint.tasks.app import SCAN, make_app
from safepoint.tasks.wire import Chore, Message, Publisher
from servers import ValkeyServer


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


def test_a_rejected_step_goes_back_to_the_queue(
    celery_setup: CeleryTestSetup, publisher: Publisher, record: Path, eventually: Callable[..., None]
) -> None:
    run = str(uuid4())

    publisher.publish([message(run, step="back#1")])

    def it_ran_the_second_time() -> None:
        assert executed(record) == [run]

    eventually(it_ran_the_second_time, timeout=20)
    assert record.read_text().count(f"start {run}") == 2


def test_a_worker_outlives_a_broken_connection(
    start_recorder: Callable[..., WorkerNode],
    publisher: Publisher,
    proxy: Proxy,
    proxied_url: str,
    pool: str,
    record: Path,
    eventually: Callable[..., None],
) -> None:
    worker = start_recorder(pool=pool, BROKER_URL=proxied_url)
    runs = [str(uuid4()) for _ in range(3)]
    for run in runs:
        proxy.cut()
        publisher.publish([message(run)])

        def it_ran(run: str = run) -> None:
            assert run in executed(record)

        eventually(it_ran, timeout=30)

    assert worker.process.status == "running"


@pytest.mark.parametrize("broker_url", ["valkey"], indirect=True)
def test_a_worker_outlives_a_broker_that_loses_everything(
    start_recorder: Callable[..., WorkerNode],
    valkey_server: ValkeyServer,
    settings: Settings,
    pool: str,
    record: Path,
    eventually: Callable[..., None],
) -> None:
    worker, app = start_recorder(pool=pool, BROKER_URL=valkey_server.url), make_app(settings, valkey_server.url)
    publisher, run = Publisher(app, lanes=app.lanes), str(uuid4())
    valkey_server.kill()
    valkey_server.start()

    publisher.publish([message(run)])

    def it_ran() -> None:
        assert executed(record) == [run]

    eventually(it_ran, timeout=30)
    assert worker.process.status == "running"
    publisher.close()


def test_beat_sends_the_scan(
    celery_setup: CeleryTestSetup, start_beat: Callable[[], None], record: Path, eventually: Callable[..., None]
) -> None:
    start_beat()

    def it_was_scanned() -> None:
        assert record.read_text().count("scan") >= 2

    eventually(it_was_scanned, timeout=20)


def test_a_scan_that_nobody_took_in_time_is_void(
    start_recorder: Callable[..., WorkerNode], publisher: Publisher, record: Path, eventually: Callable[..., None]
) -> None:
    assert publisher.send_chore(Chore(SCAN, "control", expires=-1)) is None
    assert publisher.send_chore(Chore(SCAN, "control", expires=60)) is None

    start_recorder(pool="threads")

    def one_was_scanned() -> None:
        assert record.read_text().count("scan") == 1

    eventually(one_was_scanned)
    publisher.send_chore(Chore(SCAN, "control", expires=60))

    def the_next_was_scanned() -> None:
        assert record.read_text().count("scan") == 2

    eventually(the_next_was_scanned)

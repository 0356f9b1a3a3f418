"""pytest-celery's components over local processes: a recorder worker on either broker, with either pool."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kombu import pools
from processes import BrokerNode, WorkerNode, make_container
from pytest_celery import CeleryBrokerCluster, CeleryWorkerCluster
from safepoint.config.settings import Settings, load
from safepoint.tasks.app import App, make_app, worker_argv
from safepoint.tasks.wire import Publisher

SUPPORT = Path(__file__).parents[1] / "support"


@pytest.fixture
def settings() -> Settings:
    """The settings as shipped, whatever this machine's environment says."""
    return load(env={})


@pytest.fixture(params=["prefork", "threads"])
def pool(request: pytest.FixtureRequest) -> str:
    """Either pool: a test that takes this runs once with each."""
    name: str = request.param
    return name


@pytest.fixture
def record(tmp_path: Path) -> Path:
    """The file in which the worker's executor writes."""
    path = tmp_path / "record"
    path.touch()
    return path


@pytest.fixture
def celery_broker_cluster(broker_url: str) -> CeleryBrokerCluster:
    """The session's brokers, known by their URLs."""
    return CeleryBrokerCluster(BrokerNode(broker_url))


@pytest.fixture
def celery_backend_cluster() -> None:
    """There is no result backend."""


@pytest.fixture
def start_recorder(
    settings: Settings, broker_url: str, record: Path, tmp_path: Path
) -> Iterator[Callable[..., WorkerNode]]:
    """`start_recorder(pool=, concurrency=, lanes=, VARIABLE=)` starts a recorder and waits until it is ready."""
    workers: list[WorkerNode] = []

    def start(
        *,
        pool: str = "prefork",
        concurrency: int = 2,
        lanes: tuple[str, ...] = ("online", "recovery", "control"),
        **env: str,
    ) -> WorkerNode:
        arguments = worker_argv(settings, lanes=lanes, pool=pool, concurrency=concurrency)
        arguments = [a for a in arguments if not a.startswith("--hostname=")] + ["--hostname=worker@{id}"]
        command = [sys.executable, "-m", "celery", "-A", "recorder", *arguments]
        path = os.pathsep.join([str(SUPPORT), *filter(None, [os.environ.get("PYTHONPATH")])])
        variables = {"BROKER_URL": broker_url, "RECORD": str(record), "PYTHONPATH": path, **env}
        worker = WorkerNode(make_container(command, variables, tmp_path))
        workers.append(worker)
        worker.ready()
        return worker

    yield start
    for worker in workers:
        worker.teardown()


@pytest.fixture
def celery_worker_cluster(start_recorder: Callable[..., WorkerNode], pool: str) -> CeleryWorkerCluster:
    """One worker of the recorder."""
    return CeleryWorkerCluster(start_recorder(pool=pool))


@pytest.fixture
def celery_setup_app(settings: Settings, broker_url: str) -> Iterator[App]:
    """An app that publishes to the worker's broker and asks it questions."""
    app = make_app(settings, broker_url)
    yield app
    pools.reset()  # kombu keeps its pools in the process, by URL


@pytest.fixture
def publisher(celery_setup_app: App) -> Iterator[Publisher]:
    """What sends messages to the test's broker."""
    publisher = Publisher(celery_setup_app, lanes=celery_setup_app.lanes)
    yield publisher
    publisher.close()

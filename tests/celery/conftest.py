"""pytest-celery's components over local processes: a recorder worker on either broker, with either pool."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import pytest
from kombu import pools
from processes import BrokerNode, Container, WorkerNode, make_container
from proxy import Proxy
from pytest_celery import CeleryBrokerCluster, CeleryWorkerCluster
from safepoint.config.settings import Settings, load
from safepoint.tasks.app import App, make_app, worker_argv
from safepoint.tasks.wire import Publisher

SUPPORT = Path(__file__).parents[1] / "support"


def _variables(broker_url: str, record: Path) -> dict[str, str]:
    path = os.pathsep.join([str(SUPPORT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {"BROKER_URL": broker_url, "RECORD": str(record), "PYTHONPATH": path}


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
        command = [sys.executable, "-m", "recorder", *arguments]
        worker = WorkerNode(make_container(command, _variables(broker_url, record) | env, tmp_path))
        workers.append(worker)
        worker.ready()
        return worker

    yield start
    for worker in workers:
        worker.teardown()


@pytest.fixture
def start_beat(broker_url: str, record: Path, tmp_path: Path) -> Iterator[Callable[[], None]]:
    """`start_beat()` starts a beat of the recorder's app."""
    started: list[Container] = []

    def start() -> None:
        command = [sys.executable, "-m", "celery", "-A", "recorder", "beat", "--loglevel=INFO", "--pidfile="]
        started.append(make_container(command, _variables(broker_url, record), tmp_path, name="beat"))

    yield start
    for beat in started:
        beat.remove(force=True)


@pytest.fixture
def proxy(broker_url: str) -> Iterator[Proxy]:
    """A proxy in front of the broker, which can be frozen and cut."""
    parts = urlsplit(broker_url)
    with Proxy(parts.hostname or "127.0.0.1", parts.port or 5672) as proxy:
        yield proxy


@pytest.fixture
def proxied_url(broker_url: str, proxy: Proxy) -> str:
    """The broker's URL, through the proxy."""
    parts = urlsplit(broker_url)
    credentials, _, _ = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{credentials}@127.0.0.1:{proxy.port}"))


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

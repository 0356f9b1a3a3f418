"""Real servers for the tests that ask for one: an embedded PostgreSQL and Valkey, and RabbitMQ where there is one.

Nothing of the machine's own servers is touched: a database of its own for each test, a vhost for each session.
A server that is missing skips a test on a laptop and fails it where SAFEPOINT_CI=1.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn
from uuid import uuid4

import psycopg
import pytest
import redis
from kombu import Connection
from safepoint.config import embedded, postgres
from safepoint.ledger.upgrade import upgrade

# tests/ is no package: what several folders share is imported from here by its own name.
sys.path.insert(0, str(Path(__file__).parent / "support"))

import servers  # found by the line above

RABBITMQ = "amqp://guest:guest@127.0.0.1:5672//"
TEMPLATE = "safepoint_template"
ROOM = 6 << 30  # bytes: three groups of tests, each with its log and a few databases
QUEUES = ("online", "recovery", "control", "safepoint.dead")


@pytest.fixture(scope="session")
def eventually() -> Callable[..., None]:
    """`eventually(assertion, timeout=10)`: the way to wait in a test."""
    return servers.eventually


def missing(what: str) -> NoReturn:
    """Skip on a laptop, fail in CI."""
    if os.environ.get("SAFEPOINT_CI") == "1":
        pytest.fail(f"{what} is missing, and SAFEPOINT_CI=1 wants it")
    pytest.skip(f"{what} is missing")


# --- the embedded stack ---------------------------------------------------------------------------------------------


def _session_home() -> Path:
    # One home for all of pytest-xdist's workers; not inside pytest's own folder, which nobody else may enter.
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID") or uuid4().hex
    return _scratch() / f"safepoint-test-{run[:12]}"


def _scratch() -> Path:
    # A database made and dropped for each test is mostly the file system's work: in memory, where there is much of it.
    memory = Path("/dev/shm")  # what is made there has a random name, and is readable by us alone
    # By its size: what is free changes, and each of xdist's workers must come to the same place.
    if os.access(memory, os.W_OK) and shutil.disk_usage(memory).total > ROOM:
        return memory
    return Path(tempfile.gettempdir())


@pytest.fixture(scope="session")
def stack() -> Iterator[embedded.EmbeddedStack]:
    """This session's PostgreSQL and Valkey; the last of xdist's workers stops them."""
    home = _session_home()
    # Left to the system's cache: no test of it pulls the plug. Tests that kill a ledger have a server of their own.
    with pytest.MonkeyPatch.context() as patch:
        for name in ("fsync", "full_page_writes"):
            patch.setitem(postgres._SETTINGS, name, "off")  # for this one server
        share = embedded.ensure(home)
    with share:
        yield share
    if not embedded.status(home).in_use:
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres_url(stack: embedded.EmbeddedStack) -> str:
    """The session's PostgreSQL, as a role that may make databases."""
    return stack.ledger_url


@pytest.fixture(scope="session")
def template(postgres_url: str) -> str:
    """A database with the schema, made once a session and copied for each test."""
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("SELECT pg_advisory_lock(hashtext('safepoint.template'))")
        if connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [TEMPLATE]).fetchone() is None:
            connection.execute(f"CREATE DATABASE {TEMPLATE}_new")  # type: ignore[arg-type]  # built from a constant
            upgrade(
                servers.with_path(postgres_url, f"{TEMPLATE}_new").replace("postgresql://", "postgresql+psycopg://")
            )
            connection.execute(f"ALTER DATABASE {TEMPLATE}_new RENAME TO {TEMPLATE}")  # type: ignore[arg-type]  # as above
    return TEMPLATE


@pytest.fixture
def ledger_url(postgres_url: str, template: str) -> Iterator[str]:
    """A ledger of its own, empty, with the schema; gone after the test."""
    with servers.new_database(postgres_url, template) as url:
        yield url


# --- brokers --------------------------------------------------------------------------------------------------------


@pytest.fixture
def valkey_url(stack: embedded.EmbeddedStack, worker_number: int) -> str:
    """An empty database of the session's Valkey."""
    url = servers.with_path(stack.broker_url, str(worker_number % 16))
    with redis.Redis.from_url(url) as client:
        client.flushdb()
    return url


@pytest.fixture(scope="session")
def worker_number() -> int:
    """Which of xdist's workers this is."""
    return int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))


def _answers(url: str) -> bool:
    try:
        with Connection(url, connect_timeout=2) as connection:
            connection.ensure_connection(max_retries=0)
            return True
    except Exception:  # noqa: BLE001  # whatever it is, there is no RabbitMQ that would let us in
        return False


@pytest.fixture(scope="session")
def new_vhost() -> Iterator[Callable[[], str]]:
    """`new_vhost()` makes a vhost and returns its URL; all of them are deleted at the end."""
    configured = os.environ.get("SAFEPOINT_TEST_RABBITMQ_URL")
    url = configured or RABBITMQ
    vhosts, made = servers.Vhosts(url), list[str]()

    def make() -> str:
        if not _answers(url):
            missing("RabbitMQ (SAFEPOINT_TEST_RABBITMQ_URL, or one on port 5672)")
        name = f"safepoint-test-{uuid4().hex[:12]}"
        if vhosts.make(name):
            made.append(name)
            return servers.with_path(url, name)
        if not configured:
            missing("the right to make a RabbitMQ vhost")
        return configured  # who names a broker for the tests lets them use it

    yield make
    for name in made:
        vhosts.delete(name)


@pytest.fixture(scope="session")
def rabbitmq_vhost(new_vhost: Callable[[], str]) -> str:
    """The URL of the session's vhost."""
    return new_vhost()


@pytest.fixture
def rabbitmq_url(rabbitmq_vhost: str) -> str:
    """The session's vhost without the queues that an earlier test left."""
    servers.delete_queues(rabbitmq_vhost, *QUEUES)
    return rabbitmq_vhost


@pytest.fixture(params=["valkey", pytest.param("rabbitmq", marks=pytest.mark.rabbitmq)])
def broker_url(request: pytest.FixtureRequest) -> str:
    """Either broker, empty: a test that takes this runs once on each."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture
def valkey_server(tmp_path: Path) -> Iterator[servers.ValkeyServer]:
    """A running Valkey of the test's own, to be killed and frozen."""
    server = servers.ValkeyServer(tmp_path)
    server.start()
    yield server
    server.kill()

"""Real servers for the tests that ask for one: an embedded PostgreSQL and Valkey, and RabbitMQ where there is one.

Nothing of the machine's own servers is touched: a database of its own for each test, a vhost for each session.
A server that is missing skips a test on a laptop and fails it where SAFEPOINT_CI=1.
"""

from __future__ import annotations

import http.client
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn
from urllib.parse import quote, urlsplit, urlunsplit
from uuid import uuid4

import psycopg
import pytest
import redis
from kombu import Connection
from safepoint.config import embedded
from safepoint.config.valkey import _program as valkey_program
from safepoint.ledger.upgrade import upgrade

# tests/ is no package: what several folders share is imported from here by its own name.
sys.path.insert(0, str(Path(__file__).parent / "support"))

RABBITMQ = "amqp://guest:guest@127.0.0.1:5672//"
TEMPLATE = "safepoint_template"


def eventually_true(assertion: Callable[[], object], timeout: float = 10.0, every: float = 0.02) -> None:
    """Call an assertion until it holds; after the timeout, let its last failure out."""
    ends = time.monotonic() + timeout
    while True:
        try:
            assertion()
        except AssertionError:
            if time.monotonic() > ends:
                raise
        else:
            return
        time.sleep(every)


@pytest.fixture(scope="session")
def eventually() -> Callable[..., None]:
    """`eventually(assertion, timeout=10)`: the way to wait in a test."""
    return eventually_true


def missing(what: str) -> NoReturn:
    """Skip on a laptop, fail in CI."""
    if os.environ.get("SAFEPOINT_CI") == "1":
        pytest.fail(f"{what} is missing, and SAFEPOINT_CI=1 wants it")
    pytest.skip(f"{what} is missing")


# --- the embedded stack ---------------------------------------------------------------------------------------------


def _session_home() -> Path:
    # One home for all of pytest-xdist's workers; not inside pytest's own folder, which nobody else may enter.
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID") or uuid4().hex
    return Path(tempfile.gettempdir()) / f"safepoint-test-{run[:12]}"


@pytest.fixture(scope="session")
def stack() -> Iterator[embedded.EmbeddedStack]:
    """This session's PostgreSQL and Valkey; the last of xdist's workers stops them."""
    home = _session_home()
    with embedded.ensure(home) as share:
        yield share
    if not embedded.status(home).in_use:
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres_url(stack: embedded.EmbeddedStack) -> str:
    """The session's PostgreSQL, as a role that may make databases."""
    return stack.ledger_url


def _with_path(url: str, path: str) -> str:
    return urlunsplit(urlsplit(url)._replace(path="/" + path))


@pytest.fixture(scope="session")
def template(postgres_url: str) -> str:
    """A database with the schema, made once a session and copied for each test."""
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("SELECT pg_advisory_lock(hashtext('safepoint.template'))")
        if connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [TEMPLATE]).fetchone() is None:
            connection.execute(f"CREATE DATABASE {TEMPLATE}_new")  # type: ignore[arg-type]  # built from a constant
            upgrade(_with_path(postgres_url, f"{TEMPLATE}_new").replace("postgresql://", "postgresql+psycopg://"))
            connection.execute(f"ALTER DATABASE {TEMPLATE}_new RENAME TO {TEMPLATE}")  # type: ignore[arg-type]  # as above
    return TEMPLATE


@pytest.fixture
def ledger_url(postgres_url: str, template: str) -> Iterator[str]:
    """A ledger of its own, empty, with the schema; gone after the test."""
    name = f"ledger_{uuid4().hex[:12]}"
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}")  # type: ignore[arg-type]  # our own names
        yield _with_path(postgres_url, name)
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")  # type: ignore[arg-type]  # as above


# --- brokers --------------------------------------------------------------------------------------------------------


@pytest.fixture
def valkey_url(stack: embedded.EmbeddedStack, worker_number: int) -> str:
    """An empty database of the session's Valkey."""
    url = _with_path(stack.broker_url, str(worker_number % 16))
    with redis.Redis.from_url(url) as client:
        client.flushdb()
    return url


@pytest.fixture(scope="session")
def worker_number() -> int:
    """Which of xdist's workers this is."""
    return int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))


class Vhosts:
    """Makes and deletes vhosts of a RabbitMQ: with rabbitmqctl where this user may, else through the management API."""

    def __init__(self, url: str) -> None:
        self._parts = urlsplit(url)
        self._user, self._password = self._parts.username or "guest", self._parts.password or "guest"

    def make(self, name: str) -> bool:
        """Make a vhost for the URL's user, and tell whether that worked."""
        if self._control("add_vhost", name):
            return self._control("set_permissions", "-p", name, self._user, ".*", ".*", ".*")
        rights = '{"configure": ".*", "write": ".*", "read": ".*"}'
        return self._api("PUT", f"vhosts/{name}") and self._api("PUT", f"permissions/{name}/{self._user}", rights)

    def delete(self, name: str) -> None:
        """Delete a vhost and all that is in it."""
        _ = self._control("delete_vhost", name) or self._api("DELETE", f"vhosts/{name}")

    def _control(self, *arguments: str) -> bool:
        if shutil.which("rabbitmqctl") is None or self._parts.hostname not in ("127.0.0.1", "localhost"):
            return False
        return subprocess.run(["rabbitmqctl", "-q", *arguments], capture_output=True, check=False).returncode == 0

    def _api(self, method: str, path: str, body: str | None = None) -> bool:
        connection = http.client.HTTPConnection(self._parts.hostname or "127.0.0.1", 15672, timeout=5)
        token = b64encode(f"{self._user}:{self._password}".encode()).decode()
        try:
            headers = {"Authorization": f"Basic {token}", "Content-Type": "application/json"}
            connection.request(method, f"/api/{quote(path)}", body=body, headers=headers)
            return connection.getresponse().status < 300
        except OSError:
            return False
        finally:
            connection.close()


def _answers(url: str) -> bool:
    try:
        with Connection(url, connect_timeout=2) as connection:
            connection.ensure_connection(max_retries=0)
            return True
    except Exception:  # noqa: BLE001  # whatever it is, there is no RabbitMQ that would let us in
        return False


@pytest.fixture(scope="session")
def rabbitmq_vhost() -> Iterator[str]:
    """The URL of a vhost of its own, deleted at the end."""
    configured = os.environ.get("SAFEPOINT_TEST_RABBITMQ_URL")
    url = configured or RABBITMQ
    if not _answers(url):
        missing("RabbitMQ (SAFEPOINT_TEST_RABBITMQ_URL, or one on port 5672)")
    vhosts, name = Vhosts(url), f"safepoint-test-{uuid4().hex[:12]}"
    if vhosts.make(name):
        yield _with_path(url, name)
        vhosts.delete(name)
    elif configured:
        yield configured  # who names a broker for the tests lets them use it
    else:
        missing("the right to make a RabbitMQ vhost")


@pytest.fixture
def rabbitmq_url(rabbitmq_vhost: str) -> str:
    """The session's vhost without the queues that an earlier test left."""
    with Connection(rabbitmq_vhost) as connection:
        for queue in ("online", "recovery", "control", "safepoint.dead"):
            connection.default_channel.queue_delete(queue)
    return rabbitmq_vhost


@pytest.fixture(params=["valkey", pytest.param("rabbitmq", marks=pytest.mark.rabbitmq)])
def broker_url(request: pytest.FixtureRequest) -> str:
    """Either broker, empty: a test that takes this runs once on each."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@dataclass
class ValkeyServer:
    """A Valkey without persistence that a test may kill, freeze and start again on its port."""

    folder: Path
    port: int = field(default_factory=_free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Its URL, the same after a restart."""
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Start it, empty, and wait until it answers."""
        options = ["--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        with (self.folder / f"valkey-{self.port}.log").open("ab") as log:
            command = [str(valkey_program()), *options, "--dir", str(self.folder)]
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        eventually_true(self._assert_answers)

    def _assert_answers(self) -> None:
        with redis.Redis(port=self.port, socket_timeout=1) as client:
            try:
                assert client.ping()
            except redis.ConnectionError as error:
                raise AssertionError from error

    def signal(self, number: int) -> None:
        """Send a signal: SIGSTOP freezes it, SIGCONT lets it go on."""
        if self.process is not None:
            self.process.send_signal(number)

    def kill(self) -> None:
        """Kill it: everything that was in it is lost."""
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait()
            self.process = None


@pytest.fixture
def valkey_server(tmp_path: Path) -> Iterator[ValkeyServer]:
    """A running Valkey of the test's own, to be killed and frozen."""
    server = ValkeyServer(tmp_path)
    server.start()
    yield server
    server.kill()

"""Servers and their parts that a test has for itself: databases, vhosts, a Valkey that may be killed; and how to wait.

Used by fixtures of every scope; nothing here knows pytest.
"""

from __future__ import annotations

import contextlib
import http.client
import shutil
import signal
import socket
import subprocess
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit
from uuid import uuid4

import psycopg
import redis
from kombu import Connection
from safepoint.config.valkey import _program as valkey_program

__all__ = ["ValkeyServer", "Vhosts", "delete_queues", "eventually", "new_database", "with_path"]


def eventually(assertion: Callable[[], object], timeout: float = 10.0, every: float = 0.02) -> None:
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


def with_path(url: str, path: str) -> str:
    """Return a URL with another path: a database, a vhost."""
    return urlunsplit(urlsplit(url)._replace(path="/" + path))


@contextlib.contextmanager
def new_database(server_url: str, template: str) -> Iterator[str]:
    """Lend a database made from a template; it is gone afterwards, whoever is still connected."""
    name = f"ledger_{uuid4().hex[:12]}"
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}")  # type: ignore[arg-type]  # our own names
    try:
        yield with_path(server_url, name)
    finally:
        with psycopg.connect(server_url, autocommit=True) as connection:
            drop_database(connection, name)


def drop_database(server: psycopg.Connection[Any], name: str) -> None:
    """Drop a database, whoever is still connected.

    Not WITH (FORCE): that is refused while autovacuum is in it, which plain DROP sends away by itself.
    """
    end = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = %s AND usename = current_user"
    server.execute(end, (name,))
    server.execute(f"DROP DATABASE {name}")  # type: ignore[arg-type]  # one of our own names


def delete_queues(url: str, *names: str) -> None:
    """Delete queues of a RabbitMQ that an earlier test may have left."""
    with Connection(url) as connection:
        for name in names:
            connection.default_channel.queue_delete(name)  # pyright: ignore[reportAttributeAccessIssue]  # kombu's stubs lack it


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
        options += ["--databases", "256"]  # one for each fleet of a session
        with (self.folder / f"valkey-{self.port}.log").open("ab") as log:
            command = [str(valkey_program()), *options, "--dir", str(self.folder)]
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        eventually(self._assert_answers)

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

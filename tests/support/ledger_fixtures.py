"""Fixtures of the tests that play the protocol: a ledger that is rolled back, or one with several connections."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib.resources import files
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

import psycopg
import pytest
from ledger_clock import Clock
from ledger_verbs import Verbs
from safepoint.ledger.connect import Connection, connect
from servers import drop_database

__all__ = [
    "Crowd",
    "clock",
    "connection",
    "crowd",
    "crowd_clock",
    "crowded_ledger_url",
    "shared_ledger_url",
    "verbs",
    "wipe",
]


def _make(postgres_url: str, template: str) -> Iterator[str]:
    name = f"ledger_{uuid4().hex[:12]}"
    with psycopg.connect(postgres_url, autocommit=True) as server:
        server.execute(f"CREATE DATABASE {name} TEMPLATE {template}")  # type: ignore[arg-type]  # our own names
        url = urlunsplit(urlsplit(postgres_url)._replace(path="/" + name))
        wipe(url)
        yield url
        drop_database(server, name)


@pytest.fixture(scope="session")
def shared_ledger_url(postgres_url: str, template: str) -> Iterator[str]:
    """A ledger for the tests that are rolled back."""
    yield from _make(postgres_url, template)


@pytest.fixture(scope="session")
def crowded_ledger_url(postgres_url: str, template: str) -> Iterator[str]:
    """A ledger for the tests in which transactions meet; each of them leaves it empty."""
    yield from _make(postgres_url, template)


def wipe(url: str) -> None:
    """Empty a ledger: nothing but three lanes without limits, and the real clock."""
    with connect(url, name="test") as connection:
        connection.execute("SET synchronous_commit = off")
        emptied = (
            *("runs", "nodes", "flows", "lanes", "breakers", "outbox_messages", "idempotency_keys", "identity"),
            *("budgets", "pruned_runs", "artifacts", "artifact_garbage"),
        )
        for table in emptied:
            connection.execute(f"DELETE FROM safepoint.{table}")  # type: ignore[arg-type]  # our own names
        connection.execute("INSERT INTO safepoint.identity DEFAULT VALUES")
        connection.execute("INSERT INTO safepoint.lanes (name) VALUES ('online'), ('recovery'), ('control')")
        clock = files("safepoint.ledger").joinpath("clock.sql").read_text(encoding="utf-8")
        connection.execute(clock.replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION"))  # type: ignore[arg-type]  # our own file
        connection.execute("DROP TABLE IF EXISTS safepoint.test_clock")


@pytest.fixture
def connection(shared_ledger_url: str) -> Iterator[Connection]:
    """A connection whose one transaction is rolled back after the test."""
    opened = connect(shared_ledger_url, name="test", autocommit=False)
    yield opened
    opened.rollback()
    opened.close()


@pytest.fixture
def verbs(connection: Connection) -> Verbs:
    """The verbs in a transaction that is rolled back, with one node registered."""
    found = Verbs(connection)
    found.node()
    return found


@pytest.fixture
def clock(connection: Connection, verbs: Verbs) -> Clock:
    """The clock of that ledger; the node has registered again by it."""
    set_ = Clock(connection)
    connection.execute("DELETE FROM safepoint.nodes")
    verbs.node()
    return set_


Crowd = Callable[[], Verbs]


@pytest.fixture
def crowd(crowded_ledger_url: str) -> Iterator[Crowd]:
    """`crowd()` opens another connection to a ledger of the test's own, where transactions meet."""
    with ExitStack() as stack:

        def another() -> Verbs:
            return Verbs(stack.enter_context(connect(crowded_ledger_url, name="test")))

        another().node()
        yield another
    wipe(crowded_ledger_url)


@pytest.fixture
def crowd_clock(crowd: Crowd) -> Clock:
    """The clock of the test's own ledger; the node has registered again by it."""
    first = crowd()
    set_ = Clock(first.connection)
    first.connection.execute("DELETE FROM safepoint.nodes")
    first.node()
    return set_

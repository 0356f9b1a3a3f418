"""What is read of the PostgreSQL server, on a real one."""

from __future__ import annotations

from collections import deque
from typing import Any

import psycopg
import pytest
from safepoint.ledger import server
from safepoint.ledger.connect import Connection, connect


@pytest.fixture
def connection(ledger_url: str) -> Connection:
    """A session of an empty ledger."""
    return connect(ledger_url, name="test")


def test_an_open_transaction_holds_vacuum_back(connection: Connection, ledger_url: str) -> None:
    with connection, psycopg.connect(ledger_url, application_name="forgotten") as other:
        other.execute("SELECT 1")
        open_ = [(one.kind, one.name, one.state) for one in server.read_holders(connection, older_than=0)]
        old = server.read_holders(connection, older_than=3600)

    assert ("session", "forgotten", "idle in transaction") in open_
    assert old == []


def test_the_clock_of_this_machine_is_compared_by_the_quickest_question(connection: Connection) -> None:
    with connection:
        right = server.read_clock(connection)
        behind = server.read_clock(connection, now=lambda: 0.0)

    assert abs(right.ahead) <= 1  # one machine, one clock
    assert behind.ahead > 1e9
    assert right.error == right.round_trip / 2


class Pooler:
    """What a transaction pooler makes of one session: each statement may come to another backend."""

    def __init__(self, *backends: Connection) -> None:
        self._backends = deque(backends)

    def execute(self, *arguments: Any) -> Any:
        self._backends.rotate(1)
        return self._backends[0].execute(*arguments)

    def notifies(self, **options: Any) -> Any:
        self._backends.rotate(1)
        return self._backends[0].notifies(**options)


def test_a_transaction_pooler_is_noticed_and_a_direct_session_is_not(connection: Connection, ledger_url: str) -> None:
    with (
        connection,
        connect(ledger_url, name="test") as direct,
        connect(ledger_url, name="test") as one,
        connect(ledger_url, name="test") as two,
    ):
        pooled: Any = Pooler(one, two)

        assert server.is_direct(direct, connection)
        assert server.hears_itself(direct, connection, within=5)
        assert not server.is_direct(pooled, connection)
        assert not server.hears_itself(pooled, connection, within=0.1)
        assert server.is_same_database(direct, connection)


def test_the_tables_and_the_room_are_read(connection: Connection) -> None:
    with connection:
        tables = {one.table for one in server.read_bloat(connection)}
        room = server.read_room(connection)
        found = server.read_server(connection)

    assert {"runs", "steps", "events"} <= tables
    assert 0 < room.used <= room.limit
    assert found.number >= 140_000
    assert found.timeline is not None

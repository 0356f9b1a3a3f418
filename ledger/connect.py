"""Opens the connections to the ledger: psycopg, autocommit, one statement a transaction, so that each verb is one
round trip.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, LiteralString

import orjson
import psycopg
from psycopg.rows import TupleRow
from psycopg.types.json import set_json_loads

from .errors import LedgerUnavailable

__all__ = ["Connection", "connect", "forget", "is_outage", "psycopg_url", "repeat"]

Connection = psycopg.Connection[TupleRow]
UNPREPARED = "prepared_statements=off"  # a parameter of the URL, ours

# Classes of SQLSTATE that say "the server cannot answer now": connection, resources, operator intervention, and a
# read-only standby.
_OUTAGES = ("08", "53", "57", "58", "25006")


class _Repeating(psycopg.Connection[TupleRow]):
    """A connection that keeps a cursor for each statement that it repeats."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.cursors: dict[str, psycopg.Cursor[TupleRow]] = {}


def repeat(connection: Connection, statement: LiteralString, parameters: Sequence[Any]) -> TupleRow | None:
    """Send a statement that this connection sends for every step, and return its row: the cursor is kept, and in it
    what psycopg has found out about the types of parameters and columns, which costs a quarter of a round trip.
    """
    if not isinstance(connection, _Repeating):
        return connection.execute(statement, parameters).fetchone()
    cursor = connection.cursors.get(statement)
    if cursor is None:
        cursor = connection.cursors[statement] = connection.cursor()
    return cursor.execute(statement, parameters).fetchone()


def forget(connection: Connection, statement: str) -> None:
    """Let go of a statement's cursor, which holds its last answer: for one that was large."""
    if isinstance(connection, _Repeating):
        connection.cursors.pop(statement, None)


def psycopg_url(url: str) -> str:
    """Return the URL as libpq reads it, without SQLAlchemy's driver name and our own parameter."""
    place, _, query = url.replace("postgresql+psycopg://", "postgresql://", 1).partition("?")
    kept = "&".join(part for part in query.split("&") if part not in ("", UNPREPARED))
    return f"{place}?{kept}" if kept else place


def connect(
    url: str,
    *,
    name: str,
    connect_timeout: float = 5.0,
    statement_timeout: float = 30.0,
    autocommit: bool = True,
    generic: bool = False,
) -> Connection:
    """Open a connection; `name` shows in pg_stat_activity, the timeouts are in seconds.

    With `generic` each statement is planned once, whatever its arguments: for connections that ask the same few
    questions by primary key, where planning again costs more than executing.

    Statements are prepared, unless the URL says `prepared_statements=off`: a transaction pooler that does not know them
    (PgBouncer before 1.21) hands them to a session that has never seen them.

    Raises:
        LedgerUnavailable: the server does not answer, or refuses this client.
    """
    options: dict[str, Any] = {
        "connect_timeout": max(2, round(connect_timeout)),  # libpq takes anything below two as two
        "application_name": name[:63],
        "keepalives_idle": 5,
        "keepalives_interval": 2,
        "keepalives_count": 3,
        "tcp_user_timeout": round(max(statement_timeout, 5.0) * 1000),
        "options": f"-c statement_timeout={round(statement_timeout * 1000)}"
        " -c idle_in_transaction_session_timeout=60000 -c timezone=UTC"
        + (" -c plan_cache_mode=force_generic_plan" if generic else ""),
    }
    try:
        threshold = None if UNPREPARED in url.partition("?")[2].split("&") else 1
        connection = _Repeating.connect(psycopg_url(url), autocommit=autocommit, prepare_threshold=threshold, **options)
    except psycopg.OperationalError as error:
        raise LedgerUnavailable(text=" ".join(str(error).split())) from error
    set_json_loads(orjson.loads, connection)
    return connection


def is_outage(error: BaseException) -> bool:
    """Whether an error says that the server could not answer, so that the outcome is unknown and asking again is
    right.
    """
    if isinstance(error, LedgerUnavailable):
        return True
    if isinstance(
        error, psycopg.errors.DeadlockDetected | psycopg.errors.SerializationFailure | psycopg.errors.LockNotAvailable
    ):
        return True
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        state = getattr(error, "sqlstate", None)
        return state is None or state.startswith(_OUTAGES)
    return False

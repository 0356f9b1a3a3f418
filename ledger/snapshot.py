"""One look at the ledger: read-only, and every query in it sees the same moment."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from sqlalchemy import Connection, create_engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from .connect import connect
from .errors import LedgerUnavailable, SchemaTooOld

__all__ = ["MISSING", "snapshot"]

# What a statement meets in a database that has no ledger in it, or an older one.
MISSING = (
    psycopg.errors.InvalidSchemaName,
    psycopg.errors.UndefinedTable,
    psycopg.errors.UndefinedFunction,
    psycopg.errors.UndefinedColumn,
)


@contextmanager
def snapshot(
    url: str, *, name: str, connect_timeout: float = 5.0, statement_timeout: float = 30.0
) -> Iterator[Connection]:
    """Open a connection for reading; timeouts are in seconds.

    Raises:
        LedgerUnavailable: the server does not answer.
        SchemaTooOld: the database has no ledger in it, or an older one.
    """

    def open_connection() -> psycopg.Connection[tuple[object, ...]]:
        return connect(
            url, name=name, connect_timeout=connect_timeout, statement_timeout=statement_timeout, autocommit=False
        )

    # The driver's own connection: SQLAlchemy does not know every form of URL that libpq does.
    engine = create_engine("postgresql+psycopg://", creator=open_connection, poolclass=NullPool)
    try:
        with engine.connect() as connection:
            yield connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
    except DBAPIError as error:
        cause = error.orig
        if isinstance(cause, MISSING):
            raise SchemaTooOld(found="incomplete or missing", needed="newer") from error
        if isinstance(cause, psycopg.OperationalError):
            raise LedgerUnavailable(text=" ".join(str(cause).split())) from error
        raise

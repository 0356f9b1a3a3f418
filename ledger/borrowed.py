"""An app's own connection, borrowed for one statement in the transaction that is open there.

psycopg's, SQLAlchemy's (connections and sessions, sync and async) and Django's. Nothing is committed, rolled back or
closed here: that is the app's business.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, cast

from .diagnosis import Diagnosis
from .enqueue import STATEMENT
from .errors import WrongDatabase

__all__ = ["Borrowed", "borrow"]

Rows: TypeAlias = "Sequence[Sequence[object]]"
Parameters: TypeAlias = "Mapping[str, str | None]"

ACCEPTED: Final = (
    "an SQLAlchemy Connection, Session, AsyncConnection or AsyncSession, a psycopg Connection, AsyncConnection or"
    " Cursor, or Django's connection"
)
_DBAPI: Final = STATEMENT.format(requests="%(requests)s", ledger="%(ledger)s")
_SQLALCHEMY: Final = STATEMENT.format(requests=":requests", ledger=":ledger")


@dataclass(frozen=True, slots=True)
class Borrowed:
    """A connection that can be asked: with `ask` where it blocks, with `aask` where it is awaited."""

    where: str
    _ask: Callable[[Parameters], Rows] | None = None
    _aask: Callable[[Parameters], Awaitable[Rows]] | None = None

    @property
    def is_async(self) -> bool:
        """Whether it has to be awaited."""
        return self._aask is not None

    def ask(self, values: Parameters, *, expected: str) -> Rows:
        """Run the enqueue statement.

        Raises:
            WrongDatabase: there is no ledger; `expected` says where it should be.
            TypeError: the connection has to be awaited.
        """
        if self._ask is None:
            raise TypeError(
                "connection: this one is asynchronous. Accepted here: a blocking one; else await aenqueue(...)"
            )
        try:
            return self._ask(values)
        except Exception as error:  # whatever the app's driver raises: it goes to the app, unless we know better
            self._recognise(error, expected=expected)
            raise

    async def aask(self, values: Parameters, *, expected: str) -> Rows:
        """Run the enqueue statement; a blocking connection blocks, as it does in the app's own code."""
        if self._aask is None:
            return self.ask(values, expected=expected)
        try:
            return await self._aask(values)
        except Exception as error:  # as above
            self._recognise(error, expected=expected)
            raise

    def _recognise(self, error: Exception, *, expected: str) -> None:
        match Diagnosis.of(error).state:
            case "3F000":  # no schema of this name
                raise WrongDatabase(found=f"{self.where}, which has no schema safepoint", expected=expected) from error
            case "42883":  # no function of this name
                found = f"{self.where}, whose schema safepoint is of another release (run `safepoint db upgrade`)"
                raise WrongDatabase(found=found, expected=expected) from error
            case _:
                return


def borrow(connection: object, *, expected: str) -> Borrowed:
    """Return a way to ask on the app's connection.

    Raises:
        WrongDatabase: it leads to no PostgreSQL at all.
        TypeError: it is no connection that can be used.
    """
    for kind in (_of_sqlalchemy, _of_psycopg, _of_django):
        found = kind(connection, expected)
        if found is not None:
            return found
    if callable(getattr(connection, "cursor", None)):
        module = type(connection).__module__.partition(".")[0]
        if module in {"sqlite3", "pymysql", "MySQLdb", "mysql", "mariadb", "aiosqlite", "oracledb", "pyodbc"}:
            raise WrongDatabase(found=f"a database of {module}", expected=expected)
    raise TypeError(f"connection: {type(connection).__module__}.{type(connection).__qualname__}. Accepted: {ACCEPTED}")


def _of_sqlalchemy(connection: object, expected: str) -> Borrowed | None:
    if "sqlalchemy" not in sys.modules:
        return None
    from sqlalchemy import Connection, text  # noqa: PLC0415  # an app that has none of it does not pay for it
    from sqlalchemy.orm import Session, scoped_session  # noqa: PLC0415  # as above

    if isinstance(connection, scoped_session):
        connection = connection()
    if isinstance(connection, Session):
        connection = connection.connection()
    if isinstance(connection, Connection):
        used, statement = connection, text(_SQLALCHEMY)
        return Borrowed(
            _sqlalchemy_place(used, expected),
            _ask=lambda values: cast("Rows", used.execute(statement, dict(values)).all()),
        )
    return _of_async_sqlalchemy(connection, expected)


def _of_async_sqlalchemy(connection: object, expected: str) -> Borrowed | None:
    if "sqlalchemy.ext.asyncio" not in sys.modules:
        return None
    from sqlalchemy import text  # noqa: PLC0415  # as above
    from sqlalchemy.ext.asyncio import (  # noqa: PLC0415  # as above
        AsyncConnection,
        AsyncSession,
        async_scoped_session,
    )

    if isinstance(connection, async_scoped_session):
        connection = connection()
    if not isinstance(connection, AsyncConnection | AsyncSession):
        return None
    used, statement = connection, text(_SQLALCHEMY)

    async def ask(values: Parameters) -> Rows:
        own = await used.connection() if isinstance(used, AsyncSession) else used
        _sqlalchemy_place(own, expected)
        return cast("Rows", (await own.execute(statement, dict(values))).all())

    place = repr(used.bind) if isinstance(used, AsyncSession) else used.engine.url.render_as_string()
    return Borrowed(place, _aask=ask)


def _sqlalchemy_place(connection: Any, expected: str) -> str:
    place = str(connection.engine.url.render_as_string(hide_password=True))
    if connection.dialect.name != "postgresql":
        raise WrongDatabase(found=place, expected=expected)
    return place


def _of_psycopg(connection: object, expected: str) -> Borrowed | None:  # noqa: ARG001  # one form for every kind
    import psycopg  # noqa: PLC0415  # beside the others
    from psycopg.rows import tuple_row  # noqa: PLC0415  # as above

    if isinstance(connection, psycopg.Cursor | psycopg.AsyncCursor):
        connection = connection.connection  # the cursor's own rows may be of any form
    if isinstance(connection, psycopg.Connection):
        used = connection

        def ask(values: Parameters) -> Rows:
            with psycopg.Cursor(used, row_factory=tuple_row) as cursor:
                return cursor.execute(_DBAPI, values).fetchall()

        return Borrowed(_place(used.info), _ask=ask)
    if isinstance(connection, psycopg.AsyncConnection):
        own = connection

        async def aask(values: Parameters) -> Rows:
            async with psycopg.AsyncCursor(own, row_factory=tuple_row) as cursor:
                return await (await cursor.execute(_DBAPI, values)).fetchall()

        return Borrowed(_place(own.info), _aask=aask)
    return None


def _place(info: Any) -> str:
    try:
        return f"database {info.dbname} on {info.host}:{info.port}"
    except Exception:  # noqa: BLE001  # a closed connection has no place; using it will say so
        return "a closed connection"


def _of_django(connection: Any, expected: str) -> Borrowed | None:
    if not all(hasattr(connection, name) for name in ("vendor", "settings_dict", "cursor")):
        return None
    place = f"Django's database {connection.alias!r} ({connection.vendor}, {connection.settings_dict.get('NAME')})"
    if connection.vendor != "postgresql":
        raise WrongDatabase(found=place, expected=expected)

    def ask(values: Parameters) -> Rows:
        with connection.cursor() as cursor:
            cursor.execute(_DBAPI, dict(values))
            return cast("Rows", cursor.fetchall())

    return Borrowed(place, _ask=ask)

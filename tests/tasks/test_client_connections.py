"""`connection=`: a run is made in the app's own transaction, whichever library has opened it."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import dict_row
from safepoint import Client, flow
from safepoint.config.settings import Settings
from safepoint.ledger import control
from safepoint.ledger.connect import connect
from safepoint.ledger.errors import IdempotencyConflict, UnknownFlow, WrongDatabase
from servers import drop_database
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool


@flow(name="connection_flow")
async def noticed(order: int) -> None: ...


@pytest.fixture
def app_url(ledger_url: str) -> str:
    """The ledger's database, with a table of the app's own in it."""
    with psycopg.connect(ledger_url, autocommit=True) as connection:
        connection.execute("CREATE TABLE public.orders (id integer)")
    return ledger_url


def counted(url: str) -> tuple[int, int]:
    """How many orders and how many runs others see."""
    with psycopg.connect(url) as connection:
        row = connection.execute(
            "SELECT (SELECT count(*) FROM public.orders), (SELECT count(*) FROM safepoint.runs)"
        ).fetchone()
    assert row is not None
    return row[0], row[1]


def dialect(url: str, driver: str = "psycopg") -> str:
    return url.replace("postgresql://", f"postgresql+{driver}://")


# --- the kinds of connections: each yields (connection, execute, commit, rollback) ----------------------------------

Opened = tuple[Any, Any, Callable[[], Any], Callable[[], Any]]


@contextmanager
def of_psycopg(url: str) -> Iterator[Opened]:
    with psycopg.connect(url) as own:
        yield own, own.execute, own.commit, own.rollback


@contextmanager
def of_psycopg_with_dict_rows(url: str) -> Iterator[Opened]:
    with psycopg.Connection[Any].connect(url, row_factory=dict_row) as own:
        yield own, own.execute, own.commit, own.rollback


@contextmanager
def of_psycopg_cursor(url: str) -> Iterator[Opened]:
    with psycopg.connect(url) as own, own.cursor(row_factory=dict_row) as cursor:
        yield cursor, cursor.execute, own.commit, own.rollback


@contextmanager
def of_sqlalchemy(url: str) -> Iterator[Opened]:
    engine = create_engine(dialect(url), poolclass=NullPool)
    with engine.connect() as own:
        yield own, lambda sql: own.execute(text(sql)), own.commit, own.rollback


@contextmanager
def of_session(url: str) -> Iterator[Opened]:
    with Session(create_engine(dialect(url), poolclass=NullPool)) as own:
        yield own, lambda sql: own.execute(text(sql)), own.commit, own.rollback


@contextmanager
def of_scoped_session(url: str) -> Iterator[Opened]:
    own = scoped_session(sessionmaker(create_engine(dialect(url), poolclass=NullPool)))
    yield own, lambda sql: own.execute(text(sql)), own.commit, own.rollback
    own.remove()


@contextmanager
def of_django(url: str) -> Iterator[Opened]:
    own = django_connection(url)
    own.set_autocommit(False)
    try:
        yield own, lambda sql: own.cursor().execute(sql), own.commit, own.rollback
    finally:
        own.close()


def django_connection(url: str, **more: Any) -> Any:
    import django
    from django.conf import settings
    from django.db import connection

    if not settings.configured:
        databases = {"default": {"ENGINE": "django.db.backends.postgresql", "NAME": "none"}}
        settings.configure(DATABASES=databases, USE_TZ=True)
        django.setup()
    info = conninfo_to_dict(url)
    connection.close()
    connection.settings_dict.update(
        NAME=info["dbname"],
        USER=info["user"],
        PASSWORD=info.get("password", ""),
        HOST=info["host"],
        PORT=info["port"],
        **more,
    )
    return connection


KINDS = [
    of_psycopg,
    of_psycopg_with_dict_rows,
    of_psycopg_cursor,
    of_sqlalchemy,
    of_session,
    of_scoped_session,
    of_django,
]


@pytest.fixture(params=KINDS, ids=lambda kind: kind.__name__)
def kind(request: pytest.FixtureRequest) -> Callable[[str], AbstractContextManager[Opened]]:
    kind: Callable[[str], AbstractContextManager[Opened]] = request.param
    return kind


def test_a_run_comes_with_the_apps_own_row(client: Client, app_url: str, kind: Any):
    with kind(app_url) as (connection, execute, commit, _):
        execute("INSERT INTO public.orders VALUES (1)")
        run = client.enqueue(noticed(1), connection=connection)
        assert counted(app_url) == (0, 0)
        commit()

    assert counted(app_url) == (1, 1)
    assert run.status == "queued"


def test_a_run_goes_with_the_apps_rollback(client: Client, app_url: str, kind: Any):
    with kind(app_url) as (connection, execute, commit, rollback):
        execute("INSERT INTO public.orders VALUES (1)")
        client.enqueue_many(noticed, [{"order": 1}, {"order": 2}], keys=["a", "b"], connection=connection)
        rollback()
        commit()

    assert counted(app_url) == (0, 0)


def test_a_conflict_leaves_the_apps_transaction_usable(client: Client, app_url: str, kind: Any):
    client.enqueue(noticed(1), key="k")
    with kind(app_url) as (connection, execute, commit, _):
        execute("INSERT INTO public.orders VALUES (1)")
        with pytest.raises(IdempotencyConflict):
            client.enqueue(noticed(2), key="k", connection=connection)
        commit()

    assert counted(app_url) == (1, 1)


def test_a_conflict_among_many_leaves_no_part_of_them(client: Client, app_url: str, kind: Any):
    client.enqueue(noticed(1), key="k1")
    with kind(app_url) as (connection, _, __, rollback):
        with pytest.raises(IdempotencyConflict) as caught:
            client.enqueue_many(noticed, [{"order": 0}, {"order": 0}], keys=["k0", "k1"], connection=connection)
        rollback()

    assert caught.value.key == "k1"
    assert counted(app_url) == (0, 1)


def test_an_unknown_flow_is_said_by_its_name(client: Client, app_url: str, kind: Any):
    with kind(app_url) as (connection, _, __, rollback):
        with pytest.raises(UnknownFlow, match="Did you mean 'connection_flow'"):
            client.enqueue("connection_flo", connection=connection)
        rollback()


def test_a_database_without_a_ledger_is_the_wrong_one(client: Client, postgres_url: str, kind: Any):
    with kind(postgres_url) as (connection, _, __, rollback):
        with pytest.raises(WrongDatabase, match="which has no schema safepoint, but the ledger is in database ledger_"):
            client.enqueue(noticed(1), connection=connection)
        rollback()


@pytest.fixture
def other_ledger(postgres_url: str, ledger_url: str, template: str) -> Iterator[str]:
    """A second ledger on the same server: a copy, as a staging system often is."""
    name = f"other_{uuid4().hex[:12]}"
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}")  # type: ignore[arg-type]  # our own names
        yield ledger_url.rpartition("/")[0] + f"/{name}"
        drop_database(connection, name)


def test_another_ledger_is_the_wrong_database(client: Client, app_url: str, other_ledger: str):
    with psycopg.connect(other_ledger) as connection:
        with pytest.raises(WrongDatabase, match="which holds another ledger"):
            client.enqueue(noticed(1), connection=connection)
        assert connection.execute("SELECT count(*) FROM safepoint.runs").fetchone() == (0,)


def test_p8_a_ledger_that_was_restored_is_still_the_right_one(client: Client, app_url: str):
    with psycopg.connect(app_url, autocommit=True) as connection:
        client.enqueue(noticed(1), connection=connection)
        with connect(app_url, name="test") as own:
            control.restored(own, reason="test")
        client.enqueue(noticed(2), connection=connection)

    assert counted(app_url) == (0, 2)


def test_where_no_ledger_is_configured_the_connection_alone_decides(app_url: str, settings: Settings, tmp_path: Path):
    with Client(settings=settings) as client, psycopg.connect(app_url) as connection:
        client.enqueue(noticed(1), connection=connection)

    assert counted(app_url) == (0, 1)
    assert not (tmp_path / "postgres").exists()  # no embedded stack was started for it


def test_an_autocommitting_connection_makes_the_run_at_once(client: Client, app_url: str):
    with psycopg.connect(app_url, autocommit=True) as connection:
        client.enqueue(noticed(1), connection=connection)
        assert counted(app_url) == (0, 1)


def test_a_pipeline_of_the_apps_own_is_no_obstacle(client: Client, app_url: str):
    with psycopg.connect(app_url) as connection, connection.pipeline():
        connection.execute("INSERT INTO public.orders VALUES (1)")
        client.enqueue(noticed(1), connection=connection)

    assert counted(app_url) == (1, 1)


def test_djangos_atomic_block_decides(client: Client, app_url: str):
    connection = django_connection(app_url)
    from django.db.transaction import Atomic, set_rollback

    try:
        with Atomic(None, savepoint=True, durable=False):
            client.enqueue(noticed(1), connection=connection)
            set_rollback(True)
        with Atomic(None, savepoint=True, durable=False):
            connection.cursor().execute("INSERT INTO public.orders VALUES (1)")
            client.enqueue(noticed(1), connection=connection)
    finally:
        connection.close()

    assert counted(app_url) == (1, 1)


@pytest.mark.parametrize("server_side", [True, False])
def test_djangos_way_of_binding_parameters_does_not_matter(client: Client, app_url: str, server_side: bool):
    connection = django_connection(app_url, OPTIONS={"server_side_binding": server_side})
    try:
        client.enqueue(noticed(1), tags={"100%": "%s %(x)s"}, connection=connection)
    finally:
        connection.close()
        connection.settings_dict["OPTIONS"] = {}

    assert client.count(tags={"100%": "%s %(x)s"}) == {"queued": 1}


# --- databases that are no PostgreSQL -------------------------------------------------------------------------------


def test_sqlite_is_the_wrong_database(client: Client, tmp_path: Path):
    engine = create_engine(f"sqlite:///{tmp_path}/app.sqlite", poolclass=NullPool)
    with engine.connect() as connection, pytest.raises(WrongDatabase, match="sqlite:///"):
        client.enqueue(noticed(1), connection=connection)
    with Session(engine) as session, pytest.raises(WrongDatabase, match="sqlite:///"):
        client.enqueue(noticed(1), connection=session)


def test_a_plain_sqlite_connection_is_the_wrong_database(client: Client):
    connection = sqlite3.connect(":memory:")
    try:
        with pytest.raises(WrongDatabase, match="a database of sqlite3"):
            client.enqueue(noticed(1), connection=connection)
    finally:
        connection.close()


def test_djangos_sqlite_is_the_wrong_database(client: Client, app_url: str):
    django_connection(app_url)
    from django.db.backends.sqlite3.base import DatabaseWrapper

    class MySQLShaped:
        vendor = "mysql"
        alias = "shop"
        settings_dict = {"NAME": "shop"}  # noqa: RUF012  # shaped like Django's

        def cursor(self) -> None: ...

    own = DatabaseWrapper({"NAME": ":memory:", "ENGINE": "django.db.backends.sqlite3"}, alias="cache")
    with pytest.raises(WrongDatabase, match=r"Django's database 'cache' \(sqlite, :memory:\)"):
        client.enqueue(noticed(1), connection=own)
    with pytest.raises(WrongDatabase, match=r"Django's database 'shop' \(mysql, shop\)"):
        client.enqueue(noticed(1), connection=MySQLShaped())


def test_an_engine_is_no_connection(client: Client, app_url: str):
    with pytest.raises(
        TypeError, match=r"connection: sqlalchemy\.engine\.base\.Engine\. Accepted: an SQLAlchemy Connection"
    ):
        client.enqueue(noticed(1), connection=create_engine(dialect(app_url)))


# --- asynchronous connections ---------------------------------------------------------------------------------------

AsyncOpened = tuple[Any, Any, Callable[[], Awaitable[Any]], Callable[[], Awaitable[Any]]]


async def with_psycopg(url: str, use: Callable[[AsyncOpened], Awaitable[None]]) -> None:
    async with await psycopg.AsyncConnection[Any].connect(url, row_factory=dict_row) as own:
        await use((own, own.execute, own.commit, own.rollback))


async def with_psycopg_cursor(url: str, use: Callable[[AsyncOpened], Awaitable[None]]) -> None:
    async with await psycopg.AsyncConnection.connect(url) as own, own.cursor() as cursor:
        await use((cursor, cursor.execute, own.commit, own.rollback))


def with_connection(driver: str) -> Callable[..., Awaitable[None]]:
    async def opened(url: str, use: Callable[[AsyncOpened], Awaitable[None]]) -> None:
        engine = create_async_engine(dialect(url, driver), poolclass=NullPool)
        async with AsyncConnection(engine) as own:
            await use((own, lambda sql: own.execute(text(sql)), own.commit, own.rollback))

    return opened


def with_session(driver: str) -> Callable[..., Awaitable[None]]:
    async def opened(url: str, use: Callable[[AsyncOpened], Awaitable[None]]) -> None:
        engine = create_async_engine(dialect(url, driver), poolclass=NullPool)
        async with AsyncSession(engine) as own:
            await use((own, lambda sql: own.execute(text(sql)), own.commit, own.rollback))

    return opened


async def with_scoped_session(url: str, use: Callable[[AsyncOpened], Awaitable[None]]) -> None:
    from sqlalchemy.ext.asyncio import async_sessionmaker

    engine = create_async_engine(dialect(url), poolclass=NullPool)
    own = async_scoped_session(async_sessionmaker(engine), scopefunc=asyncio.current_task)
    await use((own, lambda sql: own.execute(text(sql)), own.commit, own.rollback))
    await own.remove()


ASYNC_KINDS = {
    "psycopg": with_psycopg,
    "psycopg cursor": with_psycopg_cursor,
    "sqlalchemy psycopg": with_connection("psycopg"),
    "sqlalchemy asyncpg": with_connection("asyncpg"),
    "session psycopg": with_session("psycopg"),
    "session asyncpg": with_session("asyncpg"),
    "scoped session": with_scoped_session,
}


@pytest.fixture(params=ASYNC_KINDS.values(), ids=list(ASYNC_KINDS))
def async_kind(request: pytest.FixtureRequest) -> Any:
    return request.param


def test_asynchronously_a_run_comes_with_the_apps_own_row(client: Client, app_url: str, async_kind: Any):
    async def use(opened: AsyncOpened) -> None:
        connection, execute, commit, _ = opened
        await execute("INSERT INTO public.orders VALUES (1)")
        await client.aenqueue(noticed(1), key="ä%s:x", tags={"a": ":b"}, deadline=60, connection=connection)
        await client.aenqueue_many(noticed, [{"order": 2}, {"order": 3}], connection=connection)
        assert counted(app_url) == (0, 0)
        await commit()

    asyncio.run(async_kind(app_url, use))

    assert counted(app_url) == (1, 3)


def test_asynchronously_a_run_goes_with_the_apps_rollback(client: Client, app_url: str, async_kind: Any):
    async def use(opened: AsyncOpened) -> None:
        connection, execute, _, rollback = opened
        await execute("INSERT INTO public.orders VALUES (1)")
        await client.aenqueue(noticed(1), key="k", connection=connection)
        await rollback()

    asyncio.run(async_kind(app_url, use))

    assert counted(app_url) == (0, 0)


def test_asynchronously_a_conflict_is_a_conflict(client: Client, app_url: str, async_kind: Any):
    first = client.enqueue(noticed(1), key="k")

    async def use(opened: AsyncOpened) -> None:
        connection, _, __, rollback = opened
        with pytest.raises(IdempotencyConflict) as caught:
            await client.aenqueue(noticed(2), key="k", connection=connection)
        assert (caught.value.key, caught.value.run_id) == ("k", first.id)
        with pytest.raises(IdempotencyConflict) as caught:
            await client.aenqueue_many(noticed, [{"order": 2}] * 2, keys=["new", "k"], connection=connection)
        assert (caught.value.key, caught.value.run_id) == ("k", first.id)
        await rollback()

    asyncio.run(async_kind(app_url, use))


def test_asynchronously_a_database_without_a_ledger_is_the_wrong_one(
    client: Client, postgres_url: str, async_kind: Any
):
    async def use(opened: AsyncOpened) -> None:
        connection, _, __, rollback = opened
        with pytest.raises(WrongDatabase, match="no schema safepoint"):
            await client.aenqueue(noticed(1), connection=connection)
        await rollback()

    asyncio.run(async_kind(postgres_url, use))


def test_an_asynchronous_connection_has_to_be_awaited(client: Client, app_url: str):
    async def use(opened: AsyncOpened) -> None:
        with pytest.raises(TypeError, match=r"Accepted here: a blocking one; else await aenqueue\(...\)"):
            client.enqueue(noticed(1), connection=opened[0])

    asyncio.run(with_psycopg(app_url, use))


def test_a_blocking_connection_may_be_used_from_a_loop(client: Client, app_url: str):
    with psycopg.connect(app_url) as connection:
        asyncio.run(client.aenqueue(noticed(1), connection=connection))
        assert counted(app_url) == (0, 0)
        connection.commit()

    assert counted(app_url) == (0, 1)

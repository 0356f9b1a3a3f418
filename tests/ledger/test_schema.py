"""The migrations and `ledger/schema.py` give the same database."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from uuid import uuid4

import psycopg
import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory
from safepoint.ledger import functions
from safepoint.ledger.connect import connect
from safepoint.ledger.schema import METADATA
from safepoint.ledger.upgrade import REVISIONS
from servers import drop_database
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.pool import NullPool

COLUMNS = """
    SELECT c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity,
           pg_get_expr(d.adbin, d.adrelid)
      FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
      LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
     WHERE c.relnamespace = 'safepoint'::regnamespace AND c.relkind = 'r' AND a.attnum > 0 AND NOT a.attisdropped"""
CONSTRAINTS = """
    SELECT c.relname, k.conname, pg_get_constraintdef(k.oid) FROM pg_constraint k JOIN pg_class c ON c.oid = k.conrelid
     WHERE c.relnamespace = 'safepoint'::regnamespace"""
INDEXES = "SELECT tablename, indexname, indexdef FROM pg_indexes WHERE schemaname = 'safepoint'"
STORAGE = """
    SELECT relname, reloptions FROM pg_class WHERE relnamespace = 'safepoint'::regnamespace AND relkind = 'r'"""


@pytest.fixture
def connections(postgres_url: str, ledger_url: str) -> Iterator[tuple[Connection, Connection]]:
    """A database that the migrations made, and one that the metadata made."""
    name = f"mirror_{uuid4().hex[:12]}"
    migrated = create_engine(ledger_url, poolclass=NullPool)
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")  # type: ignore[arg-type]  # our own name
        mirror = create_engine(migrated.url.set(database=name), poolclass=NullPool)
        with migrated.connect() as first, mirror.connect() as second:
            second.execute(text("CREATE SCHEMA safepoint"))
            METADATA.create_all(second)
            yield first, second
        drop_database(connection, name)


def rows(connection: Connection, query: str) -> set[str]:
    # Alembic's own table is no part of the schema that it versions.
    return {repr(tuple(row)) for row in connection.execute(text(query)) if row[0] != "schema_version"}


@pytest.mark.parametrize(
    "query", [COLUMNS, CONSTRAINTS, INDEXES, STORAGE], ids=["columns", "constraints", "indexes", "storage"]
)
def test_the_migrations_and_the_schema_make_the_same_database(
    connections: tuple[Connection, Connection], query: str
) -> None:
    migrated, mirror = (rows(connection, query) for connection in connections)

    assert migrated == mirror
    assert len(migrated) >= 16


def test_the_revisions_named_for_a_quick_start_are_the_migrations() -> None:
    config = Config()
    config.set_main_option("script_location", "safepoint.ledger:migrations")

    scripts = ScriptDirectory.from_config(config).walk_revisions()

    assert tuple(reversed([script.revision for script in scripts])) == REVISIONS


def test_the_functions_can_be_put_in_place_again(ledger_url: str) -> None:
    count = "SELECT count(*) FROM pg_proc WHERE pronamespace = 'safepoint'::regnamespace"
    open_to_all = f"{count} AND has_function_privilege('public', oid, 'EXECUTE')"
    with connect(ledger_url, name="test") as connection:
        before = connection.execute(count).fetchone()

        with connection.transaction():
            functions.replace(connection)  # type: ignore[arg-type]  # psycopg wants literals

        assert connection.execute(count).fetchone() == before
        assert connection.execute(open_to_all).fetchone() == (0,)


def test_every_file_of_functions_is_put_in_place() -> None:
    found = {
        file.name.removesuffix(".sql") for file in files("safepoint.ledger").iterdir() if file.name.endswith(".sql")
    }

    assert found - {"core"} == set(functions.PARTS)

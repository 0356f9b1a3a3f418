"""A ledger of an earlier release: what is open in it goes on under the new rules."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID, uuid4

import psycopg
import pytest
from alembic import command
from alembic.config import Config
from safepoint.ledger.upgrade import upgrade
from servers import drop_database, with_path
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool


@pytest.fixture
def url(postgres_url: str) -> Iterator[str]:
    """A database without a ledger in it."""
    name = f"earlier_{uuid4().hex[:12]}"
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")  # type: ignore[arg-type]  # our own name
        yield with_path(postgres_url, name)
        drop_database(connection, name)


def upgrade_to(url: str, revision: str) -> None:
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"), poolclass=NullPool)
    with engine.begin() as connection:
        connection.execute(text("CREATE SCHEMA safepoint"))
        config = Config()
        config.set_main_option("script_location", "safepoint.ledger:migrations")
        config.attributes["connection"] = connection
        command.upgrade(config, revision)


def run(
    connection: psycopg.Connection[tuple[object, ...]],
    budget: str,
    *,
    parent: UUID | None = None,
    status: str = "running",
) -> UUID:
    id_ = uuid4()
    connection.execute(
        "INSERT INTO safepoint.runs (run_id, tenant_id, flow, status, input, input_encoding, input_hash, budget,"
        " workflow_version, parent_run_id, spent_tokens, spent_retries, created_at, updated_at, finished_at)"
        " VALUES (%s, 'acme', 'f', %s, '{}', 'json', 'h', %s, '1', %s, 10, 1, now(), now(),"
        " CASE WHEN %s IN ('failed', 'succeeded') THEN now() END)",
        (id_, status, budget, parent, status),
    )
    return id_


def test_open_runs_and_their_children_share_the_budget_of_their_root(url: str) -> None:
    upgrade_to(url, "0002")
    with psycopg.connect(url, autocommit=True) as connection:
        bound = '{"tokens": 100, "usd": null, "retries": 5}'
        root = run(connection, bound)
        sub = run(connection, bound, parent=root)
        grandchild = run(connection, bound, parent=sub)
        reopenable = run(connection, '{"usd": 0.5}', status="failed")
        free, done = run(connection, "{}"), run(connection, bound, status="succeeded")

        upgrade(url)

        found = dict(connection.execute("SELECT run_id, budget_id FROM safepoint.runs").fetchall())
        assert found == {root: root, sub: root, grandchild: root, reopenable: reopenable, free: None, done: None}
        budgets = connection.execute(
            "SELECT budget_id, tokens, usd::float, retries, spent_tokens, spent_retries FROM safepoint.budgets"
        ).fetchall()
        assert set(budgets) == {(root, 100, None, 5, 30, 3), (reopenable, None, 0.5, None, 10, 1)}
        with pytest.raises(psycopg.errors.CheckViolation, match="final"):  # the guard stands again
            connection.execute("UPDATE safepoint.runs SET status = 'running' WHERE run_id = %s", (reopenable,))

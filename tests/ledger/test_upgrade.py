"""A ledger of an earlier release: what is open in it goes on under the new rules."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID, uuid4

import psycopg
import pytest
from alembic import command
from alembic.config import Config
from ledger_clock import Clock
from ledger_verbs import Verbs
from safepoint.ledger.connect import connect
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


STEPS = """
    INSERT INTO safepoint.steps (run_id, generation, path, step_id, iteration, tenant_id, kind, name, status, lane,
            home_lane, due_at, ready_at, created_at, dispatched_at, uses, reason)
        SELECT %(run)s, 1, '', %(step)s, n, 'acme', CASE %(step)s WHEN '@start' THEN 'start' ELSE 'step' END, 's',
               'ready', %(lane)s, 'online', now() + %(wait)s::interval, now(), now(),
               CASE WHEN %(is_sent)s THEN now() END, %(uses)s,
               CASE WHEN %(uses)s::text IS NOT NULL THEN '{"code": "breaker", "since": "2026-01-01"}'::jsonb END
          FROM generate_series(1, %(count)s) AS n
"""


def put(
    connection: psycopg.Connection[tuple[object, ...]],
    step: str = "s",
    *,
    lane: str = "online",
    count: int = 1,
    wait: str = "0",
    is_sent: bool = False,
    uses: str | None = None,
) -> UUID:
    """Put ready steps of a run on a lane, as the release before this one left them."""
    id_ = run(connection, "{}", status="queued" if step == "@start" else "running")
    connection.execute(
        STEPS,
        {"run": id_, "step": step, "lane": lane, "count": count, "wait": wait, "is_sent": is_sent, "uses": uses},
    )
    return id_


def test_what_waits_on_lanes_goes_out_under_the_new_rules(url: str) -> None:
    upgrade_to(url, "0004")
    with psycopg.connect(url, autocommit=True) as before:
        before.execute(
            "INSERT INTO safepoint.lanes (name, rate, burst, in_flight) VALUES ('online', NULL, NULL, NULL),"
            " ('recovery', 100, 50, 2), ('tools', NULL, NULL, 1)"
        )
        before.execute("INSERT INTO safepoint.breakers (name) VALUES ('llm')")
        starts = {put(before, "@start") for _ in range(3)}
        later = put(before, "@start", wait="1 hour")
        sent = {put(before, "@start", wait="10 s", is_sent=True), put(before, wait="10 s", is_sent=True)}
        tools, orphans = put(before, lane="tools", count=3), put(before, lane="recovery", count=4)
        aside = put(before, uses="llm", wait="1 hour")

    upgrade(url)

    with connect(url, name="test") as after:
        verbs = Verbs(after)
        verbs.node(lanes=("online", "recovery", "tools"), lease=1e6)
        first = [row.run_id for row in verbs.dispatch()]
        assert set(first) == {*starts, tools, orphans, aside}
        assert (first.count(tools), first.count(orphans)) == (1, 2)
        assert verbs.value('SELECT count(*) FROM safepoint.lanes WHERE "window" IS NOT NULL') == 0
        Clock(after)  # years later
        after.execute(
            "UPDATE safepoint.nodes SET started_at = safepoint.now() - interval '1 h', lease_until = 'infinity'"
        )
        ended = drain(verbs)
        assert ended == {*starts, later, *sent, tools, orphans, aside}


def drain(verbs: Verbs) -> set[UUID]:
    """Do what the relay sends until there is nothing left; never more of a lane than its cap."""
    ended = set()
    while rows := verbs.dispatch():
        for row in rows:
            verbs.commit(verbs.claimed(row.run_id, row.key, lane=row.lane))
            ended.add(row.run_id)
    assert verbs.value("SELECT count(*) FROM safepoint.steps WHERE status <> 'succeeded'") == 0
    return ended


def test_artifacts_of_earlier_runs_are_counted_and_the_types_of_earlier_functions_grow(url: str) -> None:
    upgrade_to(url, "0005")
    with psycopg.connect(url, autocommit=True) as connection:
        # As the functions of that release had them; a ledger that is made anew has them from this one's.
        connection.execute(
            "CREATE TYPE safepoint.enqueue_request_v1 AS (n integer, run_id uuid, flow text, version text,"
            " versions jsonb, input json, input_base64 text, hash text, encoding text, tenant text, key text,"
            " deadline timestamptz, deadline_in double precision, start_at timestamptz, start_in double precision,"
            " budget jsonb, priority integer, tags jsonb, conversation text)"
        )
        connection.execute(
            "CREATE TYPE safepoint.new_run_v1 AS (n integer, run_id uuid, tenant text, flow text, version text,"
            " versions jsonb, input bytea, encoding text, hash bytea, key text, deadline timestamptz,"
            " start_at timestamptz, budget jsonb, priority integer, tags jsonb, conversation text, parent uuid,"
            " parent_key text)"
        )
        earlier = run(connection, "{}", status="succeeded")
        connection.execute("ALTER TABLE safepoint.runs DISABLE TRIGGER runs_final")
        twice = f'[{{"sha256": "{"ab" * 32}"}}, {{"sha256": "{"ab" * 32}", "name": "again"}}]'
        connection.execute("UPDATE safepoint.runs SET artifacts = %s", (twice,))
        connection.execute("ALTER TABLE safepoint.runs ENABLE TRIGGER runs_final")

        upgrade(url)

        assert connection.execute("SELECT sha256, run_id FROM safepoint.artifact_uses").fetchall() == [
            (b"\xab" * 32, earlier)
        ]
        row = f'[{{"sha256": "{"ab" * 32}", "size": 1, "media_type": "text/plain"}}]'
        connection.execute("SELECT safepoint.touch_artifacts_v1('default', %s)", (row,))
        connection.execute("SELECT safepoint.enqueue('f', %s, version => '1')", (f'{{"doc": {row[1:-1]}}}',))
        assert connection.execute("SELECT count(*) FROM safepoint.artifact_uses").fetchone() == (2,)

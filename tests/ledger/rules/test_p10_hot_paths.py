"""P10: what workers, relays, scans and people ask all the time looks into an index, however much has happened."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from ledger_verbs import Verbs, ask, key
from psycopg.types.json import Jsonb
from safepoint.ledger import history, outbox, progress, prune, views
from sqlalchemy.dialects.postgresql import psycopg

BIG = ("runs", "steps", "events", "effects", "idempotency_keys")
ROWS, FEW = 1500, 300  # runs, and what of a big table one call may read
# Two of three runs have ended; of what is rare there are five.
FILL = """
CREATE TEMP TABLE told ON COMMIT DROP AS
    SELECT run_id, n, n % 3 > 0 AS ended
      FROM (SELECT run_id, row_number() OVER (ORDER BY run_id) AS n FROM safepoint.runs) x;
UPDATE safepoint.steps s SET status = CASE WHEN ended THEN 'cancelled' ELSE 'waiting' END, due_at = NULL, queued = 0
  FROM told t WHERE t.run_id = s.run_id;
UPDATE safepoint.runs r SET created_at = created_at - make_interval(hours => n::integer), updated_at = created_at,
       finished_at = CASE WHEN ended THEN created_at END, ending = CASE WHEN ended THEN 'succeeded' END,
       status = CASE WHEN n % 30 = 1 THEN 'failed' WHEN ended THEN 'succeeded'
                     WHEN n % 300 = 3 THEN 'held' ELSE 'waiting' END,
       holds = CASE WHEN n % 300 = 3 THEN '{"person": {}}' ELSE '{}'::jsonb END,
       flow = CASE n % 300 WHEN 0 THEN 'rare' ELSE 'f' END,
       workflow_version = CASE n % 300 WHEN 5 THEN 'old' ELSE workflow_version END,
       tenant_id = CASE n % 300 WHEN 2 THEN 'small' ELSE 'default' END,
       tags = CASE WHEN n % 300 = 4 THEN '{"case": "rare"}' WHEN n % 10 = 3 THEN '{"team": "sre"}' ELSE '{}'::jsonb END
  FROM told t WHERE t.run_id = r.run_id;
INSERT INTO safepoint.steps (run_id, generation, path, step_id, iteration, tenant_id, kind, name, status, lane,
       home_lane, ready_at, created_at, commit_seq)
    SELECT run_id, 1, '', 's', k, 'default', 'step', 's', 'succeeded', 'online', 'online', safepoint.now(),
           safepoint.now(), k FROM told, generate_series(1, 4) AS k;
INSERT INTO safepoint.events (run_id, seq, tenant_id, type, at)
    SELECT run_id, k, 'default', 'step.committed', safepoint.now() FROM told, generate_series(2, 5) AS k;
INSERT INTO safepoint.idempotency_keys SELECT 'default', run_id::text, run_id, 'f', '', safepoint.now() FROM told;
ANALYZE safepoint.runs, safepoint.steps, safepoint.events, safepoint.idempotency_keys"""
# So that the planner believes in a thousand times as many rows: what it chooses for a few says little.
PRETEND = """
SELECT pg_restore_relation_stats('schemaname', 'safepoint', 'relname', relname::text, 'relpages', relpages,
                                 'reltuples', (reltuples * 1000)::real, 'version', 180000)
  FROM pg_class WHERE relnamespace = 'safepoint'::regnamespace AND relkind IN ('r', 'i') AND reltuples > 0
"""
FILTERS: dict[str, dict[str, Any]] = {
    "all": {},
    "of a status": {"status": ["held"]},
    "of two statuses": {"status": ["succeeded", "cancelling"]},
    "of a tenant": {"tenant": "default"},
    "of a small tenant": {"tenant": "small"},
    "of a tenant and a status": {"tenant": "default", "status": ["held"]},
    "of a flow": {"flow": "rare"},
    "with a tag": {"tags": {"case": "rare"}},
    "with a common tag": {"tags": {"team": "sre"}},
}


def listed(verbs: Verbs, **terms: Any) -> list[Any]:
    """Do what `list_runs` asks, in this transaction."""
    return selected(verbs, "", **terms)


def selected(verbs: Verbs, how: str, **terms: Any) -> list[Any]:
    query = views.newest(**terms).compile(dialect=psycopg.dialect(), compile_kwargs={"render_postcompile": True})
    values = {name: Jsonb(value) if isinstance(value, dict) else value for name, value in query.params.items()}
    return verbs.connection.execute((how + str(query)).encode(), values).fetchall()


def page(verbs: Verbs) -> list[Any]:
    return listed(verbs, before=verbs.value("SELECT run_id FROM safepoint.runs ORDER BY created_at LIMIT 1 OFFSET 9"))


def worked(verbs: Verbs) -> object:
    run = verbs.begun(ask("a#1"))
    return verbs.done(run, key("a#1"), ending="succeeded"), history.read(verbs.connection, run)


def pruned(verbs: Verbs) -> object:
    cut = prune.cutoffs(verbs.connection, older=10**9, failed=10**9)
    return list(prune.runs(verbs.connection, cut)), list(prune.count(verbs.connection, cut))


HOT: dict[str, Callable[[Verbs], Any]] = {
    "enqueue": lambda verbs: verbs.enqueue(),
    "enqueue with a key": lambda verbs: (verbs.enqueue(key="k"), verbs.enqueue(key="k")),
    "claim, commit, history": worked,
    "dispatch": lambda verbs: verbs.dispatch(),
    "the next due row": lambda verbs: outbox.next_due(verbs.connection),
    "orphans": lambda verbs: verbs.look(),
    "chores": lambda verbs: verbs.chores(),
    "stalled runs": lambda verbs: verbs.value("SELECT safepoint.revive_stalled_v1(100, 50)"),
    "prune": pruned,
    "the next page": page,
    **{f"runs {name}": lambda verbs, terms=terms: listed(verbs, **terms) for name, terms in FILTERS.items()},
    **{
        f"ids {name}": lambda verbs, terms=terms: progress.find(verbs.connection, **terms)
        for name, terms in FILTERS.items()
    },
}


@pytest.fixture
def grown(verbs: Verbs) -> Verbs:
    """A ledger in which much has ended and much waits."""
    verbs.many(ROWS)
    for statement in FILL.split(";"):
        verbs.connection.execute(statement.encode())
    if verbs.connection.info.server_version >= 180000:
        verbs.connection.execute(PRETEND)
    return verbs


def read(verbs: Verbs) -> dict[str, tuple[int, int]]:
    """What this transaction has read so far: passes over whole tables, and rows fetched by an index."""
    found = verbs.rows("SELECT relname, seq_scan, idx_tup_fetch FROM pg_stat_xact_user_tables")
    return {row["relname"]: (row["seq_scan"], row["idx_tup_fetch"] or 0) for row in found if row["relname"] in BIG}


@pytest.mark.parametrize("plans", ["auto", "force_generic_plan"])
def test_p10_what_is_asked_all_the_time_reads_no_big_table_through(grown: Verbs, plans: str) -> None:
    grown.connection.execute("UPDATE safepoint.identity SET stalled_checked_at = safepoint.now()")
    grown.connection.execute("SET LOCAL enable_seqscan = off")  # so that only what has no index is read through
    grown.connection.execute(f"SET LOCAL plan_cache_mode = {plans}".encode())
    for call in HOT.values():
        call(grown)  # plans are made
    found: dict[str, dict[str, tuple[int, int]]] = {}

    for name, call in HOT.items():
        before = read(grown)
        call(grown)
        grew = {table: (new[0] - before[table][0], new[1] - before[table][1]) for table, new in read(grown).items()}
        found[name] = {table: (scans, rows) for table, (scans, rows) in grew.items() if scans or rows > FEW}

    # What many have is walked to, the newest first; `runs` has a connection of its own, and a plan for its values.
    walked = {"runs with a common tag", "ids with a common tag", *(["runs with a tag"] if plans != "auto" else [])}
    assert {name: tables for name, tables in found.items() if tables and name not in walked} == {}


def test_p10_lists_find_what_they_are_asked_for(grown: Verbs) -> None:
    for name, terms in FILTERS.items():
        shown = [row[0] for row in listed(grown, **terms)]
        ids = progress.find(grown.connection, limit=50, **terms)
        assert [str(one) for one in shown] == ids, name
        assert len(ids) == (50 if name in {"all", "of two statuses", "of a tenant", "with a common tag"} else 5), name


def test_p10_the_runs_of_a_version_are_found_without_passing_over_those_of_others(grown: Verbs) -> None:
    plan = "\n".join(row[0] for row in selected(grown, "EXPLAIN ", flow="f@old"))

    assert "using runs_of_version" in plan
    assert "Filter" not in plan
    assert "Sort" not in plan
    assert len(listed(grown, flow="f@old")) == 5

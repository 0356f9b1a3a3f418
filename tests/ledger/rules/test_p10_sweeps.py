"""P10: every sweep looks into an index, however many rows there are; asked of what was executed, and of EXPLAIN."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from ledger_clock import Clock
from ledger_verbs import Verbs, ask, key
from safepoint.ledger import nodes, outbox

ROWS = 1500
BIG = ("runs", "steps", "outbox_messages", "mailbox", "events")


@pytest.fixture
def crowded(verbs: Verbs, clock: Clock) -> Verbs:
    """A ledger with thousands of runs that wait, sleep, run, have ended, and are queued for later."""
    verbs.many(ROWS)
    fill = """
        UPDATE safepoint.steps SET due_at = safepoint.now() + interval '1 day';
        INSERT INTO safepoint.steps (run_id, generation, path, step_id, iteration, tenant_id, kind, name, status, lane,
                home_lane, due_at, ready_at, created_at, claim_token, expires_at, commit_seq, owner, claimed_at)
            SELECT run_id, 1, '', 's' || n, 1, tenant_id, CASE n WHEN 1 THEN 'timer' ELSE 'step' END, 's',
                   (ARRAY['waiting', 'ready', 'succeeded', 'running'])[n], 'online', 'online',
                   CASE n WHEN 1 THEN safepoint.now() + interval '1 day' WHEN 2 THEN 'infinity' END, safepoint.now(),
                   safepoint.now(), CASE n WHEN 4 THEN gen_random_uuid() END,
                   CASE n WHEN 4 THEN safepoint.now() + interval '1 day' END, CASE n WHEN 3 THEN 1 END,
                   CASE n WHEN 4 THEN 'node-1' END, CASE n WHEN 4 THEN safepoint.now() END
              FROM safepoint.runs, generate_series(1, 3 + (hashtext(run_id::text) % 100 = 0)::integer) AS n;
        UPDATE safepoint.runs SET deadline = safepoint.now() + interval '1 day' WHERE hashtext(run_id::text) % 2 = 0;
        INSERT INTO safepoint.outbox_messages (tenant_id, run_id, kind, target, due_at, created_at)
            SELECT tenant_id, run_id, 'webhook', run_id, safepoint.now() + interval '1 day', safepoint.now()
              FROM safepoint.runs;
        ANALYZE safepoint.runs, safepoint.steps, safepoint.outbox_messages"""
    for statement in fill.split(";"):
        verbs.connection.execute(statement.encode())
    return verbs


def read(verbs: Verbs) -> dict[str, tuple[int, int]]:
    """What this transaction has read so far: passes over whole tables, and rows fetched by an index."""
    found = verbs.rows("SELECT relname, seq_scan, idx_tup_fetch FROM pg_stat_xact_user_tables")
    return {row["relname"]: (row["seq_scan"], row["idx_tup_fetch"] or 0) for row in found if row["relname"] in BIG}


SWEEPS: dict[str, Callable[[Verbs], Any]] = {
    "dispatch": lambda verbs: verbs.dispatch(),
    "the next due row": lambda verbs: outbox.next_due(verbs.connection),
    "due waits": lambda verbs: outbox.fire_due(verbs.connection, limit=100),
    "deadlines and overdue cancels": lambda verbs: verbs.value("SELECT safepoint.expire_runs_v1(100, 30)"),
    "deliveries": lambda verbs: outbox.deliver(verbs.connection, limit=100),
    "orphans": lambda verbs: verbs.look(),
    "chores": lambda verbs: verbs.chores(),
    "a registration": lambda verbs: verbs.node("node-2"),
    "a beat": lambda verbs: verbs.beat(),
    "a goodbye": lambda verbs: nodes.stop(verbs.connection, "node-2"),
}


@pytest.mark.parametrize("sweep", SWEEPS)
def test_p10_an_idle_sweep_reads_a_handful_of_rows(crowded: Verbs, sweep: str) -> None:
    crowded.connection.execute("UPDATE safepoint.identity SET stalled_checked_at = safepoint.now()")
    SWEEPS[sweep](crowded)  # plans are made
    before = read(crowded)

    SWEEPS[sweep](crowded)

    after = read(crowded)
    scans = {table: after[table][0] - before[table][0] for table in before}
    fetched = sum(after[table][1] - before[table][1] for table in before)
    assert scans == dict.fromkeys(before, 0)
    assert fetched <= 100  # the running steps are thirty or so; nothing else is read


def test_p10_a_sweep_takes_a_bounded_batch(verbs: Verbs, clock: Clock) -> None:
    for _ in range(30):
        verbs.begun(ask("nap#1", "timer", delay=1.0))
    clock.forward(5)

    assert [outbox.fire_due(verbs.connection, limit=20) for _ in range(3)] == [20, 10, 0]
    assert len(verbs.dispatch(limit=7)) == 7


INDEXES = {
    "steps_due": "status = 'ready' AND lane = 'online' AND queued = 0 AND due_at <= %s ORDER BY due_at",
    "steps_queue": "status = 'ready' AND queued > 0 AND due_at < 'infinity' AND lane = 'online'"
    " AND tenant_id = 'default' AND created_at <= %s ORDER BY queued, priority DESC, deadline, due_at",
    "steps_queue_deadline": "status = 'ready' AND queued > 0 AND due_at < 'infinity' AND deadline IS NOT NULL"
    " AND lane = 'online' AND tenant_id = 'default' AND queued = 2 AND created_at <= %s"
    " ORDER BY deadline, priority DESC, due_at",
    "steps_waits_due": "status = 'waiting' AND due_at <= %s ORDER BY due_at",
    "steps_dispatched": "status = 'ready' AND lane = 'online' AND dispatched_at IS NOT NULL AND dispatched_at < %s",
    "steps_expiring": "status = 'running' AND expires_at < %s ORDER BY expires_at",
    "runs_deadline": "finished_at IS NULL AND ending IS NULL AND deadline <= %s AND cancel_at IS NULL"
    " ORDER BY deadline",
    "runs_cancelling": "finished_at IS NULL AND ending IS NULL AND cancel_at <= %s ORDER BY cancel_at",
    "outbox_messages_due": "due_at <= %s ORDER BY due_at",
}


@pytest.mark.parametrize("index", INDEXES)
def test_p10_every_sweep_has_an_index_that_gives_its_order(crowded: Verbs, clock: Clock, index: str) -> None:
    table = index.rpartition("_")[0] if index.startswith("outbox") else index.partition("_")[0]
    explain = f"EXPLAIN SELECT 1 FROM safepoint.{table} WHERE {INDEXES[index]} LIMIT 100"

    plan = "\n".join(row["QUERY PLAN"] for row in crowded.rows(explain, (clock.now + timedelta(days=2),)))

    assert f"using {index} " in plan
    assert "Sort" not in plan


def test_p10_a_stalled_run_is_looked_for_now_and_then(verbs: Verbs, clock: Clock) -> None:
    run = verbs.begun(ask("a#1"))
    verbs.chores()
    verbs.connection.execute("DELETE FROM safepoint.steps WHERE step_id = 'a'")
    clock.forward(20)
    early = verbs.chores().revived
    clock.forward(20)

    assert (early, verbs.chores().revived) == (0, 1)
    assert verbs.step(run, key("@advance#1"))["status"] == "ready"

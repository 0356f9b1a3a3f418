"""P40: what ended long ago goes, whole; what is live, or may be needed by it, stays; who comes late is told."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from ledger_clock import Clock
from ledger_fixtures import Crowd
from ledger_verbs import Verbs, ask, key
from old_runs import old_run
from safepoint.ledger import control, effects, people, prune, tombstones
from safepoint.ledger.errors import RunPruned, UnknownRun
from safepoint.ledger.people import Verdict
from safepoint.ledger.steps import Claimed

DAY = 86_400.0
HANGING = """
SELECT table_name FROM information_schema.columns WHERE table_schema = 'safepoint' AND column_name = 'run_id'
   AND table_name NOT IN ('outbox', 'idempotency_keys', 'pruned_runs', 'pruned_effects', 'breaker_probes')"""


@pytest.fixture
def late(verbs: Verbs, clock: Clock) -> Verbs:
    """A ledger at a time when there may be runs that are forty days old."""
    clock.set(100 * DAY)
    verbs.node()
    return verbs


def old(verbs: Verbs, status: str = "succeeded", **columns: Any) -> UUID:
    """Make a run that ended forty days ago, or so many."""
    return old_run(verbs.connection, status, **columns)


def effect(verbs: Verbs, run: UUID, status: str = "succeeded") -> bytes:
    own = uuid4().bytes * 2
    verbs.connection.execute(
        "INSERT INTO safepoint.effects (idempotency_key, reference, tenant_id, run_id, generation, path, step_id,"
        " iteration, status, request, request_encoding, request_digest, created_at, settled_at, unknown_since,"
        " sent_token, may_send_until) SELECT %(key)s, 'r', 'default', %(run)s, 1, '', 'e', 1, %(status)s, '', 'json',"
        " '', at, CASE WHEN %(status)s IN ('succeeded', 'failed') THEN at END, at, %(run)s, at"
        " FROM safepoint.now() AS at",
        {"key": own, "run": run, "status": status},
    )
    verbs.connection.execute(
        "INSERT INTO safepoint.effect_history (idempotency_key, n, tenant_id, status, actor, at)"
        " VALUES (%s, 1, 'default', %s, 'test', safepoint.now())",
        (own, status),
    )
    return own


def message(verbs: Verbs, run: UUID, target: UUID, kind: str = "child_end") -> None:
    verbs.connection.execute(
        "INSERT INTO safepoint.outbox_messages (tenant_id, run_id, kind, target, due_at, created_at)"
        " VALUES ('default', %s, %s, %s, safepoint.now(), safepoint.now())",
        (run, kind, target),
    )


def mail(verbs: Verbs, run: UUID, *, read: bool) -> None:
    verbs.connection.execute(
        "INSERT INTO safepoint.mailbox (run_id, tenant_id, kind, name, created_at, consumed_at)"
        " SELECT %s, 'default', 'signal', 'go', at, CASE WHEN %s THEN at END FROM safepoint.now() AS at",
        (run, read),
    )


def cut(verbs: Verbs, days: float = 30, *, failed: float | None = None) -> prune.Cutoffs:
    return prune.cutoffs(verbs.connection, older=days * DAY, failed=(days if failed is None else failed) * DAY)


def pruned(verbs: Verbs, days: float = 30, *, failed: float | None = None, **more: Any) -> int:
    return sum(batch.runs for batch in prune.runs(verbs.connection, cut(verbs, days, failed=failed), **more))


def there(verbs: Verbs) -> set[UUID]:
    return {row["run_id"] for row in verbs.rows("SELECT run_id FROM safepoint.runs")}


def finished(verbs: Verbs, **options: Any) -> tuple[UUID, Claimed]:
    run = verbs.enqueue(**options)
    claimed = verbs.claimed(run)
    verbs.commit(claimed, ending="succeeded")
    return run, claimed


# What goes.


def test_p40_a_run_goes_with_all_that_hangs_on_it(late: Verbs, clock: Clock) -> None:
    run, _ = finished(late, budget='{"tokens": 10}', input=json.dumps({"at": 1}))
    keep, _ = finished(late)
    for one in (run, keep):
        effect(late, one)
        mail(late, one, read=True)
        late.connection.execute(
            "INSERT INTO safepoint.once SELECT %s, 1, '', 's', 1, 'n', 'default', '', 'json', 0, 0, 1, safepoint.now()",
            (one,),
        )
        late.connection.execute("INSERT INTO safepoint.artifact_uses VALUES ('default', 'x', %s)", (one,))
    clock.forward(31 * DAY)
    late.connection.execute(
        "ALTER TABLE safepoint.runs DISABLE TRIGGER runs_final; UPDATE safepoint.runs SET finished_at = safepoint.now()"
        f" WHERE run_id = '{keep}'".encode()
    )

    assert pruned(late) == 1

    tables = [row["table_name"] for row in late.rows(HANGING)]
    assert {"runs", "steps", "events", "effects", "mailbox", "once", "artifact_uses"} <= set(tables)
    counts = {name: late.rows(f"SELECT run_id FROM safepoint.{name}") for name in tables}
    assert {name for name, rows in counts.items() if any(row["run_id"] == run for row in rows)} == set()
    assert {name for name, rows in counts.items() if not any(row["run_id"] == keep for row in rows)} <= {
        "outbox_messages"
    }
    assert late.value("SELECT count(*) FROM safepoint.effect_history") == 1
    assert late.value("SELECT count(*) FROM safepoint.budgets") == 0
    stone = late.rows("SELECT * FROM safepoint.pruned_runs")[0]
    assert (stone["run_id"], stone["flow"], stone["status"]) == (run, "f", "succeeded")


Keeps = Callable[[Verbs], UUID]


def _parent(verbs: Verbs, status: str, days: float) -> UUID:
    return old(verbs, parent_run_id=old(verbs, status, days=days))


def _child(verbs: Verbs) -> UUID:
    run = old(verbs)
    old(verbs, "running", parent_run_id=run)
    return run


def _targeted(verbs: Verbs) -> UUID:
    run = old(verbs)
    message(verbs, uuid4(), run)
    return run


def _telling(verbs: Verbs) -> UUID:
    run = old(verbs)
    message(verbs, run, uuid4(), "webhook")
    return run


def _unsettled(status: str) -> Keeps:
    def make(verbs: Verbs) -> UUID:
        run = old(verbs, "failed")
        effect(verbs, run, status)
        return run

    return make


def _unread(verbs: Verbs) -> UUID:
    run = old(verbs)
    mail(verbs, run, read=False)
    return run


def _open(verbs: Verbs) -> UUID:
    run = verbs.begun(ask("a#1"))
    verbs.connection.execute(
        "UPDATE safepoint.runs SET status = 'failed', ending = 'failed',"
        " finished_at = safepoint.now() - interval '40 days' WHERE run_id = %s",
        (run,),
    )
    return run


KEPT: dict[str, tuple[str, Keeps]] = {
    "live": ("", lambda verbs: old(verbs, "held")),
    "recent": ("", lambda verbs: old(verbs, days=29)),
    "an effect that is pending": ("effects", _unsettled("pending")),
    "an effect that is executing": ("effects", _unsettled("executing")),
    "an effect that is unknown": ("effects", _unsettled("unknown")),
    "a live parent": ("parent", lambda verbs: _parent(verbs, "waiting", 50)),
    "a parent that ended not long ago": ("parent", lambda verbs: _parent(verbs, "succeeded", 3)),
    "a live child": ("children", _child),
    "a message to it": ("outbox", _targeted),
    "a message of its own": ("outbox", _telling),
    "a signal that it has not read": ("mail", _unread),
    "an open step": ("steps", _open),
}


@pytest.mark.parametrize("case", KEPT)
def test_p40_what_is_live_or_needed_stays(late: Verbs, case: str) -> None:
    reason, make = KEPT[case]
    run = make(late)
    gone = old(late)

    batches = list(prune.runs(late.connection, cut(late)))

    assert run in there(late)
    assert gone not in there(late)
    assert [dict(batch.kept) for batch in batches] == [{reason: 1} if reason else {}] * len(batches)


def test_p40_signals_that_nobody_reads_any_more_go_when_a_person_says_so(late: Verbs) -> None:
    run = _unread(late)

    assert pruned(late) == 0
    assert pruned(late, unread=True) == 1
    assert run not in there(late)


def test_p40_failed_runs_have_a_time_of_their_own(late: Verbs) -> None:
    failed, other = old(late, "failed", days=40), old(late, days=40)

    assert pruned(late, failed=60) == 1
    assert there(late) == {failed}
    assert pruned(late, 90, failed=35) == 1
    assert other not in there(late)


def test_p40_a_family_goes_from_the_top_in_one_prune(late: Verbs) -> None:
    root = old(late, days=35)
    child = old(late, days=38, parent_run_id=root)
    old(late, days=40, parent_run_id=child)

    ahead = list(prune.count(late.connection, cut(late)))
    assert sum(batch.runs for batch in ahead) == 3  # nobody is kept by who goes before
    assert pruned(late, size=1) == 3
    assert there(late) == set()


def test_p40_a_budget_stays_as_long_as_somebody_has_spent_from_it(late: Verbs) -> None:
    root = old(late, budget_id=(id_ := uuid4()), run=id_)
    late.connection.execute(
        "INSERT INTO safepoint.budgets (budget_id, tenant_id, tokens, created_at)"
        " VALUES (%s, 'default', 9, safepoint.now())",
        (root,),
    )
    old(late, "failed", days=20, parent_run_id=root, budget_id=root)

    assert pruned(late) == 1
    assert late.value("SELECT tokens FROM safepoint.budgets") == 9
    assert pruned(late, 10) == 1
    assert late.value("SELECT count(*) FROM safepoint.budgets") == 0


def test_a_tenant_and_a_limit_are_kept_to(late: Verbs) -> None:
    mine = [old(late, tenant_id="acme", days=40 + n) for n in range(5)]
    other = old(late, tenant_id="other")

    assert pruned(late, tenant="acme", limit=3) == 3
    assert there(late) == {*mine[:2], other}  # the oldest ends first
    assert pruned(late, tenant="acme", limit=3, size=1) == 2


def test_p02_a_batch_has_a_hundred_runs_at_most_and_fewer_large_ones(late: Verbs) -> None:
    for n in range(101):
        old(late, days=50 + n)
    for _ in range(3):
        old(late, days=40, event_seq=15_000)  # so many, as far as a batch looks

    sizes = [batch.runs for batch in prune.runs(late.connection, cut(late))]

    assert sizes == [100, 2, 1, 1]
    with pytest.raises(psycopg.errors.InvalidParameterValue):
        list(prune.runs(late.connection, cut(late), size=101))


def test_a_look_counts_by_tenant_flow_and_status_and_removes_nothing(late: Verbs) -> None:
    for tenant, status, flow in (("a", "succeeded", "f"), ("a", "succeeded", "f"), ("default", "failed", "g")):
        old(late, status, tenant_id=tenant, flow=flow)
    _unread(late)
    before = there(late)

    groups, kept = Counter[tuple[str, str, str]](), Counter[str]()
    for batch in prune.count(late.connection, cut(late), size=2):
        groups.update(batch.gone)
        kept.update(batch.kept)

    assert groups == {("a", "f", "succeeded"): 2, ("default", "g", "failed"): 1}
    assert kept == {"mail": 1}
    assert there(late) == before


# Who comes late.


def everything(verbs: Verbs) -> dict[str, int]:
    names = verbs.rows("SELECT tablename FROM pg_tables WHERE schemaname = 'safepoint'")
    return {row["tablename"]: verbs.value(f"SELECT count(*) FROM safepoint.{row['tablename']}") for row in names}


@pytest.fixture
def gone(late: Verbs, clock: Clock) -> tuple[UUID, Claimed, bytes]:
    """A run that was pruned, with the claim of its last executor and the key of its effect."""
    run, claimed = finished(late, key="order-1", input='{"a": 1}')
    own = effect(late, run)
    clock.forward(31 * DAY)
    assert pruned(late) == 1
    return run, claimed, own


def test_p40_a_late_writer_is_told_and_writes_nothing(late: Verbs, gone: tuple[UUID, Claimed, bytes]) -> None:
    run, claimed, own = gone
    before = everything(late)

    assert late.refusal(run) == "stale: no such run"
    assert late.commit(claimed, joins=None, advanced_from=1).verdict == "lost"
    assert late.retry(claimed).verdict == "lost"
    assert late.release(claimed) is False
    assert late.signal(run) == "unknown"
    assert control.reopen(late.connection, run, by="ann") == "unknown"
    assert late.cancel(run) == "unknown"
    assert people.resolve(late.connection, own, Verdict("not_executed", "ann", "looked")).answer == "unknown"
    told = effects.evidence(
        late.connection, run, key=own.hex(), node="n", epoch=1, data=b"1", encoding="json", external_id=None
    )
    assert told == "unknown"
    assert everything(late) == before


def test_p40_the_tombstone_says_what_it_was_and_when_it_went(late: Verbs, gone: tuple[UUID, Claimed, bytes]) -> None:
    run, _, own = gone

    told = tombstones.missing(late.connection, run)
    assert isinstance(told, RunPruned)
    assert "was pruned on 2030-" in str(told)
    assert str(tombstones.of_effect(late.connection, own.hex()[:12])) == str(told)
    assert tombstones.of_effect(late.connection, "00" * 8) is None
    assert type(tombstones.missing(late.connection, uuid4())) is UnknownRun


def test_p40_a_key_outlives_its_run(late: Verbs, gone: tuple[UUID, Claimed, bytes]) -> None:
    run, _, _ = gone
    before = everything(late)

    assert late.enqueue(key="order-1", input='{"a": 1}') == run
    with pytest.raises(psycopg.errors.Error, match="another input"), late.connection.transaction():
        late.enqueue(key="order-1", input='{"a": 2}')
    assert everything(late) == before


def test_p40_an_id_makes_no_second_run(late: Verbs, gone: tuple[UUID, Claimed, bytes]) -> None:
    run, _, _ = gone
    before = everything(late)

    assert late.enqueue(run_id=run) == run
    with pytest.raises(psycopg.errors.Error, match="another run has this id"), late.connection.transaction():
        late.enqueue(run_id=run, tenant="other")
    assert everything(late) == before


def test_tombstones_and_keys_have_times_of_their_own(
    late: Verbs, clock: Clock, gone: tuple[UUID, Claimed, bytes]
) -> None:
    run, _, _ = gone
    late.enqueue(key="live", input="{}")
    clock.forward(50 * DAY)
    at = cut(late)

    assert sum(prune.tombstones(late.connection, at.before(51 * DAY))) == 0
    assert sum(prune.keys(late.connection, at.before(90 * DAY))) == 0
    assert late.enqueue(key="order-1", input='{"a": 1}') == run
    assert sum(prune.keys(late.connection, at.before(40 * DAY), tenant="other")) == 0
    assert sum(prune.keys(late.connection, at.before(40 * DAY))) == 1  # not the one whose run is there
    assert sum(prune.tombstones(late.connection, at.before(40 * DAY))) == 1
    assert late.value("SELECT count(*) FROM safepoint.pruned_effects") == 0
    assert late.enqueue(key="order-1", input='{"a": 1}') != run


# The rest of the house.


def test_histories_keep_their_last_entry_and_nodes_their_steps(late: Verbs, clock: Clock) -> None:
    late.connection.execute("INSERT INTO safepoint.breakers (name) VALUES ('llm')")
    for _ in range(3):
        late.connection.execute(
            "INSERT INTO safepoint.breaker_events (name, before, after, actor, why, at)"
            " VALUES ('llm', 'open', 'closed', 'me', 'so', safepoint.now())"
        )
        late.connection.execute(
            "INSERT INTO safepoint.lane_events (lane, what, actor, why, at)"
            " VALUES ('online', 'applied', 'me', 'so', safepoint.now())"
        )
    for node in ("gone", "silent", "busy"):
        late.node(node)
    late.connection.execute("SELECT safepoint.stop_node_v1('gone')")
    run = late.enqueue()
    late.claimed(run, node="busy")
    clock.forward(31 * DAY)
    late.beat()
    late.node("fresh")
    late.connection.execute("SELECT safepoint.stop_node_v1('fresh')")

    pages = list(prune.records(late.connection, cut(late).before(30 * DAY)))

    assert pages == [{"breaker_events": 2, "lane_events": 2, "nodes": 2}]
    assert {row["node_id"] for row in late.rows("SELECT node_id FROM safepoint.nodes")} == {"node-1", "busy", "fresh"}


# Beside what is live.


@pytest.fixture
def ready(crowd: Crowd) -> Verbs:
    """A connection to a ledger where transactions meet, with a hundred old runs."""
    verbs = crowd()
    for n in range(100):
        old(verbs, days=40 + n)
    return verbs


def test_p40_a_claim_and_a_commit_go_on_while_a_batch_is_open(crowd: Crowd, ready: Verbs) -> None:
    live = crowd()
    live.connection.execute("SET lock_timeout = '5s'")  # far more than either takes
    run = live.enqueue(key="k")

    with ready.connection.transaction():
        batch = next(prune.runs(ready.connection, cut(ready)))
        started = live.commit(live.claimed(run), asked=[ask("a#1")])
        committed = live.commit(live.claimed(run, key("a#1")), ending="succeeded")
        again = live.enqueue(key="k2")

    assert batch.runs == 100
    assert (started.verdict, committed.verdict) == ("committed", "committed")
    assert there(ready) == {run, again}


def test_p40_who_asks_for_a_run_that_is_just_going_hears_that_it_is_gone(
    crowd: Crowd, ready: Verbs, eventually: Callable[..., None]
) -> None:
    other, watch = crowd(), crowd()
    failed = old(ready, "failed", days=500)

    def is_waiting() -> None:
        assert watch.waiting_backends() == 1

    with ThreadPoolExecutor(1) as pool:
        with ready.connection.transaction():
            next(prune.runs(ready.connection, cut(ready)))
            asked = pool.submit(control.reopen, other.connection, failed, by="ann")
            eventually(is_waiting)
        assert asked.result(timeout=10) == "unknown"


def test_p40_a_run_that_a_person_is_reopening_stays(crowd: Crowd, ready: Verbs) -> None:
    person = crowd()
    failed = old(ready, "failed", days=500)

    with person.connection.transaction():
        assert control.reopen(person.connection, failed, by="ann") == "running"
        assert pruned(ready) == 100

    assert there(ready) == {failed}
    assert pruned(ready) == 0


def test_p40_the_same_id_that_waits_for_a_batch_makes_no_second_run(
    crowd: Crowd, ready: Verbs, eventually: Callable[..., None]
) -> None:
    other, watch = crowd(), crowd()
    run = old(ready, days=500)

    def is_waiting() -> None:
        assert watch.waiting_backends() == 1

    with ThreadPoolExecutor(1) as pool:
        with ready.connection.transaction():
            next(prune.runs(ready.connection, cut(ready)))
            asked = pool.submit(other.enqueue, run_id=run)
            eventually(is_waiting)
        assert asked.result(timeout=10) == run
    assert run not in there(ready)
    assert ready.rows("SELECT 1 FROM safepoint.steps WHERE run_id = %s", (run,)) == []


def test_p02_two_prunes_at_once_leave_no_budget_behind(
    crowd: Crowd, ready: Verbs, eventually: Callable[..., None]
) -> None:
    other, watch = crowd(), crowd()
    root = old(ready, days=600, budget_id=(id_ := uuid4()), run=id_)
    ready.connection.execute(
        "INSERT INTO safepoint.budgets (budget_id, tenant_id, created_at) VALUES (%s, 'default', now())", (root,)
    )
    old(ready, days=500, budget_id=root)

    def is_waiting() -> None:
        assert watch.waiting_backends() == 1

    with ThreadPoolExecutor(1) as pool:
        with ready.connection.transaction():
            next(prune.runs(ready.connection, cut(ready), size=1))
            beside = pool.submit(pruned, other)
            eventually(is_waiting)
        assert beside.result(timeout=10) == 101
    assert ready.value("SELECT count(*) FROM safepoint.budgets") == 0


# Indexes.


FILL = """
INSERT INTO safepoint.runs (run_id, tenant_id, flow, status, input, input_encoding, input_hash, workflow_version,
                            created_at, updated_at, finished_at)
    SELECT gen_random_uuid(), 'default', 'f', 'succeeded', '', 'json', '', '1', at, at, at
      FROM (SELECT safepoint.now() - make_interval(hours => n) AS at FROM generate_series(1, 2000) AS n) x;
INSERT INTO safepoint.steps (run_id, generation, path, step_id, iteration, tenant_id, kind, name, status, lane,
                             home_lane, ready_at, created_at)
    SELECT run_id, 1, '', 's', n, 'default', 'step', 's', 'cancelled', 'online', 'online', at, at
      FROM safepoint.runs, generate_series(1, 3) AS n, safepoint.now() AS at;
INSERT INTO safepoint.events (run_id, seq, tenant_id, type, at)
    SELECT run_id, n, 'default', 'note', at FROM safepoint.runs, generate_series(1, 3) AS n, safepoint.now() AS at;
INSERT INTO safepoint.mailbox (run_id, tenant_id, kind, name, created_at, consumed_at)
    SELECT run_id, 'default', 'signal', 'go', at, at FROM safepoint.runs, safepoint.now() AS at;
INSERT INTO safepoint.outbox_messages (tenant_id, run_id, kind, target, due_at, created_at)
    SELECT 'default', gen_random_uuid(), 'child_end', gen_random_uuid(), at, at
      FROM generate_series(1, 2000), safepoint.now() AS at;
ANALYZE safepoint.runs, safepoint.steps, safepoint.events, safepoint.mailbox, safepoint.outbox_messages"""
FILLED = ("runs", "steps", "events", "mailbox", "outbox_messages")


def read(verbs: Verbs) -> dict[str, tuple[int, int]]:
    """What this transaction has read so far: passes over whole tables, and rows fetched by an index."""
    found = verbs.rows("SELECT relname, seq_scan, idx_tup_fetch FROM pg_stat_xact_user_tables")
    return {row["relname"]: (row["seq_scan"], row["idx_tup_fetch"] or 0) for row in found if row["relname"] in FILLED}


def test_p40_a_batch_has_an_index_for_each_of_its_statements(late: Verbs) -> None:
    for statement in FILL.split(";"):
        late.connection.execute(statement.encode())
    # Tables of this size may well be read whole; where there is no index, they still are.
    late.connection.execute("SET LOCAL enable_seqscan = off")
    batches = prune.runs(late.connection, cut(late))
    next(batches)  # plans are made
    before = read(late)

    assert next(batches).runs == 100

    after = read(late)
    assert {table: after[table][0] - before[table][0] for table in FILLED} == dict.fromkeys(FILLED, 0)
    assert sum(after[table][1] - before[table][1] for table in FILLED) < 5_000  # of 18,000


def test_p40_candidates_come_from_their_index_in_its_order(late: Verbs) -> None:
    for statement in FILL.split(";"):
        late.connection.execute(statement.encode())
    at = cut(late)
    values = {"older": at.older, "failed": at.failed, "unread": False, "tenant": None, "at": at.before(70 * DAY),
              "run": uuid4(), "limit": 100}  # fmt: skip

    plan = "\n".join(row["QUERY PLAN"] for row in late.rows(f"EXPLAIN {prune.CANDIDATES}", values))

    assert "using runs_finished on runs" in plan
    assert "Sort" not in plan

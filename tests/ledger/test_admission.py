"""P12: a tenant with a hundred thousand rows delays nobody, on whichever lane; weights, order and pauses of lanes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from uuid import UUID

import psycopg
import pytest
from ledger_clock import Clock
from ledger_lanes import backlog, crew, limit, orphan, sent
from ledger_verbs import Verbs, ask, key
from safepoint.ledger import outbox
from safepoint.ledger.connect import connect
from servers import new_database

MANY = 100_000
LANES = ("online", "recovery", "tools", "open")
A = key("a#1")


@pytest.fixture(scope="module")
def crowded_url(postgres_url: str, template: str) -> Iterator[str]:
    """A ledger in which one tenant has a hundred thousand rows on each lane that admits, and many timers due."""
    with new_database(postgres_url, template) as url:
        with connect(url, name="test") as connection:
            connection.execute("SET synchronous_commit = off")
            verbs = Verbs(connection)
            limit(verbs, "online", window=20)
            limit(verbs, "recovery", in_flight=20)
            limit(verbs, "tools", rate=0.001, burst=20)
            limit(verbs, "open", paused=False)
            crew(verbs, lanes=LANES)
            backlog(verbs, MANY, lane="online", kind="start", queued=2)
            backlog(verbs, MANY, lane="recovery")
            backlog(verbs, MANY, lane="tools")
            backlog(verbs, 10_000, lane="open", kind="timer", queued=0)
            connection.execute("ANALYZE safepoint.runs, safepoint.steps")
        yield url


@pytest.fixture
def loud(crowded_url: str) -> Iterator[Verbs]:
    """That ledger, in a transaction that is rolled back."""
    connection = connect(crowded_url, name="test", autocommit=False)
    connection.execute("UPDATE safepoint.nodes SET lease_until = safepoint.now() + interval '1 hour'")
    yield Verbs(connection)
    connection.rollback()
    connection.close()


# One tenant, a hundred thousand rows.


@pytest.mark.parametrize("lane", ["online", "recovery", "tools"])
def test_p12_who_has_a_hundred_thousand_rows_does_not_delay_who_has_three(loud: Verbs, lane: str) -> None:
    kind, queued = ("start", 2) if lane == "online" else ("step", 1)
    quiet = backlog(loud, 3, lane=lane, tenant="quiet", kind=kind, queued=queued)

    rows = sent(loud, lane)

    assert rows.count(quiet) == 3
    assert len(rows + sent(loud, lane)) == 20  # what the quiet one leaves over goes out with the next look


def test_p12_ten_thousand_timers_that_are_due_at_once_delay_nobody(loud: Verbs) -> None:
    quiet = backlog(loud, 3, lane="open", tenant="quiet", kind="timer", queued=0)

    found = looks = 0
    while found < 3 and looks < 6:  # each look puts two thousand of them in the queue, where tenants take turns
        looks += 1
        rows = loud.dispatch()
        found += sum(row.run_id == quiet for row in rows)
        for row in rows:
            if row.lane == "open":
                loud.claimed(row.run_id, row.key, lane="open")

    assert found == 3


def test_p12_a_gather_of_thousands_of_one_run_delays_nobody(loud: Verbs) -> None:
    run = loud.enqueue(tenant="wide")
    loud.commit(loud.claimed(run), asked=[ask(f"w#{n}", lane="open") for n in range(1, 3001)])
    quiet = loud.begun(*(ask(f"s#{n}", lane="open") for n in range(1, 41)), tenant="quiet")
    limit(loud, "open", in_flight=40)
    loud.connection.execute("UPDATE safepoint.steps SET status = 'cancelled', due_at = NULL WHERE kind = 'timer'")

    rows = sent(loud, "open")

    assert rows.count(quiet) == 20


@pytest.mark.parametrize("lane", ["online", "recovery", "tools"])
def test_p12_a_look_reads_no_more_than_what_it_admits_and_a_row_for_each_tenant(loud: Verbs, lane: str) -> None:
    for n in range(50):
        backlog(loud, 2, lane=lane, tenant=f"t{n}")
    loud.connection.execute("UPDATE safepoint.lanes SET paused = name <> %s", (lane,))
    before = _read(loud)

    rows = sent(loud, lane)

    after = _read(loud)
    assert len(rows) == 20
    assert after[0] == before[0], "a pass over a whole table"
    assert after[1] - before[1] <= 15 * 20 + 3 * 51


def _read(verbs: Verbs) -> tuple[int, int]:
    found = verbs.rows(
        "SELECT sum(seq_scan) AS scans, sum(idx_tup_fetch) AS fetched FROM pg_stat_xact_user_tables"
        " WHERE relname = 'steps'"
    )
    return int(found[0]["scans"]), int(found[0]["fetched"])


@pytest.mark.parametrize("lane", ["online", "recovery", "tools"])
@pytest.mark.parametrize("order", ["priority", "deadline"])
def test_p12_the_heads_of_a_queue_are_read_off_an_index(loud: Verbs, lane: str, order: str) -> None:
    """Also with plans that are made once for every lane and tenant, and where no row has a deadline."""
    limit(loud, lane, order=order)
    loud.connection.execute("SET LOCAL plan_cache_mode = force_generic_plan")
    heads = f"SELECT count(*) FROM safepoint.lanes l, safepoint.heads_v1(l, 'loud', 5) WHERE l.name = '{lane}'"
    loud.value(heads)
    before = _read(loud)

    assert loud.value(heads) == 5

    after = _read(loud)
    assert (after[0] - before[0], after[1] - before[1] <= 30) == (0, True)


@pytest.mark.parametrize("order", ["priority", "deadline"])
def test_p12_a_look_into_a_large_backlog_is_planned_once(loud: Verbs, order: str) -> None:
    """Not anew for each tenant, which costs more than the look."""
    loud.connection.execute("UPDATE safepoint.lanes SET paused = name <> 'tools'")
    backlog(loud, 20, lane="tools", tenant="quiet")
    limit(loud, "tools", rate=100.0, burst=100, order=order)
    for _ in range(6):  # PostgreSQL tries five plans before it chooses
        outbox.dispatch(loud.connection, limit=1, grace=5.0, redispatch_after=10.0)
    planned: list[str] = []
    loud.connection.add_notice_handler(lambda notice: planned.append(notice.context or ""))
    loud.connection.execute("SET LOCAL client_min_messages = log")
    loud.connection.execute("SET LOCAL debug_print_plan = on")
    planned.clear()

    rows = outbox.dispatch(loud.connection, limit=2, grace=5.0, redispatch_after=10.0)

    assert len(rows) == 2
    assert planned[0] == ""  # the call's own
    assert [context for context in planned if "admit_v1" in context] == []


def test_p12_a_thousand_tenants_cost_one_look_each(loud: Verbs) -> None:
    loud.connection.execute("UPDATE safepoint.steps SET tenant_id = 't' || iteration % 1000 WHERE lane = 'open'")
    limit(loud, "open", in_flight=1)
    loud.connection.execute("UPDATE safepoint.lanes SET paused = name <> 'open'")
    for _ in range(5):
        loud.dispatch()  # they are put in the queue
    one = loud.rows("SELECT run_id FROM safepoint.steps WHERE lane = 'open' AND dispatched_at IS NOT NULL")
    loud.connection.execute(
        "UPDATE safepoint.steps SET status = 'cancelled', due_at = NULL WHERE dispatched_at IS NOT NULL"
    )
    before = _read(loud)

    assert len(sent(loud, "open")) == len(one) == 1

    after = _read(loud)
    assert after[0] == before[0]
    assert after[1] - before[1] <= 3 * 1000


# Turns.


@pytest.fixture
def tools(verbs: Verbs, clock: Clock) -> Verbs:
    """A lane of its own, and a node that takes it."""
    crew(verbs, lanes=("online", "recovery", "tools"))
    limit(verbs, "tools", in_flight=100)
    return verbs


@pytest.mark.parametrize("batch", [1, 7, 100])
def test_p12_turns_are_as_fair_by_one_row_a_look_as_by_a_hundred(tools: Verbs, clock: Clock, batch: int) -> None:
    limit(tools, "tools", in_flight=1000, window=1000, weights={"gold": 3})
    tenants = {backlog(tools, 300, lane="tools", tenant=tenant): tenant for tenant in ("a", "b", "gold")}

    got = Counter[str]()
    while got.total() < 200:
        got.update(tenants[run] for run in sent(tools, "tools", limit=batch))

    share = got.total() / 5
    assert abs(got["gold"] - 3 * share) <= 3
    assert abs(got["a"] - got["b"]) <= 1


@pytest.mark.parametrize("weight", [1e-310, 1e308])
def test_p12_a_weight_beyond_all_measure_stops_nobody(tools: Verbs, clock: Clock, weight: float) -> None:
    limit(tools, "tools", weights={"odd": weight})
    runs = {backlog(tools, 5, lane="tools", tenant=tenant) for tenant in ("odd", "even")}

    rows = [run for _ in range(10) for run in sent(tools, "tools", limit=2)]

    assert set(rows) == runs
    assert len(rows) == 10


def test_p12_who_was_away_gets_no_credit_for_it(tools: Verbs, clock: Clock) -> None:
    stays = backlog(tools, 100, lane="tools", tenant="stays")
    sent(tools, "tools", limit=50)

    comes = backlog(tools, 100, lane="tools", tenant="comes")

    assert abs(Counter(sent(tools, "tools", limit=10))[comes] - 5) <= 1
    assert sent(tools, "tools", limit=2).count(stays) == 1


# The order within a tenant.


@pytest.mark.parametrize("lane", ["recovery", "tools"])
@pytest.mark.parametrize("order", ["priority", "deadline"])
def test_p12_priority_and_deadline_hold_on_any_lane(tools: Verbs, clock: Clock, lane: str, order: str) -> None:
    limit(tools, lane, in_flight=0, order=order)
    plain, soon, sooner, urgent = (
        _on(tools, lane, **options)
        for options in (
            {},
            {"deadline": clock.now + timedelta(hours=1)},
            {"deadline": clock.now + timedelta(minutes=1)},
            {"priority": 5},
        )
    )
    limit(tools, lane, in_flight=4)

    rows = [run for _ in range(4) for run in sent(tools, lane, limit=1)]

    assert rows == ([urgent, sooner, soon, plain] if order == "priority" else [sooner, soon, urgent, plain])


def _on(verbs: Verbs, lane: str, **options: object) -> UUID:
    return orphan(verbs, **options) if lane == "recovery" else verbs.begun(ask("a#1", lane=lane), **options)


def test_p12_a_childs_start_goes_before_starts(tools: Verbs, clock: Clock) -> None:
    limit(tools, "online", window=2)
    facts = {"flow": "f", "version": "1", "input": "e30=", "encoding": "json", "hash": "00", "versions": {}}
    parent = tools.enqueue()
    started = tools.claimed(parent)
    for _ in range(5):
        tools.enqueue(priority=9)
    child = UUID(int=7)
    tools.commit(started, asked=[ask("sub#1", "child", child={"run_id": str(child), **facts})])

    assert child in sent(tools, "online", limit=1)


def test_p12_a_start_for_later_waits_for_its_time(tools: Verbs, clock: Clock) -> None:
    limit(tools, "online", in_flight=5)
    run = tools.enqueue(start_at=clock.now + timedelta(seconds=10))
    early = sent(tools, "online")

    clock.forward(10)

    assert (early, sent(tools, "online")) == ([], [run])


# Pauses of lanes.


def test_p12_a_paused_lane_refuses_what_is_in_the_broker_and_runs_it_once_afterwards(
    tools: Verbs, clock: Clock
) -> None:
    runs = [tools.begun(ask("a#1", lane="tools")) for _ in range(3)]
    assert sorted(sent(tools, "tools")) == sorted(runs)
    limit(tools, "tools", paused=True)

    assert {tools.refusal(run, A, lane="tools") for run in runs} == {"lane"}
    assert sent(tools, "tools") == []
    limit(tools, "tools", paused=False)
    assert sorted(sent(tools, "tools")) == sorted(runs)
    for run in runs:
        tools.done(run, A, lane="tools")
        step = tools.step(run, A)
        assert (step["status"], step["attempt"], step["epoch"], step["recoveries"]) == ("succeeded", 1, 1, 0)


def test_p12_what_waits_on_a_lane_that_loses_its_limits_goes_out(tools: Verbs, clock: Clock) -> None:
    limit(tools, "tools", in_flight=0)
    runs = [tools.begun(ask("a#1", lane="tools")) for _ in range(3)]
    assert sent(tools, "tools") == []

    limit(tools, "tools", in_flight=None)

    assert sorted(sent(tools, "tools")) == sorted(runs)
    assert outbox.next_due(tools.connection) != 0


def test_p2_whoever_sets_a_limit_waits_for_a_look_and_no_look_for_him(crowded_url: str) -> None:
    with connect(crowded_url, name="test", autocommit=False) as setting, connect(crowded_url, name="test") as looking:
        limit(Verbs(setting), "tools", rate=1.0)

        with looking.transaction(force_rollback=True):
            assert "tools" not in {row.lane for row in Verbs(looking).dispatch()}
        setting.rollback()


def test_p12_the_audit_of_a_ledger_of_this_size_knows_no_deadlock(crowded_url: str) -> None:
    with psycopg.connect(crowded_url) as connection:
        row = connection.execute("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()").fetchone()
    assert row == (0,)

"""Each guard of the admission, and the shortest schedule of its machine that goes wrong without it (P12)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from ledger_admission import Admission
from ledger_clock import Clock
from psycopg.errors import LockNotAvailable
from safepoint.ledger.connect import Connection, connect

GUARDS = {
    "cap of a tenant": (
        "take_turns_v1",
        ("AND (l.tenant_in_flight IS NULL OR coalesce(b.rows, 0) < l.tenant_in_flight)", ""),
        ("least(p_room, l.tenant_in_flight - coalesce(b.rows, 0))", "p_room"),
    ),
    "virtual time": ("take_turns_v1", ("greatest(l.virtual, coalesce(q.pass, l.virtual))", "coalesce(q.pass, 0)")),
    "passes": ("take_turns_v1", ("t.pass + count(*) / t.weight AS pass", "t.pass AS pass")),
    "weights": ("take_turns_v1", ("(l.weights->>t.tenant_id)::double precision", "1.0")),
    "what runs": (
        "lane_room_v1",
        ("(SELECT count(*) FROM steps WHERE status = 'running' AND claimed_from = l.name)", "0"),
    ),
    "lock of the lane": ("dispatch_v1", ("NOT paused FOR NO KEY UPDATE SKIP LOCKED", "NOT paused")),
    "refusal of a claim": ("claim_v1", ("n.lane_paused OR n.lane_limited AND s.dispatched_at IS NULL", "false")),
    "set aside leaves the queue": ("set_aside_v1", ("dispatched_at = NULL, queued = 0,", "dispatched_at = NULL,")),
    "parked has no place": ("park_v1", ("due_at = 'infinity', dispatched_at = NULL", "due_at = 'infinity'")),
    "late retry": ("retry_v1", ("dispatches = 0, queued = 0,", "dispatches = 0,")),
    "late ticket": (
        "settle_v1",
        ("AND s.queued = 0", ""),
        (
            "AND (s.dispatched_at IS NOT NULL OR NOT is_limited_v1(s.lane))",
            "",
        ),
    ),
    "tokens of before": ("refresh_lane_v1", ("refilled_at = safepoint.now()", "refilled_at = x.refilled_at")),
    "rate of nothing": ("lane_room_v1", ("CASE WHEN l.rate > 0 THEN", "CASE WHEN true THEN")),
    "unserved": ("admit_v1", ("EXIT WHEN unserved = '{}'", "EXIT")),
    "rank of a start": ("queue_due_v1", ("THEN 2 ELSE 1 END", "THEN 1 ELSE 1 END")),
    "starts that are due": ("queue_due_v1", ("WHERE (d.begins OR d.place > p_straight)", "WHERE d.place > p_straight")),
    "order": ("heads_v1", ("ORDER BY s.queued, s.priority DESC, s.deadline", "ORDER BY s.queued, s.deadline")),
    "tokens that were sent": ("dispatch_v1", ("SET tokens = room.tokens - sent", "SET tokens = room.tokens")),
}


LOOK: tuple[str, dict[str, Any]] = ("look", {"limit": 100, "arrives": True})
ONE: tuple[str, dict[str, Any]] = ("look", {"limit": 1, "arrives": True})
CLAIM: tuple[str, dict[str, Any]] = ("claim", {"which": 0, "node": "one"})


def work(rounds: int, limit: int) -> tuple[str, dict[str, Any]]:
    return "work", {"rounds": rounds, "limit": limit, "ends": 1, "seconds": 0.0}


def wait(seconds: float) -> tuple[str, dict[str, Any]]:
    return "time_goes_on", {"seconds": seconds}


def pile(tenant: str, lane: str, priority: int = 0, *, old: bool = False) -> tuple[str, dict[str, Any]]:
    return "pile_up", {"tenant": tenant, "lane": lane, "count": 3, "priority": priority, "old": old}


def enqueue(*, priority: int = 0, later: bool = False) -> tuple[str, dict[str, Any]]:
    return "enqueue", {"tenant": "a", "priority": priority, "deadline": None, "later": later, "old": False}


def begin(width: int, *, online: Any = None, recovery: Any = None, **tools: Any) -> tuple[str, dict[str, Any]]:
    return "begin", {"limits": [online or {}, recovery or {}, tools], "width": width}


def tools(**values: Any) -> tuple[str, dict[str, Any]]:
    return "override", {"lane": "tools", "seconds": None, "values": values}


def node(name: str, *, is_there: bool) -> tuple[str, dict[str, Any]]:
    return "node", {"node": name, "is_there": is_there}


ASKS = ("commit", {"which": 0, "width": 2, "lane": "tools", "uses": "llm", "settles": True})
SCHEDULES: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "cap of a tenant": [begin(5, tenant_in_flight=1), LOOK],
    "virtual time": [begin(25, in_flight=4), work(8, 2), pile("c", "tools"), pile("c", "tools"), work(5, 1)],
    "passes": [begin(25, in_flight=4), work(5, 1)],
    "weights": [begin(25, in_flight=4, weights={"a": 3.0}), work(8, 4)],
    "what runs": [begin(5, in_flight=2), LOOK, CLAIM, CLAIM, LOOK],
    "lock of the lane": [begin(10, in_flight=2), ("look_both", {"dies": False, "lane": "tools"})],
    "refusal of a claim": [begin(5, in_flight=2), LOOK, *[("claim_unasked", {"which": n}) for n in range(6)]],
    "set aside leaves the queue": [
        *[begin(1, in_flight=0), enqueue(), LOOK, CLAIM, ASKS],
        *[("breaker", {"is_open": True}), ONE],
    ],
    "parked has no place": [begin(5, in_flight=2), LOOK, ("pause_a_run", {"which": 0, "is_paused": True})],
    "late retry": [
        *[begin(1, recovery={"in_flight": 2}, in_flight=0), enqueue(), LOOK, CLAIM],
        *[("lose", {"which": 0, "speaks": True}), ("retry", {"which": 0, "delay": 3.0})],
    ],
    "late ticket": [
        *[begin(5, in_flight=2), LOOK, wait(6.0), node("one", is_there=False), CLAIM],
        *[node("one", is_there=True), ONE, ("settle", {"which": 0})],
    ],
    "tokens of before": [begin(25, rate=0.5, burst=10), LOOK, wait(11.0), tools(rate=5.0), LOOK],
    "rate of nothing": [begin(5, rate=5.0, burst=3), tools(rate=0.0), LOOK],
    "unserved": [begin(2, in_flight=1), pile("a", "tools", 2, old=True), node("two", is_there=False), LOOK],
    "rank of a start": [
        *[begin(1, online={"in_flight": 1}), enqueue(priority=2, later=True), wait(5.0)],
        *[pile("a", "online"), ONE],
    ],
    "starts that are due": [begin(1), enqueue(later=True), wait(5.0), LOOK],
    "order": [begin(1, in_flight=1), pile("a", "tools"), wait(1.0), pile("a", "tools", 2), ONE],
    "tokens that were sent": [begin(5, rate=2.0, burst=3), LOOK, LOOK],
}


@pytest.fixture
def two(ledger_url: str) -> Iterator[tuple[Connection, Connection]]:
    with connect(ledger_url, name="machine") as first, connect(ledger_url, name="machine") as second:
        for opened in (first, second):
            opened.execute("SET synchronous_commit = off")  # nothing here is to survive the server
            opened.execute("SET lock_timeout = '1s'")  # who waits for a row that the other one has would wait for ever
        first.execute("INSERT INTO safepoint.breakers (name) VALUES ('llm')")
        yield first, second


def play(machine: Admission, schedule: list[tuple[str, dict[str, Any]]]) -> None:
    for rule, arguments in schedule:
        getattr(machine, rule)(**arguments)
        machine.everything_is_somewhere()


@pytest.mark.parametrize("guard", GUARDS)
def test_a_schedule_that_goes_well_does_not_without_this_guard(two: tuple[Connection, Connection], guard: str) -> None:
    name, *changes = GUARDS[guard]
    connection, second = two
    facts = {"connection": connection, "second": second, "clock": Clock(connection)}
    kind = type("Machine", (Admission,), facts)
    machine = kind()
    play(machine, SCHEDULES[guard])
    machine.relays.forget()

    row = connection.execute(
        "SELECT pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = 'safepoint'::regnamespace AND proname = %s",
        (name,),
    ).fetchone()
    assert row
    body = str(row[0])
    for old, new in changes:
        assert old in body
        body = body.replace(old, new)
    connection.execute(body.encode())

    with pytest.raises((AssertionError, LockNotAvailable)):
        play(kind(), SCHEDULES[guard])

"""What `doctor` makes of facts that no test can bring about: pure."""

from __future__ import annotations

from dataclasses import replace

import pytest
from safepoint.cli import broker_findings, server_findings, work_findings
from safepoint.cli.finding import Finding, Level
from safepoint.ledger.condition import Identity
from safepoint.ledger.server import Bloat, Holder, Reading, Room, Server
from safepoint.tasks.broker import Bounds, Memory, Queues
from safepoint.tasks.broker_amqp import AmqpState
from safepoint.tasks.broker_redis import RedisState
from safepoint.tasks.management import Management

SERVER = Server("18.1", 180_001, {"fsync": "on", "full_page_writes": "on", "synchronous_commit": "on"})
BOUNDS = Bounds("summarize", 600.0, 725, 3600.0)
RABBIT = AmqpState("RabbitMQ", "4.1.0", Queues({}), confirms=True, blocked=None)
VALKEY = RedisState("Valkey", "9.1", False, Memory(1, 0, "noeviction"), True, None, 5, 100, Queues({}))
NOTED = Identity("created", None, 1.0, "node-1", None, None, has_live_runs=True)


def levels(found: list[Finding]) -> list[str]:
    return [str(one.level) for one in found]


@pytest.mark.parametrize(
    ("ahead", "round_trip", "level", "word"),
    [
        (0.4, 0.001, Level.OK, "differ by 400.0 ms, ± 0.5 ms"),
        (3.2, 0.001, Level.WARNING, "3.2 s ahead of this machine's (± 0.5 ms)"),
        (-90.0, 0.2, Level.WARNING, "90 s behind this machine's (± 100.0 ms)"),
        (1.4, 1.0, Level.OK, "differ by"),  # as likely the way there as the clock
    ],
)
def test_a_clock_is_wrong_only_beyond_what_the_round_trip_leaves_open(
    ahead: float, round_trip: float, level: Level, word: str
) -> None:
    (found,) = server_findings.clock(Reading(ahead, round_trip))

    assert found.level == level
    assert word in found.text


@pytest.mark.parametrize(
    ("changes", "word"),
    [({"number": 130_012}, "needs 14 or later"), ({"in_recovery": True}, "standby")],
)
def test_a_server_that_cannot_be_a_ledger_is_an_error(changes: dict[str, object], word: str) -> None:
    (found,) = server_findings.server(replace(SERVER, **changes))  # type: ignore[arg-type]  # of any field

    assert (found.level, word in found.text) == (Level.ERROR, True)
    assert levels(server_findings.server(SERVER)) == ["ok"]


def test_a_durable_server_is_fine_and_one_without_vacuum_is_not() -> None:
    lazy = replace(SERVER, settings={**SERVER.settings, "autovacuum": "off"})

    assert levels(server_findings.durability(SERVER)) == ["ok"]
    assert levels(server_findings.durability(lazy)) == ["warning"]
    assert levels(server_findings.durability(replace(SERVER, frozen_age=1_900_000_000))) == ["error"]


def test_a_slow_way_to_the_ledger_is_said() -> None:
    assert levels(server_findings.latency(Reading(0, 0.001))) == ["ok"]
    assert levels(server_findings.latency(Reading(0, 0.150))) == ["warning"]


def test_a_server_that_is_nearly_full_or_full_is_said() -> None:
    assert levels(server_findings.room(Room(100, 20, 1), [])) == ["ok"]
    assert levels(server_findings.room(Room(100, 90, 1), [])) == ["warning"]
    assert levels(server_findings.room(Room(100, 100, 1), [])) == ["error"]


def test_whatever_holds_vacuum_back_comes_with_the_way_to_end_it() -> None:
    session = Holder("session", "4711", "psql", "idle in transaction", 5400.0)
    prepared, slot = Holder("prepared", "tx-1", "ann", "prepared", 60.0), Holder("slot", "old", "pgoutput", "-", None)
    found = server_findings.holders([session, prepared, slot])

    assert levels(found) == ["warning"] * 3
    assert "psql (process 4711, idle in transaction) is open for 90 min" in found[0].text
    ways = ("pg_terminate_backend(4711)", "COMMIT PREPARED 'tx-1'", "pg_drop_replication_slot('old')")
    assert all(way in str(one.next) for one, way in zip(found, ways, strict=True))


def test_a_table_of_dead_rows_is_said() -> None:
    found = server_findings.bloat([Bloat("steps", 1000, 900_000, None), Bloat("runs", 10, 40, None)])

    assert [(one.level, "safepoint.steps" in one.text) for one in found] == [(Level.WARNING, True)]
    assert levels(server_findings.bloat([Bloat("steps", 900_000, 60_000, None)])) == ["ok"]


def test_takeovers_that_wait_after_an_outage_are_said() -> None:
    (found,) = work_findings.scan(replace(NOTED, frozen_for=12.0), interval=1.0)

    assert (found.level, "takeovers wait 12 s more" in found.text) == (Level.OK, True)


def test_a_visibility_timeout_below_four_hard_limits_is_an_error() -> None:
    assert levels(broker_findings.visibility(BOUNDS, running=0.0)) == ["ok"]
    assert levels(broker_findings.visibility(replace(BOUNDS, visibility_timeout=2800.0), running=0.0)) == ["error"]
    assert broker_findings.visibility(replace(BOUNDS, visibility_timeout=None), running=0.0) == []


def test_a_rabbitmq_in_an_alarm_is_an_error() -> None:
    in_alarm = broker_findings.amqp(RABBIT, Management(alarms=("disk space on rabbit@a",)))
    blocked = broker_findings.amqp(replace(RABBIT, confirms=False, blocked="low on memory"), None)
    silent = broker_findings.amqp(replace(RABBIT, confirms=False), None)

    assert [levels(found) for found in (in_alarm, blocked, silent)] == [["ok", "error"]] * 3
    assert "disk space on rabbit@a" in in_alarm[1].text
    assert "low on memory" in blocked[1].text
    assert levels(broker_findings.amqp(RABBIT, Management())) == ["ok", "ok"]


@pytest.mark.parametrize(
    ("timeouts", "level"),
    [({"online": 60.0}, "error"), ({"online": 3600.0}, "ok"), ({}, "warning"), ({"other": 1.0}, "warning")],
)
def test_a_consumer_timeout_is_judged_where_it_is_told(timeouts: dict[str, float], level: str) -> None:
    found = broker_findings.consumer_timeout(BOUNDS, Management(consumer_timeouts=timeouts), ["online"])

    assert levels(found) == [level]


def test_a_queue_with_messages_and_no_consumer_is_said() -> None:
    queues = Queues({"online": 3, "recovery": 0}, None, {"online": 0, "recovery": 0})

    (found,) = broker_findings.depths(queues, {"online": "online"}, [], control="control", patience=10.0)

    assert (found.level, "has no consumer" in found.text) == (Level.WARNING, True)


def test_session_locks_and_notifications_that_fail_are_slower_and_as_correct() -> None:
    lost, off = server_findings.direct(False, wanted=True), server_findings.direct(True, wanted=False)

    assert [levels(one) for one in (lost, off, server_findings.notify(False))] == [["warning"], ["ok"], ["warning"]]
    assert "lease" in off[0].text


def test_a_valkey_that_cannot_write_is_an_error_and_one_without_a_file_is_none() -> None:
    forgetful = broker_findings.redis(replace(VALKEY, is_persistent=False))

    assert "error" in levels(broker_findings.redis(replace(VALKEY, write_error="aof_last_write_status")))
    assert set(levels(broker_findings.redis(VALKEY))) == set(levels(forgetful)) == {"ok"}
    assert "the relay sends again" in forgetful[-1].text

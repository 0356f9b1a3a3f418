"""What the ledger's readers show: the public form of a run, and never an error, whatever is stored."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import pytest
from prepared import FIRST, NODE, SECOND, Ledger, prepared, step
from safepoint.ledger import commit, control, fleet, nodes, outbox, views
from safepoint.ledger.document import dumps
from safepoint.ledger.errors import LedgerUnavailable, SchemaTooOld
from safepoint.ledger.lane_views import list_lanes
from safepoint.ledger.snapshot import snapshot
from safepoint.ledger.why import why

FIELDS = [
    "run_id", "tenant", "flow", "version", "status", "reason", "current", "completed_steps", "attempt",
    "deadline", "budget", "spent", "wasted", "versions", "state_version", "input", "result", "error", "tags",
    "conversation", "created_at", "finished_at",
]  # fmt: skip
STEP_FIELDS = [
    "key", "step", "kind", "generation", "status", "reason", "attempt", "recoveries", "epoch", "lane", "node",
    "started_at", "committed_at", "spent",
]  # fmt: skip


@pytest.fixture
def ledger(ledger_url: str) -> Iterator[Ledger]:
    with prepared(ledger_url) as found:
        yield found


def test_a_run_has_every_field_of_the_public_page(ledger: Ledger) -> None:
    run = ledger.started(step(FIRST), step(SECOND), tags='{"team": "sre"}')
    ledger.claim(run, FIRST)
    ledger.commit(run, FIRST, data=b'"cause"', tokens=7)

    found = ledger.read(run)

    assert list(found) == [*FIELDS, "steps", "effects", "events", "artifacts"]
    assert [list(one) for one in found["steps"]] == 3 * [STEP_FIELDS]
    assert found["current"] == ["gather#1.1/search#1"]
    assert (found["completed_steps"], found["spent"]["tokens"]) == (1, 7)
    assert (found["input"], found["tags"]) == ({"alert": 1}, {"team": "sre"})
    assert [one["status"] for one in found["steps"]] == ["succeeded", "succeeded", "ready"]
    assert json.loads(dumps(found)) == found


def test_a_list_is_filtered_and_paged_from_the_newest(ledger: Ledger) -> None:
    runs = [
        ledger.enqueue(tenant=tenant, tags=json.dumps({"n": str(n)})) for n, tenant in enumerate(["a", "b", "a", "a"])
    ]
    ledger.connection.execute("SELECT safepoint.cancel_v1(%s, 'me')", [runs[0]])

    with snapshot(ledger.url, name="test") as connection:
        mine = views.list_runs(connection, tenant="a", limit=2)
        rest = views.list_runs(connection, tenant="a", limit=2, before=UUID(mine[-1]["run_id"]))
        tagged = views.list_runs(connection, tags={"n": "1"})
        queued = views.list_runs(connection, status=["queued"], flow="triage@1")
        other = views.list_runs(connection, flow="triage@2")

    assert [one["run_id"] for one in mine + rest] == [str(runs[3]), str(runs[2]), str(runs[0])]
    assert list(mine[0]) == FIELDS
    assert [one["run_id"] for one in tagged] == [str(runs[1])]
    assert (len(queued), len(other)) == (3, 0)


def test_events_come_after_a_number_with_the_incarnation_in_their_id(ledger: Ledger) -> None:
    run = ledger.started(step(FIRST))

    with snapshot(ledger.url, name="test") as connection:
        everything = views.list_events(connection, run)
        later = views.list_events(connection, run, after=2)

    assert [one["seq"] for one in everything] == [1, 2, 3]
    assert [one["type"] for one in later] == ["step.scheduled"]
    assert everything[0]["id"].endswith("-1")
    assert len({one["id"].rpartition("-")[0] for one in everything}) == 1


def test_nothing_that_is_stored_makes_reading_fail(ledger: Ledger) -> None:
    run = ledger.enqueue()
    ledger.change(run, deadline="infinity")
    parked = ledger.started(step(FIRST))
    control.pause(ledger.connection, parked, by="me")
    ledger.change(run, input=b"\xff\x00", reason="[1]", budget="3", artifacts='"x"', spent_usd="NaN", error='"odd"')
    ledger.change(run, versions='{"big": ' + 5000 * "9" + "}")
    ledger.change(parked, input_encoding="sealed", reason="{}", result=b'"\\ud800"', result_encoding="json")

    found, other = ledger.read(run), ledger.read(parked)
    with snapshot(ledger.url, name="test") as connection:
        listed, explained = views.list_runs(connection), [why(connection, one) for one in (run, parked)]

    assert found["input"] == {"encoding": "json", "bytes": 2}
    assert (found["deadline"], found["artifacts"], found["budget"]["usd"]) == ("infinity", [], None)
    assert other["input"]["encoding"] == "sealed"
    assert json.loads(dumps([found, other]))[1]["run_id"] == str(parked)
    assert (len(listed), None in explained) == (2, False)


def test_a_run_that_does_not_exist_is_none(ledger: Ledger) -> None:
    with snapshot(ledger.url, name="test") as connection:
        assert views.read_run(connection, uuid4()) is None
        assert why(connection, uuid4()) is None
        assert views.list_events(connection, uuid4()) == []
        assert views.find_runs(connection, "0") == []


def test_the_beginning_of_an_id_finds_the_run(ledger: Ledger) -> None:
    run = ledger.enqueue()

    with snapshot(ledger.url, name="test") as connection:
        assert views.find_runs(connection, str(run)[:9]) == [run]


WAITS = [
    ("timer", {"delay": 60.0}, "sleeps for 60 s more"),
    ("signal", {"delay": 60.0}, "waits for the signal 'look' for 60 s more"),
    ("signal", {}, "waits for the signal 'look'"),
    ("approval", {}, "waits for a decision on 'look'"),
]


@pytest.mark.parametrize(("kind", "more", "text"), WAITS)
def test_a_wait_says_what_it_waits_for(ledger: Ledger, kind: str, more: dict[str, Any], text: str) -> None:
    run = ledger.started(step(FIRST, kind, reason={"code": kind}, **more))

    (reason,) = ledger.reasons(run)

    assert (reason["code"], reason["text"]) == (kind, f"look#1 {text}")
    assert set(reason) >= {"code", "since", "text", "next"}
    assert ledger.read(run)["reason"]["code"] == kind


def test_a_child_is_named_in_the_reason(ledger: Ledger) -> None:
    child = {
        "run_id": str(uuid4()),
        "flow": "sub",
        "version": "1",
        "input": "W10=",
        "encoding": "json",
        "hash": "00",
        "versions": {},
    }
    run = ledger.started(step(FIRST, "child", child=child))

    (reason,) = ledger.reasons(run)

    assert reason["next"] == f"safepoint why {child['run_id']}"


def test_a_ready_step_that_nobody_serves_says_no_worker(ledger: Ledger) -> None:
    run = ledger.enqueue(version="9")

    (reason,) = ledger.reasons(run)

    assert reason["code"] == "no_worker"
    assert "triage@9" in reason["text"]
    assert ledger.read(run)["reason"]["code"] == "no_worker"


def test_a_retry_says_after_what_and_when(ledger: Ledger) -> None:
    run = ledger.started(step(FIRST))
    ledger.claim(run, FIRST)
    error = {"type": "Timeout", "message": "slow"}
    commit.retry(ledger.connection, run, FIRST, token=ledger.tokens[FIRST], node=NODE, error=error, delay=90)

    (reason,) = ledger.reasons(run)

    assert reason["code"] == "retry"
    assert "due in 90 s: attempt 2 after Timeout" in reason["text"]


def test_a_run_for_later_says_so(ledger: Ledger) -> None:
    run = ledger.enqueue(start_at=datetime(2200, 1, 1, tzinfo=UTC))

    (reason,) = ledger.reasons(run)

    assert (reason["code"], "enqueued for later" in reason["text"]) == ("timer", True)


def test_a_limited_lane_says_its_limit(ledger: Ledger) -> None:
    run = ledger.started(step(FIRST, lane="recovery"))

    (reason,) = ledger.reasons(run)

    assert (reason["code"], reason["next"]) == ("lane", "safepoint lanes show recovery")
    assert "5 steps a second" in reason["text"]


def test_every_hold_is_a_reason_of_its_own(ledger: Ledger) -> None:
    run = ledger.started(step(FIRST))
    for code in ("flow_error", "poison"):
        ledger.connection.execute("SELECT safepoint.hold_v1(%s, %s, 'told', NULL, NULL)", [run, code])

    found = ledger.reasons(run)

    assert [one["code"] for one in found] == ["flow_error", "poison"]
    assert str(run) in found[1]["next"]
    assert ledger.read(run)["status"] == "held"


def test_a_pause_names_the_way_out(ledger: Ledger) -> None:
    run = ledger.started(step(FIRST))
    control.pause(ledger.connection, run, by="me")

    (reason,) = ledger.reasons(run)

    assert (reason["code"], reason["next"]) == ("paused", f"safepoint resume {run}")


def test_a_dead_owner_is_a_reason(ledger: Ledger) -> None:
    run = ledger.started(step(FIRST))
    ledger.claim(run, FIRST)
    running = ledger.reasons(run)
    nodes.stop(ledger.connection, NODE)

    (reason,) = ledger.reasons(run)

    assert running == []
    assert "no sign of life" in reason["text"]


def test_nodes_show_what_they_execute(ledger: Ledger) -> None:
    run = ledger.started(step(FIRST))
    ledger.claim(run, FIRST)
    ledger.register("gone")
    nodes.stop(ledger.connection, "gone")

    with snapshot(ledger.url, name="test") as connection:
        (node,) = fleet.list_nodes(connection)
        both = fleet.list_nodes(connection, past=True)

    assert {"id", "host", "started", "last_seen", "lanes", "serves", "active"} <= set(node)
    assert [(one["run_id"], one["step"]) for one in node["active"]] == [(str(run), "look#1")]
    assert sorted(one["state"] for one in both) == ["live", "stopped"]


def test_lanes_count_what_is_on_them(ledger: Ledger) -> None:
    run = ledger.started(step(FIRST), step(SECOND))
    outbox.dispatch(ledger.connection, limit=10, grace=5, redispatch_after=10)
    ledger.claim(run, FIRST)

    with snapshot(ledger.url, name="test") as connection:
        found = {one["name"]: one for one in list_lanes(connection)}

    assert (found["online"]["ready"], found["online"]["running"], found["online"]["workers"]) == (1, 1, 1)
    assert found["recovery"]["rate"] == 5


def test_versions_show_what_is_wanted_and_missing(ledger: Ledger) -> None:
    ledger.enqueue()
    ledger.enqueue(version="9")

    with snapshot(ledger.url, name="test") as connection:
        found = {one["version"]: one for one in fleet.list_versions(connection)}

    assert (found["1"]["live_runs"], found["1"]["nodes"], found["1"]["missing"]) == (1, [NODE], False)
    assert (found["9"]["live_runs"], found["9"]["missing"]) == (1, True)


def test_a_snapshot_cannot_write(ledger: Ledger) -> None:
    with pytest.raises(Exception, match="read-only"), snapshot(ledger.url, name="test") as connection:
        connection.exec_driver_sql("DELETE FROM safepoint.runs")


def test_a_database_without_a_ledger_says_what_to_do(postgres_url: str) -> None:
    with pytest.raises(SchemaTooOld, match="safepoint db upgrade"), snapshot(postgres_url, name="test") as connection:
        views.list_runs(connection)


def test_a_server_that_is_away_is_unavailable() -> None:
    with pytest.raises(LedgerUnavailable), snapshot("postgresql://nobody@127.0.0.1:1/x", name="test"):
        pass

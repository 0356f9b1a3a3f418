"""The incident agent without servers, and its ticket service on its own."""

from __future__ import annotations

import http.client
import json
import sys
import threading
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "incident"
sys.path.insert(0, str(EXAMPLE))

import evidence  # noqa: E402  # the example's folder is on the path only now
import incident_agent  # noqa: E402
import stand_in_model  # noqa: E402
import ticket_service  # noqa: E402
import tickets  # noqa: E402
from safepoint import NOT_EXECUTED, Found  # noqa: E402
from safepoint.testing import run_flow, step_context  # noqa: E402

ALERT = json.loads((EXAMPLE / "input" / "alert.json").read_text())
UNTIL = datetime.fromisoformat("2025-03-14T09:56:00Z")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INCIDENT_MODEL_SECONDS", "0")


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A running ticket service."""
    server = ticket_service.Service(0, str(tmp_path / "tickets.sqlite"))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    monkeypatch.setenv("TICKETS_URL", url)
    yield url
    server.shutdown()
    thread.join()
    server.server_close()
    server.tickets.end()


def ask(url: str, method: str, path: str, body: Any = None, key: str | None = None) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=5)
    headers = {"Idempotency-Key": key} if key else {}
    try:
        connection.request(method, path, body if isinstance(body, str) else json.dumps(body), headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


@pytest.mark.parametrize("order", ["fifo", "shuffle"])
def test_the_agent_finds_the_cause_and_opens_one_ticket(service: str, order: Any) -> None:
    call = incident_agent.incident.from_json(ALERT)

    played = run_flow(call, steps={incident_agent.open_ticket: incident_agent.open_ticket.fn}, order=order)

    assert "CouponRepository.reserve" in played.result.cause
    (ticket,) = ask(service, "GET", "/tickets")[1]
    assert (ticket["number"], ticket["requests"]) == (played.result.ticket, 1)
    assert "ALERT-20250314-0042" in ticket["title"]
    assert "db_connections_in_use, from 11.4 to 40.0" in ticket["body"]


def test_the_first_metric_to_move_is_named() -> None:
    shifts = evidence.find_shifts(EXAMPLE / "input" / "metrics.csv", ["latency_p95_ms", "db_connections_in_use"], UNTIL)

    assert [shift.metric for shift in shifts] == ["db_connections_in_use", "latency_p95_ms"]
    assert evidence.find_shifts(EXAMPLE / "input" / "metrics.csv", ["memory_mb", "no_such"], UNTIL) == []


def test_complaints_are_grouped_and_changes_found() -> None:
    logs = evidence.read_logs(EXAMPLE / "input" / "logs", ["checkout", "payments"], UNTIL)

    assert any("could not get a connection from the pool within N ms" in pattern.text for pattern in logs.patterns)
    assert any("release 4.18.0" in change for change in logs.changes)
    assert len(logs.lines) == 250


def test_the_model_answers_the_same_and_bills_each_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INCIDENT_BILL", str(tmp_path / "bill"))
    told: list[int] = []

    answers = [stand_in_model.ask("plan", "alert latency\nservice a", effort=0, tell=told.append) for _ in range(2)]

    assert answers[0] == answers[1]
    assert told[:10] == [10, 20, 30, 40, 50, 60, 70, 80, 90, 100]
    bill = [json.loads(line)["tokens"] for line in (tmp_path / "bill").read_text().splitlines()]
    assert bill == [answers[0].tokens] * 2


TICKET = {"title": "t", "body": "b"}


def test_a_key_makes_one_ticket(service: str) -> None:
    first, again = (ask(service, "POST", "/tickets", TICKET, key="k") for _ in range(2))
    other = ask(service, "POST", "/tickets", {"title": "t", "body": "other"}, key="k")

    assert (first[0], again[0], other[0]) == (201, 200, 409)
    assert first[1]["number"] == again[1]["number"]
    assert len(ask(service, "GET", "/tickets")[1]) == 1
    assert ask(service, "GET", "/tickets?key=k")[1]["number"] == first[1]["number"]


def test_without_a_key_each_request_makes_a_ticket(service: str) -> None:
    for _ in range(2):
        ask(service, "POST", "/tickets", TICKET)

    assert len(ask(service, "GET", "/tickets")[1]) == 2


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/health", None, 200),
        ("GET", "/tickets?key=unknown", None, 404),
        ("GET", "/tickets/1", None, 404),
        ("GET", "/elsewhere", None, 404),
        ("POST", "/elsewhere", {}, 404),
        ("POST", "/tickets", "not json", 400),
        ("POST", "/tickets", {"title": "t"}, 400),
        ("POST", "/tickets/1/close", {}, 404),
    ],
)
def test_the_service_answers_every_request(service: str, method: str, path: str, body: Any, status: int) -> None:
    assert ask(service, method, path, body)[0] == status


def test_the_lookup_finds_what_the_effect_has_made(service: str) -> None:
    with step_context(idempotency_key="k"):
        before = incident_agent.find_ticket("t", "b")
        made = incident_agent.open_ticket.fn("t", "b")
        after = incident_agent.find_ticket("t", "b")

    assert before is NOT_EXECUTED
    assert after == Found(made)
    incident_agent.close_ticket(made)
    assert ask(service, "GET", f"/tickets/{made.number}")[1]["status"] == "closed"


def test_a_service_that_is_away_was_sent_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TICKETS_URL", "http://127.0.0.1:1")

    with pytest.raises(ConnectionRefusedError):
        tickets.create("t", "b", idempotency_key="k")

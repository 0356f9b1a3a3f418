"""One sentence for each state of a run."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from safepoint.cli.words import age, clock, lines_of, moment, next_command, short, verdict

RUN: dict[str, Any] = {
    "run_id": "R", "flow": "incident", "version": "2", "status": "running", "completed_steps": 1, "error": None,
    "created_at": "2026-01-01T00:00:00+00:00", "finished_at": "2026-01-01T00:00:05+00:00", "steps": [],
}  # fmt: skip
QUIET: dict[str, Any] = {"status": "running", "reasons": [], "running": []}
REASON = {"code": "timer", "text": "it sleeps", "next": "wait", "since": None}


@pytest.mark.parametrize(
    ("run", "why", "sentence", "command"),
    [
        ({"status": "succeeded", "steps": [{"recoveries": 2}]}, {}, "1 step committed, 2 recoveries on", "show R"),
        ({"status": "failed", "error": {"type": "E", "message": "m"}}, {}, "with 1 step committed: E: m", "retry R"),
        ({"status": "failed", "error": "odd"}, {}, "error: odd", "retry R"),
        ({"status": "cancelled", "completed_steps": 2}, {}, "after 5.0 s, with 2 steps", "enqueue incident"),
        ({}, {}, "its next step is on its way to a worker", "watch R"),
        ({}, {"reasons": [REASON, REASON]}, "it sleeps (and 1 more)", "wait"),
        ({}, {"running": [{"step": "a#1", "node": "n", "for": 3.0}]}, "a#1 under way on n for 3.0 s", "watch R"),
        ({"status": "held"}, {"status": "held", "reasons": [REASON], "running": [{}]}, "it sleeps", "wait"),
        ({"finished_at": None, "status": "succeeded"}, {}, "succeeded in a while", "show R"),
    ],
)  # fmt: skip
def test_a_run_is_told_in_a_sentence(run: dict[str, Any], why: dict[str, Any], sentence: str, command: str) -> None:
    assert sentence in verdict(RUN | run, QUIET | why)
    assert command in next_command(RUN | run, QUIET | why)


def test_odd_instants_have_no_age() -> None:
    assert (age("infinity"), age(None), clock("infinity")) == ("", "", "")


def test_a_day_is_told_unless_it_is_today() -> None:
    noon = datetime.now().astimezone().replace(hour=12, minute=0, second=0, microsecond=0)
    later = noon + timedelta(days=1)

    assert moment(noon.isoformat(), now=noon) == "12:00:00"
    assert moment(later.isoformat(), now=noon) == f"{later:%Y-%m-%d} 12:00:00"
    assert moment(None) == ""


def test_long_values_are_cut() -> None:
    assert short("x " * 100, width=9) == "x x x x …"


def test_an_event_is_a_line() -> None:
    data = {"error": {"type": "E", "message": "m"}, "node": None, "detail": {"long": 1}, "epoch": 1}
    event = {"at": "2026-01-01T00:00:00+00:00", "seq": 3, "type": "step.failed", "key": "a#1", "data": data}

    line = lines_of(event)

    assert "step.failed" in line
    assert "error=E: m epoch=1" in line
    assert "detail" not in line

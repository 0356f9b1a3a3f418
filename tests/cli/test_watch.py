"""`watch`: each event once, and an exit code that says how the run ended."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import pytest
from prepared import FIRST, Ledger, step
from safepoint.cli.watch import Look, follow, percent, print_live
from safepoint.ledger.snapshot import snapshot

Run = Callable[..., Any]


@pytest.mark.parametrize(("status", "code"), [("succeeded", 0), ("failed", 1), ("cancelled", 1)])
def test_the_exit_code_says_how_it_ended(ledger: Ledger, run: Run, status: str, code: int) -> None:
    made = ledger.started(step(FIRST))
    ledger.change(made, status=status, finished_at=datetime.now(UTC))

    ran = run("watch", made)

    assert ran.code == code
    assert ran.out.count("run.queued") == 1
    assert f"Next: safepoint {'retry' if status == 'failed' else ''}" in ran.out


def test_it_ends_with_the_sentence_of_show(ledger: Ledger, run: Run) -> None:
    made = ledger.started(step(FIRST))
    ledger.change(made, status="succeeded", finished_at=datetime.now(UTC))
    ledger.connection.execute(
        "UPDATE safepoint.steps SET recoveries = 1 WHERE run_id = %s AND step_id = '@start'", [made]
    )

    watched, shown = run("watch", made).out, run("show", made).out

    assert ", 1 recovery on the way." in watched
    assert shown.splitlines()[0] in watched.splitlines()


def test_a_held_run_ends_the_watch_with_3(ledger: Ledger, run: Run) -> None:
    made = ledger.started(step(FIRST))
    ledger.connection.execute("SELECT safepoint.hold_v1(%s, 'poison', 'it kills', 'do this', NULL)", [made])

    ran = run("watch", made)

    assert ran.code == 3
    assert "Next: do this" in ran.out


def test_json_is_one_event_a_line(ledger: Ledger, run: Run) -> None:
    made = ledger.started(step(FIRST))
    ledger.connection.execute("SELECT safepoint.cancel_v1(%s, 'me')", [made])
    ledger.change(made, status="cancelled", finished_at=datetime.now(UTC))

    ran = run("watch", made, "--json", "--after", 1)

    events = [json.loads(line) for line in ran.out.splitlines()]
    assert [event["seq"] for event in events] == list(range(2, 2 + len(events)))
    assert {"id", "seq", "v", "type", "key", "data", "at"} == set(events[0])


def test_every_event_is_shown_once_while_the_run_goes_on(ledger: Ledger) -> None:
    made = ledger.started(step(FIRST))

    seen: list[Look] = []
    with snapshot(ledger.url, name="test") as connection:
        for look in follow(connection, made, poll=0):
            seen.append(look)
            if len(seen) == 2:
                ledger.claim(made, FIRST)
                ledger.commit(made, FIRST, data=b"1")
            if len(seen) == 3:
                ledger.change(made, status="succeeded", finished_at=datetime.now(UTC))

    numbers = [event["seq"] for look in seen for event in look.events]
    assert numbers == list(range(1, len(numbers) + 1))
    assert [len(look.events) > 0 for look in seen] == [True, False, True, False]


def test_a_run_that_waits_says_once_for_what(ledger: Ledger, capfd: pytest.CaptureFixture[str]) -> None:
    made = ledger.started(step(FIRST, "signal", delay=60.0, reason={"code": "signal"}))

    def looks() -> Iterator[Look]:
        with snapshot(ledger.url, name="test") as connection:
            yield from islice(follow(connection, made, poll=0), 3)

    last = print_live(looks())

    assert last.obstacle is not None
    assert capfd.readouterr().out.count(f"Next: safepoint signal {made} look JSON") == 1


@pytest.mark.parametrize(
    ("status", "done", "current", "expected"),
    [("queued", 0, 1, 0), ("running", 3, 1, 75), ("running", 0, 0, 0), ("succeeded", 0, 0, 100), ("failed", 1, 0, 50)],
)
def test_progress_counts_the_open_steps_as_undone(status: str, done: int, current: int, expected: float) -> None:
    assert percent({"status": status, "completed_steps": done, "current": ["x"] * current}) == expected

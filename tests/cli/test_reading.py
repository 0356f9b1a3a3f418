"""`runs`, `show`, `why`, `nodes`, `lanes`, `versions`: a document for programs, a sentence and a command for people."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest
from prepared import FIRST, Ledger, step
from safepoint.ledger import control, outbox
from safepoint.ledger.steps import Cause, Loss, lose

Run = Callable[..., Any]


def test_runs_are_one_document(ledger: Ledger, run: Run) -> None:
    old, new = ledger.enqueue(), ledger.enqueue(tags='{"team": "sre"}', tenant="acme")

    listed = run("runs", "--json")

    assert [one["run_id"] for one in listed.document] == [str(new), str(old)]
    assert [one["run_id"] for one in run("runs", "--json", "--tag", "team=sre").document] == [str(new)]
    assert [one["run_id"] for one in run("runs", "--json", "--tenant", "default").document] == [str(old)]
    assert [one["run_id"] for one in run("runs", "--json", "--limit", 1, "--before", new).document] == [str(old)]
    assert run("runs", "--json", "--status", "held").document == []
    assert run("runs", "--count", "--json").document == {"queued": 2}


def test_runs_for_people_have_whole_ids(ledger: Ledger, run: Run) -> None:
    made = ledger.enqueue()

    assert str(made) in run("runs").out
    assert "enqueue FLOW" in run("runs", "--tenant", "nobody").out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("runs", "--status", "asleep"), "no status 'asleep'"),
        (("runs", "--tag", "team"), "NAME=VALUE"),
        (("show", "not-an-id"), "is no run id"),
        (("show", "abc"), "is no run id"),
        (("show",), "Missing argument"),
        (("shwo",), "No such command"),
    ],
)
def test_wrong_usage_is_exit_code_2(ledger: Ledger, run: Run, arguments: tuple[str, ...], told: str) -> None:
    ran = run(*arguments)

    assert ran.code == 2
    assert told in " ".join(ran.err.replace("│", " ").split())


def test_an_unknown_run_is_one_line_that_says_what_to_do(ledger: Ledger, run: Run) -> None:
    ran = run("show", uuid4())

    assert ran.code == 1
    assert ran.err.startswith("safepoint: There is no run")
    assert "safepoint runs" in ran.err
    assert len(ran.err.splitlines()) == 1


def test_a_run_is_found_by_the_beginning_of_its_id(ledger: Ledger, run: Run) -> None:
    made = ledger.enqueue()

    assert run("show", str(made)[:13], "--json").document["run_id"] == str(made)


def test_a_beginning_that_several_runs_have_is_refused(ledger: Ledger, run: Run) -> None:
    for last in "12":
        ledger.enqueue(run_id=f"01a20000-0000-7000-8000-00000000000{last}")

    ran = run("show", "01a20000")

    assert ran.code == 2
    assert "several runs" in ran.err


def test_show_opens_with_a_sentence_and_the_next_command(ledger: Ledger, run: Run) -> None:
    made = ledger.started(step(FIRST, "signal", reason={"code": "signal"}))

    sentence, next_, *_ = run("show", made).out.splitlines()

    assert sentence.startswith("triage@1 is waiting")
    assert "waits for the signal 'look'" in sentence
    assert next_ == f"Next: safepoint signal {made} look JSON"


def test_show_never_reads_a_value_as_markup(ledger: Ledger, run: Run) -> None:
    made = ledger.enqueue(input='{"text": "[bold]not markup[/bold] [/red]"}')

    ran = run("show", made)

    assert ran.code == 0
    assert "[bold]not markup[/bold] [/red]" in ran.out


def test_a_failed_run_shows_its_error_and_retry(ledger: Ledger, run: Run) -> None:
    made = ledger.enqueue()
    now = datetime.now(UTC)
    ledger.change(made, status="failed", finished_at=now, error='{"type": "Boom", "message": "it broke"}')

    sentence, next_, *_ = run("show", made).out.splitlines()

    assert "failed" in sentence
    assert "Boom: it broke" in sentence
    assert next_ == f"Next: safepoint retry {made}"
    assert "Boom: it broke" in run("runs").out


def test_why_gives_every_reason(ledger: Ledger, run: Run) -> None:
    made = ledger.started(step(FIRST))
    for code in ("flow_error", "poison"):
        ledger.connection.execute("SELECT safepoint.hold_v1(%s, %s, 'told', NULL, NULL)", [made, code])

    ran = run("why", made, "--json")

    assert [one["code"] for one in ran.document["reasons"]] == ["flow_error", "poison"]
    assert ran.document["status"] == "held"
    assert ran.document["next"] == ran.document["reasons"][0]["next"]
    assert "poison" in run("why", made).out


def test_a_poison_step_is_shown_with_what_killed_its_workers(ledger: Ledger, run: Run) -> None:
    made = ledger.started(step(FIRST))
    seen = {"pid": 7, "signal": "SIGKILL", "resident": 1900 << 20, "allowed": 2 << 30, "out_of_memory": "likely"}
    for number in range(2):
        outbox.dispatch(ledger.connection, limit=10, grace=5.0, redispatch_after=10.0)  # a limited lane admits
        ledger.claim(made, FIRST, "recovery" if number else "online")
        loss = Loss(made, FIRST, ledger.tokens[FIRST], Cause.CHILD, deadly=True, pid=1, pid_start=1, evidence=seen)
        lose(ledger.connection, loss, lane="recovery", max_deaths=1)

    shown, told = run("show", made), run("why", made)

    for out in (shown.out, told.out):
        sentence, next_, *_ = out.splitlines()
        assert "the worker died under step look#1 2 times: SIGKILL 2 times; last on node-1" in sentence
        assert sentence.endswith("1.9 GiB resident of 2.0 GiB allowed, likely out of memory.")
        assert next_.endswith(f"more memory, then: safepoint resume {made}")
    assert told.out.count("SIGKILL, pid 7, on node-1, epoch") == 2
    document = run("show", made, "--json").document
    assert document["reason"]["text"] in shown.out
    assert [one["epoch"] for one in document["reason"]["detail"]["evidence"]] == [1, 2]
    (held,) = [one for one in document["steps"] if one["step"] == "look"]
    assert held["reason"]["detail"] == document["reason"]["detail"]


def test_why_says_that_a_step_is_under_way(ledger: Ledger, run: Run) -> None:
    made = ledger.started(step(FIRST))
    ledger.claim(made, FIRST)

    assert "look#1 under way on node-1" in run("why", made).out
    assert run("why", made, "--json").document["running"][0]["step"] == "look#1"


def test_a_paused_run_names_resume(ledger: Ledger, run: Run) -> None:
    made = ledger.started(step(FIRST))
    control.pause(ledger.connection, made, by="me")

    assert f"Next: safepoint resume {made}" in run("show", made).out


def test_the_machinery_is_read_as_documents_and_tables(ledger: Ledger, run: Run) -> None:
    ledger.enqueue(version="9")

    (node,) = run("nodes", "--json").document
    lanes = run("lanes", "--json").document
    versions = run("versions", "--json").document

    assert {"id", "host", "started", "last_seen", "lanes", "serves", "active"} <= set(node)
    assert [lane["name"] for lane in lanes] == ["online", "recovery"]
    assert [one["missing"] for one in versions] == [False, True]
    assert "node-1" in run("nodes").out
    assert "recovery" in run("lanes").out
    assert "accepts=" in run("versions").out

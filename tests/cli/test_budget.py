"""`budget`: what a run may spend with its children, and adding to it; and what `show` says of both."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

import pytest
from books import child
from ledger_verbs import key
from prepared import FIRST, SECOND, Ledger, step
from safepoint.ledger import steps
from safepoint.tasks.rows import child_id

Run = Callable[..., Any]


def begun(ledger: Ledger, **budget: float) -> UUID:
    asked = (step(FIRST, reserve={"tokens": 30}), step(SECOND, reserve={"tokens": 30}))
    return ledger.started(*asked, budget=json.dumps(budget))


def test_a_budget_shows_what_is_spent_reserved_and_left(ledger: Ledger, run: Run) -> None:
    made = begun(ledger, tokens=100_000, retries=3)
    ledger.claim(made, FIRST)
    ledger.commit(made, FIRST, data=b"1", tokens=1_234)
    ledger.claim(made, SECOND)

    told, ran = run("budget", made), run("budget", made, "--json")

    assert [line.split() for line in told.out.splitlines() if line.strip().startswith("tokens")] == [
        ["tokens", "100,000", "1,234", "30", "98,736"]
    ]
    assert ran.document == {
        "run_id": str(made),
        "budget": {"tokens": 100_000, "usd": None, "retries": 3},
        "spent": {"tokens": 1_234, "usd": 0.0, "retries": 0},
        "wasted": {"tokens": 0, "usd": 0.0},
        "shared": {
            "run_id": str(made),
            "budget": {"tokens": 100_000, "usd": None, "retries": 3},
            "spent": {"tokens": 1_234, "usd": 0.0, "retries": 0},
            "reserved": {"tokens": 30, "usd": 0.0},
        },
        "changes": [],
        "released": [],
    }


def test_who_adds_lets_the_run_go_on_and_is_remembered(ledger: Ledger, run: Run) -> None:
    made = begun(ledger, tokens=10)
    ledger.connection.execute("SELECT safepoint.hold_v1(%s, 'budget', 'told', NULL, NULL)", [made])
    assert "safepoint budget" in run("show", made).out

    ran = run("budget", made, "--add-tokens", 50, "--by", "ada", "--why", "worth it", "--json")

    assert (ran.code, ran.document["budget"]["tokens"], ran.document["released"]) == (0, 60, [str(made)])
    assert [(one["by"], one["why"], one["added"]) for one in ran.document["changes"]] == [
        ("ada", "worth it", {"tokens": 50})
    ]
    assert ledger.read(made)["status"] == "running"
    assert ledger.read(made)["budget"]["tokens"] == 60


def test_show_tells_what_children_spent_and_what_was_wasted(ledger: Ledger, run: Run) -> None:
    made = begun(ledger, tokens=1_000)
    ledger.claim(made, FIRST)
    ledger.commit(made, FIRST, data=b"1", tokens=100, asked=[{**child(made), "lane": "online"}])
    sub = child_id(made, key("sub#1"))
    ledger.connection.execute("UPDATE safepoint.runs SET flow = 'triage' WHERE run_id = %s", [sub])
    ledger.claim(sub, key("@start#1"))
    ledger.commit(sub, key("@start#1"), asked=[step(FIRST, reserve={"tokens": 30})])
    ledger.claim(sub, FIRST)
    loss = steps.Loss(sub, FIRST, ledger.tokens[FIRST], steps.Cause.CHILD, pid=1, pid_start=1)
    assert steps.lose(ledger.connection, loss, lane="recovery", max_deaths=5) == "lost"

    mine, theirs, listed = run("show", made), run("show", sub), run("runs", "--json")

    assert "100 (130 with the runs that share the budget) of 1,000" in mine.out
    assert "30 (130 with the runs that share the budget) of 1,000, 30 of them wasted" in theirs.out
    assert {one["wasted"]["tokens"] for one in listed.document} == {0, 30}
    assert run("budget", sub, "--json").document["shared"]["run_id"] == str(made)


@pytest.mark.parametrize(
    ("budget", "option", "text"),
    [
        ({}, "--add-tokens", "it has no budget"),
        ({"tokens": 5}, "--add-retries", "its budget bounds no retries"),
        ({"tokens": 5}, "--add-usd", "its budget bounds no usd"),
    ],
)
def test_what_is_not_bounded_cannot_be_added_to(
    ledger: Ledger, run: Run, budget: dict[str, float], option: str, text: str
) -> None:
    ran = run("budget", begun(ledger, **budget), option, 5)

    assert (ran.code, text in ran.err, len(ran.err.splitlines())) == (1, True, 1)


def test_a_run_without_a_budget_says_so(ledger: Ledger, run: Run) -> None:
    assert "has no budget" in run("budget", begun(ledger)).out
    assert run("budget", uuid4()).code == 1


def test_wrong_amounts_are_wrong_usage(ledger: Ledger, run: Run) -> None:
    assert run("budget", begun(ledger, tokens=5), "--add-tokens", "-5").code == 2

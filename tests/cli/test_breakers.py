"""`breakers`, `breakers trip`, `breakers reset`: what they show and change, and what a run that waits for one says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from prepared import FIRST, Ledger, step
from safepoint.config.breakers import Breakers
from safepoint.recovery import outcomes
from safepoint.recovery.breaker import Tally

Run = Callable[..., Any]
POLICY = Breakers()


@pytest.fixture
def ledger(ledger: Ledger) -> Ledger:
    """A ledger in which two dependencies are known."""
    outcomes.introduce(ledger.connection, POLICY, {"llm", "tickets"})
    return ledger


def opened(ledger: Ledger) -> None:
    outcomes.record(ledger.connection, {"llm": Tally(ok=2, failed=6, throttled=4)}, POLICY, by="node-1")


def test_breakers_are_one_document_the_open_ones_first(ledger: Ledger, run: Run) -> None:
    outcomes.record(ledger.connection, {"llm": Tally(ok=5)}, POLICY, by="node-1")
    outcomes.record(ledger.connection, {"tickets": Tally(failed=10)}, POLICY, by="node-1")

    tickets, llm = run("breakers", "--json").document

    assert (tickets["name"], tickets["state"], llm["name"], llm["state"]) == ("tickets", "open", "llm", "closed")
    assert 11 < tickets["next_probe_in"] <= 15
    assert llm["calls"] == {"ok": 5, "failed": 0, "throttled": 0}
    assert [(one["before"], one["after"], one["by"]) for one in tickets["events"]] == [("closed", "open", "node-1")]


def test_breakers_say_why_and_what_waits(ledger: Ledger, run: Run) -> None:
    made = ledger.started(step(FIRST, uses="llm"))
    opened(ledger)
    with pytest.raises(AssertionError, match="breaker"):
        ledger.claim(made, FIRST)

    ran = run("breakers")

    assert "10 of 12 calls failed within 60 s, 4 of them throttled" in ran.out
    assert "probes in" in ran.out
    (listed,) = (one for one in run("breakers", "--json").document if one["name"] == "llm")
    assert listed["waiting"] == 1


def test_why_says_what_a_run_waits_for_and_until_when(ledger: Ledger, run: Run) -> None:
    made = ledger.started(step(FIRST, uses="llm"))
    opened(ledger)

    (reason,) = ledger.reasons(made)

    assert reason["code"] == "breaker"
    assert reason["text"].startswith("look#1 waits for its dependency: the breaker of llm is open (10 of 12")
    assert "it is probed in 1" in reason["text"]
    assert reason["next"] == "safepoint breakers"
    assert "the breaker of llm is open" in run("show", made).out


def test_a_person_opens_one_until_it_is_reset(ledger: Ledger, run: Run) -> None:
    made = ledger.started(step(FIRST, uses="llm"))

    tripped = run("breakers", "trip", "llm", "--by", "ann", "--why", "they migrate")

    assert (tripped.code, "until safepoint breakers reset llm" in tripped.out) == (0, True)
    with pytest.raises(AssertionError, match="breaker"):
        ledger.claim(made, FIRST)
    assert "open until somebody resets it (opened by ann: they migrate)" in ledger.reasons(made)[0]["text"]
    assert "safepoint breakers reset llm" in run("breakers").out

    assert run("breakers", "reset", "llm", "--by", "bob", "--why", "done").code == 0
    ledger.claim(made, FIRST)
    (listed,) = (one for one in run("breakers", "--json").document if one["name"] == "llm")
    assert [(one["after"], one["by"]) for one in listed["events"]] == [("closed", "bob"), ("open", "ann")]


def test_a_person_opens_one_for_a_while(ledger: Ledger, run: Run) -> None:
    assert run("breakers", "trip", "llm", "--why", "x", "--for", "2h", "--json").document["state"] == "open"

    (listed,) = (one for one in run("breakers", "--json").document if one["name"] == "llm")

    assert 7100 < listed["next_probe_in"] <= 7200


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (("trip", "lllm", "--why", "x"), 1, "There is no breaker lllm. There are: llm, tickets."),
        (("reset", "lllm", "--why", "x"), 1, "There is no breaker lllm. There are: llm, tickets."),
        (("trip", "llm"), 2, "--why"),
        (("trip", "llm", "--why", "x", "--for", "soon"), 2, "90s, 30m, 2h"),
        (("trip", "llm", "--why", "x", "--for", "0"), 2, "90s, 30m, 2h"),
    ],
)
def test_what_cannot_be_is_said(ledger: Ledger, run: Run, arguments: tuple[str, ...], code: int, told: str) -> None:
    ran = run("breakers", *arguments)

    assert ran.code == code
    assert told in " ".join(ran.err.replace("│", " ").split())


def test_the_file_changes_the_policies_that_stand(ledger: Ledger) -> None:
    changed = Breakers.model_validate({"ratio": 0.3, "llm": {"probes": 7}, "mail": {"window": 5}})

    outcomes.apply(ledger.connection, changed)

    rows = ledger.connection.execute(
        "SELECT name, policy->>'ratio', policy->>'probes', policy->>'window' FROM safepoint.breakers ORDER BY name"
    ).fetchall()
    assert rows == [("llm", "0.3", "7", "60.0"), ("mail", "0.3", "3", "5.0"), ("tickets", "0.3", "3", "60.0")]

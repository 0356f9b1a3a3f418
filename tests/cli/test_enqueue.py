"""`enqueue`: the id alone on standard output, and exit codes that a script can use."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from prepared import FIRST, START, Ledger, step
from safepoint.cli.enqueue import with_endless_wait
from safepoint.ledger.commit import Ending

Run = Callable[..., Any]

GIVEN = ("--input", '{"alert": 1}')


@pytest.fixture(autouse=True)
def served(ledger: Ledger) -> None:
    """Let the ledger know the flow, as a worker does that has its code; here is none of it."""
    ledger.connection.execute(
        "INSERT INTO safepoint.flows (name, version, registered_at) VALUES ('triage', '1', now())"
    )


def test_the_id_stands_alone_on_standard_output(ledger: Ledger, run: Run) -> None:
    ran = run("enqueue", "triage", *GIVEN)

    assert (ran.code, ran.err) == (0, "")
    assert ran.out == f"{UUID(ran.out.strip())}\n"
    assert ledger.read(UUID(ran.out.strip()))["input"] == {"alert": 1}


def test_every_option_reaches_the_run(ledger: Ledger, run: Run) -> None:
    options = {"--tenant": "acme", "--deadline": "3600", "--tokens": "7", "--usd": "1.5", "--retries": "2"}
    more = {"--priority": "3", "--tag": "team=sre", "--conversation": "c1", "--start-at": "2200-01-01T00:00:00Z"}

    ran = run("enqueue", "triage", *GIVEN, *(part for pair in (options | more).items() for part in pair))

    found = ledger.read(UUID(ran.out.strip()))
    assert (found["tenant"], found["conversation"], found["tags"]) == ("acme", "c1", {"team": "sre"})
    assert found["budget"] == {"tokens": 7, "usd": 1.5, "retries": 2}
    assert found["deadline"] is not None
    assert found["reason"]["code"] == "timer"


def test_input_comes_from_a_file(ledger: Ledger, run: Run, tmp_path: Path) -> None:
    (tmp_path / "in.json").write_text('{"alert": 2}')

    ran = run("enqueue", "triage", "--input", f"@{tmp_path}/in.json")

    assert ledger.read(UUID(ran.out.strip()))["input"] == {"alert": 2}


def test_the_same_key_gives_the_same_run_and_other_input_a_conflict(ledger: Ledger, run: Run) -> None:
    first, again = (run("enqueue", "triage", *GIVEN, "--key", "k") for _ in range(2))
    other = run("enqueue", "triage", "--key", "k", "--input", '{"alert": 9}')

    assert first.out == again.out
    assert (other.code, other.out) == (1, "")
    assert "'k'" in other.err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--input", "{"), "not JSON"),
        (("--input", "[1]"), "object by name"),
        (("--input", "@nowhere"), "nowhere"),
        (("--start-at", "soon"), "no instant"),
        (("--start-at", "2200-01-01T00:00:00"), "has no time zone"),
        (("--deadline", "-5"), "duration"),
        (("--tag", "x"), "NAME=VALUE"),
        (("--priority", "high"), "--priority"),
    ],
)
def test_wrong_options_are_wrong_usage(ledger: Ledger, run: Run, arguments: tuple[str, ...], told: str) -> None:
    ran = run("enqueue", "triage", *arguments)

    assert (ran.code, ran.out) == (2, "")
    assert told in " ".join(ran.err.replace("│", " ").split())


def test_an_unknown_flow_fails_and_names_the_known_ones(ledger: Ledger, run: Run) -> None:
    ran = run("enqueue", "triaeg")

    assert (ran.code, ran.out) == (1, "")
    assert "triage" in ran.err


def ended(ledger: Ledger, run: Run, status: str) -> tuple[str, ...]:
    """Make a run that has ended, and return the arguments that find it again."""
    again = ("enqueue", "triage", *GIVEN, "--key", status)
    made = UUID(run(*again).out.strip())
    ledger.claim(made, START)
    error = {"type": "Boom", "message": "it broke"} if status == "failed" else None
    ending = Ending(status, data=b'{"answer": 42}', encoding="json", digest=b"d", error=error)
    ledger.commit(made, START, ending=ending)
    return again


@pytest.mark.parametrize(("status", "code"), [("succeeded", 0), ("failed", 1), ("cancelled", 1)])
def test_wait_says_how_it_ended(ledger: Ledger, run: Run, status: str, code: int) -> None:
    again = ended(ledger, run, status)

    ran = run(*again, "--wait", "5")

    assert ran.code == code
    assert (ran.document == {"answer": 42}) if code == 0 else ran.out == ""
    assert code == 0 or status in ran.err


def test_wait_for_a_held_run_is_3(ledger: Ledger, run: Run) -> None:
    again = ("enqueue", "triage", *GIVEN, "--key", "held")
    made = UUID(run(*again).out.strip())
    ledger.claim(made, START)
    ledger.commit(made, START, asked=[step(FIRST)], hold={"code": "flow_error", "text": "a bug"})

    ran = run(*again, "--wait")

    assert (ran.code, ran.out) == (3, "")
    assert "a bug" in ran.err


def test_wait_that_is_over_is_4(ledger: Ledger, run: Run) -> None:
    ran = run("enqueue", "triage", *GIVEN, "--wait", "0.1")

    assert (ran.code, ran.out) == (4, "")
    assert "safepoint watch" in ran.err


@pytest.mark.parametrize(
    ("given", "read"),
    [
        (["enqueue", "f", "--wait"], ["enqueue", "f", "--wait=inf"]),
        (["enqueue", "--wait", "f"], ["enqueue", "--wait=inf", "f"]),
        (["enqueue", "f", "--wait", "--json"], ["enqueue", "f", "--wait=inf", "--json"]),
        (["enqueue", "f", "--wait", "2.5"], ["enqueue", "f", "--wait", "2.5"]),
        (["enqueue", "f", "--wait=3"], ["enqueue", "f", "--wait=3"]),
        (["runs"], ["runs"]),
    ],
)
def test_wait_may_stand_without_a_number(given: list[str], read: list[str]) -> None:
    assert with_endless_wait(given) == read

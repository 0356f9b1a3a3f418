"""P31: a step that goes on in place is written as its claim would leave it, in one statement; where a guard of the
claim has anything to say it is not, and the claim says it.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any
from uuid import UUID, uuid4

import pytest
from ledger_verbs import DONE, NODE, START, Verbs, ask, key
from safepoint.ledger import commit as commits
from safepoint.ledger.commit import Answer, GoOn
from safepoint.ledger.steps import Claimed, Claimer, NotYours

SLICE = 60.0
AT_ONCE, BY_A_CLAIM = 0.0, SLICE / 2  # after a quarter of the slice the ledger looks whether others wait first
OWN = {"run_id", "claim_token", "ready_at", "created_at", "claimed_at", "first_claimed_at", "expires_at"}
NAMES = {"token", "run_id", "db_now", "first_claimed_at"}


@pytest.fixture
def place(verbs: Verbs) -> Verbs:
    """A lane that lets a task go on, and a node."""
    verbs.node()
    verbs.connection.execute("UPDATE safepoint.lanes SET inline_slice = %s WHERE name = 'online'", (SLICE,))
    return verbs


def goes_on(verbs: Verbs, *, age: float, asked: dict[str, Any], run: UUID | None = None) -> tuple[UUID, Answer]:
    """Commit the start of a run, and ask with it for the claim of what follows."""
    run = run or verbs.enqueue()
    claimed = verbs.claimed(run)
    of = key(f"{asked['step']}#{asked['iteration']}")
    go_on = GoOn(of, "online", Claimer(NODE, 7, 8), uuid4(), 60.0, claimed.era, age)
    answer = commits.commit(
        verbs.connection, run, START, token=claimed.token, node=NODE, result=DONE, advanced_from=0, asked=[asked],
        go_on=go_on,
    )  # fmt: skip
    return run, answer


def facts(claimed: Claimed) -> dict[str, Any]:
    """What a claim says, without what is another one's each time."""
    told = {name: value for name, value in asdict(claimed).items() if name not in NAMES}
    return told | {"run": {name: value for name, value in claimed.run.items() if name != "created_at"}}


@pytest.mark.parametrize(
    "asked",
    [
        ask("a#1"),
        ask("a#1", uses="llm", joins="gather#1", hash="ab" * 32),
        ask("a#1", request="eyJ4IjogMX0=", encoding="json"),
    ],
    ids=["plain", "with a dependency", "with its input"],
)
def test_p31_a_step_is_written_as_its_claim_would_leave_it(place: Verbs, asked: dict[str, Any]) -> None:
    found, told = [], []
    for age in (AT_ONCE, BY_A_CLAIM):
        run, answer = goes_on(place, age=age, asked=asked)
        assert isinstance(answer.claimed, Claimed), answer
        (row,) = place.rows("SELECT * FROM safepoint.steps WHERE run_id = %s AND kind = 'step'", (run,))
        assert row["expires_at"] - row["claimed_at"] == (row["expires_at"] - row["first_claimed_at"])
        assert row["claim_token"] == answer.claimed.token
        found.append({name: value for name, value in row.items() if name not in OWN})
        told.append(facts(answer.claimed))
        events = place.rows("SELECT type FROM safepoint.events WHERE run_id = %s ORDER BY seq", (run,))
        assert [event["type"] for event in events] == ["run.queued", "run.started", "step.scheduled"]

    assert found[0] == found[1]
    assert told[0] == told[1]


@pytest.mark.parametrize(
    ("shut", "asked", "why"),
    [
        ("UPDATE safepoint.nodes SET draining = true", {}, "draining"),
        ("UPDATE safepoint.nodes SET flows = '{f@2}'", {}, "version"),
        ("UPDATE safepoint.lanes SET paused = true WHERE name = 'online'", {}, "lane"),
        ("UPDATE safepoint.lanes SET in_flight = 5 WHERE name = 'online'", {}, "lane"),
        ("UPDATE safepoint.lanes SET inline_slice = 0 WHERE name = 'online'", {}, "the slice is over"),
        ("UPDATE safepoint.runs SET paused_at = safepoint.now()", {}, "paused"),
        ("UPDATE safepoint.runs SET holds = '{\"diverged\": {}}', status = 'held'", {}, "held"),
        (
            "INSERT INTO safepoint.breakers (name, state, next_probe_at) VALUES ('llm', 'open', 'infinity')",
            {"uses": "llm"},
            "breaker",
        ),
    ],
)
def test_p31_where_a_guard_objects_the_claim_says_so(place: Verbs, shut: str, asked: dict[str, Any], why: str) -> None:
    run = place.enqueue()
    claimed = place.claimed(run)
    place.connection.execute(shut.encode())
    go_on = GoOn(key("a#1"), "online", Claimer(NODE, 7, 8), uuid4(), 60.0, claimed.era, AT_ONCE)
    answer = commits.commit(
        place.connection, run, START, token=claimed.token, node=NODE, result=DONE, advanced_from=0,
        asked=[ask("a#1", **asked)], go_on=go_on,
    )  # fmt: skip

    assert answer.claimed == NotYours(why)
    (row,) = place.rows("SELECT status, claim_token FROM safepoint.steps WHERE run_id = %s AND kind = 'step'", (run,))
    assert (row["status"], row["claim_token"]) == ("ready", None)


def test_p31_what_was_reserved_is_left_to_a_claim(place: Verbs) -> None:
    """G7: a budget is locked and charged by the claim only."""
    run, answer = goes_on(place, age=AT_ONCE, asked=ask("a#1", reserve={"tokens": 5}))

    assert isinstance(answer.claimed, Claimed)
    (row,) = place.rows("SELECT reserved_tokens FROM safepoint.steps WHERE run_id = %s AND kind = 'step'", (run,))
    assert row["reserved_tokens"] == 5

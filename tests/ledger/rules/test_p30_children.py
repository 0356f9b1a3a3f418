"""P30: children; and generations of one run."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from ledger_clock import Clock
from ledger_verbs import Verbs, ask, key
from safepoint.ledger import control
from safepoint.ledger.commit import Ending, Result
from safepoint.ledger.key import Key
from safepoint.tasks.rows import child_id

A, B, SUB = (key(text) for text in ("a#1", "b#1", "sub#1"))


# P30: children.


def sub(run: UUID, text: str = "sub#1") -> dict[str, Any]:
    facts = {"flow": "f", "version": "1", "input": "e30=", "encoding": "json", "hash": "00", "versions": {}}
    return ask(text, "child", child={"run_id": str(child_id(run, key(text))), **facts})


@pytest.fixture
def family(verbs: Verbs) -> tuple[UUID, UUID]:
    """A parent that waits for its child."""
    run = verbs.enqueue()
    verbs.done(run, asked=[sub(run)])
    return run, child_id(run, SUB)


def test_p30_a_childs_id_is_derived_from_its_parent_and_its_step() -> None:
    run = uuid4()

    assert child_id(run, SUB) == child_id(run, SUB)
    assert len({child_id(run, SUB), child_id(uuid4(), SUB), child_id(run, Key(2, "", "sub", 1)), child_id(run, B)}) == 4


@pytest.mark.parametrize(
    ("ending", "status", "error"),
    [
        (Ending("succeeded", b"7", "json"), "succeeded", None),
        (Ending("failed", error={"type": "Boom", "message": "boom"}), "failed", "Boom"),
        ("cancelled", "failed", "Cancelled"),
    ],
    ids=["succeeded", "failed", "cancelled"],
)
def test_p30_a_childs_end_reaches_its_parent_by_mail(
    verbs: Verbs, family: tuple[UUID, UUID], ending: Ending | str, status: str, error: str | None
) -> None:
    parent, child = family
    verbs.done(child, ending=ending)
    assert verbs.statuses(parent)["sub#1"] == "waiting"  # it is a row of the outbox until then

    assert verbs.chores().delivered == 1

    outcome = verbs.claimed(parent, SUB).outcome
    assert outcome is not None
    assert (outcome.status, (outcome.error or {}).get("type")) == (status, error)


def test_p30_a_cancel_travels_down(verbs: Verbs, family: tuple[UUID, UUID]) -> None:
    parent, child = family
    verbs.done(child, asked=[ask("a#1"), sub(child)])
    grandchild = child_id(child, SUB)

    verbs.cancel(parent)
    verbs.chores()
    verbs.chores()

    assert [verbs.run(run)["status"] for run in (parent, child, grandchild)] == [
        "cancelling",
        "cancelling",
        "cancelled",
    ]


def test_p30_a_child_that_a_clean_up_has_begun_ends_with_its_parent(verbs: Verbs, clock: Clock) -> None:
    run = verbs.begun(ask("a#1"))
    verbs.cancel(run)
    verbs.done(run, key("@cancel#1"), asked=[sub(run)])
    clock.forward(60)

    for _ in range(2):
        verbs.chores()

    assert {row["status"] for row in verbs.rows("SELECT status FROM safepoint.runs")} == {"cancelled"}


def test_p30_a_parents_deadline_travels_down(verbs: Verbs, clock: Clock) -> None:
    run = verbs.enqueue(deadline=clock.now + timedelta(seconds=10))
    verbs.done(run, asked=[sub(run)])
    clock.forward(10)

    verbs.chores()
    verbs.chores()

    assert {row["status"] for row in verbs.rows("SELECT status FROM safepoint.runs")} <= {"failed", "cancelled"}


def test_p30_a_child_that_a_person_reopens_before_its_parent_heard_has_not_ended(
    verbs: Verbs, family: tuple[UUID, UUID]
) -> None:
    parent, child = family
    verbs.done(child, asked=[ask("a#1")])
    error = {"type": "Boom", "message": "boom", "step": "a#1"}
    failed = Result("failed", verbs.run(child)["created_at"], error=error)
    verbs.done(child, A, result=failed, ending=Ending("failed", error=error))

    assert control.reopen(verbs.connection, child, by="test") == "running"

    assert verbs.chores().delivered == 0
    assert (verbs.statuses(parent)["sub#1"], verbs.statuses(child)["a#1"]) == ("waiting", "ready")
    verbs.done(child, A, ending="succeeded")
    verbs.chores()
    assert verbs.step(parent, SUB)["outcome"]["status"] == "succeeded"


def test_p30_a_child_whose_parent_has_heard_is_not_reopened(verbs: Verbs, family: tuple[UUID, UUID]) -> None:
    _, child = family
    verbs.done(child, ending=Ending("failed", error={"type": "Boom", "message": "boom"}))
    verbs.chores()

    assert control.reopen(verbs.connection, child, by="test").startswith("refused")


@pytest.mark.parametrize("gone", ["parent", "child"])
def test_p30_a_run_that_is_gone_does_not_stop_the_deliveries_of_others(
    verbs: Verbs, family: tuple[UUID, UUID], gone: str
) -> None:
    parent, child = family
    verbs.done(child, ending="succeeded")
    other = verbs.enqueue()
    verbs.done(other, asked=[sub(other)])
    verbs.done(child_id(other, SUB), ending="succeeded")
    verbs.connection.execute("DELETE FROM safepoint.runs WHERE run_id = %s", (parent if gone == "parent" else child,))

    verbs.chores()

    assert verbs.statuses(other)["sub#1"] == "ready"
    assert verbs.value("SELECT count(*) FROM safepoint.outbox_messages") == 0


def test_p30_a_commit_that_is_repeated_makes_one_child(verbs: Verbs) -> None:
    run = verbs.enqueue()
    claimed = verbs.claimed(run)

    answers = [verbs.commit(claimed, asked=[sub(run)], advanced_from=0).verdict for _ in range(2)]

    assert answers == ["committed", "already"]
    assert verbs.value("SELECT count(*) FROM safepoint.runs WHERE parent_run_id = %s", (run,)) == 1


# Generations.


def test_a_new_generation_starts_over_and_keeps_nothing_open_of_the_old_one(verbs: Verbs, clock: Clock) -> None:
    run = verbs.begun(ask("a#1"), ask("go#1", "signal"))
    ending = Ending("continued", b'{"n": 2}', "json", b"h")

    answer = verbs.done(run, A, ending=ending)

    assert [row.key.wire for row in answer.rows] == ["g2:@start#1"]
    assert verbs.statuses(run) == {
        "@start#1": "succeeded", "a#1": "succeeded", "go#1": "cancelled", "g2:@start#1": "ready"
    }  # fmt: skip
    assert verbs.dispatch() == []  # P17: its committer publishes it
    claimed = verbs.claimed(run, Key(2, "", "@start", 1))
    assert (claimed.history, claimed.run_input) == ((), b'{"n": 2}')


def test_a_new_generation_of_a_paused_run_waits_with_it(verbs: Verbs) -> None:
    run = verbs.begun(ask("a#1"))
    claimed = verbs.claimed(run, A)
    verbs.pause(run)

    answer = verbs.commit(claimed, ending=Ending("continued", b"{}", "json", b"h"))

    assert [row.due for row in answer.rows] == [None]
    verbs.resume(run)
    assert verbs.claimed(run, Key(2, "", "@start", 1))


def test_a_key_of_an_older_generation_is_another_step(verbs: Verbs) -> None:
    run = verbs.begun(ask("a#1"), ask("b#1"))
    zombie = verbs.claimed(run, B)
    verbs.done(run, A, ending=Ending("continued", b"{}", "json", b"h"))
    verbs.done(run, Key(2, "", "@start", 1), asked=[ask("b#1")])

    verbs.commit(zombie, joins=None, advanced_from=None)

    assert verbs.statuses(run)["g2:b#1"] == "ready"
    assert verbs.claimed(run, Key(2, "", "b", 1)).history[-1].key.generation == 2

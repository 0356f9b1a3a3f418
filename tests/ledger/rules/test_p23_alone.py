"""P23: a step that was there when its processes died, together with others, runs alone; then its death is its own."""

from __future__ import annotations

from uuid import UUID

from ledger_verbs import Verbs, ask, key
from safepoint.ledger.steps import Cause

A, B = key("a#1"), key("b#1")


def die(verbs: Verbs, run: UUID, *, deadly: bool = False) -> str:
    """Claim the step and lose it with its process, whose session lock is gone."""
    verbs.node(lock=True)
    claimed = verbs.claimed(run, A, lane=verbs.step(run, A)["lane"])
    return verbs.lose(claimed, Cause.NODE, deadly=deadly, max_deaths=1)


def test_p23_a_step_of_two_shared_deaths_runs_alone_and_nothing_beside_it(verbs: Verbs) -> None:
    run = verbs.begun(ask("a#1"), ask("b#1"))
    for _ in range(2):
        die(verbs, run)
    verbs.claimed(run, B)

    assert verbs.refusal(run, A, lane="recovery") == "alone"

    verbs.node("idle", lock=True)
    assert verbs.claimed(run, A, lane="recovery", node="idle").run["alone"]
    other = verbs.begun(ask("a#1"))
    assert verbs.refusal(other, A, node="idle") == "alone"
    assert verbs.step(other, A)["due_at"] is not None


def test_p23_one_shared_death_is_a_neighbours_bad_luck(verbs: Verbs) -> None:
    run = verbs.begun(ask("a#1"), ask("b#1"))
    die(verbs, run)
    verbs.claimed(run, B)

    assert not verbs.claimed(run, A, lane="recovery").run["alone"]


def test_p23_who_dies_alone_counts_and_is_held_in_the_end(verbs: Verbs) -> None:
    run = verbs.begun(ask("a#1"))

    answers = [die(verbs, run, deadly=deadly) for deadly in (False, False, True, True)]

    assert answers == ["lost", "lost", "lost", "poison"]
    assert verbs.run(run)["reason"]["code"] == "poison"


def test_p23_the_node_is_free_again_when_the_step_has_ended(verbs: Verbs) -> None:
    run, other = verbs.begun(ask("a#1")), verbs.begun(ask("a#1"))
    for _ in range(2):
        die(verbs, run)
    claimed = verbs.claimed(run, A, lane="recovery")
    assert verbs.refusal(other, A) == "alone"

    verbs.commit(claimed)

    assert verbs.claimed(other, A)

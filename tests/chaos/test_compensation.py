"""What a failed run has done is undone by real workers, newest first and once each, though they die over it (P37)."""

from __future__ import annotations

from uuid import uuid4

import pytest
from crashes import Crew, has_died
from effect_deaths import effects_of
from fleet import trap
from witness import Witness

pytestmark = [pytest.mark.chaos, pytest.mark.slow]


@pytest.mark.parametrize(
    ("point", "target"), [("effect.after", "child"), ("effect.after", "worker"), ("commit.after", "child")]
)
def test_a_worker_dies_over_a_compensation_and_it_is_done_once(
    crew: Crew, witness: Witness, point: str, target: str
) -> None:
    fleet, once, reference = crew.fleet, crew.once(), f"regret-{uuid4().hex[:8]}"
    armed = trap(f"{point}@compensate:booked#2", target=target, once=once)
    victim = fleet.worker("front", concurrency=1, env=armed)
    run = fleet.enqueue("regret", reference=reference)
    fleet.until(lambda: has_died(once, victim, whole=target == "worker"))
    if target == "worker":
        victim.restart()  # nobody else takes its lane

    account = fleet.assert_sound(run, status="failed")

    first, second = witness.numbers(f"{reference}/1"), witness.numbers(f"{reference}/2")
    assert [len(first), len(second)] == [1, 1]
    undone = [witness.of(f"undo {number}", "done") for number in (*second, *first)]
    assert [len(facts) for facts in undone] == [1, 1]
    assert undone[0][0]["number"] < undone[1][0]["number"]  # the newest first
    assert {effect["status"] for effect in effects_of(fleet, run)} == {"succeeded"}
    assert account.run["error"]["type"] == "Permanent"
    fleet.end(victim)

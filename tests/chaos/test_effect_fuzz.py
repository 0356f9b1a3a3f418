"""Seeds of the effect fuzzer, as many as the suite has time for; `python tests/chaos/fuzz_effects.py` runs more."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from fleet import Fleet
from fuzz_audit import problems, tell
from fuzz_plan import plan
from fuzz_run import ENV, Fuzz
from witness import Witness

pytestmark = [pytest.mark.chaos, pytest.mark.slow]
SEEDS = range(24)


def test_a_seed_is_one_plan() -> None:
    assert [plan(seed) for seed in SEEDS] == [plan(seed) for seed in SEEDS]
    assert len({plan(seed).faults for seed in range(200)}) > 100


@pytest.mark.children
def test_no_fault_makes_an_effect_happen_twice_or_a_run_lie_about_it(
    new_valkey: Callable[[], str], new_fleet: Callable[..., Fleet], witness: Witness
) -> None:
    fleet = new_fleet(new_valkey(), OUTSIDE=witness.url, **ENV)
    fuzz = Fuzz(fleet, witness, at_once=len(SEEDS))

    trials = fuzz.run(SEEDS)

    wrong = {trial.plan.seed: (problems(fuzz, trial), tell(fuzz, trial)) for trial in trials if problems(fuzz, trial)}
    assert not wrong, "\n".join(f"{found}\n{story}" for found, story in wrong.values())
    assert {trial.status for trial in trials} >= {"succeeded", "cancelled"}
    assert fuzz.counts["kill child"]
    assert fuzz.counts["kill worker"]
    assert fuzz.counts["stop worker"] or fuzz.counts["stop child"]
    fleet.close()

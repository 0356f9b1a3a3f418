"""Every crash point around an effect, on either broker, for each kind of other side: a pool child dies, or the worker.

What counts is what the other side says that it has done. Where its outcome can be known the run succeeds with it;
where nobody can know, the run is held until a person says it.
"""

from __future__ import annotations

from typing import Any

import pytest
from downstream import KINDS
from effect_deaths import Death, Deaths, effects_of, resolve, result_of
from errands import POINTS
from witness import Witness

pytestmark = [pytest.mark.chaos, pytest.mark.slow]
COMMITTED = ("commit.after", "publish.after")
IN_DOUBT = ("effect.before", "effect.after", "commit.before")
# How often the other side was sent the request, did it, and was asked about it (at least), by kind and point.
SENT = {
    **{(kind, "effect.before"): (1, 1, 0) for kind in KINDS},
    **{("keyed", point): (2, 1, 0) for point in ("effect.after", "commit.before")},
    **{("searchable", point): (1, 1, 1) for point in ("effect.after", "commit.before")},
    **{("blind", point): (1, 1, 0) for point in ("effect.after", "commit.before")},
    **{(kind, point): (1, 1, 0) for kind in KINDS for point in COMMITTED},
    ("searchable", "effect.before"): (1, 1, 1),
    ("blind", "effect.before"): (0, 0, 0),
}
target = pytest.mark.parametrize("target", ["child", "worker"])


@target
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("point", POINTS)
def test_an_effect_is_executed_at_most_once(deaths: Deaths, point: str, kind: str, target: str) -> None:
    death = deaths.of(target)[point, kind]

    assert len(death.numbers) <= 1, death
    sent, done, asked = SENT[kind, point]
    assert (death.count("post"), death.count("done")) == (sent, done), death
    assert min(death.count("lookup"), 1) == asked, death
    assert len({fact["key"] for fact in death.facts if "key" in fact}) <= 1, death
    if kind == "blind" and point in IN_DOUBT:
        assert_held(death)
    else:
        assert_succeeded(death)


def assert_succeeded(death: Death) -> None:
    """Check that the run has ended with the number that the other side has given."""
    assert death.account.run["status"] == "succeeded", death
    assert result_of(death.account) == death.numbers, death
    assert [effect["status"] for effect in death.effects] == ["succeeded"], death


def assert_held(death: Death) -> None:
    """Check that the run waits for a person, who is told why."""
    assert death.account.run["status"] == "held", death
    assert death.account.run["reason"]["code"] == "unknown_effect", death
    assert [effect["status"] for effect in death.effects] == ["unknown"], death


@target
def test_what_the_ledger_says_of_deaths_over_effects_is_sound(deaths: Deaths, witness: Witness, target: str) -> None:
    fleet = deaths.crew.fleet

    fleet.assert_all_sound([death.run for death in deaths.of(target).values()])

    witness.assert_nothing_twice()


# What a person says of a blind effect that is in doubt, by where its executor has died; and how the run ends.
SAID: dict[str, tuple[str, str]] = {
    "effect.before": ("not_executed", "succeeded"),
    "effect.after": ("succeeded", "succeeded"),
    "commit.before": ("failed", "failed"),
}


@target
@pytest.mark.parametrize("point", IN_DOUBT)
def test_a_person_settles_what_nobody_can_know(deaths: Deaths, witness: Witness, point: str, target: str) -> None:
    fleet, death = deaths.crew.fleet, deaths.of(target)[point, "blind"]
    verdict, end = SAID[point]
    effect = death.effects[0]
    value: Any = death.numbers[0] if verdict == "succeeded" else None

    answers: list[str] = []

    def is_taken() -> bool:
        """Whether nothing can arrive any more: who has found nothing is asked to look again after that (P33)."""
        answers.append(resolve(fleet, effect, verdict=verdict, value=value))
        return answers[-1] != "early"

    fleet.until(is_taken)
    answer = answers[-1]
    again = resolve(fleet, effect, verdict=verdict, value=value)
    account = fleet.assert_sound(death.run, status=end)

    numbers = witness.numbers(death.reference)
    assert (answer, again) in {("resolved", "settled"), ("resolved", "stale")}
    assert len(numbers) == 1
    assert end == "failed" or result_of(account) == numbers
    settled = effects_of(fleet, death.run)[0]
    assert settled["status"] == end
    assert "person:Ada" in [entry["actor"] for entry in settled["history"]]

"""A request is frozen before it is sent: neither a model that answers differently after a crash nor code that asks for
something else on replay changes what reaches the other side.
"""

from __future__ import annotations

from uuid import uuid4

import orjson
import pytest
from crashes import Crew, has_died
from effect_deaths import Deaths, effects_of, result_of
from fleet import trap
from witness import Witness

pytestmark = [pytest.mark.chaos, pytest.mark.slow]


@pytest.mark.parametrize("target", ["child", "worker"])
@pytest.mark.parametrize("kind", ["keyed", "searchable"])
@pytest.mark.parametrize("point", ["effect.before", "effect.after"])
def test_a_model_that_would_answer_differently_cannot_change_the_request(
    deaths: Deaths, point: str, kind: str, target: str
) -> None:
    death = deaths.of(target)[point, kind]

    answered = orjson.loads(death.account.step("compose#1")["result"])

    assert {fact["text"] for fact in death.facts if "text" in fact} == {answered}, death
    assert len(deaths.crew.fleet.began(death.run, "compose#1")) == 1
    assert len(death.numbers) == 1
    assert death.account.step("compose#1")["epoch"] == 1


@pytest.mark.children
def test_code_that_asks_for_something_else_under_the_same_key_holds_the_run(crew: Crew, witness: Witness) -> None:
    fleet, once, reference = crew.fleet, crew.once(), f"fickle-{uuid4().hex[:8]}"
    victim = fleet.worker("front", concurrency=1, env=trap("effect.before@fickle_order", target="child", once=once))
    run = fleet.enqueue("fickle", reference=reference)
    fleet.until_began(run, "dwell#1")
    crew.relay.pause()  # nobody goes on before the code has changed
    fleet.open(f"{reference}-go")
    fleet.until(lambda: has_died(once, victim, whole=False))
    fleet.open(reference)
    crew.relay.unpause()
    held = fleet.assert_sound(run, status="held")
    asked = witness.of(reference)

    (fleet.gates / reference).unlink()  # the code is mended
    fleet.query("SELECT safepoint.resume_v1(%s, 'a person')", run)
    account = fleet.assert_sound(run)

    assert "EffectRequestChanged" in str(held.run["reason"])
    assert asked == []
    assert [fact["text"] for fact in witness.of(reference, "post")] == ["the request"]
    assert result_of(account) == witness.numbers(reference)
    assert [effect["status"] for effect in effects_of(fleet, run)] == ["succeeded"]
    fleet.end(victim)

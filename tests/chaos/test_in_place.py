"""P31: a process dies over a step with which it has gone on in place; the run goes on as after any other death.

The run's first step comes by a message, the two after it do not; the death is over the third one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from crashes import Crew, has_died
from fleet import Fleet, trap

pytestmark = [pytest.mark.chaos, pytest.mark.slow]
LENGTH = 5
# How often the third step's code runs in all.
POINTS = {"claim.after": 1, "commit.before": 2, "commit.after": 1}


@pytest.fixture(scope="module", params=["valkey", pytest.param("rabbitmq", marks=pytest.mark.rabbitmq)])
def crew(request: pytest.FixtureRequest, new_fleet: Callable[..., Fleet]) -> Iterator[Crew]:
    """A relay and a survivor, in a deployment whose lanes let a task go on."""
    new_broker = {"valkey": "new_valkey", "rabbitmq": "new_vhost"}[request.param]
    slices = {f"SAFEPOINT_LANES__{lane}__INLINE_SLICE": "30" for lane in ("FRONT", "ONLINE")}
    crew = Crew.start(new_fleet(request.getfixturevalue(new_broker)(), **slices))
    yield crew
    crew.fleet.close()


@pytest.mark.parametrize(("pool", "target"), [("prefork", "child"), ("threads", "worker")])
@pytest.mark.parametrize("point", POINTS)
def test_p31_a_run_survives_a_death_over_a_step_in_place(crew: Crew, point: str, pool: str, target: str) -> None:
    fleet, once = crew.fleet, crew.once()
    armed, sent = trap(f"{point}@link#3", target=target, once=once), once.with_suffix(".sent")
    victim = fleet.worker("front", pool=pool, concurrency=1, env={**armed, "PUBLISHED": str(sent)})
    run = fleet.enqueue("strung", n=LENGTH)

    fleet.until(lambda: has_died(once, victim, whole=target == "worker"))
    if target == "worker":
        victim.restart()  # nobody else takes its lane
    account = fleet.assert_sound(run)

    assert account.run["status"] == "succeeded"
    ran = [len(fleet.began(run, f"link#{n}")) for n in range(1, LENGTH + 1)]
    assert ran == [1, 1, POINTS[point], 1, 1], fleet.tell(run)
    assert not sent.exists()  # a message for each step would have been the victim's to send
    fleet.end(victim)

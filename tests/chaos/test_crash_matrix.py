"""Every crash point that exists without effects, on either broker: a pool child dies, or the whole worker.

Each time the run succeeds, every step is committed once and not executed after that, and the log is the snapshot.
"""

from __future__ import annotations

import pytest
from crashes import IN_EXECUTION, Crew, die_in_execution, die_in_relay, die_in_scan

pytestmark = [pytest.mark.chaos, pytest.mark.slow]


@pytest.mark.parametrize("target", ["child", "worker"])
@pytest.mark.parametrize("point", IN_EXECUTION)
def test_a_run_survives_a_death_in_execution(crew: Crew, point: str, target: str) -> None:
    account = die_in_execution(crew, point, target=target)

    assert account.run["status"] == "succeeded"


def test_a_run_survives_the_death_of_a_relay_that_has_published(crew: Crew) -> None:
    account = die_in_relay(crew)

    assert account.run["status"] == "succeeded"


@pytest.mark.parametrize("target", ["child", "worker"])
def test_a_run_survives_a_death_in_the_scan(crew: Crew, target: str) -> None:
    account = die_in_scan(crew, target=target)

    assert account.run["status"] == "succeeded"

"""Acknowledging late is an optimisation: with messages gone before they are executed, every death still ends well."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from crashes import IN_EXECUTION, Crew, die_in_execution, die_in_relay, die_in_scan
from fleet import Fleet

pytestmark = [pytest.mark.chaos, pytest.mark.slow]


@pytest.fixture(scope="module")
def crew(new_valkey: Callable[[], str], new_fleet: Callable[..., Fleet]) -> Iterator[Crew]:
    """A relay, and a survivor that acknowledges at once."""
    crew = Crew.start(new_fleet(new_valkey(), EARLY_ACK="1"))
    yield crew
    crew.fleet.close()


@pytest.mark.parametrize("point", IN_EXECUTION)
def test_a_run_survives_a_death_in_execution(crew: Crew, point: str) -> None:
    account = die_in_execution(crew, point, target="worker")

    assert account.run["status"] == "succeeded"


def test_a_run_survives_the_death_of_a_relay_that_has_published(crew: Crew) -> None:
    account = die_in_relay(crew)

    assert account.run["status"] == "succeeded"


def test_a_run_survives_a_death_in_the_scan(crew: Crew) -> None:
    account = die_in_scan(crew, target="worker")

    assert account.run["status"] == "succeeded"

"""A worker with a pool of threads is killed as a whole: what prefork survives, threads survive."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from crashes import IN_EXECUTION, Crew, die_in_execution
from fleet import Fleet

pytestmark = [pytest.mark.chaos, pytest.mark.slow]


@pytest.fixture(scope="module")
def crew(new_valkey: Callable[[], str], new_fleet: Callable[..., Fleet]) -> Iterator[Crew]:
    """A relay and a survivor."""
    crew = Crew.start(new_fleet(new_valkey()), pool="threads")
    yield crew
    crew.fleet.close()


@pytest.mark.parametrize("point", [point for point in IN_EXECUTION if point != "claim.before"])
def test_a_run_survives_a_death_in_execution(crew: Crew, point: str) -> None:
    account = die_in_execution(crew, point, target="worker", pool="threads")

    assert account.run["status"] == "succeeded"


def test_the_start_hook_runs_once_in_a_worker_of_threads(crew: Crew) -> None:
    pid = crew.survivor.process.pid
    run = crew.fleet.enqueue("chain", n=4)

    crew.fleet.assert_sound(run)

    assert [hooked for hooked, _ in crew.fleet.hooks()].count(pid) == 1
    assert {one.pid for one in crew.fleet.executions(run)} == {pid}

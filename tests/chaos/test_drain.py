"""SIGTERM during a long step (P22): a worker drains and gives it back uncounted; it goes on elsewhere at once."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from uuid import UUID, uuid4

import pytest
from audit import Execution
from crashes import Crew
from processes import WorkerNode

pytestmark = [pytest.mark.chaos, pytest.mark.slow]
DRAIN = 1.0  # seconds, of the fleet's configuration
STEP = "dwell#1"


@dataclass
class Pair:
    """Two workers of one lane, and which processes are theirs."""

    workers: list[WorkerNode]
    pids: list[set[int]]

    def who(self, execution: Execution) -> WorkerNode:
        """Return the worker in which a step's code began."""
        return next(worker for worker, pids in zip(self.workers, self.pids, strict=True) if execution.pid in pids)


@pytest.fixture(params=["prefork", "threads"])
def pair(crew: Crew, request: pytest.FixtureRequest) -> Iterator[Pair]:
    """Two workers of the victim's lane, with either pool."""
    workers = [crew.fleet.worker("front", pool=request.param, concurrency=1, wait=False) for _ in range(2)]
    for worker in workers:
        worker.ready()
    yield Pair(workers, [{worker.process.pid, *worker.process.children()} for worker in workers])
    for worker in workers:
        crew.fleet.end(worker)


def test_a_drained_step_is_released_and_goes_on_elsewhere(crew: Crew, pair: Pair) -> None:
    fleet, gate = crew.fleet, f"drain-{uuid4().hex[:8]}"
    run = fleet.enqueue("lodging", name=gate)
    drained = pair.who(fleet.until_began(run, STEP))
    asked = time.time()
    drained.process.kill(signal.SIGTERM)

    again = fleet.until_began(run, STEP, times=2)
    fleet.open(gate)
    account = fleet.assert_sound(run)

    assert again.at - (asked + DRAIN) < 2.0
    assert pair.who(again) is not drained
    assert account.causes(STEP) == ["released"]
    row = account.step(STEP)
    assert (row["attempt"], row["recoveries"], row["deaths"], row["epoch"]) == (1, 0, 0, 2)
    assert drained.process.wait() == 0


def test_a_step_that_ends_within_the_drain_is_committed(crew: Crew, pair: Pair) -> None:
    fleet, gate = crew.fleet, f"drain-{uuid4().hex[:8]}"
    run = fleet.enqueue("lodging", name=gate)
    drained = pair.who(fleet.until_began(run, STEP))
    drained.process.kill(signal.SIGTERM)
    fleet.until(lambda: is_draining(crew, run))

    fleet.open(gate)
    account = fleet.assert_sound(run)

    assert account.causes(STEP) == []
    assert len(fleet.began(run, STEP)) == 1
    assert drained.process.wait() == 0


def is_draining(crew: Crew, run: UUID) -> bool:
    """Whether the node that executes the run's step has said that it drains."""
    found = crew.fleet.query(
        "SELECT draining FROM safepoint.nodes JOIN safepoint.steps ON owner = node_id WHERE run_id = %s", run
    )
    return found == [(True,)]

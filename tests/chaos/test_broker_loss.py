"""A broker that loses every message delays runs and loses none; and what is sent again is what was lost (P11)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest
from fleet import Fleet, events
from servers import ValkeyServer

pytestmark = [pytest.mark.chaos, pytest.mark.slow]
RUNS = 200
MESSAGES_A_STEP = 1.2


def published(file: Path) -> int:
    """How many messages brokers have taken."""
    return sum(int(line.split()[0]) for line in file.read_text().splitlines())


def committed(fleet: Fleet) -> int:
    return int(fleet.query("SELECT count(*) FROM safepoint.steps WHERE status = 'succeeded'")[0][0])


@pytest.mark.timeout(180)
def test_200_runs_finish_when_the_broker_dies_and_comes_back_empty(
    valkey_server: ValkeyServer, new_fleet: Callable[..., Fleet], tmp_path: Path
) -> None:
    counted = tmp_path / "published"
    fleet = new_fleet(valkey_server.url, PUBLISHED=str(counted))
    worker = fleet.worker("online", "recovery", wait=False)
    relay = fleet.relay()
    worker.ready()
    runs = fleet.enqueue_many("chain", RUNS, n=2)
    fleet.until(lambda: committed(fleet) >= RUNS / 2)

    valkey_server.kill()  # half of the runs have begun, the others' messages are waiting: 200 of 1200 are lost
    fleet.until(lambda: events(relay, "publish.failed"))
    valkey_server.start()
    fleet.until(lambda: all_succeeded(fleet, runs), timeout=120, every=0.2)

    steps = fleet.query("SELECT count(*) FROM safepoint.steps")[0][0]
    messages = published(counted)
    fleet.close()
    assert steps == RUNS * 6  # with @start
    assert messages <= MESSAGES_A_STEP * steps
    fleet.assert_all_sound(runs)


def all_succeeded(fleet: Fleet, runs: list[UUID]) -> bool:
    return fleet.query("SELECT status, count(*)::integer FROM safepoint.runs GROUP BY 1") == [("succeeded", len(runs))]

"""A dependency goes away under live runs: their steps wait in the ledger, a few probe, all of them end well (P39)."""

from __future__ import annotations

import os
import signal
import time
from uuid import UUID

import pytest
from fleet import Fleet

pytestmark = [pytest.mark.chaos, pytest.mark.slow]
RUNS = 60
BREAKERS = "\n[breakers]\nmin_volume = 5\nopen_for = 0.5\nmax_open = 1.0\nprobes = 2\n"


@pytest.fixture
def shaken(fleet: Fleet) -> Fleet:
    """Two workers and a relay whose breakers are quick."""
    with (fleet.folder / "safepoint.toml").open("a") as file:
        file.write(BREAKERS)
    fleet.relay()
    for _ in range(2):
        fleet.worker("online", "recovery")
    return fleet


def turns(fleet: Fleet) -> list[str]:
    return [row[0] for row in fleet.query("SELECT after FROM safepoint.breaker_events ORDER BY id")]


def executions(fleet: Fleet) -> int:
    return sum(one.what == "begin" for one in fleet.executions())


def test_an_outage_costs_a_few_probes_and_no_run(shaken: Fleet) -> None:
    runs = [shaken.enqueue("counsel", x=x) for x in range(RUNS)]
    shaken.until(lambda: turns(shaken))
    opened = executions(shaken)

    # Half of the outage is over when a process dies in it: a probe, or nothing.
    shaken.until(lambda: turns(shaken).count("open") >= 3)
    killed = shaken.executions()[-1].pid
    os.kill(killed, signal.SIGKILL)
    shaken.until(lambda: turns(shaken).count("open") >= 6)
    before = executions(shaken)
    rounds = turns(shaken).count("half_open")
    shaken.open("oracle")

    for run in runs:
        shaken.assert_sound(run)
    assert turns(shaken)[-1] == "closed"
    # What was under way or in the broker when it opened, and two a round, one more for the dead.
    assert before - opened <= 2 * rounds + 1 + 2 * 2
    assert executions(shaken) <= before + RUNS + 4
    assert no_attempt_but_for_a_call(shaken, runs)


def no_attempt_but_for_a_call(fleet: Fleet, runs: list[UUID]) -> bool:
    """Waiting has cost no step an attempt: each began as often as its row says, and once more for a death."""
    for run in runs:
        row = fleet.account(run).step("consult#1")
        began = len(fleet.began(run, "consult#1"))
        if not row["attempt"] <= began <= row["attempt"] + row["recoveries"]:
            return False
    return True


def test_what_waits_holds_no_worker(shaken: Fleet) -> None:
    for x in range(10):
        shaken.enqueue("counsel", x=x)
    shaken.until(lambda: turns(shaken))
    began = time.monotonic()

    other = shaken.enqueue("brief", n=2)

    shaken.assert_sound(other)
    assert time.monotonic() - began < 10

"""Random schedules of work, limits, relays and deaths against the admission of lanes (P12).

After every look: no more tokens than there were, no more places than are allowed, tenants in turn, the order within
each, and nobody kept out while there is room. After every step: each row is in exactly one place. In the end, with all
limits lifted, everything goes out and ends. `SAFEPOINT_MACHINE_EXAMPLES` sets how many schedules are tried.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test
from ledger_admission import Admission
from ledger_clock import Clock
from safepoint.ledger.connect import Connection, connect

EXAMPLES = max(1, int(os.environ.get("SAFEPOINT_MACHINE_EXAMPLES", "100")) // 12)


@pytest.fixture
def two(ledger_url: str) -> Iterator[tuple[Connection, Connection]]:
    with connect(ledger_url, name="machine") as first, connect(ledger_url, name="machine") as second:
        for opened in (first, second):
            opened.execute("SET synchronous_commit = off")  # nothing here is to survive the server
            opened.execute("SET lock_timeout = '2s'")  # who waits for a row that the other one has would wait for ever
        first.execute("INSERT INTO safepoint.breakers (name) VALUES ('llm')")
        yield first, second


BOUNDS = settings(
    max_examples=EXAMPLES,
    stateful_step_count=40,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)


def machine_on(two: tuple[Connection, Connection]) -> type[Admission]:
    return type("Machine", (Admission,), {"connection": two[0], "second": two[1], "clock": Clock(two[0])})


@pytest.mark.slow
@pytest.mark.timeout(900)  # a failure is shrunk for up to five minutes
def test_no_schedule_lets_too_much_or_too_little_through(two: tuple[Connection, Connection]) -> None:
    run_state_machine_as_test(machine_on(two), settings=BOUNDS)


def test_who_comes_while_a_relay_looks_has_not_waited_for_it(two: tuple[Connection, Connection]) -> None:
    """A schedule that was found once: its check took three of one tenant's turns for a second tenant's loss."""
    machine = machine_on(two)()
    try:
        machine.begin(limits=[{}, {"rate": 2.0, "burst": 3}, {}], width=1)
        machine.pile_up(count=4, lane="recovery", old=False, priority=0, tenant="b")
        machine.look_both(dies=False, lane="recovery")
    finally:
        machine.teardown()

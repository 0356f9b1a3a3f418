"""A worker is frozen past its lease and goes on (P35): its late commit counts unless somebody has claimed since."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from fleet import Fleet, events

pytestmark = [pytest.mark.chaos, pytest.mark.slow]
STEP = "linger#1"


@pytest.fixture
def leased(new_valkey: Callable[[], str], new_fleet: Callable[..., Fleet]) -> Fleet:
    """A fleet with a relay and a short lease."""
    fleet = new_fleet(new_valkey(), SAFEPOINT_WORKER__LEASE="4", SAFEPOINT_WORKER__BEAT="0.8")
    fleet.relay()
    return fleet


def test_a_late_commit_is_accepted_while_nobody_has_claimed_again(leased: Fleet) -> None:
    worker = leased.worker("online")
    run = leased.enqueue("patient", name="late")
    leased.until_began(run, STEP)
    worker.pause()
    leased.until(lambda: leased.account(run).causes(STEP) == ["lease"])

    leased.open("late")
    worker.unpause()
    account = leased.assert_sound(run)

    assert account.events_of(STEP, "step.committed")[0]["data"]["late"] is True
    assert account.step(STEP)["epoch"] == 1
    assert len(leased.began(run, STEP)) == 1


def test_a_late_commit_is_refused_once_somebody_else_has_claimed(leased: Fleet) -> None:
    frozen, other = leased.worker("online", wait=False), leased.worker("recovery", wait=False)
    frozen.ready()
    other.ready()
    run = leased.enqueue("patient", name="late")
    first = leased.until_began(run, STEP)
    frozen.pause()
    second = leased.until_began(run, STEP, times=2)

    leased.open("late@1")
    frozen.unpause()
    leased.until(lambda: events(frozen.raw, "lease.refused"))
    still = leased.account(run).step(STEP)
    leased.open("late@2")
    account = leased.assert_sound(run)

    refusal = events(frozen.raw, "lease.refused")[0]
    assert (refusal["error"], refusal["step"], refusal["epoch"]) == ("LeaseLost", STEP, 1)
    assert (first.epoch, second.epoch) == (1, 2)
    assert (still["status"], still["epoch"]) == ("running", 2)
    assert account.events_of(STEP, "step.committed")[0]["data"]["epoch"] == 2


def test_leases_alone_bring_back_the_steps_of_a_killed_worker(
    new_valkey: Callable[[], str], new_fleet: Callable[..., Fleet]
) -> None:
    alone = {"SAFEPOINT_WORKER__LEASE": "4", "SAFEPOINT_WORKER__BEAT": "0.8", "SAFEPOINT_WORKER__SESSION_LOCK": "false"}
    fleet = new_fleet(new_valkey(), **alone)
    fleet.relay()
    victim, other = fleet.worker("online", wait=False), fleet.worker("recovery", "online", wait=False)
    victim.ready()
    other.ready()
    runs = [fleet.enqueue("patient", name="go") for _ in range(4)]
    for run in runs:
        fleet.until_began(run, STEP)

    victim.kill("SIGKILL")
    fleet.open("go")
    accounts = [fleet.assert_sound(run) for run in runs]

    assert sorted(account.causes(STEP) for account in accounts) == [[], [], ["lease"], ["lease"]]

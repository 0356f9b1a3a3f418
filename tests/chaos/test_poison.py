"""P23: a step that kills its workers is held with the evidence; whoever works beside it loses nothing but time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID, uuid4

import pytest
from audit import Account
from fleet import Fleet
from poisons import HELD
from processes import WorkerNode

pytestmark = [pytest.mark.chaos, pytest.mark.slow]
MAX_RECOVERIES = 1
QUICK = "\n[breakers]\nmin_volume = 1\n"  # one bad call would open a breaker
ENDS = {
    "kill": {"signal": "SIGKILL"},
    "crash": {"signal": "SIGSEGV"},
    "exit": {"exit_code": 7},
}


@pytest.fixture(params=["valkey", pytest.param("rabbitmq", marks=pytest.mark.rabbitmq)])
def fleet(request: pytest.FixtureRequest, new_fleet: Callable[..., Fleet]) -> Iterator[Fleet]:
    """A fleet on either broker, with no process yet; beats come often, since they are what a dead worker leaves."""
    new_broker = {"valkey": "new_valkey", "rabbitmq": "new_vhost"}[request.param]
    few = {"SAFEPOINT_SCAN__MAX_RECOVERIES": str(MAX_RECOVERIES)}
    fleet = new_fleet(request.getfixturevalue(new_broker)(), SAFEPOINT_WORKER__BEAT="0.25", **few)
    with (fleet.folder / "safepoint.toml").open("a") as file:
        file.write(QUICK)
    yield fleet
    fleet.close()


def new_gate() -> str:
    return f"gate-{uuid4().hex[:8]}"


def evidence_of(account: Account) -> list[dict[str, Any]]:
    """Return the deaths for which a run is held."""
    assert account.run["reason"]["code"] == "poison"
    found: list[dict[str, Any]] = account.run["reason"]["detail"]["evidence"]
    assert account.step("die#1")["reason"]["detail"]["evidence"] == found
    return found


def resume(fleet: Fleet, run: UUID) -> None:
    fleet.query("SELECT safepoint.resume_v1(%s, 'a person')", run)


def assert_innocent(fleet: Fleet, run: UUID, *, recoveries: int = 0) -> None:
    """It has ended well, no attempt is used up, no death counted, and it was executed once and once for each loss."""
    account = fleet.assert_sound(run)
    for step in account.steps:
        assert (step["attempt"], step["deaths"]) == (1, 0), fleet.tell(run)
        assert step["recoveries"] <= recoveries, fleet.tell(run)
        assert len(fleet.began(run, step["key"])) <= 1 + step["recoveries"], fleet.tell(run)


def assert_no_verdict_on_what_it_uses(fleet: Fleet) -> None:
    """P39: a crash is no verdict on the dependency."""
    state, detail = fleet.query("SELECT state, detail FROM safepoint.breakers WHERE name = 'well'")[0]
    assert (state, fleet.query("SELECT * FROM safepoint.breaker_events WHERE name = 'well'")) == ("closed", [])
    assert not detail.get("buckets"), detail


@pytest.mark.children
def test_processes_that_a_step_kills_take_no_innocent_along(fleet: Fleet) -> None:
    worker = fleet.worker("online", "recovery", concurrency=4, wait=False)
    fleet.relay()
    worker.ready()
    gate, bystanders = new_gate(), new_gate()
    long = [fleet.enqueue("patient", name=bystanders) for _ in range(2)]
    for run in long:
        fleet.until_began(run, "linger#1")
    poison = {way: fleet.enqueue("deadly", way=way, name=gate) for way in ENDS}
    short = [fleet.enqueue("bloating"), *fleet.enqueue_many("brief", 8, n=1)]

    held = {way: fleet.assert_sound(run, status="held") for way, run in poison.items()}

    for way, account in held.items():
        assert_held_with_its_evidence(account, ENDS[way])
    assert all(one["resident"] > HELD for one in evidence_of(held["kill"]))
    fleet.open(bystanders)
    for run in [*long, *short[1:]]:
        assert_innocent(fleet, run)
    # More memory than the process may have is an error of the step's own: an attempt, and nobody's death.
    bloated = fleet.assert_sound(short[0]).step("bloat#1")
    assert (bloated["attempt"], bloated["recoveries"]) == (2, 0)
    assert_no_verdict_on_what_it_uses(fleet)

    resume(fleet, poison["exit"])
    fleet.until_began(poison["exit"], "die#1", times=2 * (MAX_RECOVERIES + 1))
    again = fleet.until_status(poison["exit"], "held")
    assert [one["epoch"] for one in evidence_of(again)] == [3, 4]  # all its chances, and none of the old evidence
    fleet.open(gate)
    resume(fleet, poison["exit"])
    fleet.assert_sound(poison["exit"])


def assert_held_with_its_evidence(account: Account, end: dict[str, object]) -> None:
    step, found = account.step("die#1"), evidence_of(account)
    assert (step["attempt"], step["deaths"], step["epoch"]) == (1, MAX_RECOVERIES + 1, MAX_RECOVERIES + 1)
    assert [one["epoch"] for one in found] == [1, 2]
    for one in found:
        assert {name: one[name] for name in end} == end
        assert 0 < one["resident"] <= one["allowed"]
        assert one["node"]
        assert one["ran"] >= 0
    assert len({one["pid"] for one in found}) == len(found)


def test_threads_that_die_with_a_step_are_taken_over_and_end_well(fleet: Fleet) -> None:
    worker = fleet.worker("online", "recovery", pool="threads", concurrency=3, wait=False)
    fleet.relay()
    worker.ready()
    gate, bystanders = new_gate(), new_gate()
    fleet.open(f"{gate}-fuse")
    beside = [fleet.enqueue("patient", name=bystanders) for _ in range(2)]
    poison = fleet.enqueue("deadly", way="kill", name=gate)

    for shared in (1, 2):
        for run in beside:
            fleet.until_began(run, "linger#1", times=shared)
        fleet.until_began(poison, "die#1", times=shared)
        fleet.open(f"{gate}-lit@{shared}")
        start_again(fleet, worker)
    fleet.open(bystanders)
    for death in range(3, 3 + MAX_RECOVERIES + 1):
        fleet.until_began(poison, "die#1", times=death)
        fleet.until(lambda: remembered(fleet))
        fleet.open(f"{gate}-lit@{death}")
        start_again(fleet, worker)
    account = fleet.assert_sound(poison, status="held")

    found = evidence_of(account)
    assert [one.get("shared", False) for one in found] == [True, True, False, False]
    assert {one["cause"] for one in found} == {"node"}
    assert all(0 < one["resident"] <= one["allowed"] and one["seen"] == "last beat" for one in found[2:])
    for run in beside:
        assert_innocent(fleet, run, recoveries=2)
    assert_no_verdict_on_what_it_uses(fleet)


def start_again(fleet: Fleet, worker: WorkerNode) -> None:
    """Do what a supervisor does."""
    fleet.until(lambda: worker.raw.status == "exited")
    worker.restart()


def remembered(fleet: Fleet) -> bool:
    """Whether a beat has told what the step's process holds."""
    rows = fleet.query(
        "SELECT FROM safepoint.steps s JOIN safepoint.nodes n ON n.node_id = s.owner"
        " WHERE s.step_id = 'die' AND s.status = 'running' AND n.marks->'@memory'->'resident' ? s.owner_pid::text"
    )
    return bool(rows)

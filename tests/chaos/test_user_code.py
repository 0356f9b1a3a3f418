"""User code ends, blocks or bloats its process: the run fails or is held with a reason, and the worker works on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from uuid import UUID, uuid4

import pytest
from fleet import Fleet, events
from processes import WorkerNode

pytestmark = [pytest.mark.chaos, pytest.mark.slow]


@pytest.fixture(scope="module")
def site(new_valkey: Callable[[], str], new_fleet: Callable[..., Fleet]) -> Iterator[tuple[Fleet, WorkerNode]]:
    """One worker and a relay for all of these tests."""
    fleet = new_fleet(new_valkey())
    worker = fleet.worker("online", "recovery", wait=False)
    fleet.relay()
    worker.ready()
    yield fleet, worker
    fleet.close()


@pytest.fixture
def fleet(site: tuple[Fleet, WorkerNode]) -> Fleet:
    return site[0]


@pytest.fixture
def worker(site: tuple[Fleet, WorkerNode]) -> WorkerNode:
    return site[1]


@pytest.fixture
def gate() -> str:
    """A gate of the test's own, closed."""
    return f"gate-{uuid4().hex[:8]}"


def resume(fleet: Fleet, run: UUID) -> None:
    fleet.query("SELECT safepoint.resume_v1(%s, 'a person')", run)


@pytest.mark.parametrize(("flow", "error"), [("leaving", "SystemExit"), ("exhausting", "MemoryError")])
def test_an_exception_that_would_end_the_worker_is_a_failed_attempt(
    fleet: Fleet, worker: WorkerNode, flow: str, error: str
) -> None:
    children = worker.process.children()
    run = fleet.enqueue(flow)

    account = fleet.assert_sound(run, status="failed")

    assert account.run["error"]["type"] == error
    assert [one.attempt for one in fleet.executions(run)] == [1, 2]
    assert worker.process.children() == children


@pytest.mark.children
def test_a_step_that_kills_its_process_is_held_as_poison_and_can_be_resumed(fleet: Fleet, gate: str) -> None:
    run = fleet.enqueue("vanishing", name=gate)
    held = fleet.assert_sound(run, status="held")
    fleet.open(gate)
    resume(fleet, run)

    account = fleet.until_status(run, "succeeded")

    assert held.run["reason"]["code"] == "poison"
    assert held.causes("vanish#1") == ["child"] * 3  # max_recoveries is 2
    assert held.step("vanish#1")["attempt"] == 1
    assert account.step("vanish#1")["epoch"] == 4
    fleet.assert_sound(run)


def test_a_step_past_its_timeout_is_attempted_again_and_its_late_result_is_refused(
    fleet: Fleet, worker: WorkerNode, gate: str
) -> None:
    run = fleet.enqueue("timing_out", name=gate)
    account = fleet.assert_sound(run)
    fleet.open(gate)

    fleet.until(lambda: [line for line in events(worker.raw, "lease.refused") if line["run"] == str(run)])

    assert account.run["result"] == b"2"
    assert account.causes("slow_once#1") == ["timeout"]
    retried = account.events_of("slow_once#1", "step.retried")
    assert [event["data"]["error"]["type"] for event in retried] == ["StepTimeout"]
    assert fleet.account(run) == account


def test_an_async_step_past_its_timeout_is_cancelled_and_attempted_again(fleet: Fleet) -> None:
    run = fleet.enqueue("dreaming")

    account = fleet.assert_sound(run)

    assert account.run["result"] == b"2"
    assert account.causes("dream_once#1") == []
    retried = account.events_of("dream_once#1", "step.retried")
    assert [event["data"]["error"]["type"] for event in retried] == ["StepTimeout"]


def test_a_result_of_100_megabytes_fails_the_step(fleet: Fleet) -> None:
    run = fleet.enqueue("inflating", size=100_000_000)

    account = fleet.assert_sound(run, status="failed")

    assert account.step("inflate#1")["error"]["type"] == "ValueTooLarge"
    assert len(fleet.began(run, "inflate#1")) == 1


@pytest.mark.parametrize(
    ("flow", "text"), [("looping", "did not reach the next await"), ("raising", "ZeroDivisionError: a bug")]
)
def test_a_bug_in_a_flow_holds_the_run_until_the_code_is_mended(fleet: Fleet, gate: str, flow: str, text: str) -> None:
    run = fleet.enqueue(flow, name=gate)
    held = fleet.assert_sound(run, status="held")
    fleet.open(gate)
    resume(fleet, run)

    account = fleet.until_status(run, "succeeded")

    assert held.run["reason"]["code"] == "flow_error"
    assert text in held.run["reason"]["text"]
    assert account.run["result"] == b"10"
    assert len(fleet.began(run, "fetch#1")) == 1
    fleet.assert_sound(run)


def test_a_flow_that_awaits_something_foreign_is_told_to_put_it_into_a_step(fleet: Fleet) -> None:
    run = fleet.enqueue("straying")

    account = fleet.assert_sound(run, status="held")

    assert account.run["reason"]["code"] == "flow_error"
    assert "step" in account.run["reason"]["text"]


def test_a_flow_that_fails_on_purpose_fails_its_run(fleet: Fleet) -> None:
    run = fleet.enqueue("refusing")

    account = fleet.assert_sound(run, status="failed")

    assert account.run["error"] == {**account.run["error"], "type": "Permanent", "message": "not today"}


@pytest.mark.children
def test_the_start_hook_runs_once_in_each_process_before_its_first_step(fleet: Fleet, gate: str) -> None:
    fleet.until_status(fleet.enqueue("vanishing", name=gate), "held")  # three processes have died by now
    run = fleet.enqueue("chain", n=4)
    account = fleet.assert_sound(run)

    hooks = fleet.hooks()
    assert len({pid for pid, _ in hooks}) == len(hooks)
    for execution in fleet.executions(run):
        claimed = account.events_of(execution.key, "step.started")[0]["data"]["at"]
        assert dict(hooks)[execution.pid] < datetime.fromisoformat(claimed).timestamp()

"""A message is a hint: five copies before, during and after a step give one result; of two who claim, one wins."""

from __future__ import annotations

import os
import threading
from uuid import UUID, uuid4

import psycopg
import pytest
from crashes import Crew
from fleet import events
from processes import WorkerNode
from safepoint.config.settings import load
from safepoint.ledger import lanes, nodes, steps
from safepoint.ledger.connect import Connection, connect
from safepoint.ledger.key import Key
from safepoint.tasks.wire import Message

COPIES = 5


def copies(run: UUID, step: str, *, lane: str) -> list[Message]:
    name = step.partition("#")[0]
    return [Message(run=str(run), step=step, lane=lane, name=name, attempt=1, epoch=1) for _ in range(COPIES)]


def refused(worker: WorkerNode, run: UUID, step: str) -> list[str]:
    """Why claims of a step were refused to this worker."""
    lines = events(worker.raw, "claim.refused")
    return [line["reason"] for line in lines if (line["run"], line["step"]) == (str(run), step)]


@pytest.mark.chaos
@pytest.mark.slow
def test_five_copies_before_during_and_after_a_step_give_one_result(crew: Crew) -> None:
    fleet, gate, step = crew.fleet, f"copies-{uuid4().hex[:8]}", "dwell#1"
    front = fleet.worker("front")
    front.pause()
    run = fleet.enqueue("lodging", name=gate)
    fleet.until(lambda: fleet.query("SELECT FROM safepoint.steps WHERE run_id = %s AND step_id = 'dwell'", run))
    with fleet.publisher() as publisher:

        def send() -> None:
            assert publisher.publish(copies(run, step, lane="front")) == [None] * COPIES

        send()  # before
        front.unpause()
        fleet.until_began(run, step)
        send()  # during: the other child of the pool hears of it
        fleet.until(lambda: refused(front, run, step).count("stale: running") >= 2 * COPIES - 1)
        fleet.open(gate)
        fleet.until_status(run, "succeeded")
        send()  # after
        fleet.until(lambda: refused(front, run, step).count("stale: succeeded") >= COPIES)
    account = fleet.assert_sound(run)

    assert len(fleet.began(run, step)) == 1
    assert account.step(step)["epoch"] == 1
    fleet.end(front)


# --- at the ledger --------------------------------------------------------------------------------------------------

RACES = 1000


def a_step(connection: Connection, run: UUID) -> Key:
    connection.execute("SELECT safepoint.enqueue('race', '{}', version => '1', run_id => %s)", [run])
    return Key(1, "", "@start", 1)


class Racer(threading.Thread):
    """Claims step after step on a connection of its own, each at the same moment as the other one."""

    def __init__(self, url: str, name: str, runs: list[UUID], barrier: threading.Barrier) -> None:
        super().__init__()
        self._url, self._name, self._runs, self._barrier = url, name, runs, barrier
        self.answers: list[steps.Claimed | steps.NotYours] = []

    def run(self) -> None:
        with connect(self._url, name=self._name) as connection:
            node = nodes.Node(self._name, "here", os.getpid(), lanes=("online",), flows=("race@1",), concurrency=1)
            nodes.register(connection, node, lease=60, with_lock=False)
            for run in self._runs:
                self._barrier.wait()
                answer = steps.claim(
                    connection,
                    run,
                    Key(1, "", "@start", 1),
                    lane="online",
                    claimer=steps.Claimer(self._name, os.getpid(), 0),
                    token=uuid4(),
                    timeout=60,
                )
                self.answers.append(answer)


def test_of_two_who_claim_a_step_one_wins_a_thousand_times(ledger_url: str) -> None:
    with connect(ledger_url, name="race") as connection:
        lanes.apply(connection, load(env={}).lanes, window=1000)
        runs = [
            row[0]
            for row in connection.execute(
                "SELECT safepoint.enqueue('race', '{}', version => '1') FROM generate_series(1, %s)", [RACES]
            )
        ]
    barrier = threading.Barrier(2)
    racers = [Racer(ledger_url, name, runs, barrier) for name in ("one", "other")]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()

    pairs = list(zip(*(racer.answers for racer in racers), strict=True))
    assert len(pairs) == RACES
    assert all(sum(isinstance(answer, steps.Claimed) for answer in pair) == 1 for pair in pairs)
    losers = {answer.reason for pair in pairs for answer in pair if isinstance(answer, steps.NotYours)}
    assert losers == {"stale: running"}
    with psycopg.connect(ledger_url) as connection:
        assert connection.execute("SELECT DISTINCT status, epoch FROM safepoint.steps").fetchall() == [("running", 1)]

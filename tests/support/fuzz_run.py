"""Runs seeds of the effect fuzzer on one fleet, several runs at a time, and lets each meet its faults.

Faults are sent to processes of the fleet alone, to whichever does for the run what the fault hangs on. A run that is
held for a person gets one, who looks at what the outside world has really done, when nothing can come any more.
"""

from __future__ import annotations

import heapq
import itertools
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from downstream import ASKED
from effect_deaths import effects_of, resolve
from fleet import Fleet
from fuzz_plan import AUTHORITATIVE_AFTER, PATIENCE, Fault, Plan, plan
from processes import LocalProcess, WorkerNode
from witness import Tail, Witness

__all__ = ["ENV", "Fuzz", "Trial", "business"]

FINAL = ("succeeded", "failed", "cancelled")
TICK = 0.02
LOOK = 0.1
REST = 1.0  # seconds that a process runs between two stops, and that a person waits after one
PATIENT = 8.0  # seconds that a person waits while processes are stopped; then no more are
LOST = 120.0  # seconds after which a run that is neither final nor held counts as lost
ENV = {
    "PATIENCE": str(PATIENCE),
    "AUTHORITATIVE_AFTER": str(AUTHORITATIVE_AFTER),
    "SAFEPOINT_WORKER__LEASE": "3",
    "SAFEPOINT_WORKER__BEAT": "0.6",
    "SAFEPOINT_SCAN__MAX_RECOVERIES": "50",
}


@dataclass
class Trial:
    """One seed on its way."""

    plan: Plan
    run: UUID
    reference: str
    neighbours: list[int]
    began: float = field(default_factory=time.monotonic)
    status: str = "queued"
    due: list[Fault] = field(default_factory=list)
    story: list[str] = field(default_factory=list)
    is_held: bool = False
    settled_by_person: int = 0

    @property
    def references(self) -> list[str]:
        """How the outside world calls its effects."""
        return [f"{self.reference}/{number}" for number in range(len(self.plan.kinds))]

    def tell(self, text: str) -> None:
        """Remember what has befallen it."""
        self.story.append(f"{time.monotonic() - self.began:7.3f} s: {text}")


class Fuzz:
    """A fleet, an outside world, and the seeds that run there."""

    def __init__(self, fleet: Fleet, witness: Witness, *, workers: int = 3, at_once: int = 20) -> None:
        self.fleet = fleet
        self.witness = witness
        self.at_once = at_once
        self.trials: list[Trial] = []
        self.counts: Counter[str] = Counter()
        self._live: dict[str, Trial] = {}
        self._record = Tail(fleet.record)
        self._todo: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = itertools.count()
        self._stopped: set[int] = set()
        self._thawed: dict[int, float] = {}  # when a process went on
        self._called = 0.0  # since when a person is asked for; in the end nothing is stopped until they have looked
        self.relay = fleet.relay()
        self.workers = [fleet.worker("online", "recovery", concurrency=3, wait=False) for _ in range(workers)]
        for worker in self.workers:
            worker.ready()

    def run(self, seeds: Iterable[int]) -> list[Trial]:
        """Run seeds to their ends; then end the workers, so that nothing can come any more."""
        waiting = list(seeds)[::-1]
        looked = 0.0
        while waiting or self._live or self._todo:
            while waiting and len(self._live) < self.at_once:
                self._start(plan(waiting.pop()))
            self._watch()
            while self._todo and self._todo[0][0] <= time.monotonic():
                heapq.heappop(self._todo)[2]()
            if time.monotonic() - looked > LOOK:
                self._look()
                looked = time.monotonic()
            time.sleep(TICK)
        self._end()
        return self.trials

    def _start(self, made: Plan) -> None:
        reference = f"seed-{made.seed}-{self.fleet.id}"
        for number, script in enumerate(made.scripts):
            self.witness.script(f"{reference}/{number}", knock=script.knock, post=script.post, lookup=script.lookup)
        run = self.fleet.enqueue("errands", reference=reference, kinds=made.kinds, at_once=made.at_once)
        neighbours = [trial.plan.seed for trial in self._live.values()]
        trial = Trial(made, run, reference, neighbours, due=list(made.faults))
        self.trials.append(trial)
        self._live[str(run)] = trial

    def _end(self) -> None:
        for worker in self.workers:
            worker.process.kill(signal.SIGTERM)
        for worker in self.workers:
            worker.process.wait()
        self.fleet.until(lambda: self.witness.in_flight() == 0)

    # What the runs do, and what befalls them then.

    def _watch(self) -> None:
        by_reference = {trial.reference: trial for trial in self._live.values()}
        for fact in self.witness.read():
            if fact["what"] in ASKED:
                self.counts[f"{fact['what']} {fact['behaviour'].partition(':')[0]}"] += 1
                reference, _, number = fact["reference"].rpartition("/")
                if reference in by_reference:
                    on = f"{fact['what']} {number} {fact['n']}"
                    self._meet(by_reference[reference], on, fact["pid"])
        for line in self._record.lines():
            words = line.split()
            if words[0] == "begin" and words[1] in self._live:
                self._meet(self._live[words[1]], f"begin {words[2].rpartition('/')[2]}", int(words[5]))

    def _meet(self, trial: Trial, on: str, pid: int) -> None:
        trial.tell(f"{on} by {pid}")
        for fault in [fault for fault in trial.due if fault.on == on]:
            trial.due.remove(fault)
            self._later(fault.delay, lambda fault=fault: self._befall(trial, fault, pid))  # type: ignore[misc]  # bound here

    def _later(self, delay: float, act: Callable[[], object]) -> None:
        heapq.heappush(self._todo, (time.monotonic() + delay, next(self._numbers), act))

    def _befall(self, trial: Trial, fault: Fault, pid: int) -> None:
        if fault.what == "cancel":
            answer = self.fleet.query("SELECT safepoint.cancel_v1(%s, 'the fuzzer')", trial.run)[0][0]
            return self._happened(trial, fault, answer)
        worker = next((worker for worker in self.workers if pid in _children(worker.process)), None)
        if worker is None:
            return self._missed(trial, fault, pid)
        if "stop" in fault.what:
            return self._stop(trial, fault, worker, pid)
        if fault.what == "kill worker":
            worker.process.kill("SIGKILL")
            worker.process.start()
        else:
            _send(pid, signal.SIGKILL)
        return self._happened(trial, fault, f"process {pid}")

    def _stop(self, trial: Trial, fault: Fault, worker: WorkerNode, pid: int) -> None:
        """Stop a child or all of a worker; never what is stopped, or was a moment ago: stops must not add up."""
        now, children = time.monotonic(), _children(worker.process)
        if pid not in children:
            return self._missed(trial, fault, pid)
        pids = {pid} if fault.what == "stop child" else {worker.process.pid, *children}
        called = self._called and now - self._called > PATIENT
        if called or pids & self._stopped or any(now - self._thawed.get(one, 0) < REST for one in pids):
            return self._later(REST, lambda: self._stop(trial, fault, worker, pid))
        self._stopped |= pids
        for one in pids:
            _send(one, signal.SIGSTOP)
        self._later(fault.length, lambda: self._thaw(pids))
        return self._happened(trial, fault, f"processes {sorted(pids)}")

    def _thaw(self, pids: set[int]) -> None:
        for pid in pids & self._stopped:
            _send(pid, signal.SIGCONT)
            self._thawed[pid] = time.monotonic()
        self._stopped -= pids

    def _missed(self, trial: Trial, fault: Fault, pid: int) -> None:
        self.counts["missed"] += 1
        trial.tell(f"not {fault.what}: {pid} has gone already")

    def _happened(self, trial: Trial, fault: Fault, text: object) -> None:
        self.counts[fault.what] += 1
        trial.tell(f"{fault}: {text}")

    # How they stand, and the person who is called.

    def _look(self) -> None:
        rows = self.fleet.query(
            "SELECT run_id::text, status, reason, holds <> '{}', EXISTS (SELECT FROM safepoint.steps s"
            " JOIN safepoint.effects e ON e.idempotency_key = s.effect_key"
            " WHERE s.run_id = r.run_id AND s.status = 'held' AND e.status = 'unknown')"
            " FROM safepoint.runs r WHERE run_id::text = ANY(%s)",
            list(self._live),
        )
        self._called = (self._called or time.monotonic()) if any(asks for *_, asks in rows) else 0.0
        for run, status, reason, holds, asks in rows:
            trial = self._live[run]
            if status != trial.status or holds != trial.is_held:
                trial.tell(f"is {status} {reason or ''}")
            trial.status, trial.is_held = status, holds
            if status in FINAL or time.monotonic() - trial.began > LOST:
                del self._live[run]
            elif asks:
                self._call_person(trial)

    def _call_person(self, trial: Trial) -> None:
        """Settle what is unknown by what the outside world has done, once nothing of it can come any more."""
        last = max(self._thawed.values(), default=0.0)
        if self._stopped or time.monotonic() - last < REST or self.witness.in_flight():
            return
        for effect in effects_of(self.fleet, trial.run):
            if effect["status"] == "unknown" and effect["step"] == "held":
                numbers = self.witness.numbers(business(trial, effect))
                verdict, value = ("succeeded", numbers[0]) if numbers else ("not_executed", None)
                answer = resolve(self.fleet, effect, verdict=verdict, value=value)
                trial.settled_by_person += answer == "resolved"
                trial.tell(f"a person says {verdict} {numbers} of {effect['reference']}: {answer}")


def _children(process: LocalProcess) -> set[int]:
    with suppress(OSError, AssertionError):
        return process.children()
    return set()


def _send(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def business(trial: Trial, effect: dict[str, Any]) -> str:
    """Return the reference under which the outside world knows an effect: it stands in the frozen request."""
    request = bytes.fromhex(effect["request"].removeprefix("\\x")).decode()
    return next(reference for reference in trial.references if f'"{reference}"' in request)

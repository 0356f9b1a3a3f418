"""Who may do what next: the two workers, the relay, the scan and people; `faults.py` adds what goes wrong.

A move is (label, next state, whether it is fair progress, the rule it breaks or None). Progress goes on by itself when
nothing fails any more. A fault, a paused process that wakes up, a late request that arrives and a cancel are not
progress: they may happen, and no way out of a state may depend on them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

import faults
from pieces import (
    Move,
    busy,
    canonical,
    count,
    described,
    fence_rule,
    forgotten,
    lane_rule,
    leave,
    may,
    must,
    without_late,
)
from protocol import (
    ABSENT,
    ALREADY_OURS,
    CLAIMED,
    COMMITTED,
    EMPTY,
    EXECUTED,
    FAILED,
    FINAL,
    GOT,
    GRANTED,
    IN_HAND,
    NO_MESSAGE,
    OLD_VERSION,
    OWN,
    PUBLISHED,
    READY,
    RULES,
    RUNNING,
    STORED,
    UNDUE,
    WAITING,
    Defences,
    Flow,
    State,
    Task,
    broken_rules,
    cancel,
    claim,
    commit,
    enqueued,
    history,
    is_lapsed,
    put,
    send_signal,
    take_over,
)


@dataclass(frozen=True)
class Model:
    """One flow under one set of defences, with people who may cancel."""

    flow: Flow
    defences: Defences = field(default_factory=Defences)
    cancels: bool = False
    rules: ClassVar[frozenset[str]] = RULES

    @property
    def steps(self) -> tuple[str, ...]:
        """The names of the flow's steps."""
        return self.flow.steps

    def start(self, faults: int) -> State:
        """A run right after its enqueue."""
        return enqueued(self.flow, faults)

    def canonical(self, state: State) -> tuple[State, bool]:
        """The state that stands for all that are equal to it."""
        return canonical(state)

    def broken(self, state: State) -> str | None:
        """The guarantee that a state breaks."""
        return broken_rules(self.flow, state)

    def is_end(self, state: State) -> bool:
        """Whether the run is final."""
        return state.run in FINAL

    def described(self, state: State) -> str:
        """One line on where the run stands."""
        return described(self.flow, state)

    def moves(self, state: State) -> Iterator[Move]:
        """Yield every move that is possible in `state`."""
        for number, task in enumerate(state.workers):
            if not task:
                yield from self._receive(state, number)
            elif task.paused:
                yield may("worker", number, "wakes up, at {}", task.step, busy(state, number, task._replace(paused=0)))
            else:
                yield self._work(state, number, task)
        yield from self._relay(state)
        yield from self._scan(state)
        yield from self._late(state)
        yield from self._people(state)
        if state.faults:
            yield from faults.moves(self.flow, self.defences, state._replace(faults=state.faults - 1))

    def _receive(self, state: State, number: int) -> Iterator[Move]:
        if number and not state.workers[0]:
            return  # both are idle: the first takes it
        for place, copies in enumerate(state.queue):
            if copies:
                task = Task(GOT, place // 2, place % 2)
                taken = state._replace(queue=count(state.queue, place, -1))
                yield must("worker", number, "receives {}", task.step, busy(taken, number, task))

    def _work(self, state: State, number: int, task: Task) -> Move:
        if task.stage == GOT:
            return self._claim(state, number, task)
        if task.stage == CLAIMED:
            return must("worker", number, "executes {}", task.step, busy(state, number, task._replace(stage=EXECUTED)))
        if task.stage in (EXECUTED, FAILED):
            return self._commit(state, number, task)
        if task.stage == COMMITTED:
            return self._publish(state, number, task)
        return self._ack(state, number, task, "acks {}")

    def _claim(self, state: State, number: int, task: Task) -> Move:
        answer, after = claim(self.defences, state, number, task)
        if answer != GRANTED:
            return self._ack(state, number, task, "is refused {} and acks")
        holding = self._looked(after, task._replace(stage=CLAIMED))
        broken = lane_rule(state.rows[task.step], task)
        if not self.defences.ack_after_commit:
            holding, broken = holding._replace(lane=NO_MESSAGE), "G4"
        return must("worker", number, "claims {}", task.step, busy(after, number, holding), broken)

    def _looked(self, state: State, task: Task) -> Task:
        """Read the history that the next advance is made from, and the mailbox if that is where it is looked into."""
        mail = EMPTY if self.defences.mailbox_under_lock else state.mail
        return task._replace(seen=history(state.rows), mail=mail)

    def _commit(self, state: State, number: int, task: Task) -> Move:
        answer, after = commit(self.defences, self.flow, state, number, task)
        if answer == OLD_VERSION:
            verb = "meets another state version at {}, reads and advances again"
            return must("worker", number, verb, task.step, busy(state, number, self._looked(state, task)))
        if answer not in (STORED, ALREADY_OURS):
            return self._ack(state, number, task, "has lost its lease of {} and acks")
        verb = "commits {}" if task.stage == EXECUTED else "releases {} for a retry"
        follows = task.stage == EXECUTED and self.flow.news(task.seen, task.step)
        done = task._replace(stage=COMMITTED, mail=EMPTY) if follows else Task(PUBLISHED, task.step, task.lane)
        broken = fence_rule(state.rows[task.step], number, answer)
        return must("worker", number, verb, task.step, busy(after, number, done), broken)

    def _publish(self, state: State, number: int, task: Task) -> Move:
        """The fast path. Without the outbox in the commit it is also the first that writes a due_at."""
        rows, queue = state.rows, state.queue
        for step in self.flow.news(task.seen, task.step):
            if rows[step].status == UNDUE:
                rows = put(rows, step, rows[step]._replace(status=READY))
            if rows[step].status not in (ABSENT, WAITING):
                queue = count(queue, 2 * step + OWN, 1)
        done = Task(PUBLISHED, task.step, task.lane)
        after = busy(state._replace(rows=rows, queue=queue), number, done)
        return must("worker", number, "publishes what follows {}", task.step, after)

    def _ack(self, state: State, number: int, task: Task, verb: str) -> Move:
        row = state.rows[task.step]
        unanswered = task.stage < COMMITTED and row.status == IN_HAND and row.token == number
        after = leave(state, number, forgotten(self.defences))
        return must("worker", number, verb, task.step, after, "G4" if unanswered else None)

    def _relay(self, state: State) -> Iterator[Move]:
        """The relay knows no time here: whatever has a due_at may be due; it sends again when the message is gone."""
        for step, row in enumerate(state.rows):
            place = 2 * step + row.lane
            if row.status == READY and not state.queue[place]:
                yield must("relay", 0, "publishes {}", step, state._replace(queue=count(state.queue, place, 1)))

    def _scan(self, state: State) -> Iterator[Move]:
        """The scan looks without a lock, and looks again under the lock before it writes."""
        cleared = state._replace(scan=-1)
        if state.scan < 0:
            for step in range(len(state.rows)):
                if is_lapsed(self.defences, state, step):
                    yield must("scan", 0, "finds {} without a living executor", step, state._replace(scan=step))
        elif self.defences.recheck_under_lock and not is_lapsed(self.defences, state, state.scan):
            yield must("scan", 0, "looks again under the lock and lets go of {}", state.scan, cleared)
        else:
            yield must("scan", 0, "takes {} over", state.scan, take_over(self.defences, cleared, state.scan))

    def _late(self, state: State) -> Iterator[Move]:
        """A request that outlived its sender's connection takes effect, or its backend ends without."""
        if not state.late:
            return
        token, task = state.late
        after, broken = faults.sent(self.flow, self.defences, state, token, task)
        if after is not state:
            verb = "claim of {} takes effect" if task.stage == GOT else "commit of {} takes effect"
            yield may("late", 0, verb, task.step, without_late(self.defences, after), broken)
        yield may("late", 0, "request for {} ends without effect", task.step, without_late(self.defences, state))

    def _people(self, state: State) -> Iterator[Move]:
        if self.flow.waits and state.mail == EMPTY and state.run == RUNNING:
            yield must("person", 0, "sends the signal", -1, send_signal(self.flow, state))
        if self.cancels and state.run == RUNNING:
            yield may("person", 0, "cancels the run", -1, cancel(state))

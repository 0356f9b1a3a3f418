"""Who may do what next with an effect: two workers, the scan, time, people, the other side.

A move is what it is in `moves.py`. Beside faults, what no way out may depend on is: a worker that is cut off, a late
request, a webhook, a cancel, a person who is not needed, and how soon the other side forgets a key.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

from effect_faults import effect_faults
from effect_ledger import Ledger
from effect_rules import EFFECT_RULES, EffectMove, broken_effect_rules, canonical_effect, described_effect
from effect_worker import Worker
from effects import (
    ASKED,
    BEGUN,
    CLAIMED,
    CLOSED,
    DID_IT,
    DID_NOT,
    EXECUTING,
    FORGOTTEN,
    HELD,
    IN_HAND,
    LATE,
    LONG,
    NOBODY,
    ON_THE_WAY,
    OPEN,
    OPEN_STEPS,
    PASSED,
    PENDING,
    RECEIPT,
    RUNNING,
    SENT,
    SHORTLY,
    STOPPED,
    SUCCEEDED,
    UNKNOWN,
    Card,
    EffectDefences,
    Plan,
    State,
    Task,
    busy,
    enqueued,
    forget_late,
    leave,
    put,
    put_remote,
    senders,
)
from pieces import may, must


@dataclass(frozen=True)
class EffectModel:
    """One plan under one set of defences."""

    plan: Plan
    defences: EffectDefences = field(default_factory=EffectDefences)
    ledger: Ledger = field(init=False)
    worker: Worker = field(init=False)

    rules: ClassVar[frozenset[str]] = EFFECT_RULES

    def __post_init__(self) -> None:
        """Give the ledger and the workers the same plan and defences."""
        object.__setattr__(self, "ledger", Ledger(self.plan, self.defences))
        object.__setattr__(self, "worker", Worker(self.plan, self.defences, self.ledger))

    @property
    def name(self) -> str:
        """What the plan is called."""
        return self.plan.name

    @property
    def steps(self) -> tuple[str, ...]:
        """The names of the rows."""
        return self.plan.steps

    def start(self, faults: int) -> State:
        """The run has asked for its first effects."""
        return enqueued(self.plan, faults)

    def canonical(self, state: State) -> tuple[State, bool]:
        """The state that stands for all that are equal to it."""
        return canonical_effect(state)

    def broken(self, state: State) -> str | None:
        """The promise that a state breaks."""
        return broken_effect_rules(self.plan, state)

    def is_end(self, state: State) -> bool:
        """Whether the run is final."""
        return state.run in (SUCCEEDED, STOPPED)

    def described(self, state: State) -> str:
        """One line on where the run stands."""
        return described_effect(self.plan, state)

    def moves(self, state: State) -> Iterator[EffectMove]:
        """Yield every move that is possible in `state`; a card is stale once its row has moved on."""
        card = state.card
        for label, after, progress, broken in self._all(state):
            if card and after.card == card and after.rows[card.row].status != state.rows[card.row].status:
                yield label, after._replace(card=card._replace(stale=1)), progress, broken
            else:
                yield label, after, progress, broken

    def _all(self, state: State) -> Iterator[EffectMove]:
        for number, task in enumerate(state.workers):
            if task:
                yield from self._work(state, number, task)
            elif number == 0 or state.workers[0]:  # when both are idle the first takes it
                yield from self._claim(state, number)
        for number in range(len(state.rows)):
            yield from self._scan(state, number)
            yield from self._time(state, number)
            yield from self._arrivals(state, number)
            yield from self._settlers(state, number)
        yield from self._card(state)
        yield from self._late(state)
        if self.plan.cancels and state.run == RUNNING:
            yield may("person", 0, "cancels the run", -1, self.ledger.cancel(state))
        if state.faults:
            yield from effect_faults(self.worker, state._replace(faults=state.faults - 1))

    def _claim(self, state: State, number: int) -> Iterator[EffectMove]:
        for step, row in enumerate(state.rows):
            if self.ledger.may_claim(state, step):
                after = busy(self.ledger.claim(state, step, number), number, Task(CLAIMED, step, row.status))
                verb = "claims {}" if row.status == PENDING else "claims {} to settle it"
                yield must("worker", number, verb, step, after)

    def _work(self, state: State, number: int, task: Task) -> Iterator[EffectMove]:
        if task.cut:
            verb = "is no longer cut off, with {} in hand"
            yield may("worker", number, verb, task.row, busy(state, number, task._replace(cut=0)))
        write = None if task.cut else self.worker.write(state, number, task)
        if write:
            verb, after, following, broken = write
            verb, after = (verb, after) if after is not None else ("has lost {}", state)
            after = busy(after, number, following) if following else leave(after, number, NOBODY)
            yield must("worker", number, verb, task.row, after, broken)
        elif task.stage == BEGUN:
            yield self.worker.send(state, number, task)
        elif self.worker.asks(state, task):
            yield self.worker.ask(state, number, task)

    def _scan(self, state: State, step: int) -> Iterator[EffectMove]:
        row = state.rows[step]
        if row.step != IN_HAND:
            return
        task = state.workers[row.token] if row.token < LATE else ()
        if task and not (task.cut or task.over):
            return
        if not task or not self.defences.death_is_proved:
            verb = "takes {} over: its executor is dead"
            yield must("scan", 0, verb, step, self.ledger.take_over(state, step, dead=True))
        if task or (row.status == EXECUTING and row.window == OPEN):
            verb = "takes {} over: its lease is over"
            yield must("scan", 0, verb, step, self.ledger.take_over(state, step, dead=False))

    def _time(self, state: State, step: int) -> Iterator[EffectMove]:
        """Nothing but a sender and whoever settles an unknown looks at the clock: for others it need not move."""
        row, remote = state.rows[step], state.remotes[step]
        about_to = any(task and task.row == step and task.stage in (CLAIMED, ASKED, BEGUN) for task in state.workers)
        if row.window == OPEN and (row.status == UNKNOWN or about_to):
            after = put(state, step, row._replace(window=CLOSED))
            for number, task in enumerate(state.workers):
                if task and task.row == step and task.stage == BEGUN:
                    after = busy(after, number, task._replace(over=1))
            yield must("time", 0, "passes: nobody may send {} any more", step, after)
        waits = remote.adrift or any(
            task and task.row == step and task.stage == SENT and task.knows == ON_THE_WAY for task in state.workers
        )
        if row.window == CLOSED and row.status == UNKNOWN and not waits:
            after = put(state, step, row._replace(window=PASSED))
            yield must("time", 0, "passes: no request of {} is on the way", step, after)
        if not self.plan.forgets or row.status == PENDING:
            return
        if remote.key == LONG:
            after = put_remote(state, step, remote._replace(key=SHORTLY))
            yield may("time", 0, "passes: the key of {} is not remembered much longer", step, after)
        elif remote.key == SHORTLY and not waits and not any(task.knows == LONG for task in senders(state, step)):
            after = put_remote(state, step, remote._replace(key=FORGOTTEN))
            yield may("time", 0, "passes: the key of {} is forgotten", step, after)

    def _arrivals(self, state: State, step: int) -> Iterator[EffectMove]:
        remote = state.remotes[step]
        done = self.worker.done(remote)
        for number, task in enumerate(state.workers):
            if task and task.row == step and task.stage == SENT and task.knows == ON_THE_WAY:
                after = busy(put_remote(state, step, done), number, task._replace(knows=RECEIPT))
                yield must("other side", number, "does {}, as worker {worker} asked, and answers", step, after)
        if remote.adrift:
            after = put_remote(state, step, done._replace(adrift=remote.adrift - 1))
            yield must("other side", 0, "does {}, for nobody who waits", step, after)
            after = put_remote(state, step, remote._replace(adrift=remote.adrift - 1))
            yield may("network", 0, "loses a request of {} that nobody waits for", step, after)

    def _settlers(self, state: State, step: int) -> Iterator[EffectMove]:
        row, remote = state.rows[step], state.remotes[step]
        if row.status == UNKNOWN and row.step in OPEN_STEPS:
            if remote.did and not self.plan.calm:
                yield may("webhook", 0, "says that {} was done", step, self.ledger.settle(state, step, DID_IT))
            time = row.window == PASSED or not self.defences.person_waits
            if not state.card and time and (row.step == HELD or not self.plan.calm):
                verb = "looks at {}: done" if remote.did else "looks at {}: not done"
                after = state._replace(card=Card(step, int(remote.did > 0)))
                yield (must if row.step == HELD else may)("person", 0, verb, step, after)
        if row.step == HELD and row.status == DID_NOT and self.plan.undoes(step):
            yield must("person", 0, "resumes {}", step, self.ledger.settle(state, step, PENDING))

    def _card(self, state: State) -> Iterator[EffectMove]:
        if not state.card:
            return
        step, saw, stale = state.card
        row, cleared = state.rows[step], state._replace(card=())
        if (stale and self.defences.card_version) or row.status != UNKNOWN or row.step not in OPEN_STEPS:
            yield must("person", 0, "is refused a stale resolution of {}", step, cleared)
        elif saw:
            yield must("person", 0, "resolves {} as succeeded", step, self.ledger.settle(cleared, step, DID_IT))
        else:
            yield must("person", 0, "resolves {} as not executed", step, self.ledger.settle(cleared, step, PENDING))
            yield must("person", 0, "resolves {} as failed", step, self.ledger.settle(cleared, step, DID_NOT))

    def _late(self, state: State) -> Iterator[EffectMove]:
        if not state.late:
            return
        token, task = state.late
        write = self.worker.write(state, token, task)
        over = forget_late(state)
        if write and write[1] is not None and write[1] != state:
            yield may("late", 0, f"request takes effect: {write[0]}", task.row, forget_late(write[1]), write[3])
        yield may("late", 0, "request for {} ends without effect", task.row, over)

"""What a worker does with an effect: what it tells the ledger next, how it asks the other side, how it sends."""

from __future__ import annotations

from dataclasses import dataclass

from effect_ledger import BEGAN, Ledger
from effect_rules import EffectMove
from effects import (
    ASKED,
    BEATEN,
    BEGUN,
    CLAIMED,
    EXECUTING,
    FORGOTTEN,
    FOUND,
    LONG,
    LOOKUPS,
    NOT_EXECUTED,
    ON_THE_WAY,
    PASSED,
    PENDING,
    RECEIPT,
    REFUSAL,
    SENT,
    SETTLED,
    SILENCE,
    STOPPING,
    TOO_EARLY,
    UNKNOWN,
    UNSENT,
    UNSURE,
    EffectDefences,
    Plan,
    Remote,
    State,
    Task,
    busy,
)
from pieces import may, must

Write = tuple[str, State | None, Task | tuple[()], str | None]  # verb, after (None: lost), next in hand, broken rule


@dataclass(frozen=True)
class Worker:
    """Both workers: they know the plan, and the defences that are theirs."""

    plan: Plan
    defences: EffectDefences
    ledger: Ledger

    def write(self, state: State, token: int, task: Task) -> Write | None:
        """What a worker's next request to the ledger does, or None when it has none."""
        ledger, row = self.ledger, task.row
        if task.stage == CLAIMED:
            return None if self.asks(state, task) else self._after_claim(state, token, task)
        if task.stage == ASKED:
            return self._after_answer(state, token, task)
        if task.stage == SENT:
            return self._after_call(state, token, task)
        if task.stage == UNSENT:
            return "records that {} was not sent", ledger.retry(state, row, token), (), None
        if task.stage == BEATEN:
            return "adds its receipt of {} as evidence", ledger.evidence(state, row), (), None
        return None

    def _after_claim(self, state: State, token: int, task: Task) -> Write:
        if task.knows in SETTLED:
            return "commits the stored outcome of {}", self.ledger.commit_stored(state, task.row, token), (), None
        if task.knows == PENDING or self.ledger.may_send_again(state, task.row):
            return self._begin(state, token, task.row, excluded=False)
        return "holds {} for a person", self.ledger.hold(state, task.row, token), (), None

    def _after_answer(self, state: State, token: int, task: Task) -> Write:
        if task.knows == FOUND:
            return "commits {}, which was found", self.ledger.commit_success(state, task.row, token), (), None
        if task.knows == NOT_EXECUTED and self._believes(state, task.row):
            return self._begin(state, token, task.row, excluded=True)
        after = self.ledger.unsettle(state, task.row, token, unsure=task.knows == UNSURE)
        return "lets {} be asked about again", after, (), None

    def _after_call(self, state: State, token: int, task: Task) -> Write | None:
        if task.knows == RECEIPT:
            after = self.ledger.commit_success(state, task.row, token)
            return "commits {}", after, task._replace(stage=BEATEN) if after is None else (), None
        if task.knows == REFUSAL:
            return "commits that {} was refused", self.ledger.commit_refusal(state, task.row, token), (), None
        if task.knows == SILENCE:
            return "records that {} is unknown", self.ledger.unsettle(state, task.row, token), (), None
        return None

    def _begin(self, state: State, token: int, step: int, *, excluded: bool) -> Write:
        begun = Task(BEGUN, step, int(state.remotes[step].key != LONG))
        if not self.defences.begin_before_call:
            return "calls {} at once", state, begun, None
        before = state.rows[step]
        answer, after = self.ledger.begin(state, step, token, excluded=excluded)
        if answer != BEGAN:
            return "may not begin {}", after, (), None
        again = before.status == EXECUTING or (before.status == UNKNOWN and not excluded)
        first = state.run == STOPPING and not again and not self.plan.undoes(step)
        return "begins {}", after, begun, "P29" if first else None

    def _believes(self, state: State, step: int) -> bool:
        judged = self.defences.judged_when_asked or not self.defences.authoritative_after
        return judged or state.rows[step].window == PASSED

    def asks(self, state: State, task: Task) -> bool:
        """Whether the worker's next move is to ask the other side."""
        fresh = state.rows[task.row].unsure < LOOKUPS
        return task.stage == CLAIMED and task.knows == UNKNOWN and self.plan.lookup and fresh

    def ask(self, state: State, number: int, task: Task) -> EffectMove:
        """The lookup: what it hears is what was true when the other side was asked."""
        answer = NOT_EXECUTED
        if state.remotes[task.row].did and self.defences.frozen_request:
            answer = FOUND
        elif state.rows[task.row].window != PASSED and self.defences.authoritative_after:
            answer = TOO_EARLY if self.defences.judged_when_asked else NOT_EXECUTED
        verb = ("asks about {}: found", "asks about {}: not executed", "asks about {}: not executed, too early")[answer]
        after = busy(state, number, task._replace(stage=ASKED, knows=answer))
        return (may if task.cut else must)("worker", number, verb, task.row, after)

    def send(self, state: State, number: int, task: Task) -> EffectMove:
        """The check and the send are one move: a pause between them is a delay of the request."""
        if task.over and self.defences.check_before_send:
            verb, following = "sees that its lease is over and does not send {}", task._replace(stage=UNSENT, knows=0)
        else:
            verb, following = "sends {}", task._replace(stage=SENT, knows=ON_THE_WAY)
        return (may if task.cut else must)("worker", number, verb, task.row, busy(state, number, following))

    def done(self, remote: Remote) -> Remote:
        """What a request does there: a key that is remembered is answered from memory, anything else is done."""
        remembers = self.plan.keys and self.defences.frozen_request and remote.key != FORGOTTEN
        return remote if remote.did and remembers else remote._replace(did=min(2, remote.did + 1))

"""The ledger's transactions on an effect: claim, begin, commit, unsettle, takeover, resolution, cancel, the run's end.

Each is atomic because the real one locks the run's row before it looks (P1). Each answers with the state after it, and
with None where the fence (G3) refuses it: then the caller has lost the step.
"""

from __future__ import annotations

from dataclasses import dataclass

from effects import (
    ABSENT,
    CLOSED,
    DID_IT,
    DID_NOT,
    DONE,
    DROPPED,
    EXECUTING,
    FAILED,
    HELD,
    IN_HAND,
    LONG,
    MAY_ARRIVE,
    MAY_HAVE_ARRIVED,
    NOBODY,
    OPEN,
    OPEN_STEPS,
    PASSED,
    PENDING,
    READY,
    RUNNING,
    SETTLED,
    STOPPED,
    STOPPING,
    SUCCEEDED,
    SURE,
    UNKNOWN,
    UNSETTLED,
    EffectDefences,
    Plan,
    Row,
    State,
    put,
    senders,
)

BEGAN, SENT_BACK, LOST = range(3)  # what a begin answers


@dataclass(frozen=True)
class Ledger:
    """The transactions under one plan and one set of defences."""

    plan: Plan
    defences: EffectDefences

    def may_claim(self, state: State, number: int) -> bool:
        """Whether a claim is granted: of a ready step in a live run, and in a stopping one only to settle (P32)."""
        row = state.rows[number]
        if row.step != READY or state.run not in (RUNNING, STOPPING):
            return False
        settles = self.plan.undoes(number) or row.status != PENDING
        return state.run == RUNNING or (settles and self.defences.settle_under_stop)

    def claim(self, state: State, number: int, token: int) -> State:
        """Replace the token: whoever had it can commit no more (P35)."""
        return put(state, number, state.rows[number]._replace(step=IN_HAND, token=token))

    def begin(self, state: State, number: int, token: int, *, excluded: bool) -> tuple[int, State]:
        """Make `executing` durable, or send the caller back; `excluded` says that a lookup was believed."""
        row = state.rows[number]
        ours = row.token == token and row.step == IN_HAND
        if ours and row.status == EXECUTING:
            # P4: the answer of this very begin was lost
            return BEGAN, put(state, number, row._replace(window=OPEN)) if self.defences.repeat_renews else state
        if not ours and (self.defences.begin_fenced or row.step not in OPEN_STEPS):
            return LOST, state
        if row.status not in (PENDING, UNKNOWN):
            return SENT_BACK, self.let_go(state, number, row) if ours else state
        again = row.status == UNKNOWN and not excluded
        if state.run == STOPPING and not again and self.defences.begin_sees_stop and not self.plan.undoes(number):
            return SENT_BACK, self.let_go(state, number, row._replace(status=PENDING))
        doubt = SURE
        if again:
            doubt = MAY_HAVE_ARRIVED if row.window == PASSED else MAY_ARRIVE
        return BEGAN, put(state, number, row._replace(status=EXECUTING, window=OPEN, doubt=doubt))

    def may_send_again(self, state: State, number: int) -> bool:
        """Whether the same key may be used once more: as long as a whole call fits into its retention."""
        key = state.remotes[number].key
        return self.plan.keys and (key == LONG or not self.defences.key_retention)

    def commit_success(self, state: State, number: int, token: int) -> State | None:
        """Store a receipt or a found outcome with the step, and what follows from it."""
        row = state.rows[number]
        if row.step == DONE and row.token == token:
            return state  # P3: the repeated commit finds its own result
        if not self._holds(row, token):
            return None
        order = sum(1 for other in state.rows[: len(self.plan.effects)] if other.step == DONE)
        return self.close(put(state, number, row._replace(step=DONE, status=DID_IT, order=order)))

    def commit_stored(self, state: State, number: int, token: int) -> State | None:
        """Commit what a person, a webhook or late evidence has settled; nothing is executed."""
        row = state.rows[number]
        if row.status == DID_IT:
            return self.commit_success(state, number, token)
        return self._fail(state, number, row) if self._holds(row, token) else None

    def commit_refusal(self, state: State, number: int, token: int) -> State | None:
        """The other side has refused this attempt: failed, unless an earlier attempt may still arrive."""
        row = state.rows[number]
        if not self._holds(row, token):
            return None
        if row.status in SETTLED:
            return self.let_go(state, number, row)
        if row.doubt == MAY_ARRIVE and self.defences.refusal_keeps_doubt:
            return self.unsettle(state, number, token)
        return self._fail(state, number, row._replace(status=DID_NOT))

    def _fail(self, state: State, number: int, row: Row) -> State:
        if self.plan.undoes(number) and self.defences.refused_compensation_is_held:
            return put(state, number, row._replace(step=HELD, token=NOBODY))
        step = DROPPED if state.run == STOPPING else FAILED
        return self.close(put(state, number, row._replace(step=step)))

    def retry(self, state: State, number: int, token: int) -> State | None:
        """This attempt was not sent: as before it, pending, or unknown if an earlier one may have arrived."""
        row = state.rows[number]
        if not self._holds(row, token):
            return None
        if row.status in UNSETTLED:
            doubtful = row.doubt != SURE and self.defences.unsent_keeps_doubt
            row = self._ended(state, number, token, row)
            row = row._replace(status=UNKNOWN) if doubtful else row._replace(status=PENDING, window=PASSED)
        return self.let_go(state, number, row._replace(token=NOBODY))

    def unsettle(self, state: State, number: int, token: int, *, unsure: int = 0) -> State | None:
        """The claim ends and nobody knows: a call without an answer, or a lookup whose answer helps nobody."""
        row = state.rows[number]
        if not self._holds(row, token):
            return None
        if row.status == EXECUTING:
            status = UNKNOWN if self.defences.silence_is_unknown else PENDING
            row = self._ended(state, number, token, row)._replace(status=status)
        return self.let_go(state, number, row._replace(token=NOBODY, unsure=row.unsure + unsure))

    def hold(self, state: State, number: int, token: int) -> State | None:
        """Neither lookup nor key can settle it: a person must."""
        row = state.rows[number]
        if not self._holds(row, token):
            return None
        if row.status != UNKNOWN:
            return self.let_go(state, number, row._replace(token=NOBODY))
        return put(state, number, row._replace(step=HELD, token=NOBODY))

    def let_go(self, state: State, number: int, row: Row) -> State:
        """A claim ends without an outcome; what was never executed ends with a run that is stopping."""
        if row.status == EXECUTING:
            row = row._replace(status=UNKNOWN if self.defences.loss_is_unknown else PENDING)
        if state.run == STOPPING and row.status in (PENDING, DID_NOT) and not self.plan.undoes(number):
            return self.close(put(state, number, row._replace(step=DROPPED, status=DID_NOT)))
        return put(state, number, row._replace(step=READY))

    def take_over(self, state: State, number: int, *, dead: bool) -> State:
        """The scan's write: the token stays until somebody claims again (P35); a proved death ends the window."""
        row = state.rows[number]
        if dead and row.status == EXECUTING:
            row = self._ended(state, number, row.token, row)
        return self.let_go(state, number, row if self.defences.late_commits else row._replace(token=NOBODY))

    def _ended(self, state: State, number: int, token: int, row: Row) -> Row:
        """That executor sends no more: what it sent may be on the way, and an older executor may still send."""
        older = self.defences.latest_window and senders(state, number, besides=token)
        return row._replace(window=CLOSED) if row.window == OPEN and not older else row

    def evidence(self, state: State, number: int) -> State:
        """P34: a receipt whose commit was refused settles an unknown; else it is a line of the history."""
        row = state.rows[number]
        if row.status != UNKNOWN or not self.defences.late_evidence:
            return state
        return self.settle(state, number, DID_IT)

    def settle(self, state: State, number: int, status: int) -> State:
        """Somebody else than the executor stores an outcome; the next claim commits it."""
        row = state.rows[number]._replace(status=status)
        if row.step == HELD and self.defences.resolution_wakes_held:
            row = row._replace(step=READY)
        if row.step == READY and status == PENDING and self.defences.resolution_sees_stop:
            return self.let_go(state, number, row)
        return put(state, number, row)

    def cancel(self, state: State) -> State:
        """What nobody executes ends at once, but for effects that are unsettled or wait to be committed."""
        rows = tuple(self._stopped(row) for row in state.rows)
        return self.close(state._replace(run=STOPPING, rows=rows))

    def _stopped(self, row: Row) -> Row:
        spared = (row.status in UNSETTLED and self.defences.stop_spares_unsettled) or (
            row.status == DID_IT and self.defences.stop_spares_stored
        )
        if row.step not in (READY, HELD) or spared:
            return row
        return row._replace(step=DROPPED, status=DID_NOT if row.status == PENDING else row.status)

    def close(self, state: State) -> State:
        """Whatever follows when a step has ended: the next effect, the next compensation, the run's end."""
        is_open = any(row.step in OPEN_STEPS for row in state.rows)
        if state.run == RUNNING:
            return state if is_open else self._advance(state)
        if state.run != STOPPING or (is_open and self.defences.compensation_waits):
            return state
        following = self._to_undo(state)
        if following >= 0:
            return put(state, following, Row(READY))
        return state if is_open else state._replace(run=STOPPED)

    def _advance(self, state: State) -> State:
        effects = state.rows[: len(self.plan.effects)]
        failed = any(row.step == FAILED for row in effects)
        missing = next((number for number, row in enumerate(effects) if row.step == ABSENT), -1)
        if failed or (missing < 0 and self.plan.fails):
            return self.close(state._replace(run=STOPPING))
        return state._replace(run=SUCCEEDED) if missing < 0 else put(state, missing, Row(READY))

    def _to_undo(self, state: State) -> int:
        """The row of the next compensation, one at a time in reverse order of commit (P37), or -1."""
        size = len(self.plan.effects)
        if not self.plan.compensates or any(row.step in OPEN_STEPS for row in state.rows[size:]):
            return -1
        done = [number for number in range(size) if state.rows[number].step == DONE]
        done.sort(key=lambda number: state.rows[number].order, reverse=self.defences.compensation_in_turn)
        return next((size + number for number in done if state.rows[size + number].step == ABSENT), -1)

    def _holds(self, row: Row, token: int) -> bool:
        """The one fence: the token, while the step is in hand or nobody has claimed it again (P35)."""
        return row.token == token and row.step in (IN_HAND, READY)

"""What must not be with an effect, how a state reads, and which states are equal."""

from __future__ import annotations

from effects import (
    ABSENT,
    DID_NOT,
    DONE,
    LATE,
    LONG,
    OPEN_STEPS,
    PASSED,
    SETTLED,
    STOPPED,
    SUCCEEDED,
    SURE,
    UNSETTLED,
    Plan,
    State,
    put,
    put_remote,
)
from pieces import Label

EffectMove = tuple[Label, State, bool, str | None]

# P29 is judged by the moves, G2 by the search.
EFFECT_RULES = frozenset({"twice", "false success", "false failure", "P29", "P32", "P37"})

RUN_STATUSES = ("running", "stopping", "succeeded", "stopped")
STEP_STATUSES = ("not asked for", "ready", "in hand", "held", "succeeded", "failed", "cancelled")
EFFECT_STATUSES = ("pending", "executing", "succeeded", "failed", "unknown")
TIMES = ("not done", "done once", "done twice")


def broken_effect_rules(plan: Plan, state: State) -> str | None:
    """The promise that this state breaks, if any."""
    for row, remote in zip(state.rows, state.remotes, strict=True):
        if remote.did > 1:
            return "twice"
        if row.step == DONE and not remote.did:
            return "false success"
        if row.status == DID_NOT and remote.did:
            return "false failure"
    final = state.run in (SUCCEEDED, STOPPED)
    if final and any(row.step in OPEN_STEPS or row.status in UNSETTLED for row in state.rows):
        return "P32"
    return _broken_compensation(plan, state) if plan.compensates else None


def _broken_compensation(plan: Plan, state: State) -> str | None:
    """P37: what was done is undone before the run stops, when nothing is unsettled, and the last first."""
    size = len(plan.effects)
    effects, undone = state.rows[:size], state.rows[size:]
    if state.run == STOPPED and any(
        remote.did and undo.step != DONE for remote, undo in zip(state.remotes[:size], undone, strict=True)
    ):
        return "P37"
    begun = [number for number in range(size) if undone[number].step != ABSENT]
    if begun and any(row.step in OPEN_STEPS for row in effects):
        return "P37"
    for number in begun:
        later = [other for other in range(size) if effects[other].order > effects[number].order]
        if any(effects[other].step == DONE and undone[other].step != DONE for other in later):
            return "P37"
    return None


def described_effect(plan: Plan, state: State) -> str:
    """One line on where a run stands."""
    rows = (
        f"{name} {STEP_STATUSES[row.step]} ({EFFECT_STATUSES[row.status]}, {TIMES[remote.did]})"
        for name, row, remote in zip(plan.steps, state.rows, state.remotes, strict=True)
    )
    return f"run {RUN_STATUSES[state.run]}; {', '.join(rows)}"


def _is_past(state: State, number: int) -> bool:
    """Whether a row is over, with nobody at work on it and nothing on the way: then it has no time any more."""
    row = state.rows[number]
    if row.step in OPEN_STEPS or row.status not in SETTLED or state.remotes[number].adrift:
        return False
    return not any(task and task.row == number for task in (*state.workers, state.late and state.late.task))


def _tidied(state: State) -> State:
    for number, row in enumerate(state.rows):
        has_time = row.window != PASSED or row.doubt or row.unsure or state.remotes[number].key != LONG
        if has_time and _is_past(state, number):
            state = put(state, number, row._replace(window=PASSED, doubt=SURE, unsure=0))
            state = put_remote(state, number, state.remotes[number]._replace(key=LONG))
    return state


def canonical_effect(state: State) -> tuple[State, bool]:
    """The one state that stands for all that are equal to it, and whether the workers' names were exchanged for it."""
    state = _tidied(state)
    first, second = state.workers
    if first < second:
        return state, False
    rows = tuple(row._replace(token=1 - row.token) if row.token < LATE else row for row in state.rows)
    if first == second and rows >= state.rows:
        return state, False
    return state._replace(rows=rows, workers=(second, first)), True

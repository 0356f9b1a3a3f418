"""What moves are made of: labels, changes of a queue or a worker, and the rules that only a move can break."""

from __future__ import annotations

from typing import TypeAlias, TypeVar

from protocol import (
    DONE,
    FORGOTTEN,
    IN_HAND,
    LATE,
    NOBODY,
    OWN,
    RECOVERY,
    STORED,
    Defences,
    Flow,
    Row,
    State,
    Task,
)

Label = tuple[str, int, str, int]  # actor, which one, what it does with {}, step (-1: none)
S = TypeVar("S")
AnyMove: TypeAlias = tuple[Label, S, bool, str | None]
Move: TypeAlias = AnyMove[State]

RUN_STATUSES = ("running", "cancelling", "succeeded", "cancelled")
STEP_STATUSES = ("not asked for", "waiting", "ready", "ready without a due_at", "in hand", "succeeded", "cancelled")
SIGNALS = ("not sent", "in the mailbox", "consumed")

COPIES = 2  # of one message in the broker, beside those in workers' hands; more only repeat the same refusals


def must(actor: str, which: int, verb: str, step: int, after: S, broken: str | None = None) -> AnyMove[S]:
    """A move that goes on by itself: under fair progress it comes at last."""
    return (actor, which, verb, step), after, True, broken


def may(actor: str, which: int, verb: str, step: int, after: S, broken: str | None = None) -> AnyMove[S]:
    """A move that nothing may rely on."""
    return (actor, which, verb, step), after, False, broken


def lane_rule(row: Row, task: Task) -> str | None:
    """P9: an orphan that is claimed from its old lane has passed the recovery lane by."""
    return "P9" if row.status != IN_HAND and row.lane == RECOVERY and task.lane == OWN else None


def fence_rule(row: Row, token: int, answer: int) -> str | None:
    """G3: only the newest claim may write."""
    return "G3" if answer == STORED and row.token != token else None


def count(queue: tuple[int, ...], place: int, change: int) -> tuple[int, ...]:
    """The queue with some more or fewer copies of one message."""
    copies = min(COPIES, queue[place] + change)
    return (*queue[:place], copies, *queue[place + 1 :])


def busy(state: State, number: int, task: Task) -> State:
    """The state with another task in that worker's hands."""
    first, second = state.workers
    return state._replace(workers=(first, task) if number else (task, second))


def leave(state: State, number: int, orphaned: int) -> State:
    """The worker is idle again; its claim token lives on only in a late request."""
    first, second = state.workers
    late, heir = state.late, orphaned
    if late and late.token == number:
        late, heir = late._replace(token=LATE), LATE
    rows = tuple(row._replace(token=heir) if row.token == number else row for row in state.rows)
    return state._replace(rows=rows, late=late, workers=(first, ()) if number else ((), second))


def forgotten(defences: Defences) -> int:
    """Who has a claim that nobody executes on a node that lives: with beats that name claims it is as good as dead."""
    return NOBODY if defences.beats_name_claims else FORGOTTEN


def without_late(defences: Defences, state: State) -> State:
    """The late request is over; a claim that it has won has no executor."""
    heir = forgotten(defences)
    rows = tuple(row._replace(token=heir) if row.token == LATE else row for row in state.rows)
    return state._replace(rows=rows, late=())


def described(flow: Flow, state: State) -> str:
    """One line on where a run stands."""
    steps = (f"{name} {STEP_STATUSES[row.status]}" for name, row in zip(flow.steps, state.rows, strict=True))
    sent = sum(state.queue)
    return f"run {RUN_STATUSES[state.run]}; {', '.join(steps)}; {sent} messages; signal {SIGNALS[state.mail]}"


def swapped(state: State) -> State:
    """The same state with the workers' names exchanged."""
    first, second = state.workers
    rows = tuple(row._replace(token=1 - row.token) if row.token < LATE else row for row in state.rows)
    late = state.late
    if late and late.token < LATE:
        late = late._replace(token=1 - late.token)
    return state._replace(rows=rows, workers=(second, first), late=late)


def canonical(state: State) -> tuple[State, bool]:
    """The one state that stands for all that are equal to it, and whether the workers' names were exchanged for it.

    The two workers are interchangeable. A message of a step that is over can only be refused: it is forgotten.
    """
    for place, copies in enumerate(state.queue):
        if copies and state.rows[place // 2].status >= DONE:
            state = state._replace(queue=count(state.queue, place, -copies))
    first, second = state.workers
    if first < second:
        return state, False
    other = swapped(state)
    if first > second or other < state:
        return other, True
    return state, False

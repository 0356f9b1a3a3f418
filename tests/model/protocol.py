"""The protocol as a small state machine: the ledger, the broker, the workers, and the ledger's transactions.

Every value is a small tuple of integers, so that a state can be hashed and all states can be visited (`search.py`); who
may do what next is in `moves.py` and `faults.py`. A transaction here is atomic because the real one locks the run's row
before it looks (P1). Time is left out: whatever has a due_at may be due, whatever can lapse may have lapsed.

An effect and its remote side are a model of their own beside it (`effects.py`), with the same search: messages, lanes
and advances are searched here and left out there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

# Run statuses. The last two are final.
RUNNING, CANCELLING, SUCCEEDED, CANCELLED = range(4)
# Step statuses. UNDUE is "ready, but without a due_at": the schema forbids it, only a missing defence makes it.
ABSENT, WAITING, READY, UNDUE, IN_HAND, DONE, DROPPED = range(7)
# Lanes of a step and of a message; a worker that acked early holds no message.
OWN, RECOVERY, NO_MESSAGE = range(3)
# Who has a row's claim token: one of the workers, a request that outlived its sender, nobody any more, and nobody
# although the node lives (told apart only where beats do not name claims).
FIRST, SECOND, LATE, NOBODY, FORGOTTEN = range(5)
# What a worker has in hand, in the order of one task.
GOT, CLAIMED, EXECUTED, FAILED, COMMITTED, PUBLISHED = range(6)
# The ledger's answers.
GRANTED, REFUSED, STORED, ALREADY_OURS, OLD_VERSION, LEASE_LOST = range(6)
# The mailbox: no signal yet, one that waits, one that is consumed.
EMPTY, MAIL, CONSUMED = range(3)

FINAL = (SUCCEEDED, CANCELLED)
OPEN = (WAITING, READY, UNDUE, IN_HAND)

RULES = frozenset({"G1", "G3", "G4", "G5", "P9"})  # G2 is the search's own: no state is a trap


class Row(NamedTuple):
    """A step row; `commits` counts the results ever stored for its key."""

    status: int = ABSENT
    lane: int = OWN
    token: int = NOBODY
    commits: int = 0


class Task(NamedTuple):
    """What one worker is at; `seen` and `mail` are the history and the mailbox that its advance was made from."""

    stage: int
    step: int
    lane: int
    seen: int = 0
    mail: int = EMPTY
    paused: int = 0


class Late(NamedTuple):
    """A request whose sender saw the connection break while the old backend still has it (P3)."""

    token: int
    task: Task


class State(NamedTuple):
    """Everything that decides what may happen next; `faults` is how many more are allowed."""

    run: int
    rows: tuple[Row, ...]
    queue: tuple[int, ...]  # messages in the broker, at [2 * step + lane]
    workers: tuple[Task | tuple[()], Task | tuple[()]]
    scan: int  # the step that the scan has looked at and not yet taken over, or -1
    late: Late | tuple[()]
    mail: int
    faults: int


@dataclass(frozen=True)
class Defences:
    """One switch a rule; all on is the protocol."""

    token_in_commit: bool = True  # P5, G3
    recheck_under_lock: bool = True  # design 7, P7
    state_version: bool = True  # P26
    open_count: bool = True  # P26: a bare member of a gather advances when no other one is open
    outbox_in_commit: bool = True  # G5: due_at of the next steps is in the commit
    due_at_on_takeover: bool = True  # P10
    mailbox_under_lock: bool = True  # P27
    lane_of_claim: bool = True  # P9
    beats_name_claims: bool = True  # P4
    commit_sees_cancel: bool = True  # P29
    ack_after_commit: bool = True  # G4
    late_commits: bool = True  # P35: not a defence; both ways must be safe


@dataclass(frozen=True)
class Flow:
    """A flow as its levels: the steps of one are asked for together, when the level before has committed."""

    name: str
    steps: tuple[str, ...]
    levels: tuple[tuple[int, ...], ...]
    waits: frozenset[int] = frozenset()
    bare: frozenset[int] = frozenset()  # members of a gather by themselves: alone they let nothing new be asked
    asked: tuple[frozenset[int], ...] = field(init=False)  # at [committed]: what the flow waits for

    def __post_init__(self) -> None:
        """Tabulate the pure driver: the same history gives the same next steps."""
        histories = range(1 << len(self.steps))
        object.__setattr__(self, "asked", tuple(frozenset(self._ask(history)) for history in histories))

    def _ask(self, history: int) -> tuple[int, ...]:
        for level in self.levels:
            missing = tuple(step for step in level if not history >> step & 1)
            if missing:
                return missing
        return ()

    def news(self, seen: int, step: int) -> frozenset[int]:
        """What an advance from `seen` asks for once `step` has committed, and did not before."""
        return self.asked[seen | 1 << step] - self.asked[seen]


SHORT = Flow("start, a", ("start", "a"), ((0,), (1,)))
SEQUENCE = Flow("start, a, b", ("start", "a", "b"), ((0,), (1,), (2,)))
GATHER = Flow("gather(a, b), join", ("start", "a", "b", "join"), ((0,), (1, 2), (3,)))
BARE_GATHER = Flow("bare gather(a, b), join", GATHER.steps, GATHER.levels, bare=frozenset({1, 2}))
SHORT_WAIT = Flow("start, wait", ("start", "wait"), ((0,), (1,)), waits=frozenset({1}))
WAIT = Flow("start, wait, after", ("start", "wait", "after"), ((0,), (1,), (2,)), waits=frozenset({1}))
GATHER_WAIT = Flow("gather(a, wait), join", ("start", "a", "wait", "join"), ((0,), (1, 2), (3,)), waits=frozenset({2}))


def enqueued(flow: Flow, faults: int) -> State:
    """A run right after its enqueue: `start` is ready and due, nothing is published."""
    rows = (Row(READY), *(Row() for _ in flow.steps[1:]))
    return State(RUNNING, rows, (0, 0) * len(rows), ((), ()), -1, (), EMPTY, faults)


def history(rows: tuple[Row, ...]) -> int:
    """The committed steps as a bit mask; it grows with every commit, so it is the run's state version, too."""
    return sum(1 << step for step, row in enumerate(rows) if row.commits)


def put(rows: tuple[Row, ...], step: int, row: Row) -> tuple[Row, ...]:
    """The rows with one of them replaced."""
    return (*rows[:step], row, *rows[step + 1 :])


def is_lapsed(defences: Defences, state: State, step: int) -> bool:
    """Whether a running step has no living executor: its node is silent, or its beats do not name the claim (P4)."""
    row = state.rows[step]
    if row.status != IN_HAND:
        return False
    if row.token == FORGOTTEN:
        return defences.beats_name_claims
    if row.token in (LATE, NOBODY):
        return True
    task = state.workers[row.token]
    assert isinstance(task, Task)
    executing = CLAIMED <= task.stage <= FAILED
    return bool(task.paused) or (not executing and defences.beats_name_claims)


def claim(defences: Defences, state: State, token: int, task: Task) -> tuple[int, State]:
    """The claim transaction: only a ready step, from the lane that must bring it, of a run that lives."""
    row = state.rows[task.step]
    if row.status == IN_HAND and row.token == token:
        return GRANTED, state  # P4: the answer of this very claim was lost
    if state.run != RUNNING or row.status not in (READY, UNDUE):
        return REFUSED, state
    if defences.lane_of_claim and row.lane != task.lane:
        return REFUSED, state
    taken = row._replace(status=IN_HAND, lane=OWN, token=token)  # sets the lane back (P9), replaces the token (P35)
    return GRANTED, state._replace(rows=put(state.rows, task.step, taken))


def commit(defences: Defences, flow: Flow, state: State, token: int, task: Task) -> tuple[int, State]:
    """The one transaction that ends an execution: result, next steps and their due_at, the run's status; or a retry."""
    row = state.rows[task.step]
    if row.status == DONE and row.token == token:
        return ALREADY_OURS, state  # P3: the repeated commit finds its own result
    fenced = defences.token_in_commit and row.token != token
    if fenced or state.run in FINAL or row.status not in (IN_HAND, READY, UNDUE):
        return LEASE_LOST, state
    if task.stage == FAILED:
        return STORED, close_cancelled(state._replace(rows=put(state.rows, task.step, again(state, row))))
    live = state.run == RUNNING
    if live and is_outdated(defences, flow, state, task):
        return OLD_VERSION, state
    stored = state._replace(rows=put(state.rows, task.step, Row(DONE, OWN, token, row.commits + 1)))
    if live or not defences.commit_sees_cancel:
        stored = advance(defences, flow, stored, task)
    return STORED, close_cancelled(stored)


def is_outdated(defences: Defences, flow: Flow, state: State, task: Task) -> bool:
    """P26: whether the advance is from a history that stands no more, or who need not advance is the last."""
    others = flow.asked[task.seen | 1 << task.step]
    if task.step in flow.bare and others and not flow.news(task.seen, task.step):
        return defences.open_count and not any(state.rows[other].status in OPEN for other in others)
    return defences.state_version and task.seen != history(state.rows)


def again(state: State, row: Row) -> Row:
    """The row of a step whose attempt failed or that a draining worker released: ready again, under no token."""
    if state.run == CANCELLING:
        return Row(DROPPED, commits=row.commits)
    return Row(READY, OWN, NOBODY, row.commits)  # P9: a retry keeps the step's own lane


def advance(defences: Defences, flow: Flow, state: State, task: Task) -> State:
    """Insert what the worker's advance asked for; a new wait looks into the mailbox under the same lock (P27)."""
    rows, mail = state.rows, state.mail
    for step in flow.news(task.seen, task.step):
        status = READY if defences.outbox_in_commit else UNDUE
        if step in flow.waits:
            has_mail = (mail if defences.mailbox_under_lock else task.mail) == MAIL
            status, mail = (status, CONSUMED) if has_mail else (WAITING, mail)
        rows = put(rows, step, Row(status))
    ended = not flow.asked[task.seen | 1 << task.step]
    return state._replace(rows=rows, mail=mail, run=SUCCEEDED if ended else state.run)


def take_over(defences: Defences, state: State, step: int) -> State:
    """The scan's write: the step goes to the recovery lane, and keeps its token until somebody claims it (P35)."""
    row = state.rows[step]
    if state.run == CANCELLING:
        return close_cancelled(state._replace(rows=put(state.rows, step, row._replace(status=DROPPED))))
    status = READY if defences.due_at_on_takeover else UNDUE
    token = row.token if defences.late_commits else NOBODY
    return state._replace(rows=put(state.rows, step, Row(status, RECOVERY, token, row.commits)))


def send_signal(flow: Flow, state: State) -> State:
    """A signal locks the run row: it decides the wait, or stays in the mailbox for it."""
    for step in flow.waits:
        if state.rows[step].status == WAITING:
            return state._replace(mail=CONSUMED, rows=put(state.rows, step, Row(READY)))
    return state._replace(mail=MAIL)


def cancel(state: State) -> State:
    """What nobody executes ends at once; the run ends when nothing is in hand."""
    rows = tuple(row._replace(status=DROPPED) if row.status in (WAITING, READY, UNDUE) else row for row in state.rows)
    return close_cancelled(state._replace(run=CANCELLING, rows=rows))


def close_cancelled(state: State) -> State:
    """A cancelled run is final as soon as nothing is in hand, in the transaction that saw to it."""
    if state.run != CANCELLING or any(row.status == IN_HAND for row in state.rows):
        return state
    return state._replace(run=CANCELLED)


def broken_rules(flow: Flow, state: State) -> str | None:
    """The guarantee that this state breaks, if any (G3, G4 and the lane are judged by the moves, G2 by the search)."""
    committed, opened = 0, 0
    for step, (status, _, _, commits) in enumerate(state.rows):
        if commits > 1:
            return "G1"
        committed |= (commits > 0) << step
        opened |= (status in OPEN) << step
    if state.run == RUNNING:
        asked = flow.asked[committed]
        return None if asked and opened == sum(1 << step for step in asked) else "G5"
    if state.run == CANCELLING:
        return None if all(row.status == IN_HAND for row in state.rows if row.status in OPEN) else "G5"
    whole = state.run == CANCELLED or not flow.asked[committed]
    return None if whole and not opened else "G5"

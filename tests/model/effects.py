"""An effect and its remote side as a small state machine: the words, the plans, the switches and the values.

The rows hold what the ledger knows, the remotes what is true. `effect_ledger.py` has the transactions,
`effect_moves.py` says who may do what next, `effect_faults.py` what goes wrong, `effect_rules.py` which states must not
be. Messages and lanes are left out: `protocol.py` has searched them; here an idle worker may claim whatever the ledger
lets it.

Time is three marks. A window is OPEN while an executor may still send (until `may_send_until`), CLOSED while only
requests on the way may still arrive, and PASSED when `authoritative_after` has gone by as well: then nothing is on the
way, which is what the word means. A request that is delayed for longer is the promise's written limit, not a state.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

# Run statuses; STOPPING is cancelled or failed and not yet final. The last two are final.
RUNNING, STOPPING, SUCCEEDED, STOPPED = range(4)
# Step statuses; the last three are final.
ABSENT, READY, IN_HAND, HELD, DONE, FAILED, DROPPED = range(7)
OPEN_STEPS = (READY, IN_HAND, HELD)
# Effect statuses: what the ledger knows of the other side.
PENDING, EXECUTING, DID_IT, DID_NOT, UNKNOWN = range(5)
SETTLED = (DID_IT, DID_NOT)
UNSETTLED = (EXECUTING, UNKNOWN)
# The window in which a request may be sent, or arrive.
PASSED, OPEN, CLOSED = range(3)
# Whether an attempt began in doubt: an earlier one may have arrived, or may even still be on the way.
SURE, MAY_HAVE_ARRIVED, MAY_ARRIVE = range(3)
# How long the other side remembers a key: long, not much longer than a call takes, no more.
LONG, SHORTLY, FORGOTTEN = range(3)
# Who has a claim token: one of two workers, a request that outlived its sender, nobody any more.
FIRST, SECOND, LATE, NOBODY = range(4)
# What a worker is at. UNSENT: its attempt was not sent. BEATEN: it has a receipt and its commit was refused.
CLAIMED, ASKED, BEGUN, SENT, UNSENT, BEATEN = range(6)
# What a worker that ASKED has heard; TOO_EARLY: not executed, and a request may still arrive.
FOUND, NOT_EXECUTED, TOO_EARLY, UNSURE = range(4)
# What came of a request that was SENT.
ON_THE_WAY, RECEIPT, REFUSAL, SILENCE = range(4)

LOOKUPS = 1  # answers that help nobody, after which the lookup is exhausted


class Row(NamedTuple):
    """A step row of kind effect or compensation with its row in `effects`; `order` is that of the commits."""

    step: int = ABSENT
    token: int = NOBODY
    status: int = PENDING
    window: int = PASSED
    doubt: int = SURE
    unsure: int = 0
    order: int = 0


class Remote(NamedTuple):
    """The other side of one row: how often it has really done it, and the requests that nobody waits for."""

    did: int = 0
    adrift: int = 0
    key: int = LONG


class Task(NamedTuple):
    """What one worker is at with a row.

    `knows` is, by stage, the row's status at the claim, the lookup's answer, whether the attempt began when the key was
    remembered SHORTLY, or what came of the request. `over`: the lease that is checked before the send has ended. `cut`:
    the worker is stopped, or cut off from the ledger and not from the other side.
    """

    stage: int
    row: int
    knows: int
    over: int = 0
    cut: int = 0


class Late(NamedTuple):
    """A request to the ledger that is still on the way when its sender has died (P3)."""

    token: int
    task: Task


class Card(NamedTuple):
    """What a person has seen of a row and of the other side; `stale` when the row has moved on since."""

    row: int
    saw: int
    stale: int = 0


class State(NamedTuple):
    """Everything that decides what may happen next; `faults` is how many more are allowed."""

    run: int
    rows: tuple[Row, ...]  # the effects, then the compensation of each
    remotes: tuple[Remote, ...]
    workers: tuple[Task | tuple[()], Task | tuple[()]]
    card: Card | tuple[()]
    late: Late | tuple[()]
    faults: int


@dataclass(frozen=True)
class EffectDefences:
    """One switch a rule; all on is the protocol."""

    begin_before_call: bool = True  # G6: `executing` is durable before the call
    begin_fenced: bool = True  # G3: only the newest claim begins, and only while its step is in hand
    begin_sees_stop: bool = True  # P29: no first attempt in a run that is stopping
    repeat_renews: bool = True  # P4: a begin that is repeated moves `may_send_until`, as it moves its sender's lease
    check_before_send: bool = True  # P33: the lease, on the monotonic clock
    authoritative_after: bool = True  # P33
    judged_when_asked: bool = True  # P33: the lookup's question, not its answer, comes after the window
    death_is_proved: bool = True  # P21: only a proved death ends the window early
    latest_window: bool = True  # P33: one executor's end does not end another one's window
    loss_is_unknown: bool = True  # G6: a takeover of what was executing
    silence_is_unknown: bool = True  # G6: a time-out or an error in no list
    frozen_request: bool = True  # G6: an attempt has the request and the key of the first
    key_retention: bool = True  # a second send only while the other side is sure to remember the key
    unsent_keeps_doubt: bool = True  # `not_sent` speaks of one attempt only
    refusal_keeps_doubt: bool = True  # `rejected` speaks of one attempt only
    settle_under_stop: bool = True  # P32
    stop_spares_unsettled: bool = True  # P32
    stop_spares_stored: bool = True  # P29: an outcome that a person or a webhook stored is committed
    card_version: bool = True  # P34: a resolution is refused when the row has moved on
    person_waits: bool = True  # P33 holds for people, too
    resolution_sees_stop: bool = True  # "not executed" in a run that is stopping ends the step
    resolution_wakes_held: bool = True  # whoever settles a held step makes it ready
    compensation_waits: bool = True  # P37: when nothing is unsettled
    compensation_in_turn: bool = True  # P37: in reverse order of commit
    refused_compensation_is_held: bool = True  # P37: never failed in silence
    late_commits: bool = True  # P35: not a defence; both ways must be safe
    late_evidence: bool = True  # P34: not a defence; without it people are asked more often


@dataclass(frozen=True)
class Plan:
    """A flow of effects, what their other side can do, and whether the flow fails after them."""

    name: str
    keys: bool = False  # declared idempotent: the other side does a key once
    lookup: bool = False
    effects: tuple[str, ...] = ("ticket",)
    together: bool = False  # a gather; else one after the other
    compensates: bool = False
    fails: bool = False
    cancels: bool = False
    calm: bool = False  # no webhook, and people act only where they are needed: a bound for longer plans
    forgets: bool = False  # the other side remembers a key for a limited time
    steps: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        """Name the rows."""
        undo = tuple(f"compensate:{name}" for name in self.effects) if self.compensates else ()
        object.__setattr__(self, "steps", self.effects + undo)

    def undoes(self, number: int) -> bool:
        """Whether that row is a compensation."""
        return number >= len(self.effects)


def enqueued(plan: Plan, faults: int) -> State:
    """The run has just asked for its first effects: request and key are frozen, nothing is claimed."""
    asked = len(plan.effects) if plan.together else 1
    rows = tuple(Row(READY) if number < asked else Row() for number in range(len(plan.steps)))
    return State(RUNNING, rows, (Remote(),) * len(rows), ((), ()), (), (), faults)


def put(state: State, number: int, row: Row) -> State:
    """The state with one row replaced."""
    return state._replace(rows=(*state.rows[:number], row, *state.rows[number + 1 :]))


def put_remote(state: State, number: int, remote: Remote) -> State:
    """The state with one other side replaced."""
    return state._replace(remotes=(*state.remotes[:number], remote, *state.remotes[number + 1 :]))


def busy(state: State, number: int, task: Task | tuple[()]) -> State:
    """The state with another task in that worker's hands."""
    first, second = state.workers
    return state._replace(workers=(first, task) if number else (task, second))


def senders(state: State, number: int, *, besides: int = NOBODY) -> list[Task]:
    """The workers that have begun that row's effect and not sent it, while their lease still lets them."""
    return [
        task
        for worker, task in enumerate(state.workers)
        if task and task.row == number and task.stage == BEGUN and not task.over and worker != besides
    ]


def adrift(state: State, task: Task) -> State:
    """Nobody waits for that worker's request any more."""
    remote = state.remotes[task.row]
    return put_remote(state, task.row, remote._replace(adrift=remote.adrift + 1))


def leave(state: State, number: int, heir: int) -> State:
    """The worker is idle again; its claim token lives on only in a late request."""
    rows = tuple(row._replace(token=heir) if row.token == number else row for row in state.rows)
    return busy(state._replace(rows=rows), number, ())


def forget_late(state: State) -> State:
    """The late request is over, and its token with it."""
    rows = tuple(row._replace(token=NOBODY) if row.token == LATE else row for row in state.rows)
    return state._replace(rows=rows, late=())

"""What goes wrong with an effect: deaths, workers that are cut off, calls and lookups that give no answer, refusals."""

from __future__ import annotations

from collections.abc import Iterator

from effect_rules import EffectMove
from effect_worker import Worker, Write
from effects import (
    ASKED,
    BEGUN,
    LATE,
    NOBODY,
    ON_THE_WAY,
    RECEIPT,
    REFUSAL,
    SENT,
    SILENCE,
    UNSENT,
    UNSURE,
    Late,
    State,
    Task,
    adrift,
    busy,
    leave,
)
from pieces import may


def effect_faults(worker: Worker, state: State) -> Iterator[EffectMove]:
    """Yield every fault that is possible; `state` has already paid for it."""
    for number, task in enumerate(state.workers):
        if task:
            write = None if task.cut else worker.write(state, number, task)
            yield from _deaths(state, number, task, write)
            yield from _hiccups(worker, state, number, task, write)


def _deaths(state: State, number: int, task: Task, write: Write | None) -> Iterator[EffectMove]:
    """SIGKILL anywhere: what it sent is on the way, and its request to the ledger may be."""
    back = adrift(state, task) if task.stage == SENT and task.knows == ON_THE_WAY else state
    yield may("worker", number, "dies with {} in hand", task.row, leave(back, number, NOBODY))
    if write and not state.late:
        after = leave(state, number, LATE)._replace(late=Late(LATE, task))
        yield may("worker", number, "dies, and its request for {} is on the way", task.row, after)


def _hiccups(worker: Worker, state: State, number: int, task: Task, write: Write | None) -> Iterator[EffectMove]:
    def now(verb: str, after: State) -> EffectMove:
        return may("worker", number, verb, task.row, after)

    if not any(other and other.cut for other in state.workers):
        yield now("is stopped or cut off, with {} in hand", busy(state, number, task._replace(cut=1)))
    if worker.asks(state, task):
        yield now("asks about {}: unsure", busy(state, number, task._replace(stage=ASKED, knows=UNSURE)))
    if task.stage == BEGUN:
        yield now("cannot connect to send {}", busy(state, number, task._replace(stage=UNSENT, knows=0)))
    if task.stage == SENT and task.knows == ON_THE_WAY:
        silent = busy(state, number, task._replace(knows=SILENCE))
        yield now("times out, and its request of {} is on the way", adrift(silent, task))
        if worker.done(state.remotes[task.row]) != state.remotes[task.row]:
            yield now("is refused {} by the other side", busy(state, number, task._replace(knows=REFUSAL)))
    if task.stage == SENT and task.knows == RECEIPT:
        yield now("hears no answer to {}", busy(state, number, task._replace(knows=SILENCE)))
    if write and write[1] is not None and write[2] and write[2].stage == BEGUN:
        yield now("hears no answer to its begin of {}, which was done", write[1])

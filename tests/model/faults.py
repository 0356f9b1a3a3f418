"""The faults: a process dies or is paused, a message is lost or doubled, an answer never comes, a step raises."""

from __future__ import annotations

from collections.abc import Iterator

from pieces import COPIES, Move, busy, count, fence_rule, lane_rule, leave, may
from protocol import (
    CLAIMED,
    EXECUTED,
    FAILED,
    FORGOTTEN,
    GOT,
    GRANTED,
    NO_MESSAGE,
    NOBODY,
    Defences,
    Flow,
    Late,
    State,
    Task,
    claim,
    commit,
)


def moves(flow: Flow, defences: Defences, state: State) -> Iterator[Move]:
    """Yield every fault that is possible; `state` has already paid for it."""
    for number, task in enumerate(state.workers):
        if task:
            yield from _deaths(defences, state, number, task)
            if not task.paused:
                yield from _hiccups(state, number, task)
                yield from _lost_answers(flow, defences, state, number, task)
    yield from _broker(state)
    if state.scan >= 0:
        yield may("scan", 0, "dies before it takes {} over", state.scan, state._replace(scan=-1))


def _deaths(defences: Defences, state: State, number: int, task: Task) -> Iterator[Move]:
    """SIGKILL anywhere; the broker delivers what was not acknowledged once more. A new process is there at once."""
    place = 2 * task.step + task.lane
    back = state if task.lane == NO_MESSAGE else state._replace(queue=count(state.queue, place, 1))
    yield may("worker", number, "dies with {} in hand", task.step, leave(back, number, NOBODY))
    if not defences.beats_name_claims:  # with them, a dead pool child looks like a dead node
        yield may("worker", number, "loses the pool child that has {}", task.step, leave(back, number, FORGOTTEN))


def _hiccups(state: State, number: int, task: Task) -> Iterator[Move]:
    """SIGSTOP anywhere, one process at a time, so that no way out needs a SIGCONT; and user code that raises."""
    if not any(other and other.paused for other in state.workers):
        paused = busy(state, number, task._replace(paused=1))
        yield may("worker", number, "is paused with {} in hand", task.step, paused)
    if task.stage == CLAIMED:
        raised = busy(state, number, Task(FAILED, task.step, task.lane))
        yield may("worker", number, "raises in {}", task.step, raised)


def _lost_answers(flow: Flow, defences: Defences, state: State, number: int, task: Task) -> Iterator[Move]:
    """The connection breaks: the ledger has done it and the answer is lost, or an old backend still has the request."""
    if task.stage not in (GOT, EXECUTED, FAILED):
        return
    verb = "claim" if task.stage == GOT else "commit"
    after, broken = sent(flow, defences, state, number, task)
    if after is not state:
        yield may("worker", number, f"hears no answer to its {verb} of {{}}, which was done", task.step, after, broken)
    if not state.late:
        after = state._replace(late=Late(number, task))
        yield may("worker", number, f"hears no answer to its {verb} of {{}}, which is on the way", task.step, after)


def _broker(state: State) -> Iterator[Move]:
    for place, copies in enumerate(state.queue):
        if copies:
            after = state._replace(queue=count(state.queue, place, -1))
            yield may("broker", 0, "loses a message of {}", place // 2, after)
        if 0 < copies < COPIES:
            after = state._replace(queue=count(state.queue, place, 1))
            yield may("broker", 0, "doubles a message of {}", place // 2, after)
    if sum(state.queue) > 1:
        yield may("broker", 0, "loses every message", -1, state._replace(queue=(0,) * len(state.queue)))


def sent(flow: Flow, defences: Defences, state: State, token: int, task: Task) -> tuple[State, str | None]:
    """What a claim or commit does in the ledger when nobody hears the answer, and the rule that it breaks."""
    row = state.rows[task.step]
    if task.stage == GOT:
        answer, after = claim(defences, state, token, task)
        return after, lane_rule(row, task) if answer == GRANTED else None
    answer, after = commit(defences, flow, state, token, task)
    return after, fence_rule(row, token, answer)

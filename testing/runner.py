"""`run_flow`: plays a run on the pure driver, without servers, and replays it from the start after every step."""

from __future__ import annotations

import random
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ..ledger.errors import DeadlineExceeded, describe
from ..ledger.key import START, Key
from ..tasks.artifact import reading_from
from ..tasks.budget import Budget
from ..tasks.driver import Driver
from ..tasks.duration import aware, seconds
from ..tasks.outcome import Continued, Diverged, Failed, Outcome, Returned
from ..tasks.record import Record, RunInfo
from .actor import Actor
from .memory import Artifacts
from .played import Event, Played, ReplayDiffers
from .script import Script
from .world import BEGIN, Order, Queue, World, run_id

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..tasks.flow import Call
    from ..tasks.step import Step

__all__ = ["run_flow"]

R = TypeVar("R")

# A replay after each of n steps costs n² feeds: beyond this many it is done at every tenth part more.
_REPLAY_EVERY = 100


def run_flow(  # noqa: PLR0913  # each is an option that users write by name
    call: Call[R],
    *,
    steps: Mapping[Step[..., Any], object] | None = None,
    approvals: Mapping[str, object] | None = None,
    signals: Mapping[str, object] | None = None,
    order: Order = "fifo",
    seed: int = 0,
    tenant: str = "default",
    deadline: float | timedelta | datetime | None = None,
    budget: Budget | None = None,
    tags: Mapping[str, str] | None = None,
    artifacts: Artifacts | None = None,
    cancel_after: int | None = None,
    check: bool = True,
) -> Played[R]:
    """Play a run to its end; with `check`, raise what `Run.result()` would raise.

    `steps` gives what stands in for a step: a function, an exception to raise, or a value; other steps run as they are,
    other effects are refused. `approvals` and `signals` answer by name, a list answers one wait after the other.
    `artifacts` holds what was uploaded before the run. `order="shuffle"` commits in an order that `seed` decides. Time
    jumps over every delay. `cancel_after` cancels after so many commits.
    """
    world = World(
        script=Script(steps=steps or {}, approvals=approvals or {}, signals=signals or {}),
        order=order,
        chance=random.Random(seed),
        deadline=_instant(deadline),
        budget=budget or Budget(),
        tenant=tenant,
        tags=tags or {},
        artifacts=artifacts or Artifacts(),
    )
    with reading_from(world.artifacts):  # what the run is given and gives can be read by steps, and by the test
        played = _Play(call, world=world, run_id=run_id(seed), cancel_after=cancel_after).to_the_end()
    if check and played.error is not None:
        error = played.error
        error.played = played  # type: ignore[attr-defined]  # for whoever wants to see what was called before
        raise error
    return cast("Played[R]", played)


def _instant(deadline: float | timedelta | datetime | None) -> datetime | None:
    if deadline is None:
        return None
    if isinstance(deadline, datetime):
        return aware(deadline, what="deadline")
    return BEGIN + timedelta(seconds=seconds(deadline, what="deadline"))


class _Play:
    """One run being played."""

    def __init__(self, call: Call[Any], *, world: World, run_id: str, cancel_after: int | None = None) -> None:
        self._world = world
        self._call = call
        self._played: Played[object] = Played(run_id)
        self._cancel_after = cancel_after
        self._commits = 0

    def to_the_end(self) -> Played[object]:
        """Play generation after generation until the run has ended."""
        data = self._call.input.data
        self._event("run.queued")
        self._event("run.started")
        while True:
            self._played.outcome = outcome = self._generation(data)
            if not isinstance(outcome, Continued):
                break
            data = outcome.input.data
            self._played.generation += 1
        self._event(f"run.{_ending(outcome)}")
        return self._played

    def _generation(self, data: bytes) -> Outcome:
        info = self._info(data)
        driver = Driver(self._call.flow, run=info)
        queue = Queue(self._world)
        actor = Actor(self._world, self._played, play=self._child)
        history: list[Record] = []
        self._feed(
            driver,
            Record(0, Key(info.generation, "", START, 1), "start", "succeeded", self._world.clock),
            history,
            queue,
        )
        while driver.outcome is None:
            if self._commits == self._cancel_after and not driver.cancelled:
                key = Key(info.generation, "", "@cancel", 1)
                record = Record(len(history), key, "cancel", "succeeded", self._world.tick())
            else:
                asked = queue.next(driver.asked)
                record = actor.perform(asked, queue, seq=len(history))
                self._commits += 1
            if self._world.is_over:
                return Failed(describe(DeadlineExceeded()), DeadlineExceeded())
            self._feed(driver, record, history, queue)
        return _explained(driver.outcome, self._played)

    def _feed(self, driver: Driver, record: Record, history: list[Record], queue: Queue) -> None:
        driver.feed(record)
        history.append(record)
        for note in driver.take_notes():
            self._event("note", data=note)
        for asked in driver.take_new():
            queue.add(asked)
            self._event("approval.asked" if asked.kind == "approval" else "step.scheduled", key=asked.key)
        if isinstance(driver.outcome, Diverged):
            raise ReplayDiffers(text=driver.outcome.text)
        if len(history) <= _REPLAY_EVERY or len(history) % (len(history) // 10) == 0:
            _replay(driver, history)

    def _child(self, call: Call[Any], child: str) -> Played[object]:
        played = _Play(call, world=self._world, run_id=child).to_the_end()
        self._played.calls += played.calls
        self._played.tokens += played.tokens
        self._played.usd += played.usd
        return played

    def _info(self, data: bytes) -> RunInfo:
        world = self._world
        return RunInfo(
            run_id=self._played.run_id,
            tenant=world.tenant,
            generation=self._played.generation,
            input=data,
            encoding="json",
            created_at=world.clock,
            deadline=world.deadline,
            budget=world.left,
            versions=self._call.flow.frozen_versions(),
            tags=world.tags,
        )

    def _event(self, kind: str, *, key: Key | None = None, data: Mapping[str, object] | None = None) -> None:
        told = None if key is None else str(key)
        event = Event(len(self._played.events) + 1, kind, self._world.clock, told, data or {})
        self._played.events.append(event)


def _replay(driver: Driver, history: list[Record]) -> None:
    """Feed the history to a fresh driver and compare where it stands."""
    again = Driver(driver.flow, run=driver.run)
    try:
        for record in history:
            again.feed(record)
        live, replayed = _state(driver), _state(again)
    finally:
        again.close()
    if live != replayed:
        raise ReplayDiffers(text=f"at first {live}, on replay {replayed}")


def _state(driver: Driver) -> str:
    match driver.outcome:
        case None:
            return ", ".join(f"{one.key} with input {one.input_hash.hex()[:12]}" for one in driver.asked.values())
        case Returned(_, encoded):
            return f"returned {encoded.data[:200]!r}"
        case Continued(given, _):
            return f"continued with {given.data[:200]!r}"
        case Diverged(text):
            return text
        case ended:
            return f"{type(ended).__name__}: {ended.exc!r}"


def _explained(outcome: Outcome, played: Played[object]) -> Outcome:
    """Chain the error of the step to the failure that it caused: a test shows both tracebacks."""
    if isinstance(outcome, Failed) and outcome.exc.__cause__ is None:
        step = getattr(outcome.exc, "step", None)
        last = next((one.error for one in reversed(played.calls) if one.step == step and one.error is not None), None)
        outcome.exc.__cause__ = last
    return outcome


def _ending(outcome: Outcome) -> str:
    match outcome:
        case Returned():
            return "succeeded"
        case Failed():
            return "failed"
        case Diverged():
            return "held"
        case _:
            return "cancelled" if type(outcome).__name__ == "WasCancelled" else "held"

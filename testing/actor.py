"""Does what a flow asks for in a played run, and gives the record that a ledger would have committed."""

from __future__ import annotations

import hashlib
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from ..ledger.effect_errors import ApprovalDenied
from ..ledger.errors import BudgetExceeded, RunHeld, SafepointError, WaitTimedOut, describe
from ..tasks.artifact import reading_from
from ..tasks.budget import Budget
from ..tasks.context import StepContext, running
from ..tasks.decision import Decision
from ..tasks.effect import Effect
from ..tasks.flow import ChildRun
from ..tasks.record import Record
from ..tasks.retry import Retry, decide
from ..tasks.step import StepCall
from .memory import MemoryLedger
from .played import Called, Event, Played, ReplayDiffers
from .script import NoStandIn
from .world import Stuck, child_id

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..ledger.codec import Encoded
    from ..tasks.awaited import Asked
    from ..tasks.flow import Call
    from ..tasks.step import Step
    from .world import Queue, World

__all__ = ["Actor"]


class Actor:
    """The executor of a played run."""

    def __init__(
        self, world: World, played: Played[object], *, play: Callable[[Call[Any], str], Played[object]]
    ) -> None:
        self._world = world
        self._played = played
        self._play = play

    def perform(self, asked: Asked, queue: Queue, *, seq: int) -> Record:
        """Give the outcome of one await."""
        answer = queue.answer(asked)
        due = queue.due(asked)
        if asked.kind in {"timer", "signal", "approval"} and answer is None and due is not None:
            self._world.jump(due)
        match asked.kind:
            case "step" | "effect":
                return self._step(asked, seq)
            case "child":
                return self._child(asked, seq)
            case "signal":
                return self._signal(asked, answer, seq)
            case "approval":
                decision = answer if isinstance(answer, Decision) else Decision("expired", approved=False)
                self._event("approval.decided", asked, outcome=decision.outcome)
                return self._succeeded(asked, seq, decision.encode())
            case _:
                return self._succeeded(asked, seq, None)

    def _signal(self, asked: Asked, answer: object, seq: int) -> Record:
        if not isinstance(answer, tuple) or asked.value_type is None:
            return self._failed(asked, seq, WaitTimedOut(name=asked.name))
        return self._succeeded(asked, seq, asked.value_type.encode(answer[0]))

    def _child(self, asked: Asked, seq: int) -> Record:
        if not isinstance(asked.awaited, ChildRun):
            raise TypeError(asked)
        call = asked.awaited.call
        child = self._play(call, child_id(self._played.run_id, asked.key))
        error = child.told()
        if error is not None:
            return self._failed(asked, seq, error)
        result: object = child.result  # a held child holds its parent: it raises RunHeld here
        return self._succeeded(asked, seq, call.flow.signature.result.encode(result))

    def _step(self, asked: Asked, seq: int) -> Record:
        step = _step_of(asked)
        denied = self._denied(asked, step)
        if denied is not None:
            return self._failed(asked, seq, denied)
        lacking = self._lacking(step.reserve or Budget())
        if lacking is not None:
            return self._failed(asked, seq, BudgetExceeded(what=lacking))
        ledger, began, attempt = MemoryLedger(self._world.artifacts), self._world.clock, 0
        while True:
            attempt += 1
            context = self._context(asked, ledger, attempt)
            done = self._attempt(asked, context)
            self._charge(context, ledger)
            if not isinstance(done, BaseException):
                self._event("step.committed", asked, attempt=attempt)
                return self._succeeded(asked, seq, done)
            elapsed = (self._world.clock - began).total_seconds()
            verdict = decide(step, attempt=attempt, error=done, elapsed=elapsed, retries_left=self._world.left.retries)
            rejected = isinstance(step, Effect) and self._is_rejected(step, asked, done)
            if rejected or not isinstance(verdict, Retry):
                self._event("step.failed", asked, attempt=attempt)
                return self._failed(asked, seq, describe(done, attempts=attempt))
            self._world.retries += 1
            self._event("step.retried", asked, attempt=attempt)
            self._world.jump(self._world.clock + timedelta(seconds=verdict.delay))

    def _denied(self, asked: Asked, step: Step[..., Any]) -> ApprovalDenied | None:
        """Say why an effect that needs approval is not sent."""
        if not isinstance(step, Effect) or not step.safety.requires_approval:
            return None
        decision = self._world.script.decision(asked)
        if decision is None:
            raise Stuck(waits=f"a decision on {asked.key}")
        self._event("approval.decided", asked, outcome=decision.outcome)
        if decision.approved:
            return None
        note = f": {decision.note}" if decision.note else ""
        return ApprovalDenied(key=str(asked.key), by=decision.by or "nobody", note=note)

    def _is_rejected(self, step: Effect[..., Any], asked: Asked, error: BaseException) -> bool:
        """Whether the other side has said no; a run is held where nobody could know."""
        if step.safety.is_not_sent(error):
            return False
        if step.safety.is_rejected(error):
            return True
        # A lookup would ask the world, which a test must not: it counts as one that finds nothing.
        if step.lookup_fn is None and not step.safety.idempotent:
            text = f"nobody knows whether {asked.key} was executed: {type(error).__name__}: {error}"
            reason = {"code": "unknown_effect", "text": text, "next": "safepoint effects"}
            raise RunHeld(self._played.run_id, reason) from error
        return False

    def _attempt(self, asked: Asked, context: StepContext) -> Encoded | BaseException:
        step = _step_of(asked)
        args, kwargs = asked.arguments()
        result: object = None
        done: Encoded | Exception
        try:
            with running(context), reading_from(self._world.artifacts):
                result = self._world.script.call(step, args, kwargs)
                done = step.encode_result(result)
        except (NoStandIn, Stuck, ReplayDiffers):
            raise
        except Exception as error:  # noqa: BLE001  # an attempt that failed; the retry policy and the flow see it
            done = error
        failed = done if isinstance(done, Exception) else None
        key = context.effect_key
        run = self._played.run_id
        named = step.signature.bind(args, kwargs)
        self._played.calls.append(
            Called(step.name, context.key, step.kind, context.attempt, args, kwargs, named, result, failed, run, key)
        )
        for note in context.notes:
            self._event("note", asked, **note)
        return done

    def _context(self, asked: Asked, ledger: MemoryLedger, attempt: int) -> StepContext:
        world = self._world
        reference = f"{self._played.run_id}/{asked.key.generation}/{asked.key}"
        request = hashlib.sha256(reference.encode() + asked.input_hash).hexdigest()
        return StepContext(
            self._played.run_id,
            world.tenant,
            str(asked.key),
            ledger=ledger,
            generation=asked.key.generation,
            tags=world.tags,
            attempt=attempt,
            reference=reference,
            effect_key=request if asked.kind == "effect" else None,
            deadline=world.deadline,
            budget_before=world.left,
        )

    def _charge(self, context: StepContext, ledger: MemoryLedger) -> None:
        tokens, usd = context.spent_tokens + ledger.tokens, context.spent_usd + ledger.usd
        self._played.tokens += tokens
        self._played.usd += usd
        self._world.tokens += tokens
        self._world.usd += usd
        ledger.tokens, ledger.usd = 0, 0.0

    def _lacking(self, reserve: Budget) -> str | None:
        left = self._world.left
        if left.tokens is not None and left.tokens < max(1, reserve.tokens or 0):
            return "tokens"
        if left.usd is not None and (left.usd <= 0 or left.usd < (reserve.usd or 0)):
            return "usd"
        return None

    def _succeeded(self, asked: Asked, seq: int, value: Encoded | None) -> Record:
        data, encoding = (value.data, value.encoding) if value else (None, None)
        at = self._world.tick()
        return Record(seq, asked.key, asked.kind, "succeeded", at, asked.input_hash, data, encoding)

    def _failed(self, asked: Asked, seq: int, error: SafepointError | dict[str, object]) -> Record:
        told = error if isinstance(error, dict) else describe(error)
        return Record(seq, asked.key, asked.kind, "failed", self._world.tick(), asked.input_hash, error=told)

    def _event(self, kind: str, asked: Asked, **data: object) -> None:
        events = self._played.events
        events.append(Event(len(events) + 1, kind, self._world.clock, str(asked.key), data))


def _step_of(asked: Asked) -> Step[..., Any]:
    if not isinstance(asked.awaited, StepCall):
        raise TypeError(asked)
    return asked.awaited.step

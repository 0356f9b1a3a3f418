"""A claimed effect, from what the ledger knows of it to what it has come to: sent once, looked up, sent again under the
same key, or left for a person (P32 to P34, P37). The only place that sends.

The request is the frozen one of the ledger, whatever the flow would ask for now; nothing leaves before the ledger says,
durably, that it is `executing`.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import iscoroutinefunction
from typing import Any, Literal, Protocol
from uuid import UUID

import structlog

from ..config.crash import crash_point
from ..config.settings import Settings
from ..ledger import commit as commits
from ..ledger import effects
from ..ledger.codec import Codec, Encoded
from ..ledger.commit import Next, Result
from ..ledger.effect_errors import ApprovalDenied
from ..ledger.errors import BudgetExceeded, SafepointError, StepTimeout, describe
from ..ledger.key import Key
from ..recovery.reconcile import Way
from .advance import Advance
from .attempt import Job, Raised, Returned
from .dependency import Dependencies
from .doubt import misfit, pause_of, says, way_of
from .loan import Loan
from .performance import Performance, Performed
from .purse import Purse, budget_hold
from .question import Answer, ask
from .retry import NO_RETRY, Retry, decide
from .rows import request_changed
from .signals import masked
from .turn import Turn

__all__ = ["COMPENSATION", "Settler"]

log = structlog.get_logger("safepoint.effect")
COMPENSATION = "compensate:"  # what a compensation's step id begins with


class _Release(Protocol):
    def __call__(
        self,
        claim: tuple[UUID, Key, UUID],
        *,
        why: str,
        hold: dict[str, Any] | None = None,
        delay: float = 0.0,
        turn: Turn | None = None,
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class _Request:
    """What is to be sent: the code, its frozen arguments and their digest, how its result is stored."""

    job: Job
    arguments: Callable[[], tuple[tuple[object, ...], dict[str, object]]]
    digest: bytes
    encode: Callable[[Any], Encoded]


class Settler:
    """Works on claimed effects and compensations."""

    def __init__(
        self,
        settings: Settings,
        *,
        loan: Loan,
        performance: Performance,
        advance: Advance,
        dependencies: Dependencies,
        release: _Release,
        node_id: str,
    ) -> None:
        self.settings = settings
        self.loan = loan
        self._performance = performance
        self._advance = advance
        self._dependencies = dependencies
        self._release = release
        self._node_id = node_id

    def work(self, turn: Turn) -> Sequence[Next]:
        """Bring an effect as far as it can be brought now; return the rows to be published."""
        effect = turn.effect
        match effect.status:
            case "succeeded":  # by a person, a webhook, or late evidence
                if wrong := misfit(turn, self._performance.loader(turn.claimed.run["tenant"])):
                    return self._unfit(turn, describe(wrong))
                return self._advance.commit(turn, Result("succeeded", turn.now(), effect.data, effect.encoding))
            case "failed":
                error = {"attempts": effect.attempts, **(effect.error or {"type": "Failed", "message": "settled"})}
                return self._advance.commit(turn, Result("failed", turn.now(), error=error))
            case "pending":
                refused = self._refusal(turn)
                if refused is not None:
                    if hold := budget_hold(turn, refused):
                        self._release((turn.run_id, turn.key, turn.claimed.token), why="budget", hold=hold)
                        return ()
                    return self._advance.commit(turn, Result("failed", turn.now(), error=describe(refused)))
                return self._send(turn, how="send")
        return self._settle(turn)

    def _settle(self, turn: Turn) -> Sequence[Next]:
        """Go on with what nobody knows."""
        effect = turn.effect
        if turn.claimed.pending_error is not None:  # P24: the scan ended a sending; the policy is the user's code
            self._dependencies.timed_out(turn)
            spent = Performed(Raised(StepTimeout(seconds=turn.declared.timeout)))
            return self._raised(turn, StepTimeout(seconds=turn.declared.timeout), spent, how="send")
        match way_of(turn, lookups=effect.lookups):
            case Way.ASK:
                return self._ask(turn)
            case Way.AGAIN:
                return self._send(turn, how="again")
            case Way.HOLD:
                return self._hold(turn, effect.error)

    def _unfit(self, turn: Turn, told: dict[str, Any]) -> Sequence[Next]:
        log.warning("effect.unfit", run=str(turn.run_id), step=turn.key.wire, error=told["message"])
        token, node = turn.claimed.token, self._node_id
        self._asked(lambda own: effects.unfit(own, turn.run_id, turn.key, token=token, node=node, error=told))
        return ()

    def _refusal(self, turn: Turn) -> SafepointError | None:
        """Say why what was never sent is not sent at all."""
        decision = turn.effect.decision or {}
        if decision.get("outcome") == "denied":
            note = f": {decision['note']}" if decision.get("note") else ""
            return ApprovalDenied(key=str(turn.key), by=str(decision.get("by") or "somebody"), note=note)
        return None if turn.is_compensation else self._performance.refusal(turn.claimed)

    # Asking.

    def _ask(self, turn: Turn) -> Sequence[Next]:
        """Ask the other side whether it has done it."""
        answer = ask(turn, self._performance)
        self._dependencies.tell(turn, answer.done)
        match answer.says:
            case "found":
                assert answer.done.encoded is not None
                turn.artifacts += answer.done.artifacts
                external_id = turn.declared.named(answer.value)
                turn.said = {"why": "the lookup says: found", "answer": answer.told(), "external_id": external_id}
                return self._succeed(turn, answer.done.encoded)
            case "not_executed":
                return self._not_executed(turn, answer)
        lookups = turn.effect.lookups + 1
        way = way_of(turn, lookups=lookups, error=answer.error)
        told = answer.says + (f" ({answer.text})" if answer.text else "")
        hold = f"its lookup was asked {lookups} times; the last answer: {told}" if way is Way.HOLD else None
        delay = pause_of(turn, lookups=lookups, error=answer.error) if way is Way.ASK else 0.0
        return self._unsettle(turn, answer=answer.told(), delay=delay or 0.0, hold=hold)

    def _not_executed(self, turn: Turn, answer: Answer) -> Sequence[Next]:
        """Send it, or let it fail, as the policy has said when the last sending ended; both only once it is sure."""
        effect, last = turn.effect, turn.effect.error or {}
        if effect.is_done:  # P34: a lookup that has not heard of it overrules nobody who knows
            return self._hold(turn, effect.error)
        soon = effect.may_send_for + turn.declared.safety.authoritative_after  # P33: believed late
        wait = max(soon, (last.get("delay") or 0.0) - effect.unknown_for)
        if soon > 0 or (wait > 0 and not last.get("stopped")):
            return self._unsettle(turn, answer=answer.told() | {"early": True}, delay=wait + 0.05)
        if last.get("stopped"):
            return self._fail(turn, last, why=f"the lookup says: not executed; {last['stopped']}")
        return self._send(turn, how="send")

    # Sending.

    def _send(self, turn: Turn, *, how: Literal["send", "again"]) -> Sequence[Next]:
        """Send the frozen request, once the ledger has it as `executing`."""
        request = self._request(turn)
        if request is None:  # P37: what cannot be undone any more is for people, and no worker's loop
            text = f"{turn.declared.name} declares no compensation any more"
            return self._hold(turn, {"type": "NoCompensation", "message": text, "not_executed": True})
        began = time.monotonic()  # before the first try: a begin that is sent again renews nothing (P4)
        safety, timeout = turn.declared.safety, turn.declared.timeout + self.settings.worker.step_grace
        begun = self._asked(
            lambda connection: effects.begin(
                connection,
                turn.run_id,
                turn.key,
                token=turn.claimed.token,
                digest=request.digest,
                how=how,
                timeout=timeout,
                authoritative_after=safety.authoritative_after,
                key_retention=safety.key_retention,
                asked_at=turn.claimed.db_now,  # before anything was asked under this claim
            )
        )
        if begun.answer != "begun":
            return self._not_begun(turn, begun, digest=request.digest)
        if not self._may_send(began):
            # P33: it was paused between the ledger's word and the send; by now others may have been asked to send it
            late = {"type": "Late", "message": "the worker was held up before the send"}
            if how == "again":  # what an earlier sending has done is as unknown as before
                return self._unsettle(turn, error=late)
            return self._retry(turn, late, delay=0.0, counts=False)
        crash_point("effect.before", turn.key.wire)
        done = self._performance.perform(request.job, turn.claimed, arguments=request.arguments, encode=request.encode)
        crash_point("effect.after", turn.key.wire)
        self._dependencies.tell(turn, done, sent=True)
        turn.spend(done)
        turn.artifacts += done.artifacts
        match done.came:
            case Returned(value=value):
                assert done.encoded is not None
                turn.said = {"external_id": None if turn.is_compensation else turn.declared.named(value)}
                crash_point("commit.before", turn.key.wire)
                return self._succeed(turn, done.encoded)
            case Raised(error=error):
                return self._raised(turn, error, done, how=how)

    def _request(self, turn: Turn) -> _Request | None:
        step, plain = turn.declared, self._performance.plain(turn.claimed)
        if not turn.is_compensation:
            return _Request(
                Job(step.fn, step.is_async, step.timeout),
                lambda: step.decode_input(plain),
                step.signature.hash(Encoded.of(plain)),
                step.encode_result,
            )
        undo = step.compensate_fn
        if undo is None:
            return None
        return _Request(
            Job(undo, iscoroutinefunction(undo), step.timeout),
            lambda: ((step.decode_result(plain),), {}),
            hashlib.sha256(turn.claimed.input or b"null").digest(),
            # What an undoing gives is for people.
            Codec[object](Any, root="result").show,
        )

    def _may_send(self, began: float) -> bool:
        """Whether this node still has the right: its lease stands, and the call has its whole time before it."""
        now, worker = time.monotonic(), self.settings.worker
        return now - began <= worker.step_grace and self.loan.board.since_beat() <= worker.lease * 2 / 3

    def _not_begun(self, turn: Turn, begun: effects.Begun, *, digest: bytes) -> Sequence[Next]:
        claim = (turn.run_id, turn.key, turn.claimed.token)
        log.info("effect.not_sent", run=str(turn.run_id), step=turn.key.wire, answer=begun.answer)
        match begun.answer:
            case "early":
                return self._unsettle(turn, answer={"answer": "not_executed", "early": True}, delay=begun.wait)
            case "evidence":
                return self._hold(
                    turn, {"message": "its executor knows that it was done, and its result is not stored"}
                )
            case "expired":
                return self._hold(turn, {"message": "the other side may have forgotten the key by now"})
            case "changed":
                hold = request_changed(turn.run_id, turn.key, frozen=turn.effect.digest, asked=digest)
                self._release(claim, why="request changed", hold=hold, turn=turn)
            case "unapproved":
                text = f"{turn.key} has no approval of the request that would be sent"
                next_ = f"safepoint approve {turn.run_id} {turn.key.step_id} --by NAME"
                hold = {"code": "approval", "text": text, "next": next_}
                self._release(claim, why="unapproved", hold=hold, turn=turn)
            case "lost":
                log.warning("lease.refused", run=str(turn.run_id), step=turn.key.wire, error="LeaseLost")
            case _:  # held, stopping, settled: the row's next claim sees to it
                self._release(claim, why=begun.answer, turn=turn)
        return ()

    # What the call has come to.

    def _succeed(self, turn: Turn, encoded: Encoded) -> Sequence[Next]:
        data, encoding, digest = encoded.data, encoded.encoding, encoded.digest
        result = Result("succeeded", turn.now(), data, encoding, digest, tokens=turn.tokens, usd=turn.usd)
        return self._advance.commit(turn, result)

    def _raised(
        self, turn: Turn, error: BaseException, done: Performed, *, how: Literal["send", "again"]
    ) -> Sequence[Next]:
        """Only what the declaration says about an error makes it less than unknown; and only of a first sending: what a
        second one did not do, or was refused, says nothing of the first.
        """
        told = describe(error, attempts=turn.claimed.attempt)
        if done.returned:
            told |= {"outcome": "succeeded", "message": f"it was done; its result cannot be stored: {told['message']}"}
        # Ours: the request may have left, whatever a declaration like OSError says of a timeout.
        elif how == "send" and not isinstance(error, StepTimeout):
            if says(turn.declared.safety.is_not_sent, error):
                verdict = self._decided(turn, error, retries_left=None)  # that is counted as it is retried
                if isinstance(verdict, Retry):
                    return self._retry(turn, told, delay=verdict.delay)
                return self._fail(turn, told | {"stopped": verdict.text}, why=f"never sent: {verdict.text}")
            if says(turn.declared.safety.is_rejected, error):
                return self._fail(turn, told, why="the other side has rejected it")
        way = way_of(turn, lookups=0)
        if how == "send" and way is Way.HOLD:
            return self._hold(turn, told)
        # What the policy says is kept: it counts for the next sending, whether a lookup comes first or not.
        verdict = self._decided(turn, error, retries_left=Purse.of(turn.claimed).left.retries)
        if isinstance(verdict, Retry):
            delay = verdict.delay if way is Way.AGAIN else 0.0
            return self._unsettle(turn, error=told | {"delay": verdict.delay}, delay=delay, counts=True)
        told |= {"stopped": verdict.text}
        if way is Way.ASK:
            return self._unsettle(turn, error=told, counts=True)
        return self._hold(turn, told | {"message": f"{told['message']} ({verdict.text})"})

    def _decided(self, turn: Turn, error: BaseException, *, retries_left: int | None) -> Any:
        claimed = turn.claimed
        return decide(
            turn.declared,
            attempt=claimed.attempt,
            error=error,
            elapsed=(turn.now() - claimed.first_claimed_at).total_seconds(),
            retries_left=None if turn.is_compensation else retries_left,
        )

    def _fail(self, turn: Turn, told: dict[str, Any], *, why: str) -> Sequence[Next]:
        """End an effect that was certainly not executed; a compensation cannot just fail (P37)."""
        if turn.is_compensation:
            return self._hold(turn, told | {"not_executed": True})
        log.warning("effect.failed", run=str(turn.run_id), step=turn.key.wire, error=told["type"], why=why)
        turn.said = {"why": why}
        return self._advance.commit(turn, Result("failed", turn.now(), error=told, tokens=turn.tokens, usd=turn.usd))

    def _hold(self, turn: Turn, told: dict[str, Any] | None) -> Sequence[Next]:
        """Nobody but a person, or a webhook, can say what came of it."""
        what = "undoing it" if turn.is_compensation else "it"
        reason = (told or {}).get("message") or "its executor died"
        text = f"nobody knows whether {what} was executed: {reason}"
        return self._unsettle(turn, error=told, hold=text)

    def _retry(self, turn: Turn, told: dict[str, Any], *, delay: float, counts: bool = True) -> Sequence[Next]:
        answer = self._asked(
            lambda connection: commits.retry(
                connection,
                turn.run_id,
                turn.key,
                token=turn.claimed.token,
                node=self._node_id,
                error=told,
                delay=delay,
                notes=turn.notes,
                tokens=turn.tokens,
                usd=turn.usd,
                counts=counts,
                hold=budget_hold(turn, BudgetExceeded(NO_RETRY.text, what="retries")),
            )
        )
        if answer.verdict == "budget":
            return self._fail(turn, told | {"stopped": NO_RETRY.text}, why=f"never sent: {NO_RETRY.text}")
        log.info("effect.retried", run=str(turn.run_id), step=turn.key.wire, error=told["type"], answer=answer.verdict)
        return ()

    def _unsettle(
        self,
        turn: Turn,
        *,
        error: dict[str, Any] | None = None,
        answer: dict[str, Any] | None = None,
        delay: float = 0.0,
        counts: bool = False,
        hold: str | None = None,
    ) -> Sequence[Next]:
        said = self._asked(
            lambda connection: effects.unsettle(
                connection,
                turn.run_id,
                turn.key,
                token=turn.claimed.token,
                node=self._node_id,
                error=error,
                answer=answer,
                delay=delay,
                counts=counts,
                hold=hold,
                notes=turn.notes,
                tokens=turn.tokens,
                usd=turn.usd,
            )
        )
        log.warning("effect.unknown", run=str(turn.run_id), step=turn.key.wire, answer=said, hold=hold)
        return ()

    def _asked(self, ask: Callable[[Any], Any]) -> Any:
        """Ask the ledger until it answers, with signals held back (P3)."""
        with masked():
            return self.loan.ask(ask, starting=False)

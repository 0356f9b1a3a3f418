"""One step, from its message to its ack: claim, execute, advance, commit, publish. The only place that does it;
it knows nothing of Celery.

Returning acknowledges the message, and only an answer of the ledger makes it return (P13). Any exception from the
ledger means *outcome unknown*: the identical call is sent again until it answers (P3, P4).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, TypeVar
from uuid import UUID, uuid4

import structlog

from ..config.crash import crash_point
from ..config.settings import Settings
from ..ledger import commit as commits
from ..ledger import steps
from ..ledger.commit import Next, Result
from ..ledger.connect import Connection
from ..ledger.errors import (
    ArtifactStoreUnavailable,
    BudgetExceeded,
    DeadlineExceeded,
    StepTimeout,
    describe,
)
from ..ledger.key import Key
from ..ledger.steps import Claimed, NotYours, Settled
from .advance import Advance
from .announce import Silence
from .attempt import Job, Raised, Returned
from .dependency import Dependencies
from .ending import diverged
from .histories import Histories, Replay, record_of, run_info
from .loan import Loan, Shutdown
from .onward import Onward
from .outcome import Diverged, FlowError
from .performance import Performance
from .purse import budget_hold
from .record import Record
from .registry import Registry, find_flow
from .relay import message, redispatch_after
from .retry import NO_RETRY, Retry, Stop, decide
from .rows import hold_of, request_changed
from .settle import COMPENSATION, Settler
from .signals import masked
from .step import Step
from .turn import Turn
from .waited import waited
from .wire import Publisher

__all__ = ["Executor"]

log = structlog.get_logger("safepoint.execute")
T = TypeVar("T")
STORE_PAUSE = 5.0  # seconds until a step whose values cannot be read is tried again
KIND_TIMEOUT = 60.0  # seconds for a step that executes nothing
ALONE = NotYours("alone")  # this step, or one that runs here, must have the node for itself (P23)
ALONE_PATIENCE = 10.0  # seconds until the row is left to another node
ALONE_PAUSE = 0.2
EXECUTED = frozenset({"step", "effect", "compensation"})


class Executor:
    """Executes steps for one node; one for all threads of a process, and after a fork one for each process."""

    def __init__(
        self,
        settings: Settings,
        *,
        loan: Loan,
        histories: Histories,
        performance: Performance,
        publisher: Publisher,
        registry: Registry,
        node_id: str,
    ) -> None:
        self.settings = settings
        self.events = Silence()  # where steps in place are announced
        self.loan = loan
        self._histories = histories
        self._performance = performance
        self._publisher = publisher
        self._registry = registry
        self._node_id = node_id
        self._dependencies = Dependencies(settings, loan, node_id=node_id)
        self._advance = Advance(settings, loan=loan, histories=histories, performance=performance, node_id=node_id)
        self._settler = Settler(
            settings,
            loan=loan,
            performance=performance,
            advance=self._advance,
            dependencies=self._dependencies,
            release=self._release,
            node_id=node_id,
        )

    def execute(self, run: str, step: str, lane: str) -> None:
        """Execute the step that a message hints at, if the ledger says that it is ours to execute; and then, where its
        lane allows it, the steps that follow.
        """
        crash_point("claim.before", step)
        run_id, key, token = UUID(run), Key.from_wire(step), uuid4()
        onward = Onward(self.settings, self.loan, self._registry, lane)
        turn: Turn | None = None
        rows: Sequence[Next] = ()
        last = step
        self.loan.executing = key
        with self.loan.slot(token):
            try:
                turn = self._claim(run_id, key, lane=lane, token=token)
                while turn is not None:
                    key, token, last = turn.key, turn.claimed.token, turn.key.wire
                    self.loan.executing = key
                    crash_point("claim.after", last)
                    with self.events.of(turn, lane=lane, in_place=onward.steps > 0):
                        turn.onward = onward
                        rows = self._work(turn)
                    done, turn = turn, None  # what it has spent is told; what breaks now is the next claim's
                    if isinstance(done.follows, Claimed):
                        key, token = done.follows.key, done.follows.token
                    turn, rows = self._go_on(done, rows)
                    onward.steps += 1
            except ArtifactStoreUnavailable as error:
                log.warning("artifacts.away", run=run, step=key.wire, error=str(error)[:200])
                self._release((run_id, key, token), why="artifacts", delay=STORE_PAUSE, turn=turn)
                return
            finally:
                self.events.flush()
        self._publish(run_id, rows, after=last)

    def _go_on(self, turn: Turn, rows: Sequence[Next]) -> tuple[Turn | None, Sequence[Next]]:
        """Return the turn that was claimed with this one's commit, or the rows that are to be published (P31)."""
        claimed = turn.follows
        if not isinstance(claimed, Claimed):
            if claimed is not None:
                log.debug("step.not_in_place", run=str(turn.run_id), step=turn.key.wire, reason=claimed.reason)
            return None, rows
        self.loan.go_on(claimed.token)
        # What was fed to the flow stands in the ledger: unless the answer was lost, the driver is as far as the claim.
        replay = turn.kept if claimed.seen >= 0 else None
        step = self._registry.steps.get(claimed.key.step_id)
        return self._turn(claimed, replay, began=time.monotonic(), declared=step), ()

    # Claim.

    def _claim(self, run_id: UUID, key: Key, *, lane: str, token: UUID) -> Turn | None:
        self._histories.identify(self.loan.incarnation)
        replay = self._histories.take(run_id)
        declared = self._registry.steps.get(key.step_id.removeprefix(COMPENSATION))
        timeout = (declared.timeout if declared else KIND_TIMEOUT) + self.settings.worker.step_grace
        # The claim itself takes its own row out of dispatch.
        settle = [row for row in self.loan.take_published() if (row.run_id, row.key) != (run_id, key)]
        began = time.monotonic()

        def claim(connection: Connection) -> Claimed | NotYours:
            return steps.claim(
                connection,
                run_id,
                key,
                lane=lane,
                claimer=self.loan.claimer(),
                token=token,
                timeout=timeout,
                seen=replay.seen if replay else -1,
                era=replay.era if replay else "",
                settle=settle,
            )

        try:
            answer = self._asked(claim, starting=True)
            while answer == ALONE and self.loan.reserve() and time.monotonic() < began + ALONE_PATIENCE:
                time.sleep(ALONE_PAUSE)  # what else runs here ends, and nothing new starts
                answer = self._asked(claim, starting=True)
        except Shutdown:
            self.loan.published(settle)
            raise
        if not (isinstance(answer, Claimed) and answer.run["alone"] and self.loan.reserve()):
            self.loan.unreserve()
        if isinstance(answer, NotYours):
            if replay is not None:
                self._histories.keep(run_id, replay)
            log.info("claim.refused", run=str(run_id), step=key.wire, reason=answer.reason)
            return None
        self.loan.mark(lane, answer)
        return self._turn(answer, replay, began=began, declared=declared)

    def _turn(
        self, claimed: Claimed, replay: Replay | None, *, began: float, declared: Step[..., Any] | None
    ) -> Turn | None:
        step = declared if claimed.kind in EXECUTED else None
        if claimed.effect is not None and (claimed.run["still"] or claimed.kind == "compensation"):
            if replay is not None:
                self._histories.keep(claimed.run_id, replay)
            return Turn(claimed, None, began, step=step)
        if replay is None or claimed.seen < 0:
            if replay is not None:
                replay.driver.close()
            built = self._build(claimed)
            if built is None:
                self._release((claimed.run_id, claimed.key, claimed.token), why="version")
                return None
            replay = built
        turn = Turn(claimed, replay, began, step=step)
        self._histories.feed(replay, [record_of(row) for row in claimed.history])
        # What the history led to was asked for, and noted, by the commits that wrote it.
        replay.driver.take_new()
        replay.driver.take_notes()
        hold = self._objection(turn)
        if hold is not None:
            replay.driver.close()
            self._release((claimed.run_id, claimed.key, claimed.token), why=hold["code"], hold=hold)
            return None
        return turn

    def _build(self, claimed: Claimed) -> Replay | None:
        flow = find_flow(claimed.run["flow"], claimed.run["version"])
        if flow is None or claimed.run_input is None or claimed.run_input_encoding is None:
            return None
        tenant = claimed.run["tenant"]
        info = run_info(
            claimed.run_id,
            claimed.run,
            generation=claimed.key.generation,
            encoding=claimed.run_input_encoding,
            data=claimed.run_input,
        )
        return self._histories.build(flow, info, era=claimed.era, load=self._performance.loader(tenant))

    def _objection(self, turn: Turn) -> dict[str, Any] | None:
        """Say why this step must not run: the replayed flow is broken, or asks for something else than the ledger
        holds.
        """
        driver, claimed = turn.replay.driver, turn.claimed
        if isinstance(driver.outcome, Diverged | FlowError):
            return hold_of(driver.outcome, run_id=turn.run_id)
        if claimed.kind in {"start", "advance", "cancel"} or driver.cancelled:
            return None
        asked = driver.asked.get(turn.key)
        if asked is not None and asked.kind == claimed.kind and claimed.input_hash in {None, asked.input_hash}:
            return None
        if asked is not None and asked.kind == claimed.kind == "effect":
            return request_changed(turn.run_id, turn.key, frozen=claimed.input_hash, asked=asked.input_hash)
        record = Record(
            claimed.state_version, turn.key, claimed.kind, "ready", claimed.db_now, input_hash=claimed.input_hash
        )
        return hold_of(diverged(record, asked, others=driver.asked.values(), ended=driver.outcome), run_id=turn.run_id)

    def _release(
        self,
        claim: tuple[UUID, Key, UUID],
        *,
        why: str,
        hold: dict[str, Any] | None = None,
        delay: float = 0.0,
        turn: Turn | None = None,
    ) -> None:
        run_id, key, token = claim
        tokens, usd = (turn.tokens, turn.usd) if turn else (0, Decimal(0))
        self._asked(
            lambda connection: steps.release(
                connection, run_id, key, token=token, why=why, hold=hold, delay=delay, tokens=tokens, usd=usd
            )
        )
        log.warning("step.released", run=str(run_id), step=key.wire, why=why, text=(hold or {}).get("text"))

    # Execute.

    def _work(self, turn: Turn) -> Sequence[Next]:
        if turn.claimed.kind not in EXECUTED:
            return self._advance.commit(turn, waited(turn, self._performance))
        if turn.step is None:
            self._replayed_again(turn)
            self._release((turn.run_id, turn.key, turn.claimed.token), why="version")
            return ()
        if turn.claimed.effect is not None:
            return self._settler.work(turn)
        # P24: the scan ended an attempt; the policy is evaluated where the user's code is
        if turn.claimed.pending_error is not None:
            self._dependencies.timed_out(turn)
            return self._failed(turn, StepTimeout(seconds=turn.step.timeout))
        refused = self._performance.refusal(turn.claimed)
        if refused is not None:
            return self._short(turn, refused)
        done = self._performance.perform(
            Job(turn.step.fn, turn.step.is_async, turn.step.timeout),
            turn.claimed,
            arguments=turn.replay.driver.asked[turn.key].arguments,
            encode=turn.step.encode_result,
        )
        self._dependencies.tell(turn, done)
        turn.spend(done)
        turn.artifacts += done.artifacts
        crash_point("commit.before", turn.key.wire)
        match done.came:
            case Returned():
                encoded = done.encoded
                assert encoded is not None
                result = Result(
                    "succeeded",
                    turn.now(),
                    encoded.data,
                    encoded.encoding,
                    encoded.digest,
                    tokens=turn.tokens,
                    usd=turn.usd,
                )
                return self._advance.commit(turn, result)
            case Raised(error=error):
                return self._failed(turn, error)

    def _short(self, turn: Turn, lacks: BudgetExceeded) -> Sequence[Next]:
        """The budget is used up: the flow hears of it, or the run is held until somebody adds to it."""
        hold = budget_hold(turn, lacks)
        if hold is None:
            return self._advance.commit(turn, Result("failed", turn.now(), error=describe(lacks)))
        self._replayed_again(turn)
        self._release((turn.run_id, turn.key, turn.claimed.token), why="budget", hold=hold)
        return ()

    def _failed(self, turn: Turn, error: BaseException) -> Sequence[Next]:
        """An attempt has failed: again later, as a row of the ledger, or for good."""
        assert turn.step is not None
        claimed = turn.claimed
        deadline = turn.replay.driver.run.deadline
        verdict = decide(
            turn.step,
            attempt=claimed.attempt,
            error=error,
            elapsed=(turn.now() - claimed.first_claimed_at).total_seconds(),
            time_left=None if deadline is None else (deadline - turn.now()).total_seconds(),
        )
        told = describe(error, attempts=claimed.attempt)
        if not isinstance(verdict, Retry):
            return self._stopped(turn, verdict, told)
        answer = self._asked(
            lambda connection: commits.retry(
                connection,
                turn.run_id,
                turn.key,
                token=claimed.token,
                node=self._node_id,
                error=told,
                delay=verdict.delay,
                notes=turn.notes,
                tokens=turn.tokens,
                usd=turn.usd,
                hold=budget_hold(turn, BudgetExceeded(NO_RETRY.text, what="retries")),
            ),
            masking=True,
        )
        if answer.verdict == "budget":
            return self._stopped(turn, NO_RETRY, told)
        self._replayed_again(turn)
        facts = {"error": told["type"], "delay": round(verdict.delay, 3), "answer": answer.verdict}
        log.info("step.retried", run=str(turn.run_id), step=turn.key.wire, **facts)
        return ()

    def _stopped(self, turn: Turn, verdict: Stop, told: dict[str, Any]) -> Sequence[Next]:
        """No other attempt follows."""
        log.warning("step.failed", run=str(turn.run_id), step=turn.key.wire, error=told["type"], why=verdict.text)
        told = {**told, "stopped": verdict.text}
        if verdict.reason == "deadline":  # nothing can follow in time: the flow hears of that, not of the last error
            text = f"{verdict.text}; the last one ended with {told['type']}: {told['message']}"
            told = {**describe(DeadlineExceeded(text)), "attempts": turn.claimed.attempt, "cause": told}
        return self._advance.commit(turn, Result("failed", turn.now(), error=told, tokens=turn.tokens, usd=turn.usd))

    def _replayed_again(self, turn: Turn) -> None:
        """Keep the driver: it has been fed nothing that is not committed."""
        if turn.kept is not None:
            self._histories.keep(turn.run_id, turn.kept)

    # Publish.

    def _publish(self, run_id: UUID, rows: Sequence[Next], *, after: str) -> None:
        """Send the run's own next steps; whatever fails stays due in the ledger, and the relay sends it."""
        ready = [row for row in rows if row.status == "ready" and row.due is not None and not row.queued]
        if not ready:
            return
        outcomes = self._publisher.publish([message(run_id, row) for row in ready])
        crash_point("publish.after", after)
        sent = [row for row, error in zip(ready, outcomes, strict=True) if error is None]
        self.loan.published(
            [Settled(run_id, row.key, row.due or "", redispatch_after(self.settings, 0)) for row in sent]
        )
        for row, error in zip(ready, outcomes, strict=True):
            if error is not None:
                log.warning("publish.failed", run=str(run_id), step=row.key.wire, error=str(error)[:200])

    def _asked(self, ask: Callable[[Connection], T], *, starting: bool = False, masking: bool = False) -> T:
        """Ask the ledger until it answers."""
        if not masking:
            return self.loan.ask(ask, starting=starting)
        with masked():
            return self.loan.ask(ask, starting=starting)

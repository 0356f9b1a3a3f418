"""Advances a run's flow with a new outcome and commits both together; the step itself is never repeated for that (P26).

Any exception from a commit means *outcome unknown*: the identical call is sent again until the ledger answers (P3).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import structlog

from ..config.crash import crash_point
from ..config.settings import Settings
from ..ledger import commit as commits
from ..ledger import effects, history
from ..ledger.commit import Answer, Ending, Next, Result
from ..ledger.connect import Connection
from ..ledger.errors import ConfigError, ValueNotSealed
from ..ledger.steps import Claimed
from .histories import Histories, record_of, run_info
from .loan import Loan
from .outcome import FlowError
from .performance import Performance
from .record import Record
from .rows import ending_of, hold_of, row_of, sealed
from .signals import masked
from .turn import Turn

__all__ = ["Advance"]

log = structlog.get_logger("safepoint.advance")
T = TypeVar("T")
MISSES = 2  # stale advances before the run's lock is taken for the whole of it


def is_advance(turn: Turn) -> bool:
    """Whether the step is the flow's own: nothing that it waited for, only its code run again."""
    return turn.claimed.kind == "advance"


class Advance:
    """The only place that ends a step."""

    def __init__(
        self, settings: Settings, *, loan: Loan, histories: Histories, performance: Performance, node_id: str
    ) -> None:
        self.settings = settings
        self.loan = loan
        self._histories = histories
        self._performance = performance
        self._node_id = node_id

    def commit(self, turn: Turn, result: Result) -> Sequence[Next]:
        """Store the outcome, and with it what the flow asks for next; return the rows to be published."""
        if turn.kept is None:  # P29: it is stored, and nothing follows from it
            return self._committed(turn, self._send(turn, result, artifacts=turn.artifacts), result)
        joins = self._joins(turn)
        if joins is not None:
            answer = self._send(turn, result, joins=joins, artifacts=turn.artifacts)
            if answer.verdict != "stale":
                self._histories.keep(
                    turn.run_id, turn.replay
                )  # not fed: the next claim brings this record with the others
                return self._committed(turn, answer, result)
        state_version = turn.claimed.state_version
        for miss in range(MISSES + 1):
            if miss or turn.replay.seen > state_version:
                state_version = self._reread(turn)
            answer = self._advanced(turn, result, state_version)
            if answer.verdict != "stale":
                self._keep(turn, answer)
                return self._committed(turn, answer, result)
        answer = self._masked(lambda connection: self._locked(connection, turn, result))
        self._keep(turn, answer)
        return self._committed(turn, answer, result)

    def _joins(self, turn: Turn) -> str | None:
        """Name the gather whose other members are still open: then this outcome lets nothing new be asked (P26)."""
        asked = turn.replay.driver.asked.get(turn.key)
        if asked is None or asked.joins is None:
            return None
        others = (one for key, one in turn.replay.driver.asked.items() if one.joins == asked.joins and key != turn.key)
        return asked.joins if next(others, None) is not None else None

    def _advanced(
        self, turn: Turn, result: Result, state_version: int, *, connection: Connection | None = None
    ) -> Answer:
        """Feed the outcome, and commit it with all that follows."""
        driver = turn.replay.driver
        self._histories.feed(turn.replay, [self._tentative(turn, result, seq=state_version + 1)])
        flow_notes = [{"type": "note", "data": dict(note)} for note in driver.take_notes()]
        ending, asked, artifacts = self._stored(turn)
        goes_on = turn.onward is not None and connection is None and driver.outcome is None
        return self._send(
            turn,
            result,
            go_on=turn.onward.claim(turn, asked) if turn.onward is not None and goes_on else None,
            connection=connection,
            advanced_from=state_version,
            ending=ending,
            hold=hold_of(driver.outcome, run_id=turn.run_id),
            asked=asked,
            flow_notes=flow_notes,
            artifacts=artifacts,
        )

    def _stored(self, turn: Turn) -> tuple[Ending | None, list[dict[str, Any]], list[dict[str, Any]]]:
        """Give what the flow came to and what it asks for as the ledger stores them, and the artifacts they refer to;
        a value that cannot be sealed holds the run, and nothing of it is stored in the open.
        """
        driver, tenant, artifacts = turn.replay.driver, turn.claimed.run["tenant"], list(turn.artifacts)
        new = driver.take_new()
        # An advance asks for all that is open: mended code may ask for more than has rows; the ledger knows which have.
        asked = [row_of(one, run_id=turn.run_id) for one in (driver.asked.values() if is_advance(turn) else new)]
        try:
            ending = self._performance.stored(
                ending_of(driver.outcome, last=turn.key), tenant=tenant, artifacts=artifacts
            )
            if self._performance.seal.is_configured:
                close = partial(self._performance.seal.close, tenant=tenant)
                asked = [sealed(row, close=close) for row in asked]
        except (ConfigError, ValueNotSealed) as error:
            driver.outcome = FlowError(error, f"{turn.key}: what follows it: {error}")
            return None, [], list(turn.artifacts)
        return ending, asked, artifacts

    def _keep(self, turn: Turn, answer: Answer) -> None:
        """Keep the driver if the ledger has stored just what it was fed; only now, for until the ledger has answered
        the advance may be repeated, and that closes it.
        """
        replay, turn.follows = turn.replay, answer.claimed
        agrees = answer.verdict == "committed" and answer.state_version == replay.seen
        if agrees and replay.driver.outcome is None:
            if not isinstance(answer.claimed, Claimed):  # else the next turn has it
                self._histories.keep(turn.run_id, replay)
        else:
            replay.driver.close()

    def _tentative(self, turn: Turn, result: Result, *, seq: int) -> Record:
        claimed = turn.claimed
        # As the row will say: a replay must count for the flow what it has counted at first.
        tokens, usd = turn.charged
        return Record(
            seq,
            turn.key,
            claimed.kind,
            result.status,
            result.at,
            claimed.input_hash,
            result.data,
            result.encoding,
            result.error,
            tokens + result.tokens,
            float(usd + result.usd),
        )

    def _reread(self, turn: Turn) -> int:
        """Begin the flow anew from what is committed by now; the step itself is never repeated for that."""
        found = self.loan.ask(lambda connection: history.read(connection, turn.run_id), starting=False)
        return self._rebuild(turn, found)

    def _rebuild(self, turn: Turn, found: history.History) -> int:
        turn.replay.driver.close()
        flow = turn.replay.driver.flow
        info = run_info(
            turn.run_id, found.run, generation=found.generation, data=found.input, encoding=found.input_encoding
        )
        turn.kept = self._histories.build(flow, info, era=found.era, load=self._performance.loader(found.run["tenant"]))
        self._histories.feed(turn.replay, [record_of(row) for row in found.rows])
        turn.replay.driver.take_new()  # asked for by commits before this one
        turn.replay.driver.take_notes()
        return found.state_version

    def _locked(self, connection: Connection, turn: Turn, result: Result) -> Answer:
        """Advance under the run's lock: nobody can come in between (P26)."""
        with connection.transaction():
            history.lock(connection, turn.run_id)
            return self._advanced(
                turn, result, self._rebuild(turn, history.read(connection, turn.run_id)), connection=connection
            )

    def _send(
        self,
        turn: Turn,
        result: Result,
        *,
        connection: Connection | None = None,
        flow_notes: Sequence[dict[str, Any]] = (),
        advanced_from: int | None = None,
        **follows: Any,
    ) -> Answer:
        settle = self.loan.take_published()

        def send(connection: Connection) -> Answer:
            return commits.commit(
                connection,
                turn.run_id,
                turn.key,
                token=turn.claimed.token,
                node=self._node_id,
                result=result,
                advanced_from=advanced_from,
                notes=[*turn.notes, *flow_notes],
                grace=self.settings.relay.grace,
                settle=settle,
                effect=turn.said,
                **follows,
            )

        return send(connection) if connection is not None else self._masked(send)

    def _committed(self, turn: Turn, answer: Answer, result: Result) -> Sequence[Next]:
        if answer.verdict == "lost":
            if turn.kept is not None:
                turn.kept.driver.close()
            log.warning(
                "lease.refused", run=str(turn.run_id), step=turn.key.wire, epoch=turn.claimed.epoch, error="LeaseLost"
            )
            self._testify(turn, result)
            return ()
        crash_point("commit.after", turn.key.wire)
        log.info(
            "step.committed",
            run=str(turn.run_id),
            step=turn.key.wire,
            epoch=turn.claimed.epoch,
            late=answer.late,
            run_status=answer.run_status,
        )
        return answer.rows

    def _testify(self, turn: Turn, result: Result) -> None:
        """P34: an executor that has lost its lease still knows what its effect has come to."""
        effect, data = turn.claimed.effect, result.data
        if effect is None or result.status != "succeeded" or data is None:
            return
        answer = self._masked(
            lambda connection: effects.evidence(
                connection,
                turn.run_id,
                key=effect.key,
                node=self._node_id,
                epoch=turn.claimed.epoch,
                data=data,
                encoding=result.encoding or "json",
                external_id=(turn.said or {}).get("external_id"),
            )
        )
        log.warning("effect.evidence", run=str(turn.run_id), step=turn.key.wire, answer=answer)

    def _masked(self, ask: Callable[[Connection], T]) -> T:
        """Ask the ledger until it answers, with signals held back."""
        with masked():
            return self.loan.ask(ask, starting=False)

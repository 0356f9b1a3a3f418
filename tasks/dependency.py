"""What a call tells of the dependency that its step uses (`uses=`), and to whom: the board, or at once for a probe.

What counts is what the retry policy would try again: a timeout, a broken connection, "later, please". A crash tells
nothing, nor does an error of the caller's own (P39).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import structlog

from ..config.settings import Settings
from ..ledger.connect import Connection
from ..ledger.errors import RetryAfter, SafepointError, StepTimeout
from ..recovery.breaker import Outcome
from ..recovery.outcomes import record_probe
from .attempt import Raised, Returned
from .loan import Loan
from .performance import Performed
from .retry import is_retried, pause_of
from .step import Step
from .turn import Turn

__all__ = ["Call", "Dependencies", "call_of"]

log = structlog.get_logger("safepoint.dependency")


@dataclass(frozen=True, slots=True)
class Call:
    """The outcome of one call, and for how many seconds the other side wants to be left alone."""

    outcome: Outcome
    leave_for: float = 0.0


def call_of(step: Step[..., Any], came: Returned | Raised, *, returned: bool = False) -> Call | None:
    """Say what an attempt tells of its dependency; None for nothing. `returned`: the call succeeded, and what it gave
    cannot be stored.
    """
    if isinstance(came, Returned) or returned:
        return Call(Outcome.OK)
    error = came.error
    if isinstance(error, RetryAfter):
        return Call(Outcome.THROTTLED, _seconds(error))
    # Ours (the ledger, a store, a budget), or the process's own end: the dependency was not even reached.
    is_ours = isinstance(error, SafepointError) and not isinstance(error, StepTimeout)
    if is_ours or not isinstance(error, Exception) or isinstance(error, MemoryError | RecursionError):
        return None
    return Call(Outcome.FAILED) if is_retried(step, error) else None


def _seconds(error: RetryAfter) -> float:
    try:
        return pause_of(error)
    except Exception:  # noqa: BLE001  # what is no length of time: the retry says so
        return 0.0


def _is_refused(turn: Turn, error: BaseException) -> bool:
    """Whether the other side has answered, by a refusal: it works."""
    try:
        return not isinstance(error, RetryAfter) and turn.declared.safety.is_rejected(error)
    except Exception:  # noqa: BLE001  # the user's predicate: the settler says what is wrong with it
        return False


class Dependencies:
    """Tells what calls have come to; it never makes a step fail."""

    def __init__(self, settings: Settings, loan: Loan, *, node_id: str) -> None:
        self._settings = settings
        self._loan = loan
        self._node_id = node_id

    def tell(self, turn: Turn, done: Performed, *, sent: bool = False) -> None:
        """Tell what the call of a turn has come to; `sent`: it was an effect's own, which the other side may refuse."""
        if turn.step is None or turn.step.uses is None:
            return
        is_refused = sent and isinstance(done.came, Raised) and _is_refused(turn, done.came.error)
        call = Call(Outcome.OK) if is_refused else call_of(turn.step, done.came, returned=done.returned)
        self._tell(turn, turn.step.uses, call)

    def timed_out(self, turn: Turn) -> None:
        """Tell that an attempt ran past its timeout, as the scan has found."""
        if turn.step is None or turn.step.uses is None:
            return
        self._tell(turn, turn.step.uses, call_of(turn.step, Raised(StepTimeout(seconds=turn.step.timeout))))

    def _tell(self, turn: Turn, name: str, call: Call | None) -> None:
        if call is None:
            return
        if not turn.claimed.run.get("probe"):
            self._loan.count(name, call.outcome, leave_for=call.leave_for)
            return

        def told(connection: Connection) -> object:
            return record_probe(
                connection,
                name,
                call.outcome,
                self._settings.breakers,
                token=turn.claimed.token,
                leave_for=call.leave_for,
                by=self._node_id,
            )

        try:
            self._loan.ask(told, starting=False)
        except Exception:  # no probe, then: the log has it, and another step probes when this one has ended
            log.exception("probe.untold", dependency=name)

"""The states of runs, steps and effects, and the one table of allowed transitions for each; the schema's CHECK
constraints hold the same names.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

__all__ = ["EFFECT_MOVES", "RUN_MOVES", "STEP_MOVES", "EffectStatus", "RunStatus", "StepStatus"]


class RunStatus(StrEnum):
    """Where a run stands."""

    QUEUED = "queued"  # -> running, waiting, held, cancelling, any end
    RUNNING = "running"  # -> waiting, held, cancelling, any end
    WAITING = "waiting"  # -> running, held, cancelling, any end
    HELD = "held"  # -> running, waiting, cancelling, any end
    CANCELLING = "cancelling"  # -> any end
    SUCCEEDED = "succeeded"  # final
    FAILED = "failed"  # final for machines; a person may reopen it: -> running
    CANCELLED = "cancelled"  # final

    @property
    def is_final(self) -> bool:
        """Whether no machine moves the run any more."""
        return self in _FINAL_RUNS


class StepStatus(StrEnum):
    """Where a step stands."""

    READY = "ready"  # -> running (claim), held, cancelled
    RUNNING = "running"  # -> succeeded, failed (commit), ready (retry, release, loss), held (poison), cancelled
    WAITING = "waiting"  # -> ready (with its outcome), cancelled
    HELD = "held"  # -> ready (a person), succeeded, failed (late commit), cancelled
    SUCCEEDED = "succeeded"  # final
    FAILED = "failed"  # final; reopened with its run: -> ready
    CANCELLED = "cancelled"  # final


class EffectStatus(StrEnum):
    """What is known of the other side."""

    PENDING = "pending"  # -> executing, failed
    EXECUTING = "executing"  # -> succeeded, failed, unknown, pending
    SUCCEEDED = "succeeded"  # final once it is committed; a person's word that does not fit: -> unknown
    FAILED = "failed"  # final
    UNKNOWN = "unknown"  # -> executing, succeeded, failed, pending


_FINAL_RUNS: Final = frozenset({RunStatus.SUCCEEDED, RunStatus.FAILED, RunStatus.CANCELLED})
_R, _S, _E = RunStatus, StepStatus, EffectStatus

RUN_MOVES: Final[dict[RunStatus, frozenset[RunStatus]]] = {
    _R.QUEUED: frozenset({_R.RUNNING, _R.WAITING, _R.HELD, _R.CANCELLING}) | _FINAL_RUNS,
    _R.RUNNING: frozenset({_R.WAITING, _R.HELD, _R.CANCELLING}) | _FINAL_RUNS,
    _R.WAITING: frozenset({_R.RUNNING, _R.HELD, _R.CANCELLING}) | _FINAL_RUNS,
    _R.HELD: frozenset({_R.RUNNING, _R.WAITING, _R.CANCELLING}) | _FINAL_RUNS,
    _R.CANCELLING: _FINAL_RUNS,
    _R.SUCCEEDED: frozenset(),
    _R.FAILED: frozenset({_R.RUNNING}),
    _R.CANCELLED: frozenset(),
}

STEP_MOVES: Final[dict[StepStatus, frozenset[StepStatus]]] = {
    _S.READY: frozenset({_S.RUNNING, _S.HELD, _S.CANCELLED, _S.SUCCEEDED, _S.FAILED}),
    _S.RUNNING: frozenset({_S.SUCCEEDED, _S.FAILED, _S.READY, _S.HELD, _S.CANCELLED}),
    _S.WAITING: frozenset({_S.READY, _S.CANCELLED}),
    _S.HELD: frozenset({_S.READY, _S.SUCCEEDED, _S.FAILED, _S.CANCELLED}),
    _S.SUCCEEDED: frozenset(),
    _S.FAILED: frozenset({_S.READY}),
    _S.CANCELLED: frozenset(),
}

EFFECT_MOVES: Final[dict[EffectStatus, frozenset[EffectStatus]]] = {
    _E.PENDING: frozenset({_E.EXECUTING, _E.FAILED}),
    _E.EXECUTING: frozenset({_E.SUCCEEDED, _E.FAILED, _E.UNKNOWN, _E.PENDING}),
    _E.UNKNOWN: frozenset({_E.EXECUTING, _E.SUCCEEDED, _E.FAILED, _E.PENDING}),
    _E.SUCCEEDED: frozenset({_E.UNKNOWN}),
    _E.FAILED: frozenset(),
}

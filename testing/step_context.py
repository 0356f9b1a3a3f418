"""`step_context`: what `current()` needs, for calling a step's function in a test."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..tasks.artifact import reading_from
from ..tasks.budget import Budget
from ..tasks.context import StepContext, running
from .memory import MemoryLedger
from .world import run_id as _run_id

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from datetime import datetime

__all__ = ["step_context"]


@contextmanager
def step_context(  # noqa: PLR0913  # each is an option that users write by name
    *,
    run_id: str | None = None,
    tenant: str = "default",
    key: str = "step#1",
    attempt: int = 1,
    recoveries: int = 0,
    epoch: int = 1,
    idempotency_key: str | None = "test-key",
    deadline: datetime | None = None,
    budget: Budget | None = None,
    versions: Mapping[str, str] | None = None,
    tags: Mapping[str, str] | None = None,
    ledger: MemoryLedger | None = None,
) -> Iterator[StepContext]:
    """Let a step's function run as in a worker; the context tells what it has noted and spent.

    The same `ledger` given twice is a retry: `once` finds the rows of the attempt before.
    """
    rows = ledger or MemoryLedger()
    run = run_id or _run_id(0)
    context = StepContext(
        run,
        tenant,
        key,
        ledger=rows,
        attempt=attempt,
        recoveries=recoveries,
        epoch=epoch,
        reference=f"{run}/1/{key}",
        effect_key=idempotency_key,
        deadline=deadline,
        budget_before=budget or Budget(),
        versions=versions or {},
        tags=tags or {},
    )
    with running(context), reading_from(rows.artifacts):
        yield context

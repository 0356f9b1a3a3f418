"""Durable AI-agent runs on Celery.

A run that dies goes on from its last committed step; the names below are all that a program needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .ledger.errors import Permanent
from .tasks.artifact import Artifact
from .tasks.budget import Budget
from .tasks.context import current
from .tasks.decision import Decision
from .tasks.derived import now, random, uuid4
from .tasks.effect import effect
from .tasks.ending import continue_as
from .tasks.flow import Flow, flow
from .tasks.gather import gather
from .tasks.lookup import NOT_EXECUTED, UNSURE, Found, Lookup
from .tasks.registry import on_start
from .tasks.step import Step, step
from .tasks.waits import approval, sleep, wait_for

if TYPE_CHECKING:
    from .tasks.client import Client, Run

__all__ = [
    "NOT_EXECUTED",
    "UNSURE",
    "Artifact",
    "Budget",
    "Client",
    "Decision",
    "Flow",
    "Found",
    "Lookup",
    "Permanent",
    "Run",
    "Step",
    "approval",
    "continue_as",
    "current",
    "effect",
    "flow",
    "gather",
    "now",
    "on_start",
    "random",
    "sleep",
    "step",
    "uuid4",
    "wait_for",
]


def __getattr__(name: str) -> object:
    # A module of flows must not pay for SQLAlchemy; who enqueues does.
    if name in {"Client", "Run"}:
        from .tasks import client  # noqa: PLC0415  # as above

        return getattr(client, name)
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)


def __dir__() -> list[str]:
    return __all__

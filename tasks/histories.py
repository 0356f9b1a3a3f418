"""The live drivers of a process: each run's flow as far as this process has fed it, so that a turn costs the new
records only.

A driver is lent to one executor at a time. It is given back only when the ledger has stored exactly what it was
fed; everything else is
dropped and rebuilt from the ledger's history, which is the only truth.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from ..ledger import steps
from .budget import Budget
from .driver import Driver
from .flow import Flow
from .outcome import FlowError
from .record import Load, Record, RunInfo
from .watchdog import FlowStuck, Watchdog

__all__ = ["Histories", "Replay", "record_of", "run_info"]


@dataclass(slots=True)
class Replay:
    """A driver, and up to which number of which era its history has been fed."""

    driver: Driver
    era: str
    seen: int


def run_info(run_id: UUID, facts: dict[str, Any], *, generation: int, data: bytes, encoding: str) -> RunInfo:
    """Return what a flow may know of its run, from the ledger's facts."""
    budget = facts.get("budget") or {}
    return RunInfo(
        run_id=str(run_id),
        tenant=facts["tenant"],
        generation=generation,
        input=data,
        encoding=encoding,
        created_at=datetime.fromisoformat(facts["created_at"]),
        deadline=_instant(facts.get("deadline")),
        budget=Budget(**{name: budget.get(name) for name in ("tokens", "usd", "retries")}),
        versions=facts.get("versions") or {},
        tags=facts.get("tags") or {},
        conversation=facts.get("conversation"),
    )


def _instant(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def record_of(row: steps.Record) -> Record:
    """Return a row of the ledger's history as the driver is fed it."""
    return Record(
        row.seq,
        row.key,
        row.kind,
        row.status,
        row.at,
        row.input_hash,
        row.data,
        row.encoding,
        row.error,
        row.tokens,
        float(row.usd),
    )


class Histories:
    """A bounded number of live drivers, the least recently used one dropped first."""

    def __init__(self, *, size: int, watchdog: Watchdog) -> None:
        self._size = size
        self._watchdog = watchdog
        self._kept: OrderedDict[UUID, Replay] = OrderedDict()
        self._guard = threading.Lock()
        self._incarnation = 0

    def take(self, run_id: UUID) -> Replay | None:
        """Lend a run's driver, if there is one."""
        with self._guard:
            return self._kept.pop(run_id, None)

    def keep(self, run_id: UUID, replay: Replay) -> None:
        """Take a driver back that agrees with the ledger."""
        with self._guard:
            self._kept[run_id] = replay
            dropped = self._kept.popitem(last=False)[1] if len(self._kept) > self._size else None
        if dropped is not None:
            dropped.driver.close()

    def identify(self, incarnation: int) -> None:
        """Drop everything when the ledger is not the one it was (P8)."""
        with self._guard:
            if incarnation == self._incarnation:
                return
            self._incarnation = incarnation
            dropped, self._kept = list(self._kept.values()), OrderedDict()
        for replay in dropped:
            replay.driver.close()

    def build(self, flow: Flow[..., Any], info: RunInfo, *, era: str, load: Load | None) -> Replay:
        """Begin a driver that has been fed nothing."""
        return Replay(Driver(flow, run=info, load=load), era, -1)

    def feed(self, replay: Replay, rows: Sequence[Record]) -> None:
        """Feed records in commit order, within the time that flow code has; one that takes longer is a bug of the
        flow's.
        """
        if not rows and replay.driver.outcome is None:
            return
        try:
            with self._watchdog.watching():
                for record in rows:
                    replay.driver.feed(record)
                    replay.seen = record.seq
        except FlowStuck as stuck:
            self._stuck(replay, stuck)
        if isinstance(replay.driver.outcome, FlowError) and isinstance(replay.driver.outcome.exc, FlowStuck):
            self._stuck(replay, replay.driver.outcome.exc)

    def _stuck(self, replay: Replay, stuck: BaseException) -> None:
        flow = replay.driver.flow
        limit = f"{self._watchdog.limit:g} s"
        text = f"{flow.name}: its code did not reach the next await within {limit}; work belongs into a step"
        replay.driver.outcome = FlowError(stuck, text)

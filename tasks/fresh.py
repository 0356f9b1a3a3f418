"""Freshness: a committed result answers an equal call of the same run for as long as its step says."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from .step import StepCall

if TYPE_CHECKING:
    from datetime import datetime

    from .awaited import Awaited
    from .record import Asked, Record

__all__ = ["Fresh"]


class Fresh:
    """The newest result for each input of the steps that declare a freshness."""

    def __init__(self) -> None:
        self._newest: dict[tuple[str, bytes], Record] = {}

    def keep(self, asked: Asked, record: Record) -> None:
        """Remember a result for later calls with the same input."""
        if asked.step is not None and asked.step.freshness is not None:
            self._newest[asked.name, asked.input_hash] = record

    def find(self, awaited: Awaited[object], *, now: datetime) -> Record | None:
        """Give a result that is still fresh for this call."""
        if not isinstance(awaited, StepCall) or awaited.step.freshness is None:
            return None
        record = self._newest.get((awaited.name, awaited.input_hash))
        if record is None or now - record.at >= timedelta(seconds=awaited.step.freshness):
            return None
        return record

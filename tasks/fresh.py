"""Freshness: a committed result answers an equal call of the same run for as long as its step says."""

from __future__ import annotations

from collections import OrderedDict
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime

    from .awaited import Awaited
    from .record import Record

__all__ = ["Fresh"]


class Fresh:
    """The newest result for each input of the steps that declare a freshness, for as long as it is fresh."""

    def __init__(self) -> None:
        self._newest: dict[str, OrderedDict[bytes, Record]] = {}

    def keep(self, awaited: Awaited[object], record: Record) -> None:
        """Remember a result for later calls with the same input."""
        if awaited.freshness is None:
            return
        known = self._newest.setdefault(awaited.name, OrderedDict())
        known[awaited.input_hash] = record
        known.move_to_end(awaited.input_hash)
        # In the order of their commits: what is stale stands in front, and goes before it is a burden to a long run.
        while not _is_fresh(next(iter(known.values())), within=awaited.freshness, now=record.at):
            known.popitem(last=False)
            if not known:
                break

    def find(self, awaited: Awaited[object], *, now: datetime) -> Record | None:
        """Give a result that is still fresh for this call."""
        if awaited.freshness is None:
            return None
        known = self._newest.get(awaited.name)
        record = None if known is None else known.get(awaited.input_hash)
        if record is None or not _is_fresh(record, within=awaited.freshness, now=now):
            return None
        return record


def _is_fresh(record: Record, *, within: float, now: datetime) -> bool:
    return now - record.at < timedelta(seconds=within)

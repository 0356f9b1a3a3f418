"""What work costs: processor time of process trees, and what PostgreSQL has written meanwhile."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import psycopg

__all__ = ["Bill", "Meter", "parse_stat", "tree_seconds"]

_TICK = os.sysconf("SC_CLK_TCK")
_COUNTERS = """
SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn, pg_snapshot_xmax(pg_current_snapshot())::text::bigint,
       (SELECT coalesce(sum(calls), 0) FROM pg_stat_statements WHERE query NOT ILIKE '%%pg_stat_statements%%')
"""


@dataclass(frozen=True, slots=True)
class Bill:
    """What a span of work has cost: seconds of processor by role, bytes of WAL, writing transactions, statements."""

    cpu: dict[str, float] = field(default_factory=dict)
    wal: int = 0
    writes: int = 0
    statements: int = 0


def parse_stat(text: str) -> tuple[int, int]:
    """Return parent and clock ticks of a line of /proc/PID/stat, those of children that were waited for included."""
    fields = text.rpartition(")")[2].split()
    return int(fields[1]), sum(int(ticks) for ticks in fields[11:15])


def tree_seconds(roots: Mapping[str, int]) -> dict[str, float]:
    """Return the processor seconds of each root's process tree so far."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parents[int(entry.name)], ticks[int(entry.name)] = parse_stat((entry / "stat").read_text())
    children: dict[int, list[int]] = {}
    for pid, parent in parents.items():
        children.setdefault(parent, []).append(pid)
    return {role: _sum_of_tree(pid, children, ticks) / _TICK for role, pid in roots.items()}


def _sum_of_tree(root: int, children: Mapping[int, list[int]], ticks: Mapping[int, int]) -> int:
    family = [root]
    for pid in family:
        family += children.get(pid, [])
    return sum(ticks.get(pid, 0) for pid in family)


class Meter:
    """Reads all counters at the start and at the end of a `with` block; `bill` is the difference."""

    def __init__(self, admin_url: str, roots: Mapping[str, int], *, count_statements: bool = False) -> None:
        self._admin_url, self._roots, self._counts = admin_url, roots, count_statements
        self.bill = Bill()

    def __enter__(self) -> Self:
        self._admin = psycopg.connect(self._admin_url, autocommit=True)
        if self._counts:
            self._track("top")
            self._admin.execute("SELECT pg_stat_statements_reset()")
        self._counters = self._read()
        self._seconds = tree_seconds(self._roots)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        seconds, counters = tree_seconds(self._roots), self._read()
        if self._counts:
            self._track("none")
        self._admin.close()
        cpu = {role: now - self._seconds[role] for role, now in seconds.items()}
        self.bill = Bill(cpu, *(now - before for now, before in zip(counters, self._counters, strict=True)))

    def _read(self) -> tuple[int, ...]:
        row = self._admin.execute(_COUNTERS).fetchone()
        assert row is not None  # one row always
        return tuple(int(value) for value in row)

    def _track(self, what: str) -> None:
        self._admin.execute(f"ALTER SYSTEM SET pg_stat_statements.track = '{what}'")
        self._admin.execute("SELECT pg_reload_conf()")

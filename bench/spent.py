"""What work costs: processor time of process trees, and what PostgreSQL has written meanwhile."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, LiteralString, Self

import psycopg

__all__ = ["Bill", "Meter", "family", "parse_stat", "tree_seconds"]

_TICK = os.sysconf("SC_CLK_TCK")
_CALLS = "SELECT coalesce(sum(calls), 0)::int FROM pg_stat_statements WHERE query NOT ILIKE '%%pg_stat_statements%%'"
# What our executors ask for each step: the rest is the relay's, the beats' and the client's.
_TRIPS = "SELECT coalesce(sum(calls), 0)::int FROM pg_stat_statements WHERE query ~ 'safepoint.(claim|commit|go_on)_v1'"
# The log itself says what was committed: sessions tell the statistics up to ten seconds late.
_LOGGED = """
SELECT coalesce(sum(record_size), 0)::bigint, coalesce(sum(fpi_size), 0)::bigint,
       coalesce(sum(count) FILTER (WHERE "resource_manager/record_type" = 'Transaction/COMMIT'), 0)::int
  FROM pg_get_wal_stats(%s, %s, per_record => true)
"""


@dataclass(frozen=True, slots=True)
class Bill:
    """What a span of work has cost: seconds of processor by role, bytes of WAL in records and in whole pages,
    transactions that wrote; where they were counted, statements, and among them our executors' claims and commits.
    """

    cpu: dict[str, float] = field(default_factory=dict)
    records: int = 0
    pages: int = 0
    commits: int = 0
    statements: int = 0
    trips: int = 0

    @property
    def wal(self) -> int:
        """All bytes of WAL."""
        return self.records + self.pages


def parse_stat(text: str) -> tuple[int, int]:
    """Return parent and clock ticks of a line of /proc/PID/stat, those of children that were waited for included."""
    fields = text.rpartition(")")[2].split()
    return int(fields[1]), sum(int(ticks) for ticks in fields[11:15])


def tree_seconds(roots: Mapping[str, int]) -> dict[str, float]:
    """Return the processor seconds of each root's process tree so far."""
    processes = _processes()
    return {role: sum(processes[pid][1] for pid in _descend(root, processes)) / _TICK for role, root in roots.items()}


def family(root: int) -> list[int]:
    """Return a process and all that descend from it, as far as they live."""
    return _descend(root, _processes())


def _processes() -> dict[int, tuple[int, int]]:
    found: dict[int, tuple[int, int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                found[int(entry.name)] = parse_stat((entry / "stat").read_text())
    return found


def _descend(root: int, processes: Mapping[int, tuple[int, int]]) -> list[int]:
    children: dict[int, list[int]] = {}
    for pid, (parent, _) in processes.items():
        children.setdefault(parent, []).append(pid)
    found = [root] if root in processes else []
    for pid in found:
        found += children.get(pid, [])
    return found


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
        self._lsn = self._one("SELECT pg_current_wal_insert_lsn()")
        self._seconds = tree_seconds(self._roots)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._admin:
            seconds = tree_seconds(self._roots)
            statements, trips = (self._one(_CALLS), self._one(_TRIPS)) if self._counts else (0, 0)
            if self._counts:
                self._track("none")
            # Only what is on the disk can be read back: a commit of our own puts it there.
            self._admin.execute("SELECT pg_current_xact_id()")
            end = self._one("SELECT pg_current_wal_flush_lsn()")
            logged = self._admin.execute(_LOGGED, (self._lsn, end)).fetchone() if end != self._lsn else (0, 0, 0)
        assert logged is not None  # one row always
        cpu = {role: now - self._seconds[role] for role, now in seconds.items()}
        records, pages, commits = (int(value) for value in logged)
        self.bill = Bill(cpu, records, pages, commits, statements, trips)

    def _one(self, query: LiteralString) -> Any:
        row = self._admin.execute(query).fetchone()
        assert row is not None  # one row always
        return row[0]

    def _track(self, what: Literal["top", "none"]) -> None:
        self._admin.execute(f"ALTER SYSTEM SET pg_stat_statements.track = '{what}'")
        self._admin.execute("SELECT pg_reload_conf()")

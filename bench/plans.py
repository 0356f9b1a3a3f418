"""Plans of what is executed, as the server's auto_explain writes them: what reads or sorts a whole table."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["PRELOAD", "Log", "Suspect"]

# What the server must have been started with; superusers alone may load it, and of an embedded server nobody is one.
PRELOAD = "shared_preload_libraries = 'auto_explain'\nauto_explain.log_min_duration = -1\n"
_ON = """auto_explain.log_min_duration = 0
auto_explain.log_nested_statements = on
auto_explain.log_analyze = on
auto_explain.log_timing = off
auto_explain.log_buffers = on
auto_explain.log_format = json
log_line_prefix = '%a>>'
"""
_PLAN = re.compile(r"^([^\n]*?)>>LOG:  duration: ([0-9.]+) ms  plan:\n((?:\t.*\n)+)", re.MULTILINE)
MANY = 5_000  # rows that a hot statement should neither read through nor sort


@dataclass(frozen=True, slots=True)
class Suspect:
    """A node of a plan that reads, sorts or discards many rows."""

    call: str
    node: str
    relation: str
    rows: float
    query: str


class Log:
    """The server's log while every plan is written to it."""

    def __init__(self, home: Path) -> None:
        self._log, self._configuration = home / "postgres.log", home / "postgres" / "postgresql.conf"
        self._pid = int((home / "postgres" / "postmaster.pid").read_text().split()[0])
        self._from = 0
        self._before = ""

    def begin(self) -> None:
        """Have every plan written from now on."""
        self._before = self._configuration.read_text()
        self._configuration.write_text(self._before + _ON)
        os.kill(self._pid, signal.SIGHUP)
        self._from = self._log.stat().st_size

    def end(self) -> list[Suspect]:
        """Have none written any more, and return what is suspect in those that were."""
        self._configuration.write_text(self._before)
        os.kill(self._pid, signal.SIGHUP)
        with self._log.open("rb") as file:
            file.seek(self._from)
            text = file.read().decode(errors="replace")
        found: dict[tuple[str, str, str], Suspect] = {}
        for call, _, plan in _PLAN.findall(text):
            told = json.loads(plan)
            for one in _suspects(call, told["Plan"], " ".join(told["Query Text"].split())):
                key = (one.call, one.node, one.query)
                if key not in found or found[key].rows < one.rows:
                    found[key] = one
        return list(found.values())


def _suspects(call: str, node: dict[str, Any], query: str) -> Iterator[Suspect]:
    loops = max(node.get("Actual Loops", 1), 1)
    rows = node.get("Actual Rows", 0) * loops
    read = rows + sum(node.get(f"Rows Removed by {why}", 0) for why in ("Filter", "Index Recheck")) * loops
    kind, name = node["Node Type"], node.get("Index Name") or node.get("Relation Name", "")
    if (kind in ("Sort", "Incremental Sort", "Hash") and rows >= MANY) or ("Scan" in kind and read >= MANY):
        yield Suspect(call, kind, name, read, query[:160])
    for child in node.get("Plans", ()):
        yield from _suspects(call, child, query)

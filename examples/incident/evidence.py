"""Reads the evidence of an incident: which metrics moved and when, which log lines are new, what was changed."""

from __future__ import annotations

import csv
import re
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

BASELINE = 30  # points at the beginning that count as normal
STEADY = 3  # points in a row that make a change, not a spike
CHANGES = re.compile(r"release|feature|renewed|migrat|config", re.IGNORECASE)
LINE = re.compile(r"(?P<at>\S+Z) (?P<level>\w+) +(?P<service>\S+) (?P<text>.*)")
VARIABLE = re.compile(r"request=\w+|order=\d+|\b\d[\d.]*\b")


@dataclass(frozen=True)
class Shift:
    """A metric that left its normal range, and since when."""

    metric: str
    before: float
    after: float
    since: datetime


@dataclass(frozen=True)
class Pattern:
    """Log lines that are the same but for their numbers."""

    service: str
    level: str
    text: str
    count: int
    first: datetime


@dataclass(frozen=True)
class Logs:
    """What the logs say: recurring complaints, changes that people made, and the lines themselves."""

    patterns: list[Pattern]
    changes: list[str]
    lines: list[str]


def find_shifts(path: Path, metrics: Sequence[str], until: datetime) -> list[Shift]:
    """Compare each metric with its first half hour; the earliest shift comes first."""
    with path.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if _instant(row["time"]) <= until]
    found = (_shift(metric, rows) for metric in metrics if rows and metric in rows[0])
    return sorted((shift for shift in found if shift), key=lambda shift: shift.since)


def _shift(metric: str, rows: Sequence[dict[str, str]]) -> Shift | None:
    values = [float(row[metric]) for row in rows]
    normal = values[:BASELINE]
    mean, spread = statistics.fmean(normal), max(statistics.stdev(normal), 1e-9)
    strange = [abs(value - mean) > 4 * spread for value in values]
    for place in range(BASELINE, len(values) - STEADY + 1):
        if all(strange[place : place + STEADY]):
            after = statistics.fmean(values[-STEADY:])
            return Shift(metric, round(mean, 4), round(after, 4), _instant(rows[place]["time"]))
    return None


def read_logs(folder: Path, services: Sequence[str], until: datetime, *, limit: int = 250) -> Logs:
    """Group what warns and fails by its text, most frequent first, and keep the last lines as they are."""
    entries = sorted((entry for service in services for entry in _entries(folder / f"{service}.log", until)), key=_at)
    counts: Counter[tuple[str, str, str]] = Counter()
    first: dict[tuple[str, str, str], datetime] = {}
    for at, level, service, text in entries:
        if level in {"WARN", "ERROR"}:
            key = (service, level, VARIABLE.sub("N", text))
            counts[key] += 1
            first.setdefault(key, at)
    patterns = [Pattern(*key, count, first[key]) for key, count in counts.most_common(12)]
    changes = [f"{at:%Y-%m-%dT%H:%M:%SZ} {service} {text}" for at, _, service, text in entries if CHANGES.search(text)]
    kept = [f"{at:%H:%M:%S} {level} {service} {text}" for at, level, service, text in entries[-limit:]]
    return Logs(patterns, changes, kept)


_Entry = tuple[datetime, str, str, str]


def _entries(path: Path, until: datetime) -> Iterator[_Entry]:
    for line in path.read_text().splitlines():
        match = LINE.fullmatch(line)
        if match and _instant(match["at"]) <= until:
            yield _instant(match["at"]), match["level"], match["service"], match["text"]


def _at(entry: _Entry) -> datetime:
    return entry[0]


def _instant(text: str) -> datetime:
    return datetime.fromisoformat(text)

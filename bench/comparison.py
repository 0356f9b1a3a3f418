"""The tables of a comparison. Pure: lines of Markdown out of figures."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence

from compared import Compared
from contenders import CONTENDERS
from figures import percentile
from rounds import Round

__all__ = ["costs", "deaths", "doors", "lengths", "spread", "table", "throughput"]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return a Markdown table."""
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]


def spread(values: Sequence[float], digits: int = 0) -> str:
    """Return the median with the smallest and the largest, or only the one that there is; a dash of nothing."""
    if not values:
        return "–"
    middle = f"{statistics.median(values):,.{digits}f}"
    return middle if len(values) == 1 else f"{middle} ({min(values):,.{digits}f}–{max(values):,.{digits}f})"


def throughput(compared: Compared) -> list[str]:
    """Return the main table."""
    head = [
        "system",
        "steps/s",
        "CPU ms/step",
        "ms/step alone",
        "ms until the first step",
        "commits/step",
        "WAL B/step",
        "statements/step",
    ]
    return table(head, (_row(name, done) for name, done in compared.rounds.items()))


def _row(name: str, done: Sequence[Round]) -> list[str]:
    has_ledger = "PostgreSQL" in CONTENDERS[name].servers
    counted = [one.statements for one in done if one.statements is not None]
    return [
        CONTENDERS[name].name,
        spread([one.rate for one in done]),
        spread([one.cpu for one in done], 2),
        spread([statistics.median(one.alone) for one in done], 2),
        spread([statistics.median(one.start) for one in done], 1),
        f"{_middle(done, lambda one: one.bill.commits / one.steps):.2f}" if has_ledger else "–",
        f"{_middle(done, lambda one: one.bill.wal / one.steps):,.0f}" if has_ledger else "–",
        f"{statistics.median(counted):.1f}" if counted else "–",
    ]


def costs(compared: Compared) -> list[str]:
    """Return a table of where each step's processor time went, in milliseconds."""
    rows = []
    for name, done in compared.rounds.items():
        parts = {
            role: _middle(done, lambda one, role=role: one.bill.cpu[role] * 1000 / one.steps)
            for role in done[0].bill.cpu
        }
        workers = sum(value for role, value in parts.items() if role.startswith("worker"))
        others = sum(parts.get(role, 0.0) for role in ("relay", "beat", "control"))
        servers = [parts.get(role) for role in ("PostgreSQL", "Redis", "RabbitMQ", "Restate")]
        shown = ["–" if value is None else f"{value:.2f}" for value in servers]
        rows.append([CONTENDERS[name].name, f"{workers:.2f}", f"{others:.2f}" if others else "–", *shown])
    return table(["system", "workers", "relay, beat, control", "PostgreSQL", "Redis", "RabbitMQ", "Restate"], rows)


def lengths(compared: Compared) -> list[str]:
    """Return a table of steps near the start of a long run and at its end."""
    rows = []
    for name, done in compared.rounds.items():
        long = next((one.long for one in reversed(done) if one.long), None)
        if long is not None:
            early, late = long["early"], long["late"]
            rows.append(
                [CONTENDERS[name].name, f"{long['steps']:,.0f}", f"{early:.2f}", f"{late:.2f}", f"{late / early:.2f}"]
            )
    return table(["system", "steps", "ms, after the tenth", "ms, at the end", "ratio"], rows)


def doors(compared: Compared) -> list[str]:
    """Return a table of runs a second that one client enqueues."""
    rows = []
    for name, done in compared.rounds.items():
        kinds = {kind: [one.enqueue[kind] for one in done if kind in one.enqueue] for kind in ("one by one", "in bulk")}
        if any(kinds.values()):
            rows.append([CONTENDERS[name].name, *(spread(rates) for rates in kinds.values())])
    return table(["system", "one by one, runs/s", "in bulk, runs/s"], rows)


def deaths(compared: Compared) -> list[str]:
    """Return a table of seconds until a step begins again."""
    rows = []
    for name, took in compared.deaths.items():
        known = [one for one in took if one is not None]
        rows.append(
            [
                f"Safepoint, {name}; second worker",
                str(len(took)),
                f"{statistics.median(known):.2f}",
                f"{percentile(known, 0.95):.2f}",
                f"{max(known):.2f}",
            ]
        )
    for name, took in compared.peer_deaths.items():
        known = [one for one in took if one is not None]
        limit = f"not within {compared.limits[name]:.0f}"
        shown = (
            [f"{statistics.median(known):.2f}", f"{percentile(known, 0.95):.2f}", f"{max(known):.2f}"]
            if len(known) == len(took)
            else [limit, "–", "–"]
        )
        rows.append([name, str(len(took)), *shown])
    return table(["killed with SIGKILL", "n", "median s", "p95 s", "max s"], rows)


def _middle(done: Sequence[Round], value: Callable[[Round], float]) -> float:
    return statistics.median(value(one) for one in done)

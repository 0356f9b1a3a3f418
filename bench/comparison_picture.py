"""The picture of a comparison: steps a second and processor time, ours in ink, others paler."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl
from compared import Compared
from contenders import CONTENDERS
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rounds import Round

__all__ = ["draw"]

INK, ACCENT, SOFT = "#22313f", "#c0392b", "#7f9db9"
ROLES = {"worker": INK, "PostgreSQL": SOFT, "broker or log": ACCENT, "relay, beat, control": "#e0a030"}


def draw(compared: Compared, path: Path) -> None:
    """Draw two panels of bars, whose whiskers are the smallest and the largest pass."""
    mpl.use("Agg")  # nobody has a screen here
    figure = Figure(figsize=(13, 6), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    names = list(reversed(compared.rounds))
    _rates(left, compared, names)
    _costs(right, compared, names)
    left.set_yticks(range(len(names)), [CONTENDERS[name].name for name in names], fontsize=9)
    for axis in (left, right):
        axis.grid(axis="x", alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)


def _rates(axis: Axes, compared: Compared, names: list[str]) -> None:
    for place, name in enumerate(names):
        low, middle, high = _spread(compared.rounds[name], lambda one: one.rate)
        is_ours = name.startswith(("ours", "inline"))
        axis.barh(place, middle, color=INK if is_ours else SOFT, xerr=[[middle - low], [high - middle]], ecolor=ACCENT)
    axis.set_title("Steps a second, more is better", fontsize=10)


def _costs(axis: Axes, compared: Compared, names: list[str]) -> None:
    for place, name in enumerate(names):
        begin = 0.0
        for label, colour in ROLES.items():
            value = _spread(compared.rounds[name], lambda one, label=label: _part(one, label))[1]
            axis.barh(place, value, left=begin, color=colour, label=label if place == 0 else None)
            begin += value
    axis.set_title("Processor ms a step, less is better", fontsize=10)
    axis.legend(fontsize=8)


def _part(one: Round, label: str) -> float:
    return sum(value for role, value in one.bill.cpu.items() if _label(role) == label) * 1000 / one.steps


def _label(role: str) -> str:
    if role.startswith("worker"):
        return "worker"
    if role in {"relay", "beat", "control"}:
        return "relay, beat, control"
    return role if role == "PostgreSQL" else "broker or log"


def _spread(done: list[Round], value: Callable[[Round], float]) -> tuple[float, float, float]:
    values = [value(one) for one in done]
    return min(values), statistics.median(values), max(values)

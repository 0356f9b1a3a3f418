"""What `doctor` has found: one sentence about one thing, how bad it is, and what to do."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Finding", "Level", "counted", "error", "fine", "warning"]


class Level(StrEnum):
    """How bad it is: `error` makes `doctor` exit with 1."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check has found; `next` is the command to type or the thing to do, none where nothing is to be done."""

    check: str
    level: Level
    text: str
    next: str | None = None


def fine(check: str, text: str) -> Finding:
    """Say what is as it should be, or only worth knowing."""
    return Finding(check, Level.OK, text)


def warning(check: str, text: str, next_: str) -> Finding:
    """Say what will hurt, or cannot be known."""
    return Finding(check, Level.WARNING, text, next_)


def error(check: str, text: str, next_: str) -> Finding:
    """Say what hurts now, or loses what was promised."""
    return Finding(check, Level.ERROR, text, next_)


def counted(number: int, noun: str) -> str:
    """Give a number with its noun, as in `1 run`, `3 runs`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"

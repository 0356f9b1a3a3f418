"""What every system's step does: hand a small value on, and note when. Standard library only, for any environment."""

from __future__ import annotations

import os
import time
from typing import Any

__all__ = ["PAD", "Value", "hold", "new_value", "touch"]

PAD = "x" * 120  # with the rest about 200 bytes of JSON
Value = dict[str, Any]


def new_value(marks: str = "") -> Value:
    """Return what a run begins with; `marks` names a file to which each step adds its time."""
    return {"first": 0.0, "last": 0.0, "asked": time.time(), "marks": marks, "pad": PAD}


def touch(value: Value) -> Value:
    """Return the value as the next step gets it."""
    now = time.time()
    if value["marks"]:
        _mark(value["marks"], f"{now}\n")
    return {**value, "first": value["first"] or now, "last": now}


def hold(value: Value) -> Value:
    """Take a minute, and note who has begun it when."""
    _mark(value["marks"], f"{time.time()} {os.getpid()}\n")
    time.sleep(60)
    return value


def _mark(path: str, line: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(descriptor, line.encode())
    os.close(descriptor)

"""How a measured system is asked: one line of JSON in, one out. Standard library only, for any environment.

A program gives a `Start`: a function that begins a run of that many steps and returns one that waits for its value.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TextIO

from step_body import new_value

__all__ = ["Start", "Wait", "converse", "say_ready"]

Value = dict[str, Any]
Wait = Callable[[], Value]
Start = Callable[[Value, int], Wait]


def converse(start: Start, *, threads: int = 0, **more: Callable[..., Any]) -> None:
    """Answer until the input ends; with `threads`, each run is begun and waited for in one of so many threads."""
    out = say_ready()
    kinds = {"many": _many(start, threads), "alone": _alone(start), "long": _long(start), "enqueue": _enqueue(start)}
    kinds |= more
    for line in sys.stdin:
        asked = json.loads(line)
        out.write(json.dumps(kinds[asked.pop("do")](**asked)) + "\n")


def say_ready() -> TextIO:
    """Say that questions, or work, may come; return where answers go."""
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what a library prints is no answer
    out.write(json.dumps({"ready": os.getpid()}) + "\n")
    return out


def _many(start: Start, threads: int) -> Callable[..., dict[str, float]]:
    def many(*, runs: int, steps: int) -> dict[str, float]:
        began = time.perf_counter()
        if threads:
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(lambda _: start(new_value(), steps)(), range(runs)))
        else:
            for wait in [start(new_value(), steps) for _ in range(runs)]:
                wait()
        return {"seconds": time.perf_counter() - began}

    return many


def _alone(start: Start) -> Callable[..., dict[str, list[float]]]:
    def alone(*, runs: int, steps: int) -> dict[str, list[float]]:
        values = [start(new_value(), steps)() for _ in range(runs)]
        return {
            "start": [(value["first"] - value["asked"]) * 1000 for value in values],
            "step": [(value["last"] - value["first"]) * 1000 / (steps - 1) for value in values],
        }

    return alone


def _long(start: Start) -> Callable[..., dict[str, float]]:
    def long(*, steps: int, marks: str) -> dict[str, float]:
        began = time.perf_counter()
        start(new_value(marks), steps)()
        return {"seconds": time.perf_counter() - began}

    return long


def _enqueue(start: Start) -> Callable[..., dict[str, float]]:
    def enqueue(*, runs: int) -> dict[str, float]:
        began = time.perf_counter()
        for _ in range(runs):
            start(new_value(), 1)
        return {"seconds": time.perf_counter() - began}

    return enqueue

"""The client of the plain Celery chain."""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

from chain_app import _answers, chained, keep
from conversation import Wait, converse


def start(value: dict[str, Any], steps: int) -> Wait:
    """Send a chain; its last task answers on a list of its own."""
    run = f"run-{uuid4()}"
    chained(value, steps, run).apply_async()

    def wait() -> dict[str, Any]:
        answer = _answers.blpop([run], timeout=120)
        return json.loads(answer[1])  # type: ignore[index]  # it blocks for two minutes: then this run has failed

    return wait


def begin_hold(*, marks: str) -> None:
    """Send one task that takes a minute."""
    keep.apply_async(({"marks": marks},))


if __name__ == "__main__":
    converse(start, hold=begin_hold)

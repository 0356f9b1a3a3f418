"""A client of Absurd: spawns tasks, and looks for their results every few milliseconds."""

from __future__ import annotations

import os
import time
from typing import Any

from absurd_sdk import Absurd
from conversation import Wait, converse

client = Absurd(os.environ["BENCH_LEDGER"], queue_name="bench")


def start(value: dict[str, Any], steps: int) -> Wait:
    """Spawn a task."""
    task_id = client.spawn("handed_on", {"value": value, "steps": steps}, queue="bench")["task_id"]

    def wait() -> dict[str, Any]:
        while True:
            found = client.fetch_task_result(task_id)
            if found is not None and found.state == "completed":
                return found.result
            time.sleep(0.02)

    return wait


def begin_hold(*, marks: str) -> None:
    """Spawn the task that takes a minute."""
    client.spawn("held", {"marks": marks}, queue="bench")


if __name__ == "__main__":
    converse(start, hold=begin_hold)

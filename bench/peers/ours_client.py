"""Safepoint's client: one run after the other by name, and all at once for `enqueue_many`."""

from __future__ import annotations

import os
import time
from typing import Any

from conversation import Wait, converse
from safepoint import Client
from step_body import new_value

client = Client(os.environ["SAFEPOINT_LEDGER_URL"])


def start(value: dict[str, Any], steps: int) -> Wait:
    """Enqueue a run."""
    run = client.enqueue("handed_on", {"value": value, "steps": steps})
    return lambda: run.result(timeout=120)  # type: ignore[no-any-return]


def enqueue_many(*, runs: int) -> dict[str, float]:
    """Enqueue that many runs in one call and return the seconds."""
    began = time.perf_counter()
    client.enqueue_many("handed_on", [{"value": new_value(), "steps": 1} for _ in range(runs)])
    return {"seconds": time.perf_counter() - began}


if __name__ == "__main__":
    converse(start, bulk=enqueue_many)

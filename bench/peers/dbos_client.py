"""A client of DBOS that puts workflows into the queue and looks for their results."""

from __future__ import annotations

import os
from typing import Any

from conversation import Wait, converse
from dbos import DBOSClient, EnqueueOptions

client = DBOSClient(system_database_url=os.environ["BENCH_LEDGER"])


def options(workflow: str) -> EnqueueOptions:
    """Return how a workflow is enqueued."""
    return {"workflow_name": workflow, "queue_name": "bench", "app_version": "1"}


def start(value: dict[str, Any], steps: int) -> Wait:
    """Enqueue a workflow."""
    handle = client.enqueue(options("handed_on"), value, steps)
    return lambda: handle.get_result(polling_interval_sec=0.02)


def begin_hold(*, marks: str) -> None:
    """Enqueue the workflow that takes a minute."""
    client.enqueue(options("held"), {"marks": marks})


if __name__ == "__main__":
    converse(start, hold=begin_hold)

"""Plain Celery: a `chain` whose last task tells the client. Nothing is durable but what the broker keeps."""

from __future__ import annotations

import json
import os
from typing import Any

import redis
from celery import Celery, chain
from step_body import hold, touch

app = Celery("chain_app", broker=os.environ["BENCH_BROKER"])
app.conf.update(task_ignore_result=True, broker_connection_retry_on_startup=True)
_answers = redis.Redis.from_url(
    os.environ["BENCH_ANSWERS"], socket_timeout=None
)  # opened when used, so in each pool child


@app.task(name="pass_on")
def pass_on(value: dict[str, Any]) -> dict[str, Any]:
    """Do nothing."""
    return touch(value)


@app.task(name="pass_on_last")
def pass_on_last(value: dict[str, Any], run: str) -> None:
    """Do nothing, and say that the run has ended."""
    _answers.rpush(run, json.dumps(touch(value)))


@app.task(name="keep", acks_late=True, reject_on_worker_lost=True)
def keep(value: dict[str, Any]) -> dict[str, Any]:
    """Take a minute."""
    return hold(value)


def chained(value: dict[str, Any], steps: int, run: str) -> Any:
    """Return the chain of a run."""
    signatures = [pass_on.s() for _ in range(steps - 1)]
    if not signatures:
        return pass_on_last.s(value, run)
    signatures[0] = pass_on.s(value)
    return chain(*signatures, pass_on_last.s(run))

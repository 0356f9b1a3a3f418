"""A Celery app for tests of the wire: its executor writes down which step it was given, and nothing else.

`python -m recorder worker` or `celery -A recorder beat` with BROKER_URL and RECORD (a file); WITHOUT="gate and guard"
takes the defences away, to show that it is they that hold.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from celery.bin.base import CLIContext
from celery.bin.worker import worker
from celery.exceptions import Reject
from safepoint.config.settings import load
from safepoint.tasks.app import App, make_app


def _write(*words: object) -> None:
    # One write to a file opened for appending: lines of several processes do not mix.
    with Path(os.environ["RECORD"]).open("ab", buffering=0) as record:
        record.write((" ".join(str(word) for word in words) + "\n").encode())


def execute(run: str, step: str, lane: str, request: Any) -> str:
    """Record the step. One named `sleep#N` takes N hundredths of a second; `back#N` goes back to the queue once."""
    _write("start", run, step, os.getpid())
    name, _, number = step.rpartition("#")
    if name == "sleep":
        time.sleep(int(number) / 100)
    if name == "back" and not request.delivery_info["redelivered"]:
        raise Reject("not now", requeue=True)
    _write("done", run, step, os.getpid())
    return "recorded"


def make() -> App:
    """Make the app for the broker in the environment."""
    app = make_app(
        load(env={}),
        os.environ["BROKER_URL"],
        steps={"good": 600.0, "sleep": 600.0},
        executor=execute,
        scan=lambda: _write("scan"),
        unknown=lambda run, step, lane: _write("unknown", run, step),
    )
    without = os.environ.get("WITHOUT", "")
    if "gate" in without:
        app.conf.worker_consumer = "celery.worker.consumer:Consumer"
    if "guard" in without:
        app.amqp_cls = "celery.app.amqp:AMQP"
    return app


if __name__ == "__main__":  # as our own worker starts: without every command that Celery and its plugins have
    context = CLIContext(app=make(), no_color=False, workdir=None)
    worker.main(args=sys.argv[2:], prog_name="celery worker", standalone_mode=False, obj=context)
elif "BROKER_URL" in os.environ:
    app = make()

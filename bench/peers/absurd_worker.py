"""A worker of Absurd: as many threads as asked for, each with a connection and a claim of its own."""

from __future__ import annotations

import os
import threading
from typing import Any

from absurd_sdk import Absurd, TaskContext
from conversation import say_ready
from step_body import hold, touch

QUEUE = "bench"


def app() -> Absurd:
    """Return a client that knows the tasks."""
    made = Absurd(os.environ["BENCH_LEDGER"], queue_name=QUEUE)

    @made.register_task(name="handed_on")
    def handed_on(params: dict[str, Any], ctx: TaskContext) -> dict[str, Any]:
        value = params["value"]
        for n in range(params["steps"]):
            value = ctx.step(f"hand_on-{n}", lambda value=value: touch(value))
        return value

    @made.register_task(name="held")
    def held(params: dict[str, Any], ctx: TaskContext) -> dict[str, Any]:
        return ctx.step("keep", lambda: hold(params))

    return made


def main() -> None:
    """Make the queue, say so, and work."""
    made = app()
    if QUEUE not in made.list_queues():
        made.create_queue()
    for _ in range(int(os.environ["BENCH_SLOTS"])):
        threading.Thread(target=app().start_worker, kwargs={"poll_interval": 0.01}, daemon=True).start()
    say_ready()
    threading.Event().wait()


if __name__ == "__main__":
    main()

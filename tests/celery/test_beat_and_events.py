"""What Celery's parts do between messages: beat sleeps until something is due, and a stop loses no event that waits."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

from processes import WorkerNode
from safepoint.config.settings import load
from safepoint.tasks.app import App, make_app
from safepoint.tasks.beat import ChoreScheduler
from safepoint.tasks.wire import Message, Publisher

STEPS = 20


def test_beat_looks_as_often_as_something_is_due(broker_url: str) -> None:
    app = make_app(load(env={"SAFEPOINT_SCAN__INTERVAL": "0.2"}), broker_url)
    scheduler, looks, sent = ChoreScheduler(app), 0, 0

    while sent < 5:
        pause = scheduler.tick()
        looks += 1
        sent = sum(entry.total_run_count for entry in scheduler.schedule.values())
        time.sleep(max(0.0, pause))

    scheduler.close()
    assert looks <= 2 * sent + 2  # a look that sends one and a look that finds when the next one is due


def test_a_worker_that_stops_sends_the_events_that_wait(
    celery_setup_app: App,
    start_recorder: Callable[..., WorkerNode],
    publisher: Publisher,
    pool: str,
    record: Path,
    eventually: Callable[..., None],
) -> None:
    heard = Counter[str]()
    connection = celery_setup_app.connection_for_read()
    receiver = celery_setup_app.events.Receiver(connection, handlers={"*": lambda event: heard.update([event["type"]])})

    def listen() -> None:
        with connection:
            receiver.capture(wakeup=False)

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    worker = start_recorder(pool=pool)

    def is_heard() -> None:
        assert heard["worker-online"] or heard["worker-heartbeat"]

    eventually(is_heard, timeout=20)
    runs = [str(uuid4()) for _ in range(STEPS)]
    publisher.publish([Message(run=run, step="good#1", lane="online", name="good", attempt=1, epoch=0) for run in runs])

    def all_ran() -> None:
        assert record.read_text().count("done ") == STEPS

    eventually(all_ran, timeout=20)
    worker.kill("SIGTERM")

    def all_ends_are_heard() -> None:
        # What a pool child reports after the consumer has stopped Celery itself does not tell.
        assert heard["task-succeeded"] >= STEPS - 2, heard

    eventually(all_ends_are_heard, timeout=20)
    receiver.should_stop = True
    listener.join(10)
    assert not listener.is_alive()

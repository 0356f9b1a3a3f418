"""One process of a fleet under test: `python -m fleet_process worker LANES POOL CONCURRENCY`, `relay` or `beat`.

EARLY_ACK=1 acknowledges messages before they are executed; PUBLISHED names a file in which messages are counted.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import structlog
from safepoint.config.resolve import endpoints
from safepoint.config.settings import load
from safepoint.ledger import lanes
from safepoint.ledger.connect import connect
from safepoint.tasks import worker
from safepoint.tasks.app import make_app
from safepoint.tasks.relay import Relay
from safepoint.tasks.wire import Message, Publisher


def run_worker(taken: str, pool: str, concurrency: str) -> None:
    """Consume lanes until a signal comes."""
    built = worker.build(load())
    if os.environ.get("EARLY_ACK") == "1":
        for task in built.app.tasks.values():
            task.acks_late = False
    built.run(lanes=taken.split(","), pool=pool, concurrency=int(concurrency))


def run_relay() -> None:
    """Publish what is due until a signal comes."""
    settings = load()
    ends = endpoints(settings)
    with connect(ends.ledger_url, name="safepoint lanes") as connection:
        lanes.apply(connection, settings.lanes, window=settings.relay.window)
    app = make_app(settings, ends.broker_url)
    relay = Relay(settings, ends.ledger_url, ends.direct_url, Publisher(app, lanes=app.lanes))
    signal.signal(signal.SIGTERM, lambda *_: relay.stop())
    sys.stdout.write("ready.\n")
    relay.run()


def run_beat() -> None:
    """Send the chores of the schedule."""
    settings = load()
    app = make_app(settings, endpoints(settings).broker_url)
    sys.stdout.write("ready.\n")
    app.Beat(loglevel="WARNING").run()


def count_messages(path: str) -> None:
    """Write down how many messages of each batch the broker has taken, and how many it perhaps has not."""
    publish = Publisher.publish

    def counting(self: Publisher, messages: Sequence[Message]) -> list[Exception | None]:
        outcomes = publish(self, messages)
        taken = sum(outcome is None for outcome in outcomes)
        with Path(path).open("ab", buffering=0) as file:
            file.write(f"{taken} {len(outcomes) - taken}\n".encode())
        return outcomes

    Publisher.publish = counting  # type: ignore[method-assign]  # a counter around the real one


class Lines:
    """Writes lines without a lock: one that another thread holds during a fork would stay locked in the child."""

    def msg(self, line: str) -> None:
        """Write one line, in one write."""
        os.write(2, f"{line}\n".encode())

    debug = info = warning = error = critical = exception = msg


def log_json() -> None:
    """Log one JSON document a line, to where no redirection of Celery's reaches."""
    processors: list[Any] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt=None, utc=True),
        structlog.processors.format_exc_info,
        structlog.processors.JSONRenderer(),
    ]
    structlog.configure(processors=processors, logger_factory=lambda *_: Lines())


ROLES = {"worker": run_worker, "relay": run_relay, "beat": run_beat}

if __name__ == "__main__":
    log_json()
    if "PUBLISHED" in os.environ:
        count_messages(os.environ["PUBLISHED"])
    ROLES[sys.argv[1]](*sys.argv[2:])

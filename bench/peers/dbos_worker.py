"""A DBOS process that takes workflows from a queue, four at once, and looks every ten milliseconds."""

from __future__ import annotations

import os
import threading

import dbos_work
from conversation import say_ready
from dbos import DBOS, DBOSConfig

if __name__ == "__main__":
    config: DBOSConfig = {
        "name": "bench",
        "system_database_url": os.environ["BENCH_LEDGER"],
        "executor_id": os.environ["BENCH_WORKER"],
        "application_version": dbos_work.VERSION,
        "log_level": "WARNING",
    }
    DBOS(config=config)
    DBOS.launch()
    DBOS.register_queue(dbos_work.QUEUE, worker_concurrency=4, polling_interval_sec=0.01)
    say_ready()
    threading.Event().wait()

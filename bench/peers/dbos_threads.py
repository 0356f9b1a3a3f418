"""DBOS in one process: eight threads call the workflow, whose steps are recorded before they return."""

from __future__ import annotations

import os
from typing import Any

from conversation import Wait, converse
from dbos import DBOS, DBOSConfig
from dbos_work import handed_on


def start(value: dict[str, Any], steps: int) -> Wait:
    """Return a call of the workflow in the thread that waits for it."""
    return lambda: handed_on(value, steps)


if __name__ == "__main__":
    config: DBOSConfig = {"name": "bench", "system_database_url": os.environ["BENCH_LEDGER"], "log_level": "WARNING"}
    DBOS(config=config)
    DBOS.launch()
    converse(start, threads=8)
    DBOS.destroy()

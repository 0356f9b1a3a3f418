"""What no durable step can be faster than here: the commit of one row, alone, with its flush and without."""

from __future__ import annotations

import statistics
import time
from typing import LiteralString

import psycopg
from own_servers import Servers

__all__ = ["commits"]

TIMES = 300
_INSERT: LiteralString = "INSERT INTO floor VALUES (1)"


def commits(servers: Servers) -> dict[str, float]:
    """Return the median milliseconds of a commit of one row that is flushed, and of one that is not."""
    with psycopg.connect(servers.database("floor"), autocommit=True, prepare_threshold=1) as connection:
        connection.execute("CREATE TABLE floor (n integer)")
        found = {}
        for name, setting in (("flushed", "on"), ("not flushed", "off")):
            connection.execute("SELECT set_config('synchronous_commit', %s, false)", (setting,))
            found[name] = statistics.median(_milliseconds(connection) for _ in range(TIMES))
    return found


def _milliseconds(connection: psycopg.Connection) -> float:
    began = time.perf_counter()
    connection.execute(_INSERT)
    return (time.perf_counter() - began) * 1000

"""Put Absurd's schema into a database: the SQL is what its command line brings, psql is not needed."""

from __future__ import annotations

import os

import psycopg
from absurdctl import BUNDLED_SCHEMA_SQL

if __name__ == "__main__":
    with psycopg.connect(os.environ["BENCH_LEDGER"], autocommit=True) as connection:
        if connection.execute("SELECT to_regnamespace('absurd') IS NULL").fetchone() == (True,):
            connection.execute(BUNDLED_SCHEMA_SQL)

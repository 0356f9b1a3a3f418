"""What ten million step rows cost those who work on a ledger: each call's time there against an almost empty one.

Both ledgers are databases of one server and are asked in turns, call by call. The almost empty one has the same rows
of what runs and of what is rare. `python bench/ten_million.py [--quick] [--rows 10000000] [--waiting 20000]`; it needs
1.8 GB of disk for a million rows. What is over 1.2 is explained in docs/scale.md.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import sys
import tempfile
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from figures import percentile
from history import RARE, STEPS, Part, fill
from hot_paths import Ledger
from plans import PRELOAD, Log
from safepoint.ledger import upgrade
from safepoint.ledger.connect import connect
from stack import servers_of

GOAL = 1.2
ROWS, WAITING, PASSES = 10_000_000, 20_000, 60
RUNNING = 200
SMALL = Part(RARE * 6 * STEPS, waiting=RARE, held=RARE, running=RUNNING, later=RARE)
_SIZES = """
SELECT relname, reltuples::bigint, pg_size_pretty(pg_table_size(oid)), pg_size_pretty(pg_indexes_size(oid))
  FROM pg_class WHERE relnamespace = 'safepoint'::regnamespace AND relkind = 'r' AND reltuples > 10000
 ORDER BY pg_total_relation_size(oid) DESC
"""
_OLD = """
SELECT run_id FROM safepoint.runs WHERE finished_at IS NOT NULL AND flow <> 'bench'
 ORDER BY hashtext(run_id::text) LIMIT 200
"""


def made(url: str, name: str, part: Part) -> Ledger:
    """Open the ledger of this name, which is made with so much in it unless it is there."""
    own = urlsplit(url)._replace(path=f"/{name}").geturl()
    with connect(url, name="bench") as admin:
        is_there = admin.execute("SELECT FROM pg_database WHERE datname = %s", (name,)).fetchone() is not None
        if not is_there:
            admin.execute(f"CREATE DATABASE {name}".encode())
    upgrade.upgrade(own)
    if not is_there:
        with closing(connect(own, name="bench")) as connection:
            fill(connection, part)
    return opened(own)


def opened(url: str) -> Ledger:
    """Open a ledger that is there."""
    ledger = Ledger(url)
    ledger.old = [row[0] for row in ledger.connection.execute(_OLD)]
    return ledger


@dataclass(frozen=True, slots=True)
class Ratio:
    """What one call took on both ledgers, in seconds: the medians, and the quickest tenth, which other load on the
    machine disturbs least.
    """

    call: str
    medians: tuple[float, float]
    quickest: tuple[float, float]

    @classmethod
    def of(cls, call: str, small: list[float], large: list[float]) -> Ratio:
        """Reduce what was measured."""
        tenths = [percentile(took, 0.1) for took in (small, large)]
        return cls(call, (statistics.median(small), statistics.median(large)), (tenths[0], tenths[1]))


def compare(small: Ledger, large: Ledger, *, passes: int) -> list[Ratio]:
    """Call everything in turns."""
    for ledger in (small, large, small, large):  # plans are made, pages are read
        for call in ledger.calls():
            call()
    small.took.clear()
    large.took.clear()
    for n in range(passes):
        for calls in zip(small.calls(), large.calls(), strict=True):
            for call in calls if n % 2 else reversed(calls):
                call()
    return [Ratio.of(name, small.took[name], large.took[name]) for name in small.took]


def explain(home: Path, large: Ledger) -> None:
    """Print what reads or sorts many rows, with plans made for the values and with plans made for any."""
    log = Log(home)
    for mode in ("auto", "force_generic_plan"):
        large.connection.execute(f"SET plan_cache_mode = {mode}".encode())
        for call in large.calls()[:5]:
            call()
    log.begin()
    until_loaded(large)
    for mode in ("auto", "force_generic_plan"):
        large.connection.execute(f"SET plan_cache_mode = {mode}".encode())
        for call in large.calls() if mode == "auto" else large.calls()[:5]:
            call()
    large.connection.execute("SET plan_cache_mode = auto")
    found = log.end()
    print("\n| what reads or sorts many rows | node | of | rows | statement |\n| --- | --- | --- | --- | --- |")
    for one in sorted(found, key=lambda one: -one.rows):
        print(f"| {one.call} | {one.node} | {one.relation} | {one.rows:,.0f} | `{one.query}` |")
    if not found:
        print("| nothing | | | | |")


def until_loaded(ledger: Ledger) -> None:
    """Wait until the server has read its configuration again."""
    while ledger.connection.execute("SELECT current_setting('auto_explain.log_format')").fetchone() != ("json",):
        pass


def show(found: list[Ratio]) -> None:
    """Print the ratios; the goal is for the quickest tenth."""
    print("| call | almost empty, ms | large, ms | ratio | of the quickest tenth | |\n" + "| --- " * 6 + "|")
    for one in found:
        (few, many), (least, most) = one.medians, one.quickest
        verdict = "met" if most <= least * GOAL else "missed"
        print(
            f"| {one.call} | {few * 1000:.2f} | {many * 1000:.2f} | {many / few:.2f} | {most / least:.2f} | {verdict} |"
        )


def measure(home: Path, *, part: Part, passes: int) -> None:
    """Make both ledgers, print how large the large one is, then the ratios and the plans that stand out."""
    with servers_of(home, configuration=PRELOAD) as servers:
        small, large = (made(servers.ledger_url, *one) for one in (("small", SMALL), ("large", part)))
        report(home, small, large, passes=passes)


def report(home: Path, small: Ledger, large: Ledger, *, passes: int) -> None:
    """Print sizes, ratios and plans of two ledgers."""
    print("| table | rows | size | indexes |\n| --- | --- | --- | --- |")
    for row in large.connection.execute(_SIZES):
        print("| {} | {:,} | {} | {} |".format(*row))
    print(flush=True)
    show(compare(small, large, passes=passes))
    explain(home, large)


def main(*, quick: bool) -> None:
    """Compare both ledgers; among other measurements a tenth of the rows must do, or less."""
    run(rows=200_000 if quick else ROWS // 10, waiting=WAITING, passes=15 if quick else PASSES, home=None)


def run(*, rows: int, waiting: int, passes: int, home: Path | None) -> None:
    """Compare in a home that is kept, or in one that is removed."""
    part = Part(rows, waiting=waiting, held=waiting // 10, running=RUNNING, later=waiting // 4)
    with tempfile.TemporaryDirectory(prefix="safepoint-bench-") as folder:
        measure(home or Path(folder) / "servers", part=part, passes=passes)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is ended
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--waiting", type=int, default=WAITING)
    parser.add_argument("--passes", type=int, default=PASSES)
    parser.add_argument("--home", type=Path, help="keep both ledgers in this folder, and use those that are there")
    parser.add_argument("--quick", action="store_true", help="200,000 rows, 15 passes")
    given = parser.parse_args()
    if given.quick:
        main(quick=True)
    else:
        run(rows=given.rows, waiting=given.waiting, passes=given.passes, home=given.home)

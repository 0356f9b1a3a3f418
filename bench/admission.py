"""What the admission of a row costs with 1,000 rows waiting and with 100,000, measured by the database itself.

How much waits must not show, with all else equal. So both backlogs lie in tables of one size, their rows evenly over
them, and nothing has touched these since they came: each case begins with fresh copies, and what was admitted is not
replaced. A row that was just inserted is cheaper to admit than one that has waited (its pages are in memory and have
been logged whole), however many wait; a small backlog that is refilled consists of such rows and a large one does not.
`--refill` measures that as well: rows are ended and replaced, in one copy for all cases.

A round's time has in it what else the machine does; the time of the server's process on the processor has not, nor
have the pages. `python bench/admission.py [--quick] [--rows 100000] [--passes 20] [--refill]`.
"""

from __future__ import annotations

import argparse
import random
import signal
import statistics
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import ledger_work as work
from psycopg.types.json import Jsonb
from safepoint.config.settings import load
from safepoint.ledger import lanes, upgrade
from safepoint.ledger.connect import Connection, connect
from stack import brokers
from storm_flows import live

LANE, NODE = "online", "bench"
FEW, MANY = 1_000, 100_000  # rows
GOAL = 1.3
TENANTS = [f"t{n:02}" for n in range(50)]
LIMITED = {"rate": 1e6, "burst": 1_000_000, "in_flight": 10_000}
LANES: dict[str, dict[str, Any]] = {
    "unlimited": {},
    "limited": LIMITED,
    "limited, also by tenant": LIMITED | {"tenant_in_flight": 1_000},
}
ORDERS = ("priority", "deadline")
SPREADS = ("alike", "nearly one")
SETTLE = 8  # rounds until a session has chosen between a plan for all values and one for each
OF_A_COPY = 5  # rounds measured of one copy


@dataclass(frozen=True, slots=True)
class Case:
    """One way to admit: the lane's limits and order, whose the rows are, and how many may go in a round."""

    lane: str
    order: str
    spread: str
    batch: int = 100


# So many of each tenant wait, by a number that says nothing: they lie all over the tables.
_END_ALL_BUT = """
WITH ended AS (
    SELECT r.run_id
      FROM (SELECT run_id, tenant_id, row_number() OVER (PARTITION BY tenant_id ORDER BY md5(run_id::text)) AS nth
              FROM safepoint.runs) r
      LEFT JOIN jsonb_each_text(%s) AS w(tenant, most) ON w.tenant = r.tenant_id
     WHERE nth > coalesce(most::integer, 0)
), steps AS (
    UPDATE safepoint.steps s SET status = 'cancelled', queued = 0, due_at = NULL
      FROM ended e WHERE s.run_id = e.run_id
)
UPDATE safepoint.runs r SET status = 'cancelled', finished_at = safepoint.now()
  FROM ended e WHERE r.run_id = e.run_id
"""


@dataclass
class Costs:
    """Of each round the microseconds, those on the processor, and the pages, each for one row that it admitted."""

    time: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)
    pages: list[float] = field(default_factory=list)

    def typical(self) -> tuple[float, float, float]:
        """Return the medians."""
        return statistics.median(self.time), statistics.median(self.processor), statistics.median(self.pages)


@dataclass
class Backlog:
    """One ledger with so many rows waiting."""

    connection: Connection
    chance: random.Random = field(default_factory=lambda: random.Random(5))

    def fill(self, tenants: list[str]) -> None:
        """Let rows of these tenants wait: any priority, half of them with a deadline."""
        chance = self.chance
        priorities = [chance.randrange(10) for _ in tenants]
        deadlines = [chance.uniform(36_000, 86_000) if chance.random() < 0.5 else None for _ in tenants]
        work.enqueue(self.connection, live.name, tenants, priorities=priorities, deadlines=deadlines)

    def prepare(self, case: Case) -> None:
        """Give the lane the case's limits, and let this session come to rest."""
        lanes.lift(self.connection, LANE, None, by="bench", why="the next case")
        policy = LANES[case.lane] | {"order": case.order}
        lanes.override(self.connection, LANE, policy, seconds=None, by="bench", why="a case")
        for _ in range(SETTLE):
            self.connection.execute("SELECT * FROM safepoint.dispatch_v1(1, 5.0, 10.0)")

    def round(self, batch: int, costs: Costs) -> None:
        """Admit once."""
        query = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT * FROM safepoint.dispatch_v1({batch}, 5.0, 10.0)"
        before = self._on_processor()
        row = self.connection.execute(query).fetchone()  # type: ignore[arg-type]  # a number
        spent = self._on_processor() - before
        assert row is not None  # a plan
        plan = row[0][0]["Plan"]
        admitted = plan["Actual Rows"]
        # What a tenant with few rows leaves over goes out in the next round.
        if not batch * 0.5 <= admitted <= batch:
            raise RuntimeError(f"{admitted} rows went out, and not {batch}")
        costs.time.append(row[0][0]["Execution Time"] * 1000 / admitted)
        costs.processor.append(spent / admitted)
        costs.pages.append((plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]) / admitted)

    def refill(self) -> None:
        """End what is in flight, and let as many rows of the same tenants wait."""
        query = """
        SELECT run_id, tenant_id FROM safepoint.steps
         WHERE status = 'ready' AND lane = %s AND dispatched_at IS NOT NULL ORDER BY run_id
        """
        admitted = self.connection.execute(query, (LANE,)).fetchall()
        runs = [run for run, _ in admitted]
        tokens = work.claim(self.connection, runs, step="@start", node=NODE)
        work.commit_starts(self.connection, runs, tokens, node=NODE)
        self.fill([tenant for _, tenant in admitted])

    def _on_processor(self) -> float:
        """Return the microseconds that the server's process has had; Linux alone tells."""
        told = Path(f"/proc/{self.connection.info.backend_pid}/schedstat")
        return int(told.read_text().split()[0]) / 1000 if told.exists() else float("nan")


def dealt(spread: str, count: int) -> list[str]:
    """Say whose so many rows are: every tenant's alike, or nearly all of one."""
    if spread == "alike":
        return [TENANTS[n % len(TENANTS)] for n in range(count)]
    others = TENANTS[1:] * 2
    return others + TENANTS[:1] * (count - len(others))


def name_of(spread: str, count: int) -> str:
    """Name a database."""
    return f"bench_{spread.replace(' ', '_')}_{count}"


def make(url: str, spread: str, count: int, *, of: int) -> None:
    """Make a ledger in which so many of its rows wait and the others have ended, as it stands after a minute."""
    own = created(url, name_of(spread, count))
    upgrade.upgrade(own)
    with closing(connect(own, name="bench", statement_timeout=600)) as connection:
        lanes.apply(connection, load(None, env={}).lanes)
        work.register(connection, NODE, [live], lanes=[LANE])
        Backlog(connection).fill(dealt(spread, of))
        if count < of:
            connection.execute(_END_ALL_BUT, (Jsonb(Counter(dealt(spread, count))),))
        for table in ("steps", "runs"):
            connection.execute(f"VACUUM (ANALYZE) safepoint.{table}")  # type: ignore[arg-type]  # our own words


def created(url: str, name: str, *, like: str = "template1") -> str:
    """Create a database as a copy of another one and return its URL; the server ends, and the databases with it."""
    with connect(url, name="bench") as admin:
        admin.execute(f"DROP DATABASE IF EXISTS {name}")  # type: ignore[arg-type]  # made of our own words
        admin.execute(f"CREATE DATABASE {name} TEMPLATE {like} STRATEGY file_copy")  # type: ignore[arg-type]  # as above
    return urlsplit(url)._replace(path=f"/{name}").geturl()


@contextmanager
def copies(url: str, spread: str, counts: tuple[int, int]) -> Iterator[tuple[Backlog, Backlog]]:
    """Lend copies of both ledgers, which nobody has touched."""
    with ExitStack() as stack:
        few, many = (
            Backlog(stack.enter_context(closing(connect(made, name="bench", statement_timeout=600))))
            for made in [created(url, f"copy_{count}", like=name_of(spread, count)) for count in counts]
        )
        yield few, many


def compare(url: str, case: Case, counts: tuple[int, int], *, passes: int) -> tuple[Costs, Costs]:
    """Admit from both backlogs in turns."""
    costs = (Costs(), Costs())
    for first in range(0, passes, OF_A_COPY):
        with copies(url, case.spread, counts) as both:
            for one in both:
                one.prepare(case)
            for _ in range(min(OF_A_COPY, passes - first)):
                for one, its in zip(both, costs, strict=True):
                    one.round(case.batch, its)
    return costs


def compare_refilled(both: tuple[Backlog, Backlog], case: Case, *, passes: int) -> tuple[Costs, Costs]:
    """Admit from both backlogs in turns, and replace what went out."""
    costs = (Costs(), Costs())
    for one in both:
        one.prepare(case)
        one.refill()
    for _ in range(passes):
        for one, its in zip(both, costs, strict=True):
            one.round(case.batch, its)
            one.refill()
    return costs


def cases() -> list[Case]:
    """Return all that is compared; a round of two rows is what a lane of a hundred a second has."""
    found = [Case(lane, order, spread) for spread in SPREADS for lane in LANES for order in ORDERS]
    pairs = [Case("limited", order, "alike", batch=2) for order in ORDERS]
    return sorted([*found, *pairs], key=lambda case: case.spread)


def measure(*, rows: int, passes: int, refill: bool = False) -> None:
    """Print each case with the cost of a row, few waiting and many waiting, and the ratios."""
    print(
        f"| lane | order | rows are | a round | µs a row of {FEW:,} | of {rows:,} | ratio | on the processor | | ratio"
        " | pages | | ratio | |"
    )
    print("| --- " * 14 + "|")
    # With a thousand waiting in the middle of what is measured of a copy.
    counts = (FEW if refill else FEW + OF_A_COPY * 100 // 2, rows)
    with ExitStack() as stack:
        url = next(iter(stack.enter_context(brokers()).values()))[0]
        refilled: dict[str, tuple[Backlog, Backlog]] = {}
        for spread in SPREADS:
            for count in counts:
                make(url, spread, count, of=rows)
            if refill:
                refilled[spread] = stack.enter_context(copies(url, spread, counts))
        for case in cases():
            costs = (
                compare_refilled(refilled[case.spread], case, passes=passes)
                if refill
                else compare(url, case, counts, passes=passes)
            )
            print(_line(case, *costs), flush=True)


def _line(case: Case, few: Costs, many: Costs) -> str:
    pairs = list(zip(few.typical(), many.typical(), strict=True))
    told = [
        f"{small:.{digits}f} | {large:.{digits}f} | {large / small:.2f}"
        for (small, large), digits in zip(pairs, (0, 0, 1), strict=True)
    ]
    word = "missed" if any(large / small > GOAL for small, large in pairs) else "met"
    return f"| {case.lane} | {case.order} | {case.spread} | {case.batch} | {' | '.join(told)} | {word} |"


def main(*, quick: bool) -> None:
    """Compare the cost of admission over backlogs."""
    measure(rows=20_000 if quick else MANY, passes=5 if quick else 20)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is ended
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=MANY)
    parser.add_argument("--passes", type=int, default=20)
    parser.add_argument("--quick", action="store_true", help="20,000 rows, 5 passes")
    parser.add_argument("--refill", action="store_true", help="replace what was admitted by rows just inserted")
    given = parser.parse_args()
    measure(rows=20_000 if given.quick else given.rows, passes=5 if given.quick else given.passes, refill=given.refill)

"""What the admission of a row costs with 1,000 rows waiting and with 100,000: the time and the pages of `dispatch_v1`.

Both backlogs are measured in turns within one run, by the database itself, and refilled by just what they have lost:
how much waits must not show. `python bench/admission.py [--quick] [--rows 100000] [--passes 20]`.
"""

from __future__ import annotations

import argparse
import random
import signal
import statistics
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import ledger_work as work
from safepoint.config.settings import load
from safepoint.ledger import lanes, upgrade
from safepoint.ledger.connect import Connection, connect
from stack import brokers
from storm_flows import live

LANE, NODE = "online", "bench"
FEW, MANY = 1_000, 100_000  # rows
TENANTS = [f"t{n:02}" for n in range(50)]
LIMITED = {"rate": 1e6, "burst": 1_000_000, "in_flight": 10_000}
LANES: dict[str, dict[str, Any]] = {
    "unlimited": {},
    "limited": LIMITED,
    "limited, also by tenant": LIMITED | {"tenant_in_flight": 1_000},
}


@dataclass(frozen=True, slots=True)
class Case:
    """One way to admit: the lane's limits and order, whose the rows are, and how many may go in a round."""

    lane: str
    order: str
    spread: str
    batch: int = 100


# The oldest rows wait; they are whose `dealt` says, for it begins with one of every tenant.
_END_ALL_BUT = """
WITH ended AS (SELECT run_id FROM safepoint.runs ORDER BY run_id OFFSET %s),
     steps AS (UPDATE safepoint.steps s SET status = 'cancelled', queued = 0, due_at = NULL
                 FROM ended e WHERE s.run_id = e.run_id)
UPDATE safepoint.runs r SET status = 'cancelled', finished_at = safepoint.now()
  FROM ended e WHERE r.run_id = e.run_id
"""


@dataclass
class Costs:
    """Milliseconds and pages of each round, and the rows that it admitted."""

    milliseconds: list[float] = field(default_factory=list)
    pages: list[float] = field(default_factory=list)


@dataclass
class Backlog:
    """One ledger with so many rows waiting."""

    connection: Connection
    chance: random.Random

    def fill(self, tenants: list[str]) -> None:
        """Let rows of these tenants wait: any priority, half of them with a deadline."""
        chance = self.chance
        priorities = [chance.randrange(10) for _ in tenants]
        deadlines = [chance.uniform(36_000, 86_000) if chance.random() < 0.5 else None for _ in tenants]
        work.enqueue(self.connection, live.name, tenants, priorities=priorities, deadlines=deadlines)

    def round(self, batch: int, costs: Costs) -> None:
        """Admit once, then end what was admitted and refill."""
        query = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT * FROM safepoint.dispatch_v1({batch}, 5.0, 10.0)"
        row = self.connection.execute(query).fetchone()  # type: ignore[arg-type]  # a number
        assert row is not None  # a plan
        told = row[0][0]
        plan, admitted = told["Plan"], self._admitted()
        if len(admitted) != plan["Actual Rows"] or not admitted:
            raise RuntimeError(f"{plan['Actual Rows']} rows went out, and {len(admitted)} are in flight")
        costs.milliseconds.append(told["Execution Time"] / len(admitted))
        costs.pages.append((plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]) / len(admitted))
        runs = [run for run, _ in admitted]
        tokens = work.claim(self.connection, runs, step="@start", node=NODE)
        work.commit_starts(self.connection, runs, tokens, node=NODE)
        self.fill([tenant for _, tenant in admitted])

    def _admitted(self) -> list[tuple[Any, str]]:
        query = """
        SELECT run_id, tenant_id FROM safepoint.steps
         WHERE status = 'ready' AND lane = %s AND dispatched_at IS NOT NULL ORDER BY run_id
        """
        return [(run, tenant) for run, tenant in self.connection.execute(query, (LANE,))]


def dealt(spread: str, count: int) -> list[str]:
    """Say whose so many rows are: every tenant's alike, or nearly all of one."""
    if spread == "alike":
        return [TENANTS[n % len(TENANTS)] for n in range(count)]
    others = TENANTS[1:] * 2
    return others + TENANTS[:1] * (count - len(others))


@contextmanager
def backlog(url: str, spread: str, count: int, *, of: int) -> Iterator[Backlog]:
    """Lend a ledger of its own in which so many of its rows wait and the others have ended: what is compared is the
    backlog, in tables and indexes of one size. The server ends, and the ledger with it.
    """
    name = f"bench_{spread.replace(' ', '_')}_{count}"
    with connect(url, name="bench") as admin:
        admin.execute(f"CREATE DATABASE {name}")  # type: ignore[arg-type]  # made of our own words
    own = urlsplit(url)._replace(path=f"/{name}").geturl()
    upgrade.upgrade(own)
    with closing(connect(own, name="bench", statement_timeout=600)) as connection:
        lanes.apply(connection, load(None, env={}).lanes)
        work.register(connection, NODE, [live], lanes=[LANE])
        made = Backlog(connection, random.Random(5))
        made.fill(dealt(spread, of))
        connection.execute(_END_ALL_BUT, (count,))
        for table in ("steps", "runs"):  # as it stands after a minute: what is read is not what the filling has left
            connection.execute(f"VACUUM (ANALYZE) safepoint.{table}")  # type: ignore[arg-type]  # our own words
        yield made


def compare(case: Case, both: tuple[Backlog, Backlog], *, passes: int) -> tuple[Costs, Costs]:
    """Admit from both backlogs in turns."""
    policy = LANES[case.lane] | {"order": case.order}
    costs = (Costs(), Costs())
    for one in both:
        lanes.lift(one.connection, LANE, None, by="bench", why="the next case")
        lanes.override(one.connection, LANE, policy, seconds=None, by="bench", why="a case")
        one.round(case.batch, Costs())  # plans are made, pages are read
    for _ in range(passes):
        for one, its in zip(both, costs, strict=True):
            one.round(case.batch, its)
    return costs


def cases() -> list[Case]:
    """Return all that is compared; a round of two rows is what a lane of a hundred a second has."""
    found = [Case(lane, order, spread) for spread in ("alike", "nearly one") for lane in LANES for order in ORDERS]
    return [*found, Case("limited", "priority", "alike", batch=2), Case("limited", "deadline", "alike", batch=2)]


ORDERS = ("priority", "deadline")


def measure(*, rows: int, passes: int) -> None:
    """Print each case with the cost of a row, few waiting and many waiting, and the ratio."""
    print(
        f"| lane | order | rows are | a round | µs a row of {FEW:,} | of {rows:,} | ratio | pages | pages | ratio | |"
    )
    print("| --- " * 11 + "|")
    with ExitStack() as stack:
        url = next(iter(stack.enter_context(brokers()).values()))[0]
        spreads = ("alike", "nearly one")
        found = {
            spread: (
                stack.enter_context(backlog(url, spread, FEW, of=rows)),
                stack.enter_context(backlog(url, spread, rows, of=rows)),
            )
            for spread in spreads
        }
        for case in sorted(cases(), key=lambda case: case.spread):
            few, many = compare(case, found[case.spread], passes=passes)
            short, long = (statistics.median(costs.milliseconds) * 1000 for costs in (few, many))
            small, large = (statistics.median(costs.pages) for costs in (few, many))
            print(
                f"| {case.lane} | {case.order} | {case.spread} | {case.batch} | {short:.0f} | {long:.0f}"
                f" | {long / short:.2f} | {small:.1f} | {large:.1f} | {large / small:.2f}"
                f" | {'met' if long / short <= 1.3 else 'missed'} |",
                flush=True,
            )


def main(*, quick: bool) -> None:
    """Compare the cost of admission over backlogs."""
    measure(rows=20_000 if quick else MANY, passes=5 if quick else 20)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is ended
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=MANY)
    parser.add_argument("--passes", type=int, default=20)
    parser.add_argument("--quick", action="store_true", help="20,000 rows, 5 passes")
    given = parser.parse_args()
    if given.quick:
        main(quick=True)
    else:
        measure(rows=given.rows, passes=given.passes)

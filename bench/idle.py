"""What a deployed stack costs while nothing happens: processor, statements at the ledger, memory of each process.

`python bench/idle.py [--seconds 60] [--quick]`: relay, beat, the control worker and one worker with two pool children,
as `safepoint up` starts them, on each broker. The goals are at most 2 % of one core and 5 statements a second.
"""

from __future__ import annotations

import argparse
import re
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import psutil
from safepoint.ledger.connect import connect
from stack import Stack, brokers, running

CPU, STATEMENTS = 2.0, 5.0  # percent of one core, statements a second
SETTLED = 15.0  # seconds from the start until nothing of it is left
EACH_STATEMENT = "log_statement = all\nlog_line_prefix = '%a>>'\n"
_STATEMENT = re.compile(
    r"^(?:safepoint )?(\w+)[^\n]*?>>LOG:  (?:statement|execute [^:]*): (.*(?:\n\t.*)*)", re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class Cost:
    """What one process has cost: percent of one core, MiB that are its own share and that it has in all."""

    role: str
    cpu: float
    pss: float
    rss: float


def roles(stack: Stack) -> dict[int, str]:
    """Name our processes, each by its pid."""
    found: dict[int, str] = {}
    for process in stack.processes:
        words = [str(word) for word in process.args if isinstance(process.args, list)]
        role = "control worker" if "control" in words else words[3]
        found[process.pid] = role
        for child in psutil.Process(process.pid).children(recursive=True):
            found[child.pid] = f"{role}'s child"
    return found


def servers(ledger_url: str) -> dict[int, str]:
    """Name the processes of the servers that were started here."""
    with connect(ledger_url, name="bench") as connection:
        postgres = psutil.Process(connection.info.backend_pid).parent()
    assert postgres is not None  # a backend has a parent
    home = Path(postgres.cmdline()[2]).parent
    found = {one.pid: "PostgreSQL" for one in [postgres, *postgres.children(recursive=True)]}
    for process in psutil.process_iter(["cmdline"]):
        if any(str(home) in word for word in process.info["cmdline"] or ()) and process.pid not in found:
            found[process.pid] = "Valkey"
    return found


def spent(pids: dict[int, str]) -> dict[int, float]:
    """Return the seconds of processor of each process that is there."""
    found = {}
    for pid in pids:
        try:
            times = psutil.Process(pid).cpu_times()
        except psutil.NoSuchProcess:
            continue
        found[pid] = times.user + times.system
    return found


def watch(pids: dict[int, str], seconds: float) -> list[Cost]:
    """Watch for so long."""
    before, began = spent(pids), time.monotonic()
    time.sleep(seconds)
    after, took = spent(pids), time.monotonic() - began
    costs = []
    for pid, since in after.items():
        memory = psutil.Process(pid).memory_full_info()
        cpu = 100 * (since - before[pid]) / took
        costs.append(Cost(pids[pid], cpu, memory.pss / 2**20, memory.rss / 2**20))
    return costs


def statements(log: Path, since: int) -> Counter[tuple[str, str]]:
    """Count what has been executed, by who did and what, from that place of the server's log on."""
    with log.open("rb") as file:
        file.seek(since)
        text = file.read().decode(errors="replace")
    return Counter((who, " ".join(what.split())[:70]) for who, what in _STATEMENT.findall(text))


def log_of(ledger_url: str) -> Path:
    """Return where the server writes its log."""
    with connect(ledger_url, name="bench") as connection:
        postgres = psutil.Process(connection.info.backend_pid).parent()
    assert postgres is not None  # as above
    return Path(postgres.cmdline()[2]).parent / "postgres.log"


def measure(name: str, urls: tuple[str, str], seconds: float, *, pool: str) -> None:
    """Print what one broker's stack costs."""
    with running(*urls) as stack:
        stack.workers(1, pool=pool)
        time.sleep(SETTLED)
        log = log_of(urls[0])
        since, ours, theirs = log.stat().st_size, roles(stack), servers(urls[0])
        costs = watch({**ours, **theirs}, seconds)
        counts = statements(log, since)
    mine = [cost for cost in costs if cost.role in ours.values()]
    print(f"\n{name}, {pool}, {seconds:.0f} s\n")
    print("| process | % of a core | PSS, MiB | RSS, MiB |\n| --- | --- | --- | --- |")
    for cost in mine:
        print(f"| {cost.role} | {cost.cpu:.2f} | {cost.pss:.0f} | {cost.rss:.0f} |")
    total = sum(cost.cpu for cost in mine)
    print(f"| **ours** | **{total:.2f}** {verdict(total, CPU)} | {sum(cost.pss for cost in mine):.0f} | |")
    for server in sorted({cost.role for cost in costs} - set(ours.values())):
        print(f"| {server} | {sum(cost.cpu for cost in costs if cost.role == server):.2f} | | |")
    each = sum(counts.values()) / seconds
    print(f"\nstatements a second: **{each:.2f}** {verdict(each, STATEMENTS)}\n")
    print("| who | what | a second |\n| --- | --- | --- |")
    for (who, what), count in counts.most_common(15):
        print(f"| {who} | `{what}` | {count / seconds:.2f} |", flush=True)


def verdict(found: float, goal: float) -> str:
    """Say whether a goal is met."""
    return f"({'met' if found <= goal else 'missed'}: {goal:g})"


def main(*, quick: bool) -> None:
    """Measure on every broker that answers."""
    run(20.0 if quick else 60.0, pools=("prefork",))


def run(seconds: float, *, pools: tuple[str, ...]) -> None:
    """Measure for so long on every broker that answers, with each of these pools."""
    with brokers(configuration=EACH_STATEMENT) as found:
        for name, urls in found.items():
            for pool in pools:
                measure(name, urls, seconds, pool=pool)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is ended
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--pool", action="append", choices=("prefork", "threads"))
    parser.add_argument("--quick", action="store_true", help="20 seconds")
    given = parser.parse_args()
    run(20.0 if given.quick else given.seconds, pools=tuple(given.pool or ("prefork",)))

"""Ours beside its peers: the same work in turns, with long runs, deaths, doors and idleness; `python bench` runs this.

All of it writes `bench/RESULTS.md` with its picture, raw figures go to `bench-results/`. `QUICK=1` does one pass of
little work and prints its tables. `--render` makes the page of the figures that are there.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
from compared import Compared
from contenders import CONTENDERS
from deaths import DEATHS, Death, die, missing, our_deaths
from environments import ENVIRONMENTS, MissingPeerError
from floor import commits
from own_servers import Servers, serving
from page import page, tables
from spent import Meter
from throughput import in_turns
from turns import Plan

__all__ = ["main", "measure", "render", "whole"]

HERE = Path(__file__).resolve().parent
RAW, PART = (HERE.parent / "bench-results" / name for name in ("compare.json", "compare-part.json"))
RESULTS, PICTURE = HERE / "RESULTS.md", HERE / "results.png"


def measure(names: Sequence[str], compared: Compared, *, quick: bool) -> None:
    """Measure everything, on servers that are started and ended here, and note it as it comes."""
    began = time.monotonic()
    compared.machine = _machine()
    compared.versions = {name: one.version for name, one in ENVIRONMENTS.items()}
    if quick:
        plans = [Plan(20, 3, counted=8, share=0.03, enqueued=100)]
    else:
        plans = [Plan(), Plan(), Plan(counted=50, share=1.0, enqueued=1000)]
    with serving() as servers:
        compared.versions |= servers.versions
        floor = commits(servers)
        compared.machine["commit of one row"] = f"{floor['flushed']:.2f} ms; not flushed {floor['not flushed']:.2f} ms"
        in_turns(servers, names, plans, compared)
        if "ours-redis" in names:
            compared.deaths = our_deaths(servers, times=1 if quick else 10)
        for death in DEATHS:
            if death.contender in names and (death.is_quick or not quick):
                _die(servers, death, compared, times=3 if death.is_quick and not quick else 1)
    if "ours-redis" in names:
        with serving() as fresh:  # servers that still clean up after a load are not idle
            compared.idle = idle(fresh, seconds=5 if quick else 30)
    compared.machine["load"] = f"{os.getloadavg()[2]:.1f} in the last 15 minutes, our own included"
    compared.machine["took"] = f"{(time.monotonic() - began) / 60:.0f} minutes"


def _die(servers: Servers, death: Death, compared: Compared, *, times: int) -> None:
    why = missing(servers, death)
    try:
        if why is not None:
            raise MissingPeerError(why)
        compared.limits[death.name] = death.limit
        compared.peer_deaths[death.name] = [die(servers, death) for _ in range(times)]
    except MissingPeerError as error:
        compared.missing[death.name] = str(error)
    print(f"{death.name}: {compared.peer_deaths.get(death.name, why)}", file=sys.stderr)


def idle(servers: Servers, *, seconds: float) -> dict[str, float]:
    """Return what a deployed stack takes while nothing is to be done: share of a core, statements a second."""
    contender = CONTENDERS["ours-redis"].elsewhere("idle")
    with contender.run(servers, contender) as started:
        roots = started.roots | {role: servers.pids[role] for role in contender.servers}
        time.sleep(min(seconds, 10))  # what starting has begun is over
        with Meter(servers.admin_url, roots, count_statements=True) as meter:
            began = time.monotonic()
            time.sleep(seconds)
            took = time.monotonic() - began
    return {"core": sum(meter.bill.cpu.values()) / took, "statements": meter.bill.statements / took}


def _machine() -> dict[str, str]:
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.machine(),
    )
    return {
        "processor": f"{os.cpu_count()} × {model}",
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
        "day": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def render(compared: Compared) -> None:
    """Write the page and its picture."""
    from comparison_picture import draw  # noqa: PLC0415  # matplotlib takes a second, which printing need not

    draw(compared, PICTURE)
    RESULTS.write_text(page(compared, picture=PICTURE.name))
    print(f"{RESULTS.relative_to(HERE.parent)} and {PICTURE.relative_to(HERE.parent)} are written")


def whole(*, quick: bool) -> None:
    """Compare all."""
    main([], quick=quick)


def main(arguments: Sequence[str] | None = None, *, quick: bool = False) -> None:
    """Measure, or only render."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=[], metavar="NAME", help=", ".join(CONTENDERS))
    parser.add_argument(
        "--render", nargs="?", const=RAW, type=Path, metavar="FILE", help="make the page of old figures"
    )
    given = parser.parse_args(arguments)
    if given.render:
        render(Compared.read(given.render))
        return
    compared, is_whole = Compared(), not quick and not given.names
    try:
        measure(given.names or list(CONTENDERS), compared, quick=quick)
    finally:  # what was measured before a Ctrl-C may be looked at, too
        compared.write(PART)
    if is_whole:
        compared.write(RAW)
        render(compared)
    else:
        print("\n".join(tables(compared)))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    main(quick=os.environ.get("QUICK") == "1")

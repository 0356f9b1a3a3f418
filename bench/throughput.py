"""Steps a second, and what a step costs: 200 runs of ten empty steps each, at most eight at once, all systems in turns.

`python bench/throughput.py [--passes 3] [--runs 200] [NAME ...]`; the names are those of `contenders.CONTENDERS`.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence

from compared import Compared
from comparison import costs, throughput
from contenders import CONTENDERS
from environments import MissingPeerError
from own_servers import Servers, serving
from starting import Contender
from turns import Plan, turn

__all__ = ["in_turns"]


def in_turns(servers: Servers, names: Sequence[str], plans: Sequence[Plan], compared: Compared) -> None:
    """Give each of these systems a turn for each plan, interleaved; who can not take part is named once."""
    for number, plan in enumerate(plans, start=1):
        for name in names:
            contender = CONTENDERS[name]
            if contender.name in compared.missing or not _can(servers, contender, compared):
                continue
            try:
                done = turn(servers, contender, plan)
            except MissingPeerError as error:
                compared.missing[contender.name] = str(error)
                print(f"{name}: {error}", file=sys.stderr)
                continue
            except (RuntimeError, TimeoutError) as error:  # the others are measured all the same
                compared.missing[contender.name] = f"failed in pass {number}; what it printed is on the screen"
                print(f"{name}: {error}", file=sys.stderr)
                continue
            compared.rounds.setdefault(name, []).append(done)
            print(f"pass {number}, {name}: {done.rate:.0f} steps/s, {done.cpu:.2f} ms a step", file=sys.stderr)


def _can(servers: Servers, contender: Contender, compared: Compared) -> bool:
    absent = sorted(set(contender.servers) - servers.pids.keys())
    if absent:
        compared.missing[contender.name] = f"{', '.join(absent)} is not installed here"
    return not absent


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the named systems, or all, in turns; print tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=[], metavar="NAME")
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--alone", type=int, default=20)
    given = parser.parse_args(arguments)
    compared = Compared()
    plans = [Plan(given.runs, given.alone, counted=50 * (n == given.passes - 1)) for n in range(given.passes)]
    with serving() as servers:
        in_turns(servers, given.names or list(CONTENDERS), plans, compared)
    print("\n".join([*throughput(compared), "", *costs(compared)]))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    main()

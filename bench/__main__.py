"""Measurements: `python bench` puts ours beside its peers; `python bench NAME ...` does what `PARTS` calls so.

`QUICK=1` for less of it. No speed is asserted: a machine is as fast as it is. Each part starts its own servers and
ends them. What they show: docs/measuring.md.
"""

from __future__ import annotations

import os
import signal
import sys

import admission
import compare
import growth
import idle
import intake
import pools
import profiles
import retention
import storm
import takeover
import ten_million

PARTS = {
    "peers": compare.whole,
    "intake": intake.main,
    "takeover": takeover.main,
    "growth": growth.main,
    "retention": retention.main,
    "admission": admission.main,
    "idle": idle.main,
    "pools": pools.main,
    "profiles": profiles.main,
    "ten-million": ten_million.main,
    "storm": storm.main,
    "storm-outage": storm.outage,
}


def _end(number: int, _: object) -> None:
    for either in (signal.SIGINT, signal.SIGTERM):  # a second one would leave behind what the first one ends
        signal.signal(either, signal.SIG_IGN)
    sys.exit(128 + number)


def main() -> int:
    """Run the named parts, or the comparison with the peers."""
    wanted = sys.argv[1:] or ["peers"]
    unknown = [name for name in wanted if name not in PARTS]
    if unknown:
        print(f"no such measurement: {', '.join(unknown)}; there are {', '.join(PARTS)}", file=sys.stderr)
        return 2
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _end)
    for name in wanted:
        PARTS[name](quick=os.environ.get("QUICK") == "1")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

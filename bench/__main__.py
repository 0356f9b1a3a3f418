"""Measurements, as ratios in one run: `python bench [NAME ...]`; the names are those of `PARTS`.

`QUICK=1` for less of it. No speed is asserted: a machine is as fast as it is. Each part starts its own servers and
ends them. What admission and storm show: docs/measuring.md.
"""

from __future__ import annotations

import os
import signal
import sys

import admission
import growth
import idle
import intake
import pools
import retention
import storm
import takeover
import ten_million

PARTS = {
    "intake": intake.main,
    "takeover": takeover.main,
    "growth": growth.main,
    "retention": retention.main,
    "admission": admission.main,
    "idle": idle.main,
    "pools": pools.main,
    "ten-million": ten_million.main,
    "storm": storm.main,
    "storm-outage": storm.outage,
}


def main() -> int:
    """Run the named parts, or all of them."""
    wanted = sys.argv[1:] or list(PARTS)
    unknown = [name for name in wanted if name not in PARTS]
    if unknown:
        print(f"no such measurement: {', '.join(unknown)}; there are {', '.join(PARTS)}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is ended
    for name in wanted:
        PARTS[name](quick=os.environ.get("QUICK") == "1")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

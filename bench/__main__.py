"""Measurements, as ratios within one run: `python bench [intake] [takeover] [growth]`, `QUICK=1` for fewer repetitions.

Nothing here is asserted: a machine is as fast as it is. Each part starts its own servers and ends them.
"""

from __future__ import annotations

import os
import signal
import sys

import growth
import intake
import takeover

PARTS = {"intake": intake.main, "takeover": takeover.main, "growth": growth.main}


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

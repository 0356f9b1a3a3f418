"""The watchdog counts the time in which a flow could have gone on, and no other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from safepoint.tasks.watchdog import TICK

PROGRAM = """
import os, signal, time
from safepoint.tasks.watchdog import TICK, FlowStuck, Watchdog

try:
    with Watchdog(2 * TICK).watching():
        {what}
        ends = time.monotonic() + {lasts} * TICK
        while time.monotonic() < ends:
            pass
except FlowStuck:
    print("stuck")
else:
    print("fine")
"""


def start(what: str, lasts: float) -> subprocess.Popen[str]:
    program = PROGRAM.format(what=what, lasts=lasts)
    return subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)


def test_a_process_that_was_frozen_has_not_looped() -> None:
    with start("os.kill(os.getpid(), signal.SIGSTOP)", 0.5) as process:
        os.waitpid(process.pid, os.WUNTRACED)
        time.sleep(4 * TICK)  # what is tested is that this time does not count
        process.send_signal(signal.SIGCONT)
        said, _ = process.communicate(timeout=30)

    assert said == "fine\n"


def test_a_flow_that_loops_is_ended() -> None:
    with start("pass", 60) as process:
        said, _ = process.communicate(timeout=30)

    assert said == "stuck\n"

"""Runs groups of tests side by side, a pytest process each, and prints what each has said once it has ended.

`python .ci/groups.py "tests/unit tests/docs" "tests/cli"`: whoever is done takes the next, so the longest come first.
The last line is pytest's closing line, over all of them. A signal ends everything that was started.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import IO, NoReturn

# SAFEPOINT_TEST_GROUPS=1: one after another, for a broker whose vhost the groups would have to share.
AT_ONCE = int(os.environ.get("SAFEPOINT_TEST_GROUPS") or 1 + (os.cpu_count() or 1))  # killing waits a lot
PATIENCE = 60.0  # for fixtures to end what they have started
NO_TESTS = 5  # pytest's exit code when nothing was collected
CLOSING = re.compile(r"^=* ?((?:\d+ [a-z]+(?:, )?)+) in [\d.]+s.*$", re.MULTILINE)
OUTCOMES = ("failed", "passed", "skipped", "deselected", "xfailed", "xpassed", "warnings", "errors")


@dataclass
class Group:
    """One pytest process, and the file that holds what it says."""

    arguments: str
    said: IO[bytes] = field(default_factory=tempfile.TemporaryFile)
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it in a session of its own: a terminal's Ctrl-C reaches it through us only, once."""
        command = [str(Path(sys.executable).with_name("pytest")), *shlex.split(self.arguments)]
        print(f"$ pytest {self.arguments}", flush=True)
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=self.said, stderr=subprocess.STDOUT, start_new_session=True
        )

    @property
    def code(self) -> int | None:
        """How it ended; None while it runs."""
        return self.process.poll() if self.process else None

    @property
    def text(self) -> str:
        """What it has said so far."""
        self.said.seek(0)
        return self.said.read().decode(errors="replace")

    def end(self, deadline: float) -> None:
        """Wait for it to end after its Ctrl-C; then kill all of its session that is in its process group."""
        assert self.process is not None
        try:
            self.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def main(groups: Sequence[Group]) -> int:
    """Run them all, whatever fails, and close with their sum."""
    begun = time.monotonic()
    waiting, running = list(groups), list[Group]()
    try:
        while waiting or running:
            while waiting and len(running) < AT_ONCE:
                running.append(waiting.pop(0))
                running[-1].start()
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)  # until one of them ends
            for group in [group for group in running if group.code is not None]:
                print(f"\n$ pytest {group.arguments}\n{group.text}", flush=True)
                running.remove(group)
    finally:
        interrupt(running)
    for group in groups:
        closing = [found.group().strip("= ") for found in CLOSING.finditer(group.text)]
        print(f"{closing[-1] if closing else f'ended with {group.code}'}: {group.arguments}")
    print(total([group.text for group in groups], time.monotonic() - begun), flush=True)
    return next((1 for group in groups if group.code not in (0, NO_TESTS)), 0)


def interrupt(running: Sequence[Group]) -> None:
    """Press Ctrl-C for each, show what it has said, and wait; pytest ends its fixtures on that alone."""
    for group in running:
        if group.process is not None and group.code is None:
            group.process.send_signal(signal.SIGINT)
    deadline = time.monotonic() + PATIENCE
    for group in running:
        group.end(deadline)
        print(f"\n$ pytest {group.arguments}\n{group.text}", flush=True)


def total(texts: Sequence[str], seconds: float) -> str:
    """Return pytest's closing line for all of them; a group that has none of its own counts as an error."""
    counts = Counter[str]()
    for text in texts:
        closing = [found.group(1) for found in CLOSING.finditer(text)] or ["1 error"]
        for part in closing[-1].split(", "):
            number, outcome = part.split()
            counts[f"{outcome}s" if outcome in ("warning", "error") else outcome] += int(number)
    words = ", ".join(f"{counts[outcome]} {outcome}" for outcome in OUTCOMES if counts[outcome])
    return f" {words} in {seconds:.2f}s ({timedelta(seconds=int(seconds))}) ".center(80, "=")


def stop(number: int, _frame: object) -> NoReturn:
    """End by a signal; a second one must not cut the ending short."""
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    raise SystemExit(128 + number)


if __name__ == "__main__":
    # Handlers, even for what was ignored: they are not handed on, so that pytest hears the Ctrl-C that we send it.
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, stop)
    sys.exit(main([Group(arguments) for arguments in sys.argv[1:]]))

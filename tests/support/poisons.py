"""Steps that kill the process they run in, each in another way, until a gate is open."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path

from journeys import begin, gate, wait_at
from safepoint import current, flow, step
from tenacity import stop_after_attempt, wait_none

HELD = 96 * 1024 * 1024  # bytes that a step has touched when it is killed


def kill() -> None:
    held = bytearray(HELD)
    held[:: resource.getpagesize()] = b"x" * len(held[:: resource.getpagesize()])
    os.kill(os.getpid(), signal.SIGKILL)


WAYS: dict[str, Callable[[], object]] = {
    "kill": kill,
    "crash": lambda: ctypes.string_at(0),
    "exit": lambda: os._exit(7),
}


@step(uses="well", timeout=60)
def die(way: str, name: str) -> int:
    """End the process in that way; while a fuse is there, not before the test has lit it."""
    begin()
    if gate(name).exists():
        return 1
    if gate(f"{name}-fuse").exists():
        wait_at(f"{name}-lit")
    WAYS[way]()
    return 0


@flow
async def deadly(way: str, name: str) -> int:
    return await die(way, name)


@step(stop=stop_after_attempt(2), wait=wait_none())
def bloat() -> int:
    """Ask for more memory than the process may have, at the first attempt."""
    begin()
    if current().attempt > 1:  # type: ignore[attr-defined]  # a step's
        return 1
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (64 << 20), hard))
    try:
        return len(bytearray(1 << 30))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@flow
async def bloating() -> int:
    return await bloat()

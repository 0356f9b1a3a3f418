"""Named places in the protocol where a test or a drill kills the process.

Nothing happens unless SAFEPOINT_CRASH_POINTS=1; then SAFEPOINT_CRASH lists `point[@step][:n]`, separated by commas.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field

from .errors import ConfigError, Problem

__all__ = ["POINTS", "crash_point", "reset", "set_main"]

POINTS = frozenset(
    {
        "claim.before",
        "claim.after",
        "effect.before",
        "effect.after",
        "commit.before",
        "commit.after",
        "publish.after",
        "relay.published",
        "scan.requeued",
    }
)

_SPEC = re.compile(r"^(?P<point>[a-z]+\.[a-z]+)(?:@(?P<step>[^,]+?))?(?::(?P<hit>[1-9]\d*))?$")


@dataclass(slots=True)
class _Trap:
    """One armed place; `hits` is what this process has counted so far."""

    point: str
    step: str | None
    hit: int
    once: str | None
    hits: int = 0

    def springs(self, name: str, key: str | None) -> bool:
        if self.point != name or (self.step is not None and self.step not in _names(key)):
            return False
        self.hits += 1
        return self.hits == self.hit and self._first_ever()

    def _first_ever(self) -> bool:
        # A restarted worker counts from zero again; the file is what tells it that the kill has been.
        if self.once is None:
            return True
        try:
            os.close(os.open(self.once, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        except FileExistsError:
            return False
        return True


@dataclass(slots=True)
class _State:
    traps: list[_Trap] | None = None
    whole_worker: bool = False
    main: int | None = field(default=None)


_state = _State()


def crash_point(name: str, key: str | None = None) -> None:
    """Kill this process with SIGKILL when a trap is set here; `key` is the step key, in either of its forms."""
    traps = _state.traps
    if traps is None:
        traps = arm(os.environ)
    for trap in traps:
        if trap.springs(name, key):
            _die(name, key)


def arm(env: Mapping[str, str]) -> list[_Trap]:
    """Read the traps from the environment; a point that does not exist is an error, not a test that passes for ever."""
    _state.traps = []
    if env.get("SAFEPOINT_CRASH_POINTS") == "1":
        _state.whole_worker = _target(env) == "worker"
        once = env.get("SAFEPOINT_CRASH_ONCE")
        specs = [part.strip() for part in env.get("SAFEPOINT_CRASH", "").split(",") if part.strip()]
        _state.traps = [_trap(spec, once, index) for index, spec in enumerate(specs)]
    return _state.traps


def set_main(pid: int) -> None:
    """Remember the worker's main process, which SAFEPOINT_CRASH_TARGET=worker kills as well; inherited over a fork."""
    _state.main = pid


def reset() -> None:
    """Forget traps and counts; the next crash point reads the environment again."""
    _state.traps = None
    _state.whole_worker = False
    _state.main = None


def _trap(spec: str, once: str | None, index: int) -> _Trap:
    match = _SPEC.match(spec)
    if match is None or match["point"] not in POINTS:
        accepted = "point[@step][:n], with point one of " + ", ".join(sorted(POINTS))
        raise ConfigError(None, Problem("environment", "SAFEPOINT_CRASH", f"no crash point {spec!r}", accepted))
    # One file a trap: the second kill of a list must not be prevented by the first one's file.
    path = f"{once}.{index}" if once and index else once
    return _Trap(match["point"], match["step"], int(match["hit"] or 1), path)


def _target(env: Mapping[str, str]) -> str:
    target = env.get("SAFEPOINT_CRASH_TARGET", "child")
    if target not in {"child", "worker"}:
        problem = Problem("environment", "SAFEPOINT_CRASH_TARGET", f"unknown target {target!r}", "child, worker")
        raise ConfigError(None, problem)
    return target


def _names(key: str | None) -> set[str]:
    """What a trap may call this step: the whole key, the key without generation or path, the step's id."""
    if key is None:
        return set()
    plain = re.sub(r"^g\d+:", "", key)
    last = plain.rpartition("/")[2]
    return {key, plain, last, last.partition("#")[0]}


def _die(name: str, key: str | None) -> None:
    place = f"{name}@{key}" if key else name
    os.write(2, f"safepoint: crash point {place}: process {os.getpid()} kills itself\n".encode())
    if _state.whole_worker and _state.main not in (None, os.getpid()):
        os.kill(_state.main, signal.SIGKILL)  # first: a parent that sees its child die would report and survive
    os.kill(os.getpid(), signal.SIGKILL)

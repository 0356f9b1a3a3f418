"""What the system tells of memory: what a process holds, what it may hold, how often the kernel has killed for it.

Where the system does not tell, the answer is None; nothing here raises.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Allowance", "allowance", "resident"]

_ROOT = Path("/")
_FIELD = re.compile(r"^(\w+):?\s+(\d+)(?: kB)?$", re.MULTILINE)
_NO_LIMIT = 1 << 60  # the first version of control groups says "none" by a number of about this size
# Which line of /proc/self/cgroup, below which folder, the file of the limit, and the one that counts the kills.
_UNIFIED = ("sys/fs/cgroup", "memory.max", "memory.events")
_FIRST = ("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.oom_control")


@dataclass(frozen=True, slots=True)
class Allowance:
    """How many bytes this process and its children may hold, and how many of its group the kernel has killed so far."""

    limit: int | None = None
    kills: int | None = None


def resident(pid: int, *, root: Path = _ROOT) -> int | None:
    """Return how many bytes a process holds in memory."""
    held = _fields(root / f"proc/{pid}/status").get("VmRSS")
    return None if held is None else held * 1024


def allowance(*, root: Path = _ROOT) -> Allowance:
    """Return what this process's control group may hold, or the machine has where that is less or there is no group."""
    limits, kills = [], []
    for folder, limit_file, kills_file in _groups(root):
        limits.append(_limit(folder / limit_file))
        kills.append(_fields(folder / kills_file).get("oom_kill"))
    total = _fields(root / "proc/meminfo").get("MemTotal")
    limits.append(None if total is None else total * 1024)
    kills.append(_fields(root / "proc/vmstat").get("oom_kill"))
    # A group's limit binds all below it; kills are counted in the group of who is killed.
    return Allowance(
        min((limit for limit in limits if limit is not None), default=None),
        next((count for count in kills if count is not None), None),
    )


def _groups(root: Path) -> Iterator[tuple[Path, str, str]]:
    """Give the folder of this process's group and of each group above it, the nearest first."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, name = (*line.split(":", 2), "", "")[:3]
        if controllers and "memory" not in controllers.split(","):
            continue
        top, limit_file, kills_file = _FIRST if controllers else _UNIFIED
        path = Path(name.lstrip("/"))
        # In a container the name may be the host's, of which only the top is mounted: the walk ends there.
        for one in (path, *path.parents) if name != "/" else (Path(),):
            yield root / top / one, limit_file, kills_file


def _limit(file: Path) -> int | None:
    text = _read(file).strip()
    return int(text) if text.isdigit() and int(text) < _NO_LIMIT else None


def _fields(file: Path) -> dict[str, int]:
    return {name: int(number) for name, number in _FIELD.findall(_read(file))}


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except (OSError, ValueError):
        return ""

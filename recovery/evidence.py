"""What is known of a death, as the ledger keeps it and a person reads it: pure.

A child's death is seen by its parent; of a whole worker's only the last beat is left.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["MEMORY", "of_child", "of_worker", "sampled"]

MEMORY = "@memory"  # among a beat's marks, which are lanes otherwise; no lane is called so
NEAR = 0.9  # of what is allowed: who is killed holding that much has been killed for it


def sampled(resident: Mapping[str, int], *, allowed: int | None) -> dict[str, Any]:
    """Give what a beat tells: the bytes that each executing process holds, and may hold."""
    return {"resident": dict(resident), "allowed": allowed}


def of_child(
    pid: int,
    *,
    killed_by: str | None = None,
    exit_code: int | None = None,
    resident: int | None = None,
    allowed: int | None = None,
    kills: int | None = None,
) -> dict[str, Any]:
    """Tell of a pool child: how it ended, its peak of memory; `kills` are those of the kernel since two beats ago."""
    for_memory = killed_by == "SIGKILL" and (bool(kills) or _is_near(resident, allowed))
    return _told(
        dead=True,
        pid=pid,
        signal=killed_by,
        exit_code=exit_code,
        resident=resident,
        allowed=allowed if resident is not None else None,
        out_of_memory="likely" if for_memory else None,
    )


def of_worker(pid: int | None, marks: Mapping[str, Any] | None, *, dead: bool) -> dict[str, Any]:
    """Tell of a step whose whole worker is gone: how nobody has seen; what its process held at the last beat."""
    memory = marks if isinstance(marks, Mapping) else {}
    resident = (memory.get("resident") or {}).get(str(pid))
    allowed = memory.get("allowed") if resident is not None else None
    return _told(
        dead=True if dead else None,
        pid=pid,
        resident=resident,
        allowed=allowed,
        seen="last beat" if resident is not None else None,
        out_of_memory="likely" if _is_near(resident, allowed) else None,
    )


def _is_near(resident: int | None, allowed: int | None) -> bool:
    return resident is not None and allowed is not None and resident >= NEAR * allowed


def _told(**facts: Any) -> dict[str, Any]:
    return {name: fact for name, fact in facts.items() if fact is not None}

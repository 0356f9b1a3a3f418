"""The deaths of a step's processes, in words: what a person reads about a step that is held as poison, and types next.

Pure: it takes the evidence that `lose_v1` has put into the hold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

__all__ = ["deaths", "line", "next_step", "sentence", "size"]

Evidence = Mapping[str, Any]
_UNITS: Final = ("bytes", "KiB", "MiB", "GiB", "TiB")
# What people have learned these to mean.
_MEANING: Final[Mapping[str, str]] = {
    "SIGSEGV": "a crash in native code",
    "SIGBUS": "a crash in native code",
    "SIGILL": "a crash in native code",
    "SIGABRT": "a crash in native code",
}


def sentence(detail: Evidence) -> str | None:
    """Say what has killed the workers of a held step; None where the hold has no evidence."""
    found = deaths(detail)
    if not found:
        return None
    count = int(detail.get("deaths") or len(found)) + int(detail.get("shared_deaths") or 0)
    how = Counter(_how(one) for one in found)
    ways = ", ".join(f"{way}{_times(number)}" for way, number in how.most_common())
    ways = ways if count == len(found) else f"of the last {len(found)}, {ways}"
    shared = int(detail.get("shared_deaths") or 0)
    beside = f" ({shared} of them with other steps beside it)" if shared else ""
    step = detail.get("step", "?")
    return f"the worker died under step {step}{_times(count)}{beside}: {ways}; {_last(found[-1])}"


def next_step(detail: Evidence, run_id: str) -> str:
    """Say what to do, and the command after it."""
    found = deaths(detail)
    what = "give the step less to hold or its worker more memory" if _for_memory(found) else "mend the step"
    return f"{what}, then: safepoint resume {run_id}" if found else f"safepoint resume {run_id}"


def line(one: Evidence) -> str:
    """Tell one death: how, of which process, after how long, and what it held."""
    parts = [_how(one), f"pid {one['pid']}" if one.get("pid") else "", f"on {one.get('node', 'a node')}",
             f"epoch {one.get('epoch')}", _ran(one), _memory(one), _suspicion(one),
             "other steps beside it" if one.get("shared") else ""]  # fmt: skip
    return ", ".join(part for part in parts if part)


def deaths(detail: Evidence) -> Sequence[Evidence]:
    """Give the deaths of a hold, the newest last."""
    found = detail.get("evidence")
    return [one for one in found if isinstance(one, Mapping)] if isinstance(found, list) else []


def size(count: float) -> str:
    """Give a number of bytes as people say it."""
    unit = 0
    while count >= 1000 and unit < len(_UNITS) - 1:  # 0.98 GiB rather than 1001 MiB
        count, unit = count / 1024, unit + 1
    return f"{count:.0f} {_UNITS[unit]}" if unit == 0 or count >= 100 else f"{count:.1f} {_UNITS[unit]}"


def _how(one: Evidence) -> str:
    error = one.get("error")
    if one.get("signal"):
        return str(one["signal"])
    if one.get("exit_code") is not None:
        return f"exit code {one['exit_code']}"
    if isinstance(error, Mapping):
        return f"an error outside its code, {error.get('type')}: {error.get('message')}"
    return "the whole worker died" if one.get("cause") == "node" else "nobody has seen how"


def _last(one: Evidence) -> str:
    parts = [_ran(one), _memory(one)]
    told = " with ".join(part for part in parts if part)
    place = f"on {one.get('node', 'a node')}"
    last = ", ".join(part for part in (f"last {place} {told}".rstrip(), _suspicion(one)) if part)
    # Nobody waits for a worker's main process but whoever has started it.
    return f"{last}; its supervisor or the kernel's log tells how it ended" if one.get("cause") == "node" else last


def _ran(one: Evidence) -> str:
    return f"after {one['ran']:g} s" if isinstance(one.get("ran"), int | float) else ""


def _memory(one: Evidence) -> str:
    if not isinstance(one.get("resident"), int):
        return ""
    of = f" of {size(one['allowed'])} allowed" if isinstance(one.get("allowed"), int) else ""
    seen = f" at its {one['seen']}" if one.get("seen") else ""
    return f"{size(one['resident'])} resident{seen}{of}"


def _suspicion(one: Evidence) -> str:
    if one.get("out_of_memory"):
        return f"{one['out_of_memory']} out of memory"
    return _MEANING.get(str(one.get("signal")), "")


def _for_memory(found: Sequence[Evidence]) -> bool:
    return any(one.get("out_of_memory") for one in found)


def _times(number: int) -> str:
    return " once" if number == 1 else f" {number} times"

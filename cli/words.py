"""What a run comes to in one sentence, and the command to type next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from ..ledger.span import span

__all__ = ["age", "clock", "lines_of", "moment", "next_command", "short", "span", "verdict"]

Document = Mapping[str, Any]


def _instant(text: object) -> datetime | None:
    try:
        return datetime.fromisoformat(str(text))
    except ValueError:
        return None  # infinity, or nothing


def age(text: object, *, now: datetime | None = None) -> str:
    """Say how long ago an instant was."""
    then = _instant(text)
    return "" if then is None else span(((now or datetime.now(UTC)) - then).total_seconds())


def clock(text: object) -> str:
    """Give the time of day of an instant, in the reader's own time zone."""
    then = _instant(text)
    return "" if then is None else then.astimezone().strftime("%H:%M:%S.%f")[:-3]


def moment(text: object, *, now: datetime | None = None) -> str:
    """Give the time of an instant to the second, and its day unless that is today."""
    then = _instant(text)
    if then is None:
        return ""
    here, today = then.astimezone(), (now or datetime.now(UTC)).astimezone().date()
    return here.strftime("%H:%M:%S" if here.date() == today else "%Y-%m-%d %H:%M:%S")


def short(value: object, *, width: int = 100) -> str:
    """Give a value in one line that is not too long; what would steer a terminal is shown, not sent to it."""
    text = " ".join(str(value).split())
    if not text.isprintable():
        text = "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)
    return text if len(text) <= width else text[: width - 1] + "…"


def verdict(run: Document, why: Document) -> str:
    """Tell in one sentence where a run stands."""
    name = f"{run['flow']}@{run['version']}"
    steps = _counted(run["completed_steps"], "step")
    match run["status"]:
        case "succeeded":
            return f"{name} succeeded in {_took(run)}: {steps} committed{_recovered(run)}."
        case "failed":
            error = run["error"] if isinstance(run["error"], Mapping) else {"message": run["error"]}
            told = short(f"{error.get('type', 'error')}: {error.get('message', '')}")
            return f"{name} failed after {_took(run)}, with {steps} committed: {told}"
        case "cancelled":
            return f"{name} was cancelled after {_took(run)}, with {steps} committed."
        case status:
            return f"{name} is {status}, {age(run['created_at'])} old, {steps} committed: {_doing(why)}."


def _doing(why: Document) -> str:
    running: Sequence[Document] = why["running"]
    reasons: Sequence[Document] = why["reasons"]
    if reasons and (why["status"] == "held" or not running):
        more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
        return short(reasons[0]["text"], width=240) + more
    if running:
        first = running[0]
        more = f" and {len(running) - 1} more" if len(running) > 1 else ""
        return f"{first['step']}{more} under way on {first['node']} for {span(first['for'] or 0)}"
    return "its next step is on its way to a worker"


def _took(run: Document) -> str:
    begun, ended = _instant(run["created_at"]), _instant(run["finished_at"])
    return span((ended - begun).total_seconds()) if begun and ended else "a while"


def _recovered(run: Document) -> str:
    lost = sum(step["recoveries"] for step in run.get("steps", ()))
    return f", {_counted(lost, 'recovery')} on the way" if lost else ""


def _counted(number: int, noun: str) -> str:
    plural = noun[:-1] + "ies" if noun.endswith("y") else noun + "s"
    return f"{number} {noun if number == 1 else plural}"


def next_command(run: Document, why: Document) -> str:
    """Give the command to type next."""
    id_ = run["run_id"]
    match run["status"]:
        case "succeeded":
            return f"safepoint show {id_} --json"
        case "failed" if not _is_retried(run):
            return f"safepoint show {id_} --json"
        case "failed":
            return f"safepoint retry {id_}"
        case "cancelled":
            return f"safepoint enqueue {run['flow']} --input JSON"
    if why["reasons"] and (run["status"] == "held" or not why["running"]):
        return str(why["reasons"][0]["next"])
    return f"safepoint watch {id_}"


def _is_retried(run: Document) -> bool:
    """Whether `retry` would be taken: not past its deadline, nor when what it did has been undone."""
    error = run["error"] if isinstance(run["error"], Mapping) else {}
    undone = any("compensate:" in str(effect["key"]) for effect in run.get("effects", ()))
    return error.get("type") != "DeadlineExceeded" and not undone


def lines_of(event: Document) -> str:
    """Give an event as a line."""
    data = event["data"] if isinstance(event["data"], Mapping) else {}
    told = " ".join(f"{name}={_told(value)}" for name, value in data.items() if value is not None and name not in _LONG)
    parts = (clock(event["at"]), f"{event['seq']:>4}", f"{event['type']:<15}", event["key"] or "", told)
    return "  ".join(part for part in parts if part)


_LONG = frozenset({"detail", "evidence"})


def _told(value: object) -> str:
    if isinstance(value, Mapping) and "type" in value:
        return short(f"{value['type']}: {value.get('message', '')}", width=60)
    if isinstance(value, str) and "T" in value and (time := clock(value)):
        return time
    return short(value, width=60)

"""Stands in for a language model: its answers are computed from the prompt, it takes its time, and it counts tokens.

No network, no randomness: the same prompt gives the same answer. INCIDENT_MODEL_SECONDS is how long a long answer
takes; each call is written down in INCIDENT_BILL when it begins, as a provider would who charges for what it is asked.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

USD_PER_TOKEN = 3 / 1_000_000
CHARACTERS_PER_TOKEN = 4


@dataclass(frozen=True)
class Answer:
    """What the model says, and what it costs."""

    text: str
    tokens: int
    usd: float


def ask(task: str, prompt: str, *, effort: float, tell: Callable[[int], object] | None = None) -> Answer:
    """Ask the model; `effort` is the part of INCIDENT_MODEL_SECONDS that it thinks, `tell` hears the percentage."""
    text = ANSWERS[task](prompt)
    tokens = (len(prompt) + len(text)) // CHARACTERS_PER_TOKEN
    _charge(task, tokens)
    seconds = float(os.environ.get("INCIDENT_MODEL_SECONDS", "4")) * effort
    for tenth in range(1, 11):
        time.sleep(seconds / 10)
        if tell is not None:
            tell(10 * tenth)
    return Answer(text, tokens, round(tokens * USD_PER_TOKEN, 6))


def _charge(task: str, tokens: int) -> None:
    path = os.environ.get("INCIDENT_BILL")
    if path:
        line = json.dumps({"task": task, "tokens": tokens, "at": datetime.now(UTC).isoformat(), "pid": os.getpid()})
        with Path(path).open("a") as bill:
            bill.write(line + "\n")


def _plan(prompt: str) -> str:
    """Choose the metrics and services to look at: those of the alert, and what its words are usually about."""
    about = {
        "latency": ["latency_p95_ms", "db_pool_wait_ms", "db_connections_in_use", "cpu_percent", "gc_pause_ms"],
        "error": ["error_rate", "db_connections_in_use", "memory_mb"],
        "memory": ["memory_mb", "gc_pause_ms"],
    }
    words = prompt.lower()
    metrics = [metric for word, names in about.items() if word in words for metric in names]
    metrics += ["error_rate", "requests_per_s"]
    services = sorted(set(re.findall(r"^service (\S+)$", prompt, re.MULTILINE)))
    return json.dumps({"metrics": list(dict.fromkeys(metrics)), "services": services})


def _diagnose(prompt: str) -> str:
    """Name the metric that moved first, the change before it, and who is named most often by new complaints."""
    shifts = re.findall(r"^metric (\S+) went from (\S+) to (\S+) since (\S+)$", prompt, re.MULTILINE)
    changes = re.findall(r"^change (\S+) (.+)$", prompt, re.MULTILINE)
    complaints = re.findall(r"^complaint (\d+) times since (\S+): (.+)$", prompt, re.MULTILINE)
    first = min(shifts, key=lambda shift: shift[3]) if shifts else ("no metric", "?", "?", "9999")
    trigger = max((change for change in changes if change[0] <= first[3]), default=("", "nothing that was recorded"))
    named = [name for _, _, text in complaints for name in re.findall(r"\b[A-Z]\w+\.\w+\b", text)]
    worst = max(complaints, key=lambda complaint: int(complaint[0]), default=("0", "", "no complaint"))
    culprit = max(sorted(set(named)), key=named.count) if named else "an unknown caller"
    change = re.search(r"(release|feature) (\S+)", trigger[1])
    title = f"{first[0]} grows since {change[0] if change else trigger[0]}: {culprit} does not give back what it takes"
    lines = [
        f"First to move: {first[0]}, from {first[1]} to {first[2]}, since {first[3]}.",
        f"Last change before it: {trigger[1]} ({trigger[0]}).",
        f"Named by the logs: {culprit}.",
        f"What users see: {worst[2]} ({worst[0]} times).",
        *(f"Follows: {name} from {before} to {after}." for name, before, after, _ in shifts if name != first[0]),
        "Proposed: switch the feature off or go back one release; give connections back in a finally block.",
    ]
    return json.dumps({"title": title, "lines": lines})


def _summarize(prompt: str) -> str:
    """Say it in one paragraph for people who were not there."""
    facts = dict(re.findall(r"^(\w+): (.+)$", prompt, re.MULTILINE))
    return (
        f"{facts.get('alert', 'An alert')} fired for {facts.get('service', 'a service')}. Most likely cause: "
        f"{facts.get('cause', 'unknown')}. Ticket {facts.get('ticket', '?')} is open for team {facts.get('team', '?')}."
    )


ANSWERS: dict[str, Callable[[str], str]] = {"plan": _plan, "diagnose": _diagnose, "summarize": _summarize}

"""An incident agent: reads an alert's metrics and logs, finds the cause with a model, and opens one ticket.

    SAFEPOINT_FLOWS=incident_agent PYTHONPATH=examples/incident safepoint up
    safepoint enqueue incident --input @examples/incident/input/alert.json

Every step below is committed once. Kill the worker at any moment: the run goes on from its last committed step, the
model is not asked again for what it has answered, and there is one ticket.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import stand_in_model as model
import tickets
from evidence import Logs, Shift, find_shifts, read_logs
from safepoint import NOT_EXECUTED, Found, Lookup, current, effect, flow, gather, step
from tenacity import stop_after_attempt, wait_random_exponential
from tickets import Ticket

INPUT = Path(os.environ.get("INCIDENT_INPUT", Path(__file__).parent / "input"))


@dataclass(frozen=True)
class Alert:
    """What the monitoring sends."""

    id: str
    service: str
    title: str
    fired_at: datetime
    severity: str = "warning"
    metric: str = ""
    threshold: float = 0.0
    runbook: str = ""
    labels: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """Where to look."""

    metrics: list[str]
    services: list[str]


@dataclass(frozen=True)
class Cause:
    """What the model believes."""

    title: str
    body: str


@dataclass(frozen=True)
class Report:
    """What the run comes to."""

    cause: str
    ticket: int
    url: str
    summary: str


@step(uses="llm", timeout=120, wait=wait_random_exponential(max=30), stop=stop_after_attempt(6))
def plan(title: str, service: str) -> Plan:
    """Decide which metrics and logs matter for this alert."""
    known = sorted(path.stem for path in (INPUT / "logs").glob("*.log"))
    prompt = "\n".join(["Where do we look?", f"alert {title}", *(f"service {name}" for name in {service, *known})])
    answer = model.ask("plan", prompt, effort=0.1)
    current().spend(tokens=answer.tokens, usd=answer.usd)
    return Plan(**json.loads(answer.text))


@step(uses="metrics", timeout=60)
def fetch_metrics(names: list[str], until: datetime) -> list[Shift]:
    """Find the metrics that left their normal range."""
    return find_shifts(INPUT / "metrics.csv", names, until)


@step(uses="logs", timeout=60)
def fetch_logs(services: list[str], until: datetime) -> Logs:
    """Find what is new in the logs."""
    return read_logs(INPUT / "logs", services, until)


@step(uses="llm", timeout=300, wait=wait_random_exponential(max=60), stop=stop_after_attempt(6))
def diagnose(title: str, shifts: list[Shift], logs: Logs) -> Cause:
    """Ask the model for the cause: the expensive step."""
    prompt = "\n".join(
        [
            f"What causes: {title}?",
            *(
                f"metric {one.metric} went from {one.before} to {one.after} since {one.since.isoformat()}"
                for one in shifts
            ),
            *(f"complaint {one.count} times since {one.first.isoformat()}: {one.text}" for one in logs.patterns),
            *(f"change {one}" for one in logs.changes),
            "",
            *logs.lines,
        ]
    )
    answer = model.ask("diagnose", prompt, effort=1.0)
    current().spend(tokens=answer.tokens, usd=answer.usd)
    current().note("the model has named a cause", percent=70)
    found = json.loads(answer.text)
    return Cause(title=found["title"], body="\n".join(found["lines"]))


@effect(uses="tickets", timeout=30, not_sent=(ConnectionRefusedError,))
def open_ticket(title: str, body: str) -> Ticket:
    """Open the ticket, under a key that stays the same whoever executes this."""
    return tickets.create(title, body, idempotency_key=current().idempotency_key)


@open_ticket.lookup
def find_ticket(title: str, body: str) -> Lookup[Ticket]:  # noqa: ARG001  # a lookup takes the effect's parameters
    """Ask whether the ticket exists, when nobody knows."""
    found = tickets.find(key=current().idempotency_key)
    return NOT_EXECUTED if found is None else Found(found)


@open_ticket.compensate
def close_ticket(ticket: Ticket) -> None:
    """Close it again, should the run fail later."""
    tickets.close(ticket.number)


@step(uses="llm", timeout=120, wait=wait_random_exponential(max=30), stop=stop_after_attempt(6))
def summarize(alert: Alert, cause: Cause, ticket: Ticket) -> str:
    """Say it in one paragraph."""
    team = alert.labels.get("team", alert.service)
    facts = {"alert": alert.title, "service": alert.service, "team": team, "cause": cause.title}
    prompt = "\n".join(f"{name}: {value}" for name, value in (facts | {"ticket": f"#{ticket.number}"}).items())
    answer = model.ask("summarize", prompt, effort=0.1)
    current().spend(tokens=answer.tokens, usd=answer.usd)
    return answer.text


@flow(version="1")
async def incident(alert: Alert) -> Report:
    """Handle one alert, from its evidence to a ticket."""
    current().note(f"{alert.id} ({alert.severity}): {alert.title}", percent=5)
    look_at = await plan(alert.title, alert.service)
    shifts, logs = await gather(
        fetch_metrics(look_at.metrics, alert.fired_at),
        fetch_logs(look_at.services, alert.fired_at),
    )
    current().note(f"{len(shifts)} metrics moved, {len(logs.patterns)} kinds of complaints", percent=30)
    cause = await diagnose(alert.title, shifts, logs)
    ticket = await open_ticket(title=f"[{alert.id}] {cause.title}", body=cause.body)
    summary = await summarize(alert, cause, ticket)
    return Report(cause=cause.title, ticket=ticket.number, url=ticket.url, summary=summary)

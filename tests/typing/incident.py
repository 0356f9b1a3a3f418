"""The program of the README, with what a type checker must know about it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import assert_type

from safepoint import (
    NOT_EXECUTED,
    UNSURE,
    Artifact,
    Budget,
    Decision,
    Found,
    Lookup,
    Run,
    approval,
    current,
    effect,
    flow,
    gather,
    step,
)
from tenacity import retry_if_exception_type, stop_after_attempt, wait_random_exponential


@dataclass
class Alert:
    service: str


@dataclass
class Cause:
    title: str
    body: str


@dataclass
class Ticket:
    number: int
    url: str


class TransientError(Exception):
    pass


@step
def fetch_metrics(alert: Alert) -> list[float]:
    return [1.0]


@step(uses="logs", freshness=30)
async def fetch_logs(alert: Alert, *, lines: int = 100) -> list[str]:
    return ["a line"] * lines


@step(
    uses="llm",
    timeout=120,
    reserve=Budget(tokens=8_000),
    wait=wait_random_exponential(max=60),
    stop=stop_after_attempt(6),
    retry=retry_if_exception_type(TransientError),
)
def diagnose(alert: Alert, metrics: list[float], logs: list[str]) -> Cause:
    current().spend(tokens=100, usd=0.25)
    current().note("diagnosing", percent=50)
    page = current().once("page", lambda: 3)
    assert_type(page, int)
    assert_type(current().artifact(b"abc", name="a.bin"), Artifact)
    return Cause(title=alert.service, body=str(len(metrics) + len(logs) + page))


@effect(uses="tickets", not_sent=(ConnectionRefusedError,), rejected=lambda error: "409" in str(error))
def open_ticket(title: str, body: str) -> Ticket:
    return Ticket(1, current().idempotency_key)


@open_ticket.lookup
def _(title: str, body: str) -> Lookup[Ticket]:
    if title == "?":
        return UNSURE
    return Found(Ticket(1, body)) if body else NOT_EXECUTED


@open_ticket.compensate
def _(ticket: Ticket) -> None:
    assert_type(ticket.number, int)


@flow(version="2", accepts=("1",), uses_versions={"prompt": "7", "index": lambda: "2025-01"})
async def incident(alert: Alert) -> str | None:
    metrics, logs = await gather(fetch_metrics(alert), fetch_logs(alert, lines=10))
    assert_type(metrics, list[float])
    assert_type(logs, list[str])
    cause = await diagnose(alert, metrics, logs)
    assert_type(cause, Cause)
    decision = await approval("open-ticket", show=cause, expires_in=3600)
    assert_type(decision, Decision)
    if not decision.approved:
        return None
    ticket = await open_ticket(title=cause.title, body=cause.body)
    assert_type(ticket, Ticket)
    return ticket.url


def enqueue(alert: Alert, starts: datetime) -> str | None:
    run = incident(alert).enqueue(
        tenant="acme",
        key="alert-42",
        deadline=7200,
        budget=Budget(tokens=200_000, usd=3),
        tags={"team": "sre"},
        start_at=starts,
    )
    assert_type(run, Run[str | None])
    return run.result(timeout=60)


async def enqueue_from_a_web_app(alert: Alert) -> Run[str | None]:
    return await incident(alert).aenqueue()


def call_bodies_in_a_unit_test(alert: Alert) -> None:
    metrics: list[float] = fetch_metrics.fn(alert)
    assert metrics

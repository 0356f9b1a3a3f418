"""The agent's way to the shop: JSON over HTTP to SHOP_URL, with httpx."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import httpx

TIMEOUT = 10.0  # seconds; less than a step's, so that the step hears of it


@dataclass(frozen=True)
class Order:
    """An order as the shop keeps it."""

    number: str
    item: str
    cents: int
    customer: str


@dataclass(frozen=True)
class Refund:
    """Money that went back."""

    id: int
    order: str
    cents: int


@dataclass(frozen=True)
class Sent:
    """An e-mail that was sent."""

    id: int
    to: str


def find_order(number: str) -> Order | None:
    """Find an order."""
    with _client() as client:
        answer = client.get(f"/orders/{number}")
    return None if answer.status_code == 404 else Order(**_read(answer))


def refund(order: str, cents: int, reason: str, *, key: str) -> Refund:
    """Pay money back; the same key gives the same refund."""
    with _client() as client:
        body = {"order": order, "cents": cents, "reason": reason}
        made = _read(client.post("/refunds", json=body, headers={"Idempotency-Key": key}))
    return Refund(made["id"], made["order"], made["cents"])


def send(to: str, subject: str, body: str, *, reference: str) -> Sent:
    """Send an e-mail; twice if asked twice."""
    with _client() as client:
        mail = {"to": to, "subject": subject, "body": body, "reference": reference}
        made = _read(client.post("/mails", json=mail))
    return Sent(made["id"], made["to"])


def find_sent(*, reference: str) -> Sent | None:
    """Find the e-mail that was sent with this reference."""
    with _client() as client:
        found = _read(client.get("/mails", params={"reference": reference}))
    return Sent(found[0]["id"], found[0]["to"]) if found else None


def _client() -> httpx.Client:
    # No retries of its own, no redirects: an error is about the one request that was sent.
    return httpx.Client(base_url=os.environ.get("SHOP_URL", "http://127.0.0.1:8098"), timeout=TIMEOUT, trust_env=False)


def _read(answer: httpx.Response) -> Any:
    return answer.raise_for_status().json()

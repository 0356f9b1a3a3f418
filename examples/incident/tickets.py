"""The agent's way to the ticket service: plain HTTP to TICKETS_URL."""

from __future__ import annotations

import http.client
import json
import os
from dataclasses import dataclass
from urllib.parse import quote, urlsplit

TIMEOUT = 10.0


class TicketsError(Exception):
    """The ticket service said no."""


@dataclass(frozen=True)
class Ticket:
    """A ticket as the service keeps it."""

    number: int
    title: str
    status: str
    url: str


def create(title: str, body: str, *, idempotency_key: str) -> Ticket:
    """Make a ticket; the same key gives the same ticket."""
    status, found = _request("POST", "/tickets", {"title": title, "body": body}, key=idempotency_key)
    if status not in {200, 201}:
        raise TicketsError(f"{status}: {found.get('error')}")
    return _ticket(found)


def find(*, key: str) -> Ticket | None:
    """Find the ticket that was made with this key."""
    status, found = _request("GET", f"/tickets?key={quote(key)}")
    if status == 404:
        return None
    if status != 200:
        raise TicketsError(f"{status}: {found.get('error')}")
    return _ticket(found)


def close(number: int) -> None:
    """Close a ticket."""
    _request("POST", f"/tickets/{number}/close", {})


def page(text: str) -> str:
    """Let the phone of whoever is on call ring; the pager says no more than that it has heard."""
    status, found = _request("POST", "/pages", {"text": text})
    if status != 202:
        raise TicketsError(f"{status}: {found.get('error')}")
    return str(found["status"])


def _base() -> str:
    return os.environ.get("TICKETS_URL", "http://127.0.0.1:8099")


def _ticket(found: dict[str, object]) -> Ticket:
    url = f"{_base()}/tickets/{found['number']}"
    return Ticket(int(str(found["number"])), str(found["title"]), str(found["status"]), url)


def _request(method: str, path: str, body: object = None, *, key: str | None = None) -> tuple[int, dict[str, object]]:
    # http.client, because a refused connection stays a ConnectionRefusedError: then nothing was sent.
    parts = urlsplit(_base())
    connection = http.client.HTTPConnection(parts.hostname or "127.0.0.1", parts.port or 80, timeout=TIMEOUT)
    headers = {"Content-Type": "application/json", **({"Idempotency-Key": key} if key else {})}
    try:
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()

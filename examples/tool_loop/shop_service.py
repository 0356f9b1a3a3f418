"""A small shop of its own, in memory: orders to read, refunds with idempotency keys, e-mails without.

    python examples/tool_loop/shop_service.py --port 8098

GET /orders/NUMBER. POST /refunds {"order", "cents", "reason"} with `Idempotency-Key`: 201 and the refund; the same key
and content again: 200 and the same refund; the same key with other content, or more than is left of the order: 422.
POST /mails {"to", "subject", "body", "reference"}: 201, each time anew. GET /refunds, GET /mails?reference=TEXT.
"""

from __future__ import annotations

import argparse
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

ORDERS = {
    "A-1001": {"number": "A-1001", "item": "teapot", "cents": 4_990, "customer": "ada@example.com"},
    "A-1002": {"number": "A-1002", "item": "six cups", "cents": 8_400, "customer": "grace@example.com"},
}
Answer = tuple[int, Any]


class Books:
    """What was paid back and what was sent."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.refunds: list[dict[str, Any]] = []
        self.mails: list[dict[str, Any]] = []

    def refund(self, key: str, given: dict[str, Any]) -> Answer:
        """Pay back, or find what this key has paid."""
        wanted = {name: given[name] for name in ("order", "cents", "reason")}
        with self._lock:
            for old in self.refunds:
                if old["key"] == key:
                    old["requests"] += 1
                    return (200, old) if wanted.items() <= old.items() else (422, {"error": "another request's key"})
            paid = sum(old["cents"] for old in self.refunds if old["order"] == wanted["order"])
            if not 0 < wanted["cents"] <= ORDERS[wanted["order"]]["cents"] - paid:
                return 422, {"error": "more than is left of the order"}
            self.refunds.append(wanted | {"id": len(self.refunds) + 1, "key": key, "requests": 1})
            return 201, self.refunds[-1]

    def send(self, given: dict[str, Any]) -> Answer:
        """Send an e-mail."""
        with self._lock:
            mail = {name: given[name] for name in ("to", "subject", "body", "reference")}
            self.mails.append(mail | {"id": len(self.mails) + 1})
            return 201, self.mails[-1]


class Handler(BaseHTTPRequestHandler):
    """Speaks HTTP for the books of its server."""

    protocol_version = "HTTP/1.1"
    server: Service  # pyright: ignore[reportIncompatibleVariableOverride]  # nothing else has this handler

    def do_GET(self) -> None:
        """Answer a question."""
        url, books = urlsplit(self.path), self.server.books
        match url.path.strip("/").split("/"):
            case ["orders", number] if number in ORDERS:
                self._answer(200, ORDERS[number])
            case ["refunds"]:
                self._answer(200, books.refunds)
            case ["mails"]:
                wanted = parse_qs(url.query).get("reference")
                self._answer(200, [mail for mail in books.mails if not wanted or mail["reference"] == wanted[0]])
            case _:
                self._answer(404, {"error": "no such page"})

    def do_POST(self) -> None:
        """Pay back, or send."""
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            given, key = json.loads(raw), self.headers.get("Idempotency-Key")
            match self.path:
                case "/refunds" if key:
                    self._answer(*self.server.books.refund(key, given))
                case "/mails":
                    self._answer(*self.server.books.send(given))
                case _:
                    self._answer(404, {"error": "no such page, or no Idempotency-Key"})
        except (ValueError, KeyError, TypeError) as error:
            self._answer(400, {"error": f"{type(error).__name__}: {error}"})

    def _answer(self, status: int, value: object) -> None:
        data = json.dumps(value, indent=1).encode() + b"\n"
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the base class's name for it
        """Write nothing; the books are the log."""


class Service(ThreadingHTTPServer):
    """The server, with its books."""

    daemon_threads = True

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.books = Books()


def main() -> None:
    """Serve until a signal ends it."""
    parser = argparse.ArgumentParser(description="A small shop.")
    parser.add_argument("--port", type=int, default=8098, help="0 takes a free one")
    service = Service(parser.parse_args().port)
    print(f"listening on http://127.0.0.1:{service.server_address[1]}", flush=True)
    try:
        service.serve_forever()
    except KeyboardInterrupt:
        service.server_close()


if __name__ == "__main__":
    main()

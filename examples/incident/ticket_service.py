"""A small ticket system of its own: HTTP, an SQLite file, and idempotency keys as real ones have them.

    python ticket_service.py --port 8099 --file tickets.sqlite

POST /tickets {"title", "body"} with `Idempotency-Key`: 201 and the ticket; the same key and content again: 200 and the
same ticket; the same key with other content: 409. Without a key each request makes a ticket.
GET /tickets, GET /tickets?key=KEY, GET /tickets/NUMBER, POST /tickets/NUMBER/close, GET /health.

Beside it a pager as simple ones are: POST /pages {"text"} lets a phone ring each time; it knows no key, and cannot be
asked what it has done. GET /pages is what the phone's owner would remember.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import threading
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

SCHEMA = """
CREATE TABLE IF NOT EXISTS tickets (
    number INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT UNIQUE, title TEXT NOT NULL, body TEXT NOT NULL,
    status TEXT NOT NULL DEFAULT 'open', requests INTEGER NOT NULL DEFAULT 1, created_at TEXT NOT NULL
)"""
PAGES = """
CREATE TABLE IF NOT EXISTS pages (
    number INTEGER PRIMARY KEY AUTOINCREMENT, text TEXT NOT NULL, created_at TEXT NOT NULL
)"""
MAX_BODY = 1_000_000


class Tickets:
    """The tickets; one lock around one connection is enough for a service of this size."""

    def __init__(self, file: str) -> None:
        self._lock = threading.Lock()
        self._database = sqlite3.connect(file, check_same_thread=False, isolation_level=None)
        self._database.row_factory = sqlite3.Row
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute(SCHEMA)
        self._database.execute(PAGES)

    def create(self, key: str | None, title: str, body: str) -> tuple[int, dict[str, object]]:
        """Make a ticket, or find the one that this key has made."""
        with self._lock:
            old = self._one("SELECT * FROM tickets WHERE key = ?", key) if key else None
            if old is None:
                now = datetime.now(UTC).isoformat()
                values = (key, title, body, now)
                made = self._database.execute(
                    "INSERT INTO tickets (key, title, body, created_at) VALUES (?, ?, ?, ?)", values
                )
                return 201, self._one("SELECT * FROM tickets WHERE number = ?", made.lastrowid) or {}
            self._database.execute("UPDATE tickets SET requests = requests + 1 WHERE number = ?", (old["number"],))
            if (old["title"], old["body"]) != (title, body):
                return 409, {"error": "this Idempotency-Key was used with other content", "number": old["number"]}
            return 200, {**old, "requests": int(str(old["requests"])) + 1}

    def close(self, number: int) -> tuple[int, dict[str, object]]:
        """Close a ticket; closing it again changes nothing."""
        with self._lock:
            self._database.execute("UPDATE tickets SET status = 'closed' WHERE number = ?", (number,))
        return self.get("SELECT * FROM tickets WHERE number = ?", number)

    def page(self, text: str) -> tuple[int, dict[str, object]]:
        """Let the phone ring."""
        with self._lock:
            values = (text, datetime.now(UTC).isoformat())
            self._database.execute("INSERT INTO pages (text, created_at) VALUES (?, ?)", values)
        return 202, {"status": "accepted"}

    def pages(self) -> list[dict[str, object]]:
        """List how often the phone has rung."""
        return [dict(row) for row in self._database.execute("SELECT * FROM pages ORDER BY number")]

    def get(self, query: str, value: object) -> tuple[int, dict[str, object]]:
        """Find one ticket."""
        found = self._one(query, value)
        return (200, found) if found else (404, {"error": "no such ticket"})

    def every(self) -> list[dict[str, object]]:
        """List all tickets."""
        return [dict(row) for row in self._database.execute("SELECT * FROM tickets ORDER BY number")]

    def end(self) -> None:
        """Close the file."""
        self._database.close()

    def _one(self, query: str, value: object) -> dict[str, object] | None:
        row = self._database.execute(query, (value,)).fetchone()
        return None if row is None else dict(row)


class Handler(BaseHTTPRequestHandler):
    """Speaks HTTP for the tickets of its server."""

    protocol_version = "HTTP/1.1"
    server: Service  # pyright: ignore[reportIncompatibleVariableOverride]  # nothing else has this handler

    def do_GET(self) -> None:
        """Answer a question."""
        url = urlsplit(self.path)
        key = parse_qs(url.query).get("key")
        match url.path.strip("/").split("/"):
            case ["health"]:
                self._answer(200, {"status": "ok"})
            case ["tickets"] if key:
                self._answer(*self.server.tickets.get("SELECT * FROM tickets WHERE key = ?", key[0]))
            case ["tickets"]:
                self._answer(200, self.server.tickets.every())
            case ["pages"]:
                self._answer(200, self.server.tickets.pages())
            case ["tickets", number] if number.isdecimal():
                self._answer(*self.server.tickets.get("SELECT * FROM tickets WHERE number = ?", int(number)))
            case _:
                self._answer(404, {"error": "no such page"})

    def do_POST(self) -> None:
        """Make or close a ticket."""
        size = int(self.headers.get("Content-Length") or 0)
        if size > MAX_BODY:
            self.close_connection = True
            return self._answer(413, {"error": "too large"})
        raw = self.rfile.read(size)
        match urlsplit(self.path).path.strip("/").split("/"):
            case ["tickets"]:
                self._create(raw)
            case ["pages"]:
                self._page(raw)
            case ["tickets", number, "close"] if number.isdecimal():
                self._answer(*self.server.tickets.close(int(number)))
            case _:
                self._answer(404, {"error": "no such page"})
        return None

    def _create(self, raw: bytes) -> None:
        try:
            sent = json.loads(raw)
            title, body = sent["title"], sent["body"]
        except (ValueError, KeyError, TypeError):
            return self._answer(400, {"error": 'accepted is {"title": "...", "body": "..."}'})
        return self._answer(*self.server.tickets.create(self.headers.get("Idempotency-Key"), str(title), str(body)))

    def _page(self, raw: bytes) -> None:
        try:
            text = str(json.loads(raw)["text"])
        except (ValueError, KeyError, TypeError):
            return self._answer(400, {"error": 'accepted is {"text": "..."}'})
        return self._answer(*self.server.tickets.page(text))

    def _answer(self, status: int, value: object) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the base class's name for it
        """Write nothing; the tickets are the log."""


class Service(ThreadingHTTPServer):
    """The server, with its tickets."""

    daemon_threads = True

    def __init__(self, port: int, file: str) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.tickets = Tickets(file)


def main() -> None:
    """Serve until a signal ends it."""
    parser = argparse.ArgumentParser(description="A small ticket system.")
    parser.add_argument("--port", type=int, default=8099, help="0 takes a free one")
    parser.add_argument("--file", default="tickets.sqlite", help="where the tickets are kept")
    options = parser.parse_args()
    service = Service(options.port, options.file)
    print(f"listening on http://127.0.0.1:{service.server_address[1]}", flush=True)
    try:
        service.serve_forever()
    except KeyboardInterrupt:
        service.server_close()


if __name__ == "__main__":
    main()

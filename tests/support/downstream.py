"""The outside world: an HTTP server of its own process that writes down what it was asked and what it really did.

`python -m downstream FOLDER [PORT]`. Three kinds of sides: `keyed` does each idempotency key once, `searchable` does
every POST and can be asked, `blind` does every POST and tells nothing. A script per business reference says how the
next requests are answered. All of it is in one file, a JSON document a line, written before anything is answered:
what was done survives this process too, and counts by key *and* by reference, so that a second execution under
another key is seen.
"""

from __future__ import annotations

import json
import os
import select
import socket
import struct
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

__all__ = ["ASKED", "KINDS", "KNOCKS", "LOG", "LOOKUPS", "POSTS"]

KINDS = ("keyed", "searchable", "blind")
# What a script may say; those with `:S` take seconds. The client is taken for gone when it closes its end.
POSTS = {
    "ok": "do it, answer",
    "late:S": "do it, answer after S seconds, unless the client has gone",
    "delayed:S": "do it after S seconds, whether the client is still there or not",
    "hang:S": "do nothing for S seconds or until the client has gone, then close",
    "500-before": "do nothing, answer 500",
    "500-after": "do it, answer 500",
    "reset-before": "do nothing, reset the connection",
    "reset-after": "do it, reset the connection",
    "refuse": "do nothing, answer 422",
}
LOOKUPS = {
    "ok": "look, answer",
    "slow:S": "look, answer after S seconds what was seen then",
    "500": "answer 500",
    "reset": "reset the connection",
    "nonsense": "answer something that is no answer",
}
KNOCKS = {
    "ok": "let the client go on",
    "pause:S": "let the client wait for S seconds before it sends anything",
    "down": "have the client find nobody: it sends nothing",
}
ASKED = ("knock", "post", "lookup")
LOG = "downstream.jsonl"


@dataclass
class World:
    """What was done, and how the next requests are to be answered."""

    log: Path
    lock: threading.Lock = field(default_factory=threading.Lock)
    numbers: int = 0
    by_key: dict[str, dict[str, Any]] = field(default_factory=dict)
    by_reference: dict[str, dict[str, Any]] = field(default_factory=dict)
    asks: Counter[tuple[str, str]] = field(default_factory=Counter)
    scripts: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    in_flight: int = 0

    def __post_init__(self) -> None:
        """Remember what an earlier process of this world has done."""
        self.log.touch()
        for line in self.log.read_text().splitlines():
            fact = json.loads(line)
            if fact["what"] == "done":
                self._remember(fact)
            elif fact["what"] in ASKED:
                self.asks[fact["what"], fact["reference"]] += 1

    def asked(self, what: str, reference: str, **more: Any) -> str:
        """Write down a request and return how it is to be treated."""
        with self.lock:
            self.asks[what, reference] += 1
            number = self.asks[what, reference]
            script = self.scripts.get(reference, {}).get(what, [])
            behaviour = script[number - 1] if number <= len(script) else "ok"
            self._write(what=what, reference=reference, n=number, behaviour=behaviour, **more)
        return behaviour

    def do(self, kind: str, key: str, reference: str, text: str) -> dict[str, Any]:
        """Do it, unless this side knows the key; return what was done, now or then."""
        with self.lock:
            before = self.by_key.get(key) if kind == "keyed" else None
            if before is not None:
                what = "repeated" if before["text"] == text else "changed"
                self._write(what=what, reference=reference, key=key, text=text)
                return before
            made = {"kind": kind, "key": key, "reference": reference, "text": text}
            fact = {"what": "done", "number": self.numbers + 1, **made}
            self._remember(fact)
            self._write(**fact)
            return fact

    def find(self, *, by: str, value: str) -> dict[str, Any] | None:
        """Look for what was done."""
        with self.lock:
            return (self.by_key if by == "key" else self.by_reference).get(value)

    def _remember(self, fact: dict[str, Any]) -> None:
        self.numbers = fact["number"]
        self.by_key.setdefault(fact["key"], fact)
        self.by_reference.setdefault(fact["reference"], fact)

    def _write(self, **fact: Any) -> None:
        with self.log.open("ab", buffering=0) as log:
            log.write(json.dumps({**fact, "at": time.time()}).encode() + b"\n")


class Handler(BaseHTTPRequestHandler):
    """One request; the path's first part is the kind of side, or what the test itself asks."""

    protocol_version = "HTTP/1.1"
    world: World

    def do_POST(self) -> None:
        kind = self.path.strip("/")
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        reference, text, key = body["reference"], body["text"], self.headers.get("Idempotency-Key", "")
        behaviour = self.world.asked("post", reference, kind=kind, key=key, text=text, **self._who())
        name, _, seconds = behaviour.partition(":")
        with self._counted():
            self._behave(name, float(seconds or 0), (kind, key, reference, text))

    def _behave(self, name: str, seconds: float, request: tuple[str, str, str, str]) -> None:
        if name == "delayed":
            time.sleep(seconds)  # this side is slow, whoever waits
        if name == "hang":
            self._wait_for_the_client_to_go(seconds)
        if name == "refuse":
            return self._answer(422, {"error": "refused"})
        if name in ("hang", "reset-before"):
            return self._reset()
        if name == "500-before":
            return self._answer(500, {"error": "before"})
        fact = self.world.do(*request)
        if name == "late":
            self._wait_for_the_client_to_go(seconds)
        if name == "reset-after":
            return self._reset()
        if name == "500-after":
            return self._answer(500, {"error": "after"})
        return self._answer(200, {"number": fact["number"]})

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        if url.path == "/in-flight":
            return self._answer(200, {"in_flight": self.world.in_flight})
        given = {name: values[0] for name, values in parse_qs(url.query).items()}
        if url.path not in ("/searchable", "/knock"):
            return self._answer(405, {"error": "this side cannot be asked"})
        with self._counted():
            return self._look(given) if url.path == "/searchable" else self._let_in(given["reference"])

    def _let_in(self, reference: str) -> None:
        """Before a request is sent: here whoever is about to send can be met."""
        name, _, seconds = self.world.asked("knock", reference, **self._who()).partition(":")
        self._wait_for_the_client_to_go(float(seconds or 0))
        self._answer(503 if name == "down" else 200, {})

    def _look(self, given: dict[str, str]) -> None:
        found = self.world.find(by=given["by"], value=given[given["by"]])
        behaviour = self.world.asked("lookup", given["reference"], found=found is not None, **self._who())
        what, _, seconds = behaviour.partition(":")
        if what == "slow":
            self._wait_for_the_client_to_go(float(seconds))
        if what == "reset":
            return self._reset()
        if what == "500":
            return self._answer(500, {"error": "lookup"})
        if what == "nonsense":
            return self._answer(200, ["what", "was", "the", "question"])
        return self._answer(200, {"number": found["number"]} if found else {"number": None})

    def do_PUT(self) -> None:
        reference = unquote(self.path.removeprefix("/script/"))
        self.world.scripts[reference] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self._answer(200, {})

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the base class calls it so
        """Say nothing: the log is the file."""

    def _who(self) -> dict[str, int]:
        pid, parent = (self.headers.get(name, "0") for name in ("X-Pid", "X-Parent"))
        return {"pid": int(pid), "parent": int(parent)}

    def _counted(self) -> _Counted:
        return _Counted(self.world)

    def _answer(self, status: int, body: object) -> None:
        data = json.dumps(body).encode()
        self.close_connection = True
        try:
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(data)
        except OSError:
            pass  # the client has gone: that is what scripts are for

    def _reset(self) -> None:
        """Close so that the client gets a reset, not an end."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True

    def _wait_for_the_client_to_go(self, seconds: float) -> None:
        select.select([self.connection], [], [], seconds)  # it has sent all it will: readable means closed


@dataclass
class _Counted:
    """A request that is under way."""

    world: World

    def __enter__(self) -> None:
        with self.world.lock:
            self.world.in_flight += 1

    def __exit__(self, *_: object) -> None:
        with self.world.lock:
            self.world.in_flight -= 1


class Server(ThreadingHTTPServer):
    """A server that may be asked by many at once, and whose clients may be killed."""

    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        """A connection that broke is no news here; anything else is."""
        if not isinstance(sys.exc_info()[1], (OSError, ValueError)):
            super().handle_error(request, client_address)  # type: ignore[arg-type]  # passed on as it came


def serve(folder: Path, port: int) -> None:
    """Serve until the process is killed."""
    Handler.world = World(folder / LOG)
    server = Server(("127.0.0.1", port), Handler)
    os.write(1, f"http://127.0.0.1:{server.server_address[1]} ready.\n".encode())
    server.serve_forever()


if __name__ == "__main__":
    serve(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0)

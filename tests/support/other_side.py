"""The other side of an HTTP client, on the loopback: answers, hangs, resets, refuses, and knows what it was sent."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Handler(BaseHTTPRequestHandler):
    """Does what the path says: /STATUS, /hang, /reset, /redirect/STATUS/PORT."""

    server: OtherSide  # pyright: ignore[reportIncompatibleVariableOverride]  # nothing else has this handler

    def do_POST(self) -> None:
        """Count the request, then answer it, or not."""
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.received.append(f"{self.command} {self.path}")
        if self.server.vanishes:
            # Not close() alone: the accepting thread's poll would keep it open for a moment.
            self.server.socket.shutdown(socket.SHUT_RDWR)
        match self.path.strip("/").split("/"):
            case ["hang"]:
                self.server.over.wait(10)
                self.close_connection = True
            case ["reset"]:
                self.reset()
            case ["redirect", status, port]:
                self.answer(int(status), location=f"http://127.0.0.1:{port}/404")
            case [status]:
                self.answer(int(status))

    do_GET = do_POST  # noqa: N815  # the base class's name for it

    def reset(self) -> None:
        """Close with RST instead of FIN."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.rfile.close()
        self.wfile.close()
        self.connection.close()

    def answer(self, status: int, *, location: str | None = None) -> None:
        """Answer with a status and no body."""
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.send_header("Connection", "close")
        if location is not None:
            self.send_header("Location", location)
        if status == 401:
            self.send_header("WWW-Authenticate", 'Digest realm="r", nonce="n", qop="auth"')
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the base class's name for it
        """Write nothing."""


class OtherSide(ThreadingHTTPServer):
    """A server that knows what it was sent."""

    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.received: list[str] = []
        self.vanishes = False  # after one request nobody listens any more
        self.over = threading.Event()
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: object, client_address: object) -> None:
        """Keep quiet about connections that were reset on purpose."""


@contextlib.contextmanager
def other_side() -> Iterator[OtherSide]:
    """Give a running server."""
    server = OtherSide()

    def serve() -> None:
        # The selector's own error, when the socket vanishes under it.
        with contextlib.suppress(OSError, ValueError):
            server.serve_forever(0.01)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield server
    finally:
        server.over.set()
        server.shutdown()
        thread.join()
        server.server_close()


def closed_port() -> int:
    """Give a port on which nothing listens."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextlib.contextmanager
def deaf() -> Iterator[str]:
    """Give the URL of a port that takes no connection: its queue is full, and nobody empties it."""
    with contextlib.ExitStack() as kept:
        listener = kept.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            client = kept.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(listener.getsockname())
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"

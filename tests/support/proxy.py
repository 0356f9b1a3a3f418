"""A TCP proxy that a test can freeze, cut and shut: what a network does to a client and its server."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

__all__ = ["Proxy"]


class Proxy:
    """Forwards one port of this machine to a server. Use it as a context."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._flowing = threading.Event()
        self._flowing.set()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._lock = threading.Lock()
        self._closed = False

    def __enter__(self) -> Proxy:
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed = True
        self._flowing.set()
        with suppress(OSError):  # wakes the thread that accepts
            socket.create_connection(("127.0.0.1", self.port), 1).close()
        self._listener.close()
        self.cut()

    def freeze(self) -> None:
        """Keep every connection open and forward nothing, as a server that hangs does."""
        self._flowing.clear()

    def thaw(self) -> None:
        """Forward again."""
        self._flowing.set()

    def cut(self) -> None:
        """Break every connection that there is; new ones are accepted."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for end in pair:
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while not self._closed:
            with suppress(OSError):
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target, 5)
                with self._lock:
                    self._pairs.append((client, server))
                for source, sink in ((client, server), (server, client)):
                    threading.Thread(target=self._pump, args=(source, sink), name="proxy", daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                self._flowing.wait()
                sink.sendall(data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        # Both pumps of a pair come here; the second close does nothing.
        source.close()

"""A TCP proxy that a test can freeze, cut and shut: what a network does to a client and its server."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

__all__ = ["Proxy"]

PATIENCE = 10.0  # seconds for its threads to end once every connection is broken


class Proxy:
    """Forwards one port of this machine to a server. Use it as a context: no thread and no socket is left after it."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._flowing = threading.Event()
        self._flowing.set()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._pumps: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._closed = False
        self._acceptor = threading.Thread(target=self._accept, name="proxy", daemon=True)

    def __enter__(self) -> Proxy:
        self._acceptor.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed = True
        self._flowing.set()
        with suppress(OSError):  # wakes the thread that accepts
            socket.create_connection(("127.0.0.1", self.port), 1).close()
        self._acceptor.join(PATIENCE)
        self._listener.close()
        self.cut()
        for pump in self._pumps:
            pump.join(PATIENCE)

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
            client, _ = self._listener.accept()
            try:
                server = socket.create_connection(self._target, 5)
            except OSError:
                client.close()
                continue
            server.settimeout(None)  # the five seconds were for connecting; an idle connection stays
            with self._lock:
                self._pairs.append((client, server))
            for source, sink in ((client, server), (server, client)):
                pump = threading.Thread(target=self._pump, args=(source, sink), name="proxy", daemon=True)
                self._pumps.append(pump)
                pump.start()

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

"""A TCP proxy that loses an answer: the server has done what it was asked, and the client never hears of it."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

from proxy import Proxy

__all__ = ["LossyProxy"]


class LossyProxy(Proxy):
    """Forwards until it is told to lose what the server says next; then that connection breaks."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(host, port)
        self._to_lose = 0
        self._counting = threading.Lock()
        self.lost = 0

    def lose(self, answers: int = 1) -> None:
        """Lose the next answers, each of another connection."""
        with self._counting:
            self._to_lose = answers

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            from_server = source.getpeername()[1] == self._target[1]
            while data := source.recv(65_536):
                if from_server and self._loses():
                    break
                self._flowing.wait()
                sink.sendall(data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        source.close()

    def _loses(self) -> bool:
        with self._counting:
            if not self._to_lose:
                return False
            self._to_lose -= 1
            self.lost += 1
            return True

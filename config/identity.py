"""As whom the embedded servers run: PostgreSQL refuses to be root, and root's folders are closed to everybody else.

No permission outside the home is changed and no system user is made; what works on this machine is found by trying.
"""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from .errors import ConfigError, Problem

__all__ = ["Identity", "choose", "own", "run", "start"]

_LAUNCH = Path(__file__).with_name("launch.py")
_CAP_DAC_OVERRIDE = 1
_CAP_DAC_READ_SEARCH = 2
_NOBODY = 65534


@dataclass(frozen=True, slots=True)
class Identity:
    """A way to become somebody whom PostgreSQL accepts; `uid` none is whoever we are already."""

    uid: int | None = None
    gid: int | None = None
    capabilities: tuple[int, ...] = ()
    namespace: bool = False

    @property
    def owner(self) -> tuple[int, int] | None:
        """Whose the servers' files must be, seen from outside; none when they are ours anyway."""
        return None if self.uid is None or self.gid is None or self.namespace else (self.uid, self.gid)


def choose(home: Path, *, data: Path, program: Path, reads: Sequence[Path]) -> Identity:
    """Find an identity that reaches the home and the program; an ordinary user keeps its own."""
    if os.geteuid() != 0:
        return Identity()
    for identity in _candidates(data):
        if _works(identity, home, program, reads):
            return identity
    text = (
        "PostgreSQL refuses to run as root, and this process may neither become another user nor make a user namespace"
    )
    accepted = "SAFEPOINT_LEDGER_URL and SAFEPOINT_BROKER_URL of servers of your own, or an ordinary user"
    raise ConfigError(None, Problem("embedded stack", str(home), text, accepted))


def _candidates(data: Path) -> Iterator[Identity]:
    uid, gid = _unprivileged(data)
    yield Identity(uid, gid)
    # A closed folder above the home or the program (/root is one): pass through it, first without a right to write.
    yield Identity(uid, gid, (_CAP_DAC_READ_SEARCH,))
    # The one that containers have by default.
    yield Identity(uid, gid, (_CAP_DAC_OVERRIDE,))
    # Rootless containers and build sandboxes: root is the only user that there is.
    yield Identity(_NOBODY, _NOBODY, namespace=True)


def _unprivileged(data: Path) -> tuple[int, int]:
    """Who made the data goes on with it, so that root and an ordinary user can take turns."""
    try:
        found = data.stat()
        if found.st_uid != 0:
            return found.st_uid, found.st_gid
    except OSError:
        pass  # not made yet
    try:
        nobody = pwd.getpwnam("nobody")
    except KeyError:
        return _NOBODY, _NOBODY
    return nobody.pw_uid, nobody.pw_gid


def _works(identity: Identity, home: Path, program: Path, reads: Sequence[Path]) -> bool:
    plan = _plan(identity, home, [str(program), "--version"], reads=reads)
    return subprocess.run(plan, capture_output=True, stdin=subprocess.DEVNULL, check=False).returncode == 0


def own(identity: Identity, folder: Path) -> None:
    """Make a folder under the home, closed to all but the identity; hand it over when it was somebody else's."""
    folder.mkdir(mode=0o700, exist_ok=True)
    owner = identity.owner or (os.geteuid(), os.getegid())
    found = folder.stat()
    if os.geteuid() == 0 and (found.st_uid, found.st_gid) != owner:
        for path in (*folder.rglob("*"), folder):  # the folder last: only then is the work done
            os.chown(path, *owner, follow_symlinks=False)


def run(identity: Identity, home: Path, command: Sequence[str], *, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run a program to its end under the identity."""
    plan = _plan(identity, home, command)
    return subprocess.run(plan, input=stdin, capture_output=True, text=True, check=False)


def start(identity: Identity, home: Path, command: Sequence[str], *, log: Path) -> int:
    """Start a server under the identity, in a session of its own, and return its process id."""
    plan = _plan(identity, home, command, log=log)
    # The server must not inherit a pipe of ours: reading would not end before it does.
    with log.open("ab") as errors:
        done = subprocess.run(plan, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, check=True)
    return int(done.stdout)


def _plan(
    identity: Identity, home: Path, command: Sequence[str], *, reads: Sequence[Path] = (), log: Path | None = None
) -> list[str]:
    plan = {
        "uid": identity.uid,
        "gid": identity.gid,
        "capabilities": identity.capabilities,
        "namespace": identity.namespace,
        "home": str(home),
        "reads": [str(path) for path in reads],
        "command": list(command),
        "log": str(log) if log else None,
        "detach": log is not None,
    }
    return [sys.executable, "-I", "-S", str(_LAUNCH), json.dumps(plan)]

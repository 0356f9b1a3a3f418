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

__all__ = ["Identity", "choose", "command_as", "like_home", "own", "run", "start"]

_LAUNCH = Path(__file__).with_name("launch.py")
_CAP_DAC_OVERRIDE = 1
_CAP_DAC_READ_SEARCH = 2


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
    """Find an identity that reaches the home and the program, and that PostgreSQL accepts."""
    for identity in _candidates(home, data):
        if _works(identity, home, program, reads):
            return identity
    if os.geteuid() == 0:
        text = "PostgreSQL refuses to be root, and this process can neither become another user nor take another name"
    else:
        text = f"PostgreSQL wants a user with a name, and number {os.geteuid()} has none in the password file"
    accepted = "SAFEPOINT_LEDGER_URL and SAFEPOINT_BROKER_URL of servers of your own, or an ordinary user with a name"
    raise ConfigError(None, Problem("embedded stack", str(home), text, accepted))


def _candidates(home: Path, data: Path) -> Iterator[Identity]:
    nobody = _named("nobody")
    user = _owner(data) or _owner(home) or nobody
    if os.geteuid() != 0 and _named(os.geteuid()):
        yield Identity()
        return
    if os.geteuid() == 0 and user:
        yield Identity(user.pw_uid, user.pw_gid)
        # A closed folder above the home or the program (/root is one): pass through it, first without a right to write.
        yield Identity(user.pw_uid, user.pw_gid, (_CAP_DAC_READ_SEARCH,))
        # The one that containers have by default.
        yield Identity(user.pw_uid, user.pw_gid, (_CAP_DAC_OVERRIDE,))
    # Rootless containers and build sandboxes, where root is the only user; and users that are a number only.
    if nobody:
        yield Identity(nobody.pw_uid, nobody.pw_gid, namespace=True)


def _owner(path: Path) -> pwd.struct_passwd | None:
    """Who made the data goes on with it, or else the home's owner: so root and an ordinary user can take turns."""
    try:
        uid = path.stat().st_uid
    except OSError:
        return None  # not made yet
    return _named(uid) if uid != 0 else None


def _named(who: int | str) -> pwd.struct_passwd | None:
    try:
        return pwd.getpwuid(who) if isinstance(who, int) else pwd.getpwnam(who)
    except KeyError:
        return None


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


def like_home(path: Path, home: Path) -> None:
    """Give a file that root makes in somebody's home to that somebody, who may come back without being root."""
    if os.geteuid() == 0:
        found = home.stat()
        os.chown(path, found.st_uid, found.st_gid)


def command_as(identity: Identity, home: Path, command: Sequence[str]) -> list[str]:
    """Return the command that runs another one under the identity."""
    return _plan(identity, home, command)


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

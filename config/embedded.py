"""The embedded stack: PostgreSQL and Valkey under one home, shared by every process that uses it.

Each user holds a shared lock for as long as it lives; who leaves last stops the servers. A user that is killed leaves
them running, and the next one adopts them.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import json
import os
import secrets
import weakref
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from .errors import ConfigError, EmbeddedStackError, Problem
from .identity import like_home
from .postgres import ROLE, Postgres
from .valkey import Valkey

__all__ = ["EmbeddedStack", "Status", "ensure", "status", "stop"]


@dataclass(frozen=True, slots=True)
class _Memory:
    """What one start tells the next: the passwords, which never change, and a port, which seldom does."""

    postgres_password: str
    valkey_password: str
    postgres_port: int | None = None


@dataclass(frozen=True, slots=True)
class Status:
    """What is there: the ports of the servers that run, and whether a process uses them."""

    home: Path
    postgres_port: int | None
    valkey_port: int | None
    in_use: bool


class EmbeddedStack:
    """One process's share in the servers of a home; give it back with `close`, or use it as a context."""

    def __init__(self, home: Path, memory: _Memory, valkey_port: int, users: int) -> None:
        self.home = home
        self._memory = memory
        self._valkey_port = valkey_port
        self._users: int | None = users
        _shares.add(self)
        atexit.register(self.close)

    def __repr__(self) -> str:
        return f"EmbeddedStack({str(self.home)!r})"

    @property
    def ledger_url(self) -> str:
        """The ledger's URL, password included."""
        return f"postgresql://{ROLE}:{self._memory.postgres_password}@127.0.0.1:{self._memory.postgres_port}/{ROLE}"

    @property
    def broker_url(self) -> str:
        """The broker's URL, password included."""
        return f"redis://:{self._memory.valkey_password}@127.0.0.1:{self._valkey_port}/0"

    def mend(self) -> list[str]:
        """Start again the servers whose process has ended, and name them; those who use them keep their URLs."""
        postgres = Postgres(self.home, self._memory.postgres_password)
        valkey = Valkey(self.home, self._memory.valkey_password)
        if self._users is None or (postgres.is_alive and valkey.is_alive):
            return []
        with _door(self.home):
            # Looked at again: another process may have come in between and started them.
            ended = [name for name, server in (("ledger", postgres), ("broker", valkey)) if not server.is_alive]
            ports = postgres.ensure(self._memory.postgres_port), valkey.ensure()
        if ports != (self._memory.postgres_port, self._valkey_port):
            reason = "somebody took a port while its server was down, and all who use it know the old one"
            raise EmbeddedStackError(
                server="stack", reason=reason, log=str(postgres.log), variable="SAFEPOINT_LEDGER_URL"
            )
        return ended

    def close(self) -> None:
        """Leave; the last one to leave stops the servers."""
        users, self._users = self._users, None
        if users is None:
            return
        _shares.discard(self)
        atexit.unregister(self.close)
        with _door(self.home):
            last = _is_alone(users)
            if last:
                _stop(self.home)
            _release(users)

    def forget(self) -> None:
        """Drop this share without giving it back: what a forked child does with its parent's."""
        users, self._users = self._users, None
        if users is not None:
            os.close(users)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


_shares: weakref.WeakSet[EmbeddedStack] = weakref.WeakSet()


def _forget_all() -> None:
    # A forked child has copies of its parent's locks: it must neither give them back nor, by living on, keep them.
    for share in list(_shares):
        share.forget()


os.register_at_fork(after_in_child=_forget_all)


def ensure(home: Path) -> EmbeddedStack:
    """Start the servers of this home, or join those that run; the first time it makes their data."""
    home = _make_home(home)
    with _door(home):
        users = _open(home / "embedded.users")
        try:
            fcntl.flock(users, fcntl.LOCK_SH)
            memory = _remember(home)
            postgres_port = Postgres(home, memory.postgres_password).ensure(memory.postgres_port)
            valkey_port = Valkey(home, memory.valkey_password).ensure()
            if memory.postgres_port != postgres_port:
                memory = replace(memory, postgres_port=postgres_port)
                _write(home, memory)
        except BaseException:  # a Ctrl-C as well: a share that nobody holds would keep the servers up for good
            _release(users)
            raise
    return EmbeddedStack(home, memory, valkey_port, users)


def stop(home: Path) -> None:
    """Stop the servers of this home, whoever uses them: for what a killed process has left behind."""
    if home.exists():
        home = home.resolve()
        with _door(home):
            _stop(home)


def status(home: Path) -> Status:
    """Tell which servers of this home run."""
    if not (home / "embedded.json").exists():
        return Status(home, None, None, in_use=False)
    home = home.resolve()
    with _door(home):
        memory = _remember(home)
        found = Postgres(home, memory.postgres_password).running()
        valkey_port = Valkey(home, memory.valkey_password).running()
        users = _open(home / "embedded.users")
        try:
            in_use = not _is_alone(users)
        finally:
            _release(users)
    return Status(home, found[1] if found else None, valkey_port, in_use=in_use)


def _stop(home: Path) -> None:
    # The broker first: nothing new is handed out while the ledger writes its last commits. Neither is asked for by
    # password: what has lost its passwords must be stoppable all the same.
    Valkey(home, "").stop()
    Postgres(home, "").stop()


def _is_alone(users: int) -> bool:
    # Not atomic as an upgrade, and need not be: everybody who takes this lock holds the door.
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def _door(home: Path) -> Iterator[None]:
    """One process at a time comes in or goes out; two that start at once give one stack."""
    door = _open(home / "embedded.door")
    try:
        fcntl.flock(door, fcntl.LOCK_EX)
        yield
    finally:
        _release(door)


def _release(lock: int) -> None:
    # Unlocked by name, not only closed: a child that another thread has just forked holds a copy.
    fcntl.flock(lock, fcntl.LOCK_UN)
    os.close(lock)


def _open(path: Path) -> int:
    # Python opens with O_CLOEXEC: no program that is started, servers included, holds these locks.
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        like_home(path, path.parent)
    except PermissionError:
        raise _not_ours(path) from None
    return descriptor


def _make_home(home: Path) -> Path:
    try:
        if not home.exists():
            home.mkdir(parents=True, exist_ok=True)
            # Passable for root's unprivileged servers, readable for nobody; their own folders are closed.
            home.chmod(0o711 if os.geteuid() == 0 else 0o700)
            (home / ".gitignore").write_text("*\n")
    except OSError as error:
        problem = Problem("SAFEPOINT_HOME", str(home), f"cannot be made: {error.strerror}", "a folder to write to")
        raise ConfigError(None, problem) from None
    return home.resolve()


def _remember(home: Path) -> _Memory:
    path = home / "embedded.json"
    try:
        kept = json.loads(path.read_text())
        # What another version has written beside it is not for us.
        return _Memory(**{field.name: kept[field.name] for field in fields(_Memory) if field.name in kept})
    except FileNotFoundError:
        memory = _Memory(secrets.token_urlsafe(24), secrets.token_urlsafe(24))
        _write(home, memory)
        return memory
    except PermissionError:
        raise _not_ours(path) from None
    except (ValueError, TypeError):
        text = "does not hold what it should; the passwords of the data beside it are lost"
        raise ConfigError(
            None, Problem("embedded stack", str(path), text, "its backup, or another SAFEPOINT_HOME")
        ) from None


def _write(home: Path, memory: _Memory) -> None:
    """Replace the file as a whole: half of it would lock everybody out of the data."""
    fresh = home / "embedded.json.new"
    fresh.unlink(missing_ok=True)
    fresh.touch(mode=0o600)
    with fresh.open("w") as file:
        json.dump(asdict(memory), file)
        file.flush()
        os.fsync(file.fileno())
    like_home(fresh, home)
    fresh.replace(home / "embedded.json")


def _not_ours(path: Path) -> ConfigError:
    text = "belongs to another user"
    return ConfigError(None, Problem("embedded stack", str(path), text, "a SAFEPOINT_HOME of your own, or that user"))

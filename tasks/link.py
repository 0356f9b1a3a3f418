"""What a client and its runs share: where the ledger is, a few connections to it, who listens, where artifacts are.

Nothing is opened before it is needed. Safe between threads and over a fork.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar
from urllib.parse import urlsplit

import psycopg

from ..config import resolve
from ..config.settings import Settings
from ..config.settings import settings as configured
from ..ledger import enqueue
from ..ledger.artifacts import Store
from ..ledger.connect import Connection, connect
from ..ledger.errors import ConfigError, LedgerUnavailable, Problem
from ..ledger.listen import Listener
from ..ledger.pool import Pool
from ..ledger.seal import Seal

__all__ = ["Link"]

T = TypeVar("T")

SCHEMES: Final = ("postgresql", "postgres", "postgresql+psycopg")
NAME: Final = "safepoint client"
_NO_SCHEMA: Final = (psycopg.errors.InvalidSchemaName, psycopg.errors.UndefinedFunction, psycopg.errors.UndefinedTable)


@dataclass(slots=True)
class _Opened:
    """What is made at first use."""

    url: str
    embedded: resolve.Endpoints | None
    pool: Pool
    listener: Listener


class Link:
    """The way to one ledger."""

    def __init__(self, ledger_url: str | None, *, settings: Settings | None, size: int) -> None:
        self._url = None if ledger_url is None else _checked(ledger_url)
        self._settings = settings
        self._size = size
        self._lock = threading.RLock()
        self._opened: _Opened | None = None
        self._identity: str | None = None
        self._store: Store | None = None
        self._seal: Seal | None = None
        self._closed = False

    @property
    def settings(self) -> Settings:
        """This process's settings, unless the client was given others."""
        return self._settings if self._settings is not None else configured()

    @property
    def store(self) -> Store:
        """Where artifacts are."""
        with self._lock:
            self._store = self._store or Store(self.settings.artifacts_url)
            return self._store

    @property
    def seal(self) -> Seal:
        """What closes and opens values."""
        with self._lock:
            self._seal = self._seal or Seal.load(self.settings.values.codec)
            return self._seal

    @property
    def listener(self) -> Listener:
        """Who hears that a run has ended."""
        return self._open().listener

    @property
    def place(self) -> str:
        """Where the ledger is, for people, without the password."""
        url = self._url or (self.settings.ledger_url.get_secret_value() if self.settings.ledger_url else None)
        if url is None:
            return "the embedded stack" if self._opened else "no configured place"
        parts = urlsplit(url)
        return f"database {parts.path.lstrip('/') or '(default)'} on {parts.hostname or 'a local socket'}"

    def ask(self, question: Callable[[Connection], T]) -> T:
        """Ask the ledger a question that may be repeated.

        Raises:
            LedgerUnavailable: it does not answer.
            SchemaTooOld: its schema is missing, or lacks what this release needs.
            SchemaTooNew: its schema has lost what this release needs.
        """
        opened = self._open()
        try:
            return opened.pool.ask(question)
        except _NO_SCHEMA:
            from ..ledger.upgrade import check  # noqa: PLC0415  # Alembic is loaded only to say what is wrong

            check(_sqlalchemy_url(opened.url))
            raise

    def identity(self, *, afresh: bool = False) -> str | None:
        """Return which ledger is configured, by its own words; None where none is, or it does not answer."""
        if self._url is None and self.settings.ledger_url is None and self._opened is None:
            return None  # an app that enqueues on its own connection alone needs no ledger of ours
        if self._identity is None or afresh:
            try:
                self._identity = self.ask(enqueue.place)
            except LedgerUnavailable:
                return None
        return self._identity

    def _open(self) -> _Opened:
        if self._opened is not None:
            return self._opened
        with self._lock:
            if self._closed:
                raise LedgerUnavailable(text="this client is closed")
            if self._opened is None:
                self._opened = self._make()
            return self._opened

    def _make(self) -> _Opened:
        endpoints = None
        if self._url is not None:
            url = direct = self._url
        else:
            endpoints = resolve.endpoints(self.settings)
            url, direct = endpoints.ledger_url, endpoints.direct_url
            if endpoints.embedded is not None:
                _prepare(url)
        bounds = self.settings.ledger
        to = partial(
            connect,
            name=NAME,
            connect_timeout=bounds.connect_timeout,
            statement_timeout=bounds.statement_timeout,
        )
        pool = Pool(partial(to, url), size=self._size, patience=bounds.connect_timeout)
        return _Opened(url, endpoints, pool, Listener(partial(to, direct)))

    def close(self) -> None:
        """Close every connection, and give back the embedded stack."""
        with self._lock:
            self._closed, opened, self._opened = True, self._opened, None
        if opened is not None:
            opened.listener.close()
            opened.pool.close()
            if opened.embedded is not None:
                opened.embedded.close()


def _checked(url: object) -> str:
    scheme, found, _ = url.partition("://") if isinstance(url, str) else ("", "", "")
    if not isinstance(url, str) or not found or scheme not in SCHEMES:
        # The URL itself is not shown: there may be a password in it.
        accepted = "a URL that starts with " + " or ".join(f"{name}://" for name in SCHEMES)
        raise ConfigError(None, Problem("Client", "ledger_url", "this is no URL of a PostgreSQL", accepted))
    return url


def _prepare(url: str) -> None:
    """Give the embedded ledger its schema: there is nobody else who would."""
    with connect(url, name=NAME) as connection:
        row = connection.execute("SELECT to_regclass('safepoint.schema_version')").fetchone()
    if row is None or row[0] is None:
        from ..ledger.upgrade import upgrade  # noqa: PLC0415  # Alembic is loaded only where there is no schema

        upgrade(_sqlalchemy_url(url))


def _sqlalchemy_url(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    return ("postgresql+psycopg" if scheme in {"postgres", "postgresql"} else scheme) + separator + rest

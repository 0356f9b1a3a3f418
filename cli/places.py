"""Where ledger and broker are, for whoever only looks: nothing is started, and what is missing is a finding."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self
from urllib.parse import unquote, urlsplit

from ..config import embedded
from ..config.resolve import Endpoints, endpoints
from ..config.settings import Settings
from .finding import Finding, error, fine

__all__ = ["Places", "find"]


@dataclass(frozen=True, slots=True)
class Places:
    """The URLs that are known, and what is to be said of those that are not. Use it as a context."""

    ledger_url: str | None = field(default=None, repr=False)
    direct_url: str | None = field(default=None, repr=False)
    broker_url: str | None = field(default=None, repr=False)
    findings: tuple[Finding, ...] = ()
    ends: Endpoints | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, trouble: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.ends is not None:
            self.ends.close()

    @property
    def secrets(self) -> tuple[str, ...]:
        """The passwords, as they are and as they stand in a URL; the longest first."""
        found = set(_passwords(self.ledger_url, self.direct_url, self.broker_url))
        return tuple(sorted(found, key=len, reverse=True))


def _passwords(*urls: str | None) -> Iterator[str]:
    for url in urls:
        password = urlsplit(url).password if url else None
        if password and len(password) > 3:  # a shorter one would be found in any word
            yield password
            yield unquote(password)


def find(settings: Settings) -> Places:
    """Find the servers that are configured, else the embedded ones if they run."""
    urls = (settings.ledger_url, settings.ledger_direct_url, settings.broker_url)
    if not any(urls):
        return _embedded(settings)
    ledger, direct, broker = (url.get_secret_value() if url else None for url in urls)
    missing = []
    if ledger is None:
        text = "SAFEPOINT_LEDGER_URL is not set, but another URL is."
        missing.append(error("configuration", text, "set both URLs, or neither for the embedded servers"))
    if broker is None:
        text = "SAFEPOINT_BROKER_URL is not set: an app needs none, but no worker, relay or beat starts here."
        missing.append(error("configuration", text, "set SAFEPOINT_BROKER_URL"))
    return Places(ledger, direct or ledger, broker, tuple(missing))


def _embedded(settings: Settings) -> Places:
    found = embedded.status(settings.home)
    if not (settings.home / "embedded.json").exists():
        text = f"No URL is set, and {settings.home} holds no data: there is no ledger here yet."
        return Places(findings=(error("embedded", text, "safepoint up, or set SAFEPOINT_LEDGER_URL"),))
    if not found.in_use or found.postgres_port is None or found.valkey_port is None:
        # Joined by nobody else they would be stopped when this process leaves.
        text = f"The embedded servers of {settings.home} are not running."
        return Places(findings=(error("embedded", text, "safepoint up"),))
    ends = endpoints(settings)
    told = fine("embedded", f"The embedded servers of {settings.home} run.")
    return Places(ends.ledger_url, ends.direct_url, ends.broker, (told,), ends)

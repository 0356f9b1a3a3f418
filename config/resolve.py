"""Which ledger and which broker: the configured ones, or the embedded stack when neither is configured."""

from __future__ import annotations

from dataclasses import dataclass, field

from . import embedded
from .errors import ConfigError, Problem
from .settings import Settings

__all__ = ["Endpoints", "endpoints"]


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Where ledger and broker are; `direct_url` goes past a pooler and is the ledger's own URL when there is none."""

    ledger_url: str = field(repr=False)
    direct_url: str = field(repr=False)
    broker: str | None = field(repr=False)
    embedded: embedded.EmbeddedStack | None = None

    @property
    def broker_url(self) -> str:
        """The broker's URL; asked for only by what publishes or consumes, so that an app needs the ledger alone."""
        if self.broker is None:
            raise _missing("SAFEPOINT_BROKER_URL", "the ledger's URL is set, the broker's is not")
        return self.broker

    def close(self) -> None:
        """Give back the embedded stack, if that is what this is."""
        if self.embedded is not None:
            self.embedded.close()


def endpoints(settings: Settings) -> Endpoints:
    """Return the configured URLs, or start (or join) the embedded stack under the home."""
    if settings.ledger_url is not None:
        ledger = settings.ledger_url.get_secret_value()
        direct = settings.ledger_direct_url.get_secret_value() if settings.ledger_direct_url else ledger
        broker = settings.broker_url.get_secret_value() if settings.broker_url else None
        return Endpoints(ledger, direct, broker)
    if settings.broker_url is not None or settings.ledger_direct_url is not None:
        raise _missing("SAFEPOINT_LEDGER_URL", "another URL is set, the ledger's is not")
    stack = embedded.ensure(settings.home)
    return Endpoints(stack.ledger_url, stack.ledger_url, stack.broker_url, stack)


def _missing(variable: str, text: str) -> ConfigError:
    accepted = "both URLs, or neither for the embedded stack"
    return ConfigError(None, Problem("configuration", variable, text, accepted))

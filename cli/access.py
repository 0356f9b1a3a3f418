"""How a verb reaches the ledger: the configured one, or this home's embedded one, joined for as long as it takes."""

from __future__ import annotations

import getpass
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from uuid import UUID

import typer

from ..config.errors import SafepointError

if TYPE_CHECKING:
    from sqlalchemy import Connection as Reader

    from ..config.resolve import Endpoints
    from ..ledger.connect import Connection as Writer

__all__ = ["LedgerMissingError", "UnknownRunError", "ledger", "reading", "run_id", "who", "writing"]

MIN_BEGINNING = 4  # characters


class LedgerMissingError(SafepointError):
    """There is no ledger here: SAFEPOINT_LEDGER_URL is not set, and {home} holds no data. `safepoint up` starts one."""

    home: str


class UnknownRunError(SafepointError):
    """There is no run {run}. `safepoint runs` lists what there is."""

    run: str


@contextmanager
def ledger() -> Iterator[Endpoints]:
    """Find the ledger; reading never makes one."""
    from ..config.resolve import endpoints  # noqa: PLC0415  # --help needs none of it
    from ..config.settings import settings  # noqa: PLC0415

    here = settings()
    urls = (here.ledger_url, here.ledger_direct_url, here.broker_url)
    if not any(urls) and not (here.home / "embedded.json").exists():
        raise LedgerMissingError(home=str(here.home))
    ends = endpoints(here)
    try:
        yield ends
    finally:
        ends.close()


@contextmanager
def reading() -> Iterator[Reader]:
    """Open the ledger for looking."""
    from ..config.settings import settings  # noqa: PLC0415  # as above
    from ..ledger.snapshot import snapshot  # noqa: PLC0415

    limits = settings().ledger
    timeouts = {"connect_timeout": limits.connect_timeout, "statement_timeout": limits.statement_timeout}
    with ledger() as ends, snapshot(ends.ledger_url, name="safepoint cli", **timeouts) as connection:
        yield connection


@contextmanager
def writing() -> Iterator[Writer]:
    """Open the ledger for one verb: autocommit, one statement a transaction."""
    from ..config.settings import settings  # noqa: PLC0415  # as above
    from ..ledger.connect import connect  # noqa: PLC0415
    from ..ledger.errors import SchemaTooOld  # noqa: PLC0415
    from ..ledger.snapshot import MISSING  # noqa: PLC0415

    limits = settings().ledger
    with (
        ledger() as ends,
        connect(
            ends.ledger_url,
            name="safepoint cli",
            connect_timeout=limits.connect_timeout,
            statement_timeout=limits.statement_timeout,
        ) as connection,
    ):
        try:
            yield connection
        except MISSING as error:
            raise SchemaTooOld(found="incomplete or missing", needed="newer") from error


def run_id(text: str, connection: Reader) -> UUID:
    """Find the run that is meant: by its whole id, or by a beginning that only one run has."""
    from ..ledger.views import find_runs  # noqa: PLC0415  # as above

    hexadecimal = text.replace("-", "").lower()
    if len(hexadecimal) > 32 or not set(hexadecimal) <= set("0123456789abcdef") or len(hexadecimal) < MIN_BEGINNING:
        raise typer.BadParameter(f"{text!r} is no run id; safepoint runs lists them", param_hint="RUN")
    found = find_runs(connection, hexadecimal)
    if not found:
        raise _pruned(connection, hexadecimal) or UnknownRunError(run=text)
    if len(found) > 1:
        raise typer.BadParameter(f"{text} is the beginning of several runs: type more of it", param_hint="RUN")
    return found[0]


def _pruned(connection: Reader, beginning: str) -> SafepointError | None:
    from ..ledger import tombstones  # noqa: PLC0415  # as above

    driver: Any = connection.connection.driver_connection
    low, high = (UUID((beginning + 32 * filler)[:32]) for filler in "0f")
    return tombstones.of_beginning(driver, low, high)


def who(given: str | None) -> str:
    """Name the person who types, for the audit."""
    if given:
        return given
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user that is a number only
        return f"uid {os.getuid()}"

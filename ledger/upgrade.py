"""Brings a database to this release's schema, and tells how far one is; the migrations are Alembic's.

Alembic is imported when something is to be migrated: every worker asks how far the database is when it starts.
"""

from __future__ import annotations

from dataclasses import dataclass

from .connect import connect, psycopg_url
from .errors import SchemaTooNew, SchemaTooOld

__all__ = ["REVISIONS", "SchemaState", "check", "state", "upgrade"]

REVISIONS = ("0001", "0002", "0003", "0004", "0005", "0006", "0007", "0008")  # oldest first


@dataclass(frozen=True, slots=True)
class SchemaState:
    """Which revision a database is at, which one this release wants, and which ones it knows."""

    current: str | None
    wanted: str = REVISIONS[-1]
    known: tuple[str, ...] = REVISIONS
    compatible: bool = True

    @property
    def is_current(self) -> bool:
        """Whether nothing is to be done."""
        return self.current == self.wanted

    @property
    def is_unknown(self) -> bool:
        """Whether another release has migrated the database to what this one does not know."""
        return self.current is not None and self.current not in self.known


def upgrade(ledger_url: str) -> SchemaState:
    """Apply what is missing, under a lock that lets one process at a time migrate, and return the state after it.

    Raises:
        SchemaTooNew: the database is at a revision that this release does not know.
        LedgerUnavailable: the server does not answer.
    """
    from alembic import command  # noqa: PLC0415  # see the module's second line
    from alembic.config import Config  # noqa: PLC0415
    from sqlalchemy import create_engine, text  # noqa: PLC0415
    from sqlalchemy.pool import NullPool  # noqa: PLC0415

    found = state(ledger_url)  # says in our own words when the server does not answer
    if found.is_unknown:
        raise SchemaTooNew(found=str(found.current), needed=found.wanted)
    url = "postgresql+psycopg://" + psycopg_url(ledger_url).partition("://")[2]
    # Nothing prepared: what is done once gains nothing by it, and a transaction pooler may not know it.
    with create_engine(url, poolclass=NullPool, connect_args={"prepare_threshold": None}).begin() as connection:
        # Two processes that start at once: the second one waits and then finds nothing to do.
        connection.execute(text("SELECT pg_advisory_xact_lock(hashtext('safepoint.upgrade'))"))
        connection.execute(text("CREATE SCHEMA IF NOT EXISTS safepoint"))
        config = Config()
        config.set_main_option("script_location", "safepoint.ledger:migrations")
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
    return state(ledger_url)


def state(ledger_url: str) -> SchemaState:
    """Return how far a database is, changing nothing; raises LedgerUnavailable when the server does not answer."""
    with connect(ledger_url, name="safepoint schema") as connection:
        row = connection.execute("SELECT to_regclass('safepoint.schema_version') IS NOT NULL").fetchone()
        if row is None or not row[0]:
            return SchemaState(None, compatible=False)
        row = connection.execute(
            "SELECT max(version_num), (SELECT count(*) FROM safepoint.compatible WHERE revision = %s)"
            " FROM safepoint.schema_version",
            (REVISIONS[-1],),
        ).fetchone()
    return SchemaState(row[0], compatible=bool(row[1])) if row else SchemaState(None, compatible=False)


def check(ledger_url: str) -> None:
    """Refuse to work on a schema that this release cannot use.

    A release runs on its own schema and on the next one (expand, then contract a release later): a revision that it
    does not know is let through when the database itself lists this release in `safepoint.compatible`.

    Raises:
        SchemaTooOld: the database misses migrations; `safepoint db upgrade` applies them.
        SchemaTooNew: the database was migrated by a release that this one cannot follow.
        LedgerUnavailable: the server does not answer.
    """
    found = state(ledger_url)
    if found.is_current or (found.is_unknown and found.compatible):
        return
    if found.is_unknown:
        raise SchemaTooNew(found=str(found.current), needed=found.wanted)
    raise SchemaTooOld(found=found.current or "nothing", needed=found.wanted)

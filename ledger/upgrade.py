"""Brings a database to this release's schema, and tells how far one is; the migrations are Alembic's."""

from __future__ import annotations

from dataclasses import dataclass

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.pool import NullPool

from .errors import SchemaTooNew, SchemaTooOld

__all__ = ["SchemaState", "check", "state", "upgrade"]


@dataclass(frozen=True, slots=True)
class SchemaState:
    """Which revision a database is at, which one this release wants, and which ones it knows."""

    current: str | None
    wanted: str
    known: tuple[str, ...]
    compatible: bool = True

    @property
    def is_current(self) -> bool:
        """Whether nothing is to be done."""
        return self.current == self.wanted


def _config(connection: Connection | None = None) -> Config:
    config = Config()
    config.set_main_option("script_location", "safepoint.ledger:migrations")
    config.attributes["connection"] = connection
    return config


def upgrade(ledger_url: str) -> SchemaState:
    """Apply what is missing, under a lock that lets one process at a time migrate, and return the state after it."""
    engine = create_engine(ledger_url, poolclass=NullPool)
    with engine.begin() as connection:
        # Two processes that start at once: the second one waits and then finds nothing to do.
        connection.execute(text("SELECT pg_advisory_xact_lock(hashtext('safepoint.upgrade'))"))
        connection.execute(text("CREATE SCHEMA IF NOT EXISTS safepoint"))
        if _state(connection).current not in (None, *_state(connection).known):
            raise SchemaTooNew(found=str(_state(connection).current), needed=_state(connection).wanted)
        command.upgrade(_config(connection), "head")
        return _state(connection)


def state(ledger_url: str) -> SchemaState:
    """Return how far a database is, changing nothing."""
    with create_engine(ledger_url, poolclass=NullPool).connect() as connection:
        return _state(connection)


def _state(connection: Connection) -> SchemaState:
    scripts = ScriptDirectory.from_config(_config())
    known = tuple(script.revision for script in scripts.walk_revisions())
    table = connection.execute(text("SELECT to_regclass('safepoint.schema_version')")).scalar()
    current = (
        connection.execute(text("SELECT max(version_num) FROM safepoint.schema_version")).scalar() if table else None
    )
    wanted = str(scripts.get_current_head())
    listed = text("SELECT count(*) FROM safepoint.compatible WHERE revision = :wanted")
    compatible = bool(current and connection.execute(listed, {"wanted": wanted}).scalar())
    return SchemaState(current=current, wanted=wanted, known=known, compatible=compatible)


def check(ledger_url: str) -> None:
    """Refuse to work on a schema that this release cannot use.

    A release runs on its own schema and on the next one (expand, then contract a release later): a revision
    that it does not know is let
    through when the database itself lists this release in `safepoint.compatible`.

    Raises:
        SchemaTooOld: the database misses migrations; `safepoint db upgrade` applies them.
        SchemaTooNew: the database was migrated by a release that this one cannot follow.
    """
    found = state(ledger_url)
    if found.is_current or (found.current not in (None, *found.known) and found.compatible):
        return
    if found.current is None or found.current in found.known:
        raise SchemaTooOld(found=found.current or "nothing", needed=found.wanted)
    raise SchemaTooNew(found=found.current, needed=found.wanted)

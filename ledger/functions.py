"""The protocol's functions, as the files beside this one define them now; put in place by the newest migration."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.resources import files
from typing import Any, Final, Protocol

__all__ = ["CHANGED", "PARTS", "driver_of", "replace", "revise"]

# Each file once; `core` is revision 0001's.
PARTS: Final = (
    *(
        "clock",
        "runs",
        "effects",
        "enqueue",
        "claim",
        "commit",
        "inline",
        "insert",
        "settle",
        "compensate",
        "waits",
        "decide",
    ),
    *("nodes", "breakers", "lanes", "dispatch", "admission", "control", "scan", "once", "budget", "prune"),
)
# Functions whose arguments or answers have changed since some release cannot be replaced; the others keep what they
# were granted to.
CHANGED: Final = ("claim_v1", "commit_v1", "retry_v1", "release_v1", "register_v1", "revive_stalled_v1")

_DROP: Final = """
DO $$ DECLARE f record; BEGIN
    FOR f IN SELECT oid::regprocedure AS name FROM pg_proc
              WHERE pronamespace = 'safepoint'::regnamespace AND proname IN ({names}) LOOP
        EXECUTE 'DROP FUNCTION ' || f.name;
    END LOOP;
END $$
"""
_TYPE: Final = re.compile(r"^CREATE TYPE .*?\);$", re.MULTILINE | re.DOTALL)
_STANDS: Final = "DO $type$ BEGIN {} EXCEPTION WHEN duplicate_object THEN NULL; END $type$;"


class _Bound(Protocol):
    """SQLAlchemy's connection, as Alembic hands it to a migration."""

    @property
    def connection(self) -> Any:
        """What the pool has lent."""
        ...


class _Driver(Protocol):
    """psycopg's connection: without parameters it sends several statements at once and leaves % alone."""

    def execute(self, query: str, /) -> object:
        """Send statements."""
        ...


def driver_of(connection: _Bound) -> _Driver:
    """Return what a migration's connection sends by: without parameters it sends several statements at once and leaves
    % alone.
    """
    driver = connection.connection.driver_connection
    assert driver is not None  # a migration always has a connection
    return driver  # type: ignore[no-any-return]  # SQLAlchemy does not say which driver it is


def revise(driver: _Driver, name: str) -> None:
    """Execute the statements of a revision, `migrations/versions/{name}.sql`."""
    folder = files(__package__ or "safepoint.ledger").joinpath("migrations", "versions")
    driver.execute(folder.joinpath(f"{name}.sql").read_text(encoding="utf-8"))


def replace(driver: _Driver, parts: Sequence[str] = PARTS) -> None:
    """Create the functions of these files or replace them, and take them away from PUBLIC (P42)."""
    # Functions may name functions of a later part, and tables of a later migration; bodies are checked when they run.
    driver.execute("SET LOCAL check_function_bodies = off")
    driver.execute(_DROP.format(names=", ".join(f"'{name}'" for name in CHANGED)))
    for part in parts:
        text = files(__package__ or "safepoint.ledger").joinpath(f"{part}.sql").read_text(encoding="utf-8")
        text = _TYPE.sub(lambda found: _STANDS.format(found.group()), text)
        driver.execute(text.replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION"))
    driver.execute("REVOKE ALL ON ALL FUNCTIONS IN SCHEMA safepoint FROM PUBLIC")

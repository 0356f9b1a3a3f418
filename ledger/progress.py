"""How far a run is, for the app that waits for it: its status, the reason it does not move, what it came to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from psycopg.sql import SQL, Composed, Literal
from psycopg.types.json import Jsonb

from .connect import Connection
from .states import RunStatus

__all__ = ["Progress", "count", "find", "read"]


@dataclass(frozen=True, slots=True)
class Progress:
    """A run as its caller sees it; result and error are there once it has ended."""

    run_id: str
    tenant: str
    flow: str
    version: str
    status: RunStatus
    reason: dict[str, Any] | None
    result: bytes | None
    result_encoding: str | None
    error: dict[str, Any] | None

    @property
    def is_settled(self) -> bool:
        """Whether waiting longer is of no use: it has ended, or a person has to act."""
        return self.status.is_final or self.status is RunStatus.HELD


# The primary key's index.
_READ: Final = (
    "SELECT run_id, tenant_id, flow, workflow_version, status, reason, result, result_encoding, error"
    " FROM safepoint.runs WHERE run_id = %s"
)
_LOOK: Final = (
    "SELECT run_id, tenant_id, flow, workflow_version, status, reason, NULL, NULL, NULL"
    " FROM safepoint.runs WHERE run_id = %s"
)

_HEAD: Final = SQL(
    "(SELECT run_id, created_at FROM safepoint.runs WHERE {} ORDER BY created_at DESC, run_id DESC LIMIT %(limit)s)"
)


def read(connection: Connection, run_id: str | UUID, *, whole: bool = True) -> Progress | None:
    """Read a run, or None; without `whole` its result is left where it is."""
    row = connection.execute(_READ if whole else _LOOK, (run_id,)).fetchone()
    if row is None:
        return None
    found, tenant, flow, version, status, reason, result, encoding, error = row
    return Progress(str(found), tenant, flow, version, RunStatus(status), reason, result, encoding, error)


def find(
    connection: Connection,
    *,
    tags: Mapping[str, str] | None = None,
    status: Sequence[str] = (),
    flow: str | None = None,
    tenant: str | None = None,
    limit: int = 100,
) -> list[str]:
    """Return the ids of the newest runs that match, the newest first."""
    where, values = _matching(tags=tags, flow=flow, tenant=tenant)
    # Each status for itself, as in `views`: by runs_listed, which goes by tenant and status, and the like.
    among = tuple(dict.fromkeys(map(str, status))) or (tuple(map(str, RunStatus)) if tenant is not None else ())
    heads = [_HEAD.format(SQL("{} AND status = {}").format(where, one)) for one in among] or [_HEAD.format(where)]
    rows = connection.execute(
        SQL("SELECT run_id FROM ({}) x ORDER BY created_at DESC, run_id DESC LIMIT %(limit)s").format(
            SQL(" UNION ALL ").join(heads)
        ),
        {**values, "limit": limit},
    ).fetchall()
    return [str(row[0]) for row in rows]


def count(
    connection: Connection,
    *,
    tags: Mapping[str, str] | None = None,
    flow: str | None = None,
    tenant: str | None = None,
) -> dict[str, int]:
    """Count the runs that match, by status."""
    where, values = _matching(tags=tags, flow=flow, tenant=tenant)
    rows = connection.execute(
        SQL("SELECT status, count(*) FROM safepoint.runs WHERE {} GROUP BY status ORDER BY status").format(where),
        values,
    ).fetchall()
    return {str(status): int(n) for status, n in rows}


def _matching(
    *, tags: Mapping[str, str] | None, flow: str | None, tenant: str | None
) -> tuple[Composed, dict[str, Any]]:
    parts: list[SQL | Composed] = [SQL("true")]
    values: dict[str, Any] = {}
    if tags:
        # In the text, as the status: a plan for any tags would not know which ones are rare. The second one says what
        # runs_tagged holds.
        parts.append(SQL("tags @> {} AND tags <> '{{}}'").format(_in_text(Jsonb(dict(tags)))))
    if flow is not None:
        parts.append(SQL("flow = %(flow)s"))
        values["flow"] = flow
    if tenant is not None:
        parts.append(SQL("tenant_id = %(tenant)s"))
        values["tenant"] = tenant
    return SQL(" AND ").join(parts), values


def _in_text(value: object) -> SQL:
    """Return a value as a part of a statement's text, in which psycopg reads a % as the beginning of a parameter."""
    text: Any = Literal(value).as_string().replace("%", "%%")  # no literal for a type checker, but quoted by psycopg
    return SQL(text)

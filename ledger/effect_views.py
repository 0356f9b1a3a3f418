"""What people read of effects: the list that begins with what nobody knows, one with its whole history, and for each
the commands that settle it.

Everything comes back as JSON values; a sealed value is told by its encoding and size, never opened.
"""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final
from uuid import UUID

from psycopg.rows import dict_row
from psycopg.sql import SQL, Composable, Composed

from .connect import Connection
from .document import parsed, shown
from .key import Key
from .states import EffectStatus

__all__ = ["LISTED", "SHORTEST", "find_effects", "list_effects", "read_effect"]

Document = dict[str, Any]

LISTED: Final = 4096  # bytes of a value that a list shows; `effects show` gives all of it
SHORTEST: Final = 8  # digits: as much of a key as may stand for all of it
NEXT: Final = {
    "unknown": (
        "safepoint effects resolve {key} --succeeded JSON --by NAME --why TEXT",
        "safepoint effects resolve {key} --not-executed --by NAME --why TEXT",
    ),
    "asked": (
        "safepoint approve {run} {step} --by NAME --digest {digest}",
        "safepoint deny {run} {step} --by NAME --digest {digest}",
    ),
}

_TEXTS: Final = ("error", "decision", "declared", "last_answer")
_INSTANTS: Final = ("first_sent_at", "last_sent_at", "unknown_since", "may_send_until", "created_at", "settled_at")
# P33: until then a request that was sent may still arrive, and a "not executed" is not believed.
_ARRIVES: Final = SQL(
    "to_jsonb(CASE WHEN e.status = 'unknown' THEN e.may_send_until + make_interval(secs =>"
    " coalesce((e.declared->>'authoritative_after')::double precision, 0)) END) #>> '{}' AS may_arrive_until"
)
_COLUMNS: Final = SQL(
    "e.idempotency_key, e.reference, e.tenant_id, e.run_id, e.generation, e.path, e.step_id, e.iteration, e.status,"
    " e.version, e.name, e.request, e.request_encoding, e.request_digest, e.result, e.result_encoding, e.external_id,"
    " e.attempts, e.lookups, e.sent_by, e.compensates, r.flow, r.workflow_version, r.status AS run_status,"
    " s.status AS step_status, to_jsonb(CASE s.status WHEN 'ready' THEN greatest(s.ready_at, s.due_at) END) #>> '{{}}'"
    " AS next_at, {arrives}, {texts}, {instants}"
).format(
    arrives=_ARRIVES,
    texts=SQL(", ").join(SQL(f"e.{name}::text AS {name}") for name in _TEXTS),
    instants=SQL(", ").join(SQL(f"to_jsonb(e.{name}) #>> '{{}}' AS {name}") for name in _INSTANTS),
)
# A step points to its newest effect, by steps_effect; what it replaced has no step any more.
_STEP: Final = SQL(
    " JOIN safepoint.runs r ON r.run_id = e.run_id"
    " LEFT JOIN safepoint.steps s ON s.effect_key = e.idempotency_key AND s.run_id = e.run_id"
)
# By effects_unsettled; the oldest doubt first.
_UNSETTLED: Final = SQL(
    "SELECT {columns} FROM safepoint.effects e {step} WHERE e.status IN ('executing', 'unknown') AND {where}"
    " ORDER BY e.status DESC, e.unknown_since, e.created_at LIMIT %(limit)s"
)
# By steps_open: what has not been sent belongs to a step that is not final, and of those there are never many.
_PENDING: Final = SQL(
    "SELECT {columns} FROM safepoint.effects e {step} WHERE s.status IN ('ready', 'running', 'waiting', 'held')"
    " AND e.status = 'pending' AND {where} ORDER BY (s.status IN ('waiting', 'held')) DESC, e.created_at"
    " LIMIT %(limit)s"
)
# Backwards by the unique key: run ids grow with time, so these are the newest runs'.
_SETTLED: Final = SQL(
    "SELECT {columns} FROM safepoint.effects e {step} WHERE e.status = ANY (%(settled)s) AND {where}"
    " ORDER BY e.run_id DESC, e.generation DESC, e.created_at DESC LIMIT %(limit)s"
)


def list_effects(
    connection: Connection,
    *,
    status: Sequence[str] = (),
    run: UUID | None = None,
    tenant: str | None = None,
    limit: int = 50,
) -> list[Document]:
    """List effects: unknown ones first, then those under way and those not sent, then the newest settled ones."""
    wanted = {str(one) for one in status} or {str(one) for one in EffectStatus}
    where, values = _matching(run=run, tenant=tenant)
    settled = sorted(wanted & {"succeeded", "failed"})
    queries = [
        (_UNSETTLED, bool(wanted & {"executing", "unknown"})),
        (_PENDING, "pending" in wanted),
        (_SETTLED, bool(settled)),
    ]
    found: list[Document] = []
    for query, is_asked in queries:
        if is_asked and len(found) < limit:
            more = _rows(connection, query, where, {**values, "settled": settled, "limit": limit})
            found += [row for row in more if row["status"] in wanted]
    return _documents(connection, found[:limit], limit=LISTED)


def read_effect(connection: Connection, key: bytes) -> Document | None:
    """Read one effect with all that is known of it; None when there is no such one."""
    query = SQL("SELECT {columns} FROM safepoint.effects e {step} WHERE {where}")
    found = _rows(connection, query, SQL("e.idempotency_key = %(key)s"), {"key": key})
    return next(iter(_documents(connection, found, limit=None)), None)


def find_effects(connection: Connection, beginning: str, *, limit: int = 5) -> list[bytes]:
    """Find effects by the beginning of their key, as hexadecimal digits."""
    low, high = (bytes.fromhex((beginning + 64 * filler)[:64]) for filler in "0f")
    query = (
        "SELECT idempotency_key FROM safepoint.effects WHERE idempotency_key BETWEEN %s AND %s"
        " ORDER BY idempotency_key LIMIT %s"
    )
    return [row[0] for row in connection.execute(query, (low, high, limit)).fetchall()]


def _matching(*, run: UUID | None, tenant: str | None) -> tuple[Composable, dict[str, Any]]:
    parts, values = [SQL("true")], dict[str, Any]()
    if run is not None:
        parts.append(SQL("e.run_id = %(run)s"))
        values["run"] = run
    if tenant is not None:
        parts.append(SQL("e.tenant_id = %(tenant)s"))
        values["tenant"] = tenant
    return SQL(" AND ").join(parts), values


def _rows(connection: Connection, query: SQL, where: Composable, values: Mapping[str, Any]) -> list[Document]:
    whole: Composed = query.format(columns=_COLUMNS, step=_STEP, where=where)
    with connection.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(whole, values).fetchall()


def _documents(connection: Connection, rows: Sequence[Document], *, limit: int | None) -> list[Document]:
    past = _histories(connection, [row["idempotency_key"] for row in rows])
    return [_document(row, past[row["idempotency_key"]], limit=limit) for row in rows]


def _document(row: Document, history: list[Document], *, limit: int | None) -> Document:
    key = Key(row["generation"], row["path"], row["step_id"], row["iteration"])
    declared = parsed(row["declared"])
    declared = declared if isinstance(declared, Mapping) else {}
    return {
        "idempotency_key": row["idempotency_key"].hex(),
        "key": str(key),
        "status": row["status"],
        "attempts": row["attempts"],
        "external_id": row["external_id"],
        "history": history,
        "run_id": str(row["run_id"]),
        "tenant": row["tenant_id"],
        "flow": row["flow"],
        "flow_version": row["workflow_version"],
        "run_status": row["run_status"],
        "step_status": row["step_status"],
        "name": row["name"] or row["step_id"],
        "generation": row["generation"],
        "reference": row["reference"],
        "version": row["version"],
        "request": _bounded(row["request"], row["request_encoding"], limit=limit),
        "request_digest": row["request_digest"].hex(),
        "result": _bounded(row["result"], row["result_encoding"], limit=limit),
        "error": parsed(row["error"]),
        "first_sent_at": row["first_sent_at"],
        "last_sent_at": row["last_sent_at"],
        "may_send_until": row["may_send_until"],
        "may_arrive_until": row["may_arrive_until"],
        "sent_by": row["sent_by"],
        "unknown_since": row["unknown_since"],
        "lookups": row["lookups"],
        "last_answer": parsed(row["last_answer"]),
        "asked_next_at": row["next_at"] if row["status"] == "unknown" and declared.get("lookup") else None,
        "decision": parsed(row["decision"]),
        "compensates": row["compensates"].hex() if row["compensates"] else None,
        "declared": dict(declared),
        "runbook": declared.get("runbook"),
        "created_at": row["created_at"],
        "settled_at": row["settled_at"],
        "commands": _commands(row, key),
    }


def _bounded(data: bytes | None, encoding: str | None, *, limit: int | None) -> Any:
    if data is not None and limit is not None and len(data) > limit:
        return {"encoding": encoding, "bytes": len(data)}
    return shown(data, encoding)


def _commands(row: Document, key: Key) -> list[str]:
    """Give what settles it, ready to be pasted: the key as short as it may be, the digest of what is shown."""
    state = row["status"]
    if state == "pending":  # one that waits for its approval; or an undoing that cannot finish, and may be done by hand
        is_stuck = row["compensates"] is not None and row["step_status"] == "held"
        state = "unknown" if is_stuck else "asked" if row["step_status"] == "waiting" else state
    facts = {
        "key": row["idempotency_key"].hex()[:16],
        "run": row["run_id"],
        "step": shlex.quote(key.wire),
        "digest": row["request_digest"].hex()[:12],
    }
    return [command.format(**facts) for command in NEXT.get(state, ())]


def _histories(connection: Connection, keys: Sequence[bytes]) -> Mapping[bytes, list[Document]]:
    # The primary key's index.
    query = (
        "SELECT idempotency_key, n, status, actor, why, evidence::text, to_jsonb(at) #>> '{}'"
        " FROM safepoint.effect_history WHERE idempotency_key = ANY (%s) ORDER BY idempotency_key, n"
    )
    found: dict[bytes, list[Document]] = defaultdict(list)
    for key, n, status, actor, why, evidence, at in connection.execute(query, (list(keys),)).fetchall():
        entry = {"n": n, "status": status, "actor": actor, "why": why, "evidence": parsed(evidence), "at": at}
        found[key].append(entry)
    return found

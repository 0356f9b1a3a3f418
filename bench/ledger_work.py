"""Work done through the ledger's own functions, many rows a statement: what workers do, without workers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import orjson
from psycopg.types.json import Jsonb
from safepoint.ledger import nodes, outbox
from safepoint.ledger.connect import Connection
from safepoint.tasks.driver import Driver
from safepoint.tasks.flow import Flow
from safepoint.tasks.record import RunInfo
from safepoint.tasks.rows import row_of

__all__ = ["asked_first", "claim", "commit_starts", "dispatch_starts", "enqueue", "register"]

CHUNK = 500
LONG = 86_400.0  # seconds: no claim ends by itself while something is measured
PID, PID_START = 2**22, 1  # no process of this machine has it

_ENQUEUE = "SELECT run_id FROM safepoint.enqueue_v1(%s)"
_CLAIM = """
SELECT c.answer, c.reason
  FROM unnest(%(runs)s::uuid[], %(tokens)s::uuid[]) AS x(run, token)
 CROSS JOIN LATERAL safepoint.claim_v1(x.run, 1, '', %(step)s, 1, %(lane)s, %(node)s, x.token, %(pid)s, %(start)s,
                                       %(timeout)s, -1, '', NULL) AS c
"""
_COMMIT = """
SELECT c.answer, NULL
  FROM unnest(%(runs)s::uuid[], %(tokens)s::uuid[]) AS x(run, token)
 CROSS JOIN LATERAL safepoint.commit_v1(x.run, 1, '', '@start', 1, x.token, 0, NULL, 'succeeded', NULL, NULL, NULL,
                                        NULL, safepoint.now(), 0, 0, %(next)s, %(ending)s, NULL, NULL, NULL, NULL,
                                        NULL, 1.0, %(node)s, NULL, NULL) AS c
"""


def register(connection: Connection, node: str, flows: Sequence[Flow[..., Any]], *, lanes: Sequence[str]) -> None:
    """Register a node that is none: it serves these flows, and its lease does not end by itself."""
    served = tuple(f"{flow.name}@{flow.version}" for flow in flows)
    versions = tuple({"name": flow.name, "version": flow.version, "versions": {}} for flow in flows)
    made = nodes.Node(node, "gone", PID, tuple(lanes), served, concurrency=64, versions=versions)
    nodes.register(connection, made, lease=LONG, with_lock=False)


def enqueue(
    connection: Connection,
    flow: str,
    tenants: Sequence[str],
    *,
    priorities: Sequence[int] | None = None,
    deadlines: Sequence[float | None] | None = None,
) -> list[UUID]:
    """Enqueue a run for each of these tenants, in this order; a deadline is in seconds from now."""
    runs: list[UUID] = []
    priorities, deadlines = priorities or [0] * len(tenants), deadlines or [None] * len(tenants)
    asked = [
        {"n": n, "flow": flow, "input": {}, "tenant": tenant, "priority": priority, "deadline_in": seconds}
        for n, (tenant, priority, seconds) in enumerate(zip(tenants, priorities, deadlines, strict=True))
    ]
    for first in range(0, len(asked), CHUNK):
        requests = orjson.dumps(asked[first : first + CHUNK]).decode()
        runs += [row[0] for row in connection.execute(_ENQUEUE, (requests,))]
    return runs


def dispatch_starts(connection: Connection, *, limit: int = 1000) -> list[UUID]:
    """Take what the ledger would have published next, as a relay does."""
    rows = outbox.dispatch(connection, limit=limit, grace=5.0, redispatch_after=10.0)
    return [row.run_id for row in rows]


def claim(connection: Connection, runs: Sequence[UUID], *, step: str, node: str, lane: str = "online") -> list[UUID]:
    """Claim that step of these runs and return the tokens."""
    tokens = [uuid4() for _ in runs]
    names: dict[str, Any] = {"step": step, "lane": lane, "node": node, "pid": PID, "start": PID_START, "timeout": LONG}
    _in_parts(connection, _CLAIM, runs, tokens, names, expected="claimed")
    return tokens


def commit_starts(
    connection: Connection,
    runs: Sequence[UUID],
    tokens: Sequence[UUID],
    *,
    node: str,
    asks: Sequence[dict[str, Any]] = (),
) -> None:
    """Commit the start of these runs; the flow asks for these rows, or has ended when there are none."""
    ending = None if asks else Jsonb({"status": "succeeded"})
    asked = Jsonb(list(asks), dumps=orjson.dumps) if asks else None
    _in_parts(connection, _COMMIT, runs, tokens, {"next": asked, "ending": ending, "node": node}, expected="committed")


def asked_first(flow: Flow[..., Any], arguments: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what a flow asks for first, as its commit would store it: the driver is asked, not guessed."""
    info = RunInfo(str(uuid4()), "default", 1, json.dumps(arguments).encode(), "json", datetime.now(UTC))
    driver = Driver(flow, run=info)
    driver.start()
    asked = [row_of(one, run_id=UUID(info.run_id)) for one in driver.take_new()]
    driver.close()
    return asked


def _in_parts(
    connection: Connection,
    query: str,
    runs: Sequence[UUID],
    tokens: Sequence[UUID],
    names: dict[str, Any],
    *,
    expected: str,
) -> None:
    for first in range(0, len(runs), CHUNK):
        part = slice(first, first + CHUNK)
        values = names | {"runs": list(runs[part]), "tokens": list(tokens[part])}
        answers = {row for row in connection.execute(query, values) if row[0] != expected}
        if answers:
            raise RuntimeError(f"the ledger answers {answers}, not {expected}")

"""What people and programs read of the lanes: what holds, what is overridden, what is on them, what has happened."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final

from sqlalchemy import Connection, RowMapping, Text, cast, select, text

from .document import parsed
from .instant import iso, seconds_to
from .lane_words import LaneFacts, Override
from .schema import lane_events, lane_overrides

__all__ = ["history", "list_lanes", "read_lane", "standing"]

Document = dict[str, Any]
COUNTED: Final = 10_000  # rows of one tenant's queue: more is all that a person needs to know
TENANTS: Final = 1000  # that are looked at
EVERY: Final = 1_000_000  # what a round may send at most, when the question is what the lane lets through

_NAMES: Final = ("name", "rate", "burst", "in_flight", "window", "paused", "ready", "sent", "running", "workers")
_MORE: Final = ("tenant_in_flight", "weights", "order", "stop_on_breaker", "inline_slice", "limited", "queued")

# By steps_due, steps_queue, steps_dispatched and steps_in_flight: each count reads the rows of its index alone.
_LIST: Final = """
SELECT l.name, l.rate, l.burst, l.in_flight, l."window", l.paused, c.due + c.queued AS ready, c.sent, c.running,
       (SELECT count(*) FROM safepoint.nodes n
         WHERE n.stopped_at IS NULL AND n.lease_until > safepoint.now() AND l.name = ANY (n.lanes)) AS workers,
       l.tenant_in_flight, l.weights::text AS weights, l.ordering AS "order", l.stop_on_breaker, l.inline_slice,
       l.limited, c.queued, l.policy::text AS policy, to_jsonb(l.changed_at) #>> '{}' AS changed_at
  FROM safepoint.lanes l CROSS JOIN LATERAL (SELECT
       (SELECT count(*) FROM safepoint.steps WHERE status = 'ready' AND queued = 0 AND lane = l.name) AS due,
       (SELECT count(*) FROM safepoint.steps
         WHERE status = 'ready' AND queued > 0 AND due_at < 'infinity' AND lane = l.name) AS queued,
       (SELECT count(*) FROM safepoint.steps
         WHERE status = 'ready' AND dispatched_at IS NOT NULL AND lane = l.name) AS sent,
       (SELECT count(*) FROM safepoint.steps WHERE status = 'running' AND claimed_from = l.name) AS running) c
 WHERE CAST(:only AS text) IS NULL OR l.name = :only
 ORDER BY l.name
"""

# Tenant by tenant along steps_queue, as admission does: a tenant with a million rows costs ten thousand.
_TENANTS: Final = """
WITH RECURSIVE waiting AS (
    (SELECT s.tenant_id FROM safepoint.steps s
      WHERE s.status = 'ready' AND s.queued > 0 AND s.due_at < 'infinity' AND s.lane = :lane
      ORDER BY s.tenant_id LIMIT 1)
    UNION ALL
    SELECT (SELECT s.tenant_id FROM safepoint.steps s
             WHERE s.status = 'ready' AND s.queued > 0 AND s.due_at < 'infinity' AND s.lane = :lane
               AND s.tenant_id > w.tenant_id ORDER BY s.tenant_id LIMIT 1)
      FROM waiting w WHERE w.tenant_id IS NOT NULL
), queues AS (
    SELECT w.tenant_id, (SELECT count(*) FROM (SELECT FROM safepoint.steps s
               WHERE s.status = 'ready' AND s.queued > 0 AND s.due_at < 'infinity' AND s.lane = :lane
                 AND s.tenant_id = w.tenant_id LIMIT :counted) x) AS queued
      FROM (SELECT tenant_id FROM waiting WHERE tenant_id IS NOT NULL LIMIT :tenants) w
), busy AS (
    SELECT tenant_id, count(*) AS in_flight FROM (
        SELECT tenant_id FROM safepoint.steps WHERE status = 'ready' AND lane = :lane AND dispatched_at IS NOT NULL
        UNION ALL
        SELECT tenant_id FROM safepoint.steps WHERE status = 'running' AND claimed_from = :lane) x GROUP BY tenant_id
)
SELECT x.tenant_id, x.queued, x.in_flight, coalesce((l.weights ->> x.tenant_id)::double precision, 1) AS weight
  FROM (SELECT tenant_id, coalesce(q.queued, 0) AS queued, coalesce(b.in_flight, 0) AS in_flight
          FROM queues q FULL JOIN busy b USING (tenant_id)) x JOIN safepoint.lanes l ON l.name = :lane
 ORDER BY x.queued DESC, x.in_flight DESC, x.tenant_id LIMIT :listed
"""

# What admission would be told now (lane_room_v1), beside what is in flight: who waits learns by what.
_STANDING: Final = """
SELECT l.name, l.paused, l.rate, l.burst, l.in_flight, l.tenant_in_flight, l.limited, r.tokens, r.slots,
       (SELECT count(*) FROM safepoint.steps
         WHERE status = 'ready' AND dispatched_at IS NOT NULL AND lane = l.name) AS sent,
       (SELECT count(*) FROM safepoint.steps WHERE status = 'running' AND claimed_from = l.name) AS running,
       (SELECT count(*) FROM safepoint.steps WHERE status = 'ready' AND dispatched_at IS NOT NULL AND lane = l.name
                                               AND tenant_id = :tenant)
       + (SELECT count(*) FROM safepoint.steps WHERE status = 'running' AND claimed_from = l.name
                                               AND tenant_id = :tenant) AS of_tenant
  FROM safepoint.lanes l CROSS JOIN LATERAL safepoint.lane_room_v1(l, :every, safepoint.now()) r
 WHERE l.name = ANY (:names)
"""


def list_lanes(connection: Connection, *, only: str | None = None) -> list[Document]:
    """List the lanes with what holds, what of it is overridden, and what is on them now."""
    set_over = _overrides(connection)
    found = []
    for row in connection.execute(text(_LIST), {"only": only}).mappings():
        told = {name: row[name] for name in (*_NAMES, *_MORE)} | {"weights": parsed(row["weights"])}
        policy = parsed(row["policy"])
        over = {one.key: _document(one, policy) for one in set_over.get(row["name"], ())}
        found.append({**told, "changed_at": row["changed_at"], "policy": policy, "overrides": over})
    return found


def _document(one: Override, policy: Mapping[str, Any]) -> Document:
    return {
        "value": one.value,
        "policy": policy.get(one.key),
        "until": one.until,
        "seconds_left": one.seconds_left,
        "by": one.by,
        "why": one.why,
        "at": one.at,
    }


def _overrides(connection: Connection) -> Mapping[str, list[Override]]:
    o = lane_overrides.c
    query = select(
        o.lane, o.key, cast(o.value, Text), iso(o.until), seconds_to(o.until), o.actor, o.why, iso(o.at)
    ).order_by(o.lane, o.key)  # fmt: skip
    found: dict[str, list[Override]] = defaultdict(list)
    for lane, key, value, until, left, by, why, at in connection.execute(query):
        found[lane].append(
            Override(key, parsed(value), until, None if left is None else max(0.0, float(left)), by, why, at)
        )
    return found


def read_lane(connection: Connection, name: str, *, tenants: int = 20, events: int = 50) -> Document | None:
    """Read one lane: what the list has, what it would let through now, its tenants by their queues, its history."""
    listed = list_lanes(connection, only=name)
    if not listed:
        return None
    (room,) = connection.execute(text(_STANDING), {"names": [name], "tenant": "", "every": EVERY}).mappings()
    wanted = {"lane": name, "counted": COUNTED, "tenants": TENANTS, "listed": tenants}
    rows = connection.execute(text(_TENANTS), wanted).mappings()
    return {
        **listed[0],
        "room": {"tokens": room["tokens"], "slots": room["slots"]},
        "tenants": [
            {
                "tenant": row["tenant_id"],
                "queued": row["queued"],
                "in_flight": row["in_flight"],
                "weight": row["weight"],
            }
            for row in rows
        ],
        "nodes": _takers(connection, name),
        "history": history(connection, name, limit=events),
    }


def _takers(connection: Connection, name: str) -> list[Document]:
    query = text("""
        SELECT node_id, concurrency, draining FROM safepoint.nodes
         WHERE stopped_at IS NULL AND lease_until > safepoint.now() AND :lane = ANY (lanes) ORDER BY node_id LIMIT 1000
    """)
    rows = connection.execute(query, {"lane": name}).mappings()
    return [{"id": row["node_id"], "concurrency": row["concurrency"], "draining": row["draining"]} for row in rows]


def history(connection: Connection, name: str, *, limit: int) -> list[Document]:
    """List what has been done to a lane, the newest first; a lane that was removed has its history still."""
    e = lane_events.c  # by lane_events_of
    query = select(e.what, cast(e.facts, Text), e.actor, e.why, iso(e.at)).where(e.lane == name)
    return [
        {"at": at, "what": what, "facts": parsed(facts), "by": by, "why": why}
        for what, facts, by, why, at in connection.execute(query.order_by(e.id.desc()).limit(limit))
    ]


def standing(connection: Connection, names: Sequence[str], *, tenant: str) -> Mapping[str, LaneFacts]:
    """Tell what stands between a tenant's steps and a worker, for each of these lanes; also for one that is missing."""
    if not names:
        return {}
    rows = connection.execute(text(_STANDING), {"names": list(names), "tenant": tenant, "every": EVERY}).mappings()
    set_over = _overrides(connection)
    found = {row["name"]: _facts(row, tenant, set_over.get(row["name"], ())) for row in rows}
    return {name: found.get(name) or LaneFacts(tenant, exists=False) for name in names}


def _facts(row: RowMapping, tenant: str, set_over: Sequence[Override]) -> LaneFacts:
    return LaneFacts(
        tenant,
        paused=row["paused"],
        limited=row["limited"],
        rate=row["rate"],
        tokens=row["tokens"],
        in_flight=row["in_flight"],
        busy=row["sent"] + row["running"],
        sent=row["sent"],
        slots=row["slots"],
        tenant_in_flight=row["tenant_in_flight"],
        of_tenant=row["of_tenant"],
        overrides={one.key: one for one in set_over},
    )

"""What people and programs read of the breakers: their state, what was counted, what waits, what has happened."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final

from sqlalchemy import Connection, Text, and_, cast, func, literal_column, select, text

from .document import parsed
from .instant import NOW, iso, seconds_to
from .schema import breaker_events, breakers, steps

__all__ = ["list_breakers"]

Document = dict[str, Any]
LISTED: Final = 10_000  # steps that are counted: more is all that a person needs to know

# By steps_set_aside, which holds these rows alone.
_ASIDE: Final = text("steps.status = 'ready' AND steps.reason->>'code' = 'breaker' AND steps.due_at < 'infinity'")
_BUCKETS: Final = breakers.c.detail["buckets"]


def list_breakers(connection: Connection, *, events: int = 20) -> list[Document]:
    """List the breakers, those that are not closed first, each with its last events, the newest first."""
    history = _events(connection, limit=events)
    room = func.safepoint.breaker_room_v1(literal_column("breakers"), NOW)
    query = select(
        breakers.c.name, breakers.c.state, iso(breakers.c.changed_at), iso(breakers.c.opened_at),
        iso(breakers.c.next_probe_at), seconds_to(breakers.c.next_probe_at), cast(breakers.c.detail, Text),
        cast(breakers.c.policy, Text), room, func.extract("epoch", NOW),
    ).order_by(breakers.c.state == "closed", breakers.c.name)  # fmt: skip
    found = []
    for name, state, since, opened, probe_at, probe_in, detail, policy, room_, now in connection.execute(query):
        told, rules = parsed(detail), parsed(policy)
        found.append(
            {
                "name": name,
                "state": state,
                "since": since,
                "why": told.get("why") or None,
                "opened_at": opened if state != "closed" else None,
                "next_probe_at": probe_at if state == "open" else None,
                "next_probe_in": float(probe_in) if state == "open" and probe_in is not None else None,
                "calls": _calls(told, rules, now=float(now)),
                "probes": {
                    "wanted": rules.get("probes"),
                    "succeeded": told.get("good", 0) if state == "half_open" else 0,
                    "room": room_ if state != "closed" else None,
                },
                "waiting": _waiting(connection, name),
                "policy": rules,
                "events": history[name],
            }
        )
    return found


def _calls(detail: Mapping[str, Any], policy: Mapping[str, Any], *, now: float) -> dict[str, int]:
    """Sum what is in the window."""
    rows = [counts for start, *counts in detail.get("buckets", ()) if start > now - policy.get("window", 60.0)]
    return {name: sum(row[place] for row in rows) for place, name in enumerate(("ok", "failed", "throttled"))}


def _waiting(connection: Connection, name: str) -> int:
    some = select(steps.c.run_id).where(and_(_ASIDE, steps.c.uses == name)).limit(LISTED).subquery()
    return connection.scalar(select(func.count()).select_from(some)) or 0


def _events(connection: Connection, *, limit: int) -> Mapping[str, list[Document]]:
    # By breaker_events_of, for each breaker its newest.
    own = (
        select(breaker_events)
        .where(breaker_events.c.name == breakers.c.name)
        .order_by(breaker_events.c.id.desc())
        .limit(limit)
        .lateral()
    )
    query = select(
        own.c.name, own.c.before, own.c.after, own.c.actor, own.c.why, cast(own.c.facts, Text), iso(own.c.at)
    ).select_from(breakers.join(own, text("true")))
    found: dict[str, list[Document]] = defaultdict(list)
    for name, before, after, actor, why, facts, at in connection.execute(query.order_by(own.c.id.desc())):
        found[name].append(
            {"at": at, "before": before, "after": after, "by": actor, "why": why, "facts": parsed(facts)}
        )
    return found

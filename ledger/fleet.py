"""What people and programs read of the machinery: nodes, and which versions are wanted and served."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Text, and_, case, cast, func, select

from .document import parsed
from .instant import NOW, iso
from .key import Key
from .schema import flows, nodes, runs, steps

__all__ = ["list_nodes", "list_versions"]

Document = dict[str, Any]

_IS_LIVE: Final[ColumnElement[bool]] = and_(nodes.c.stopped_at.is_(None), nodes.c.lease_until > NOW)
_STATE: Final = case(
    (nodes.c.stopped_at.is_not(None), "stopped"),
    (nodes.c.lease_until <= NOW, "lost"),
    (nodes.c.draining, "draining"),
    else_="live",
)


def list_nodes(connection: Connection, *, past: bool = False, limit: int = 500) -> list[Document]:
    """List the nodes, the newest first: the live ones and those lost within the last hour, or `past` ones as well."""
    query = (
        select(
            nodes.c.node_id, nodes.c.kind, nodes.c.host, nodes.c.pid, _STATE, iso(nodes.c.started_at),
            iso(nodes.c.beat_at), nodes.c.lanes, nodes.c.flows, nodes.c.concurrency,
        )
        .order_by(nodes.c.started_at.desc(), nodes.c.node_id)
        .limit(limit)
    )  # fmt: skip
    if not past:
        query = query.where(nodes.c.stopped_at.is_(None), nodes.c.beat_at > NOW - func.make_interval(0, 0, 0, 0, 1))
    active = _active(connection)
    return [
        {
            "id": id_,
            "kind": kind,
            "host": host,
            "pid": pid,
            "state": state,
            "started": started,
            "last_seen": seen,
            "lanes": lanes_,
            "serves": serves,
            "concurrency": concurrency,
            "active": active[id_],
        }
        for id_, kind, host, pid, state, started, seen, lanes_, serves, concurrency in connection.execute(query)
    ]


def _active(connection: Connection) -> Mapping[str, list[Document]]:
    # By steps_running.
    key = (steps.c.generation, steps.c.path, steps.c.step_id, steps.c.iteration)
    query = (
        select(steps.c.owner, steps.c.run_id, iso(steps.c.claimed_at), *key)
        .where(steps.c.status == "running")
        .order_by(steps.c.claimed_at)
        .limit(10_000)
    )
    found: dict[str, list[Document]] = defaultdict(list)
    for owner, run_id, since, *parts in connection.execute(query):
        found[owner].append({"run_id": str(run_id), "step": str(Key(*parts)), "since": since})
    return found


def list_versions(connection: Connection) -> list[Document]:
    """List each flow's versions: how many live runs need one, which live nodes serve it, and whether it is missing."""
    needed = select(runs.c.flow, runs.c.workflow_version, func.count()).where(runs.c.finished_at.is_(None))
    needs = {
        (flow, version): count
        for flow, version, count in connection.execute(needed.group_by(runs.c.flow, runs.c.workflow_version))
    }
    serving: dict[tuple[str, str], list[str]] = defaultdict(list)
    for node_id, serves in connection.execute(select(nodes.c.node_id, nodes.c.flows).where(_IS_LIVE)):
        for name, _, version in (one.rpartition("@") for one in serves):
            serving[name, version].append(node_id)
    known = {
        (name, version): parsed(versions)
        for name, version, versions in connection.execute(
            select(flows.c.name, flows.c.version, cast(flows.c.versions, Text))
        )
    }
    return [
        {
            "flow": name,
            "version": version,
            "live_runs": needs.get((name, version), 0),
            "nodes": sorted(serving.get((name, version), ())),
            "missing": (name, version) in needs and (name, version) not in serving,
            "versions": known.get((name, version), {}),
        }
        for name, version in sorted({*needs, *serving, *known})
    ]

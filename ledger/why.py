"""Reads what the open steps of runs wait for, and why a run does not move; `reasons` puts it into words."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final
from uuid import UUID

from sqlalchemy import (
    ColumnElement,
    Connection,
    RowMapping,
    Select,
    Text,
    and_,
    case,
    cast,
    exists,
    func,
    or_,
    select,
    text,
)  # fmt: skip

from .document import parsed, shown
from .instant import NOW, iso, seconds_to
from .key import Key
from .lane_views import standing
from .reasons import OpenStep, Question, RunFacts, breaker_words, reasons
from .schema import breakers, effects, nodes, runs, steps

__all__ = ["open_steps", "why"]

OPEN: Final = ("ready", "running", "waiting", "held")
LISTED: Final = 4096  # bytes of what is shown with a question; `effects show` gives all of an effect's request
_owner = nodes.alias("owning_node")
_child = runs.alias("child_run")


def _is_served() -> ColumnElement[bool]:
    """Whether a live node takes this step's lane and serves its run's version and code: what dispatch asks (P15)."""
    return exists().where(
        nodes.c.stopped_at.is_(None),
        nodes.c.lease_until > NOW,
        ~nodes.c.draining,
        steps.c.lane == func.any(nodes.c.lanes),
        (runs.c.flow + "@" + runs.c.workflow_version) == func.any(nodes.c.flows),
        or_(
            steps.c.kind.not_in(("step", "effect")),
            func.cardinality(nodes.c.steps) == 0,
            steps.c.name == func.any(nodes.c.steps),
        ),
    )


def _open(run_ids: Sequence[UUID]) -> Select[*tuple[Any, ...]]:
    # By steps_open; the child of a wait is found by runs_children.
    own_key = func.safepoint.key_v1(steps.c.path, steps.c.step_id, steps.c.iteration)
    is_child = and_(_child.c.parent_run_id == steps.c.run_id, _child.c.parent_key == own_key, steps.c.kind == "child")
    lives = or_(steps.c.owner.is_(None), and_(_owner.c.stopped_at.is_(None), _owner.c.lease_until > NOW))
    is_question = and_(steps.c.status == "waiting", steps.c.kind.in_(("approval", "effect")))
    asked = func.coalesce(effects.c.request, steps.c.input)
    size = func.octet_length(asked)
    return (
        select(
            steps.c.run_id, steps.c.generation, steps.c.path, steps.c.step_id, steps.c.iteration, steps.c.kind,
            steps.c.name, steps.c.status, steps.c.lane, cast(steps.c.reason, Text).label("reason"), steps.c.attempt,
            steps.c.owner, iso(func.coalesce(steps.c.claimed_at, steps.c.created_at)).label("since"),
            seconds_to(steps.c.ready_at).label("ready_in"), seconds_to(steps.c.due_at).label("due_in"),
            seconds_to(steps.c.dispatched_at).label("sent_in"), seconds_to(steps.c.claimed_at).label("claimed_in"),
            func.coalesce(lives, False).label("lives"), _is_served().label("is_served"), steps.c.queued,
            cast(_child.c.run_id, Text).label("child"), is_question.label("is_question"),
            case((and_(is_question, size <= LISTED), asked)).label("asked"), size.label("size"),
            func.coalesce(effects.c.request_encoding, steps.c.input_encoding).label("asked_encoding"),
            func.encode(func.coalesce(effects.c.request_digest, steps.c.input_hash), "hex").label("asked_digest"),
            effects.c.declared["requires_approval"].astext.label("role"),
            breakers.c.name.label("dependency"), breakers.c.state.label("breaker"),
            breakers.c.detail["why"].astext.label("breaker_why"),
            seconds_to(breakers.c.next_probe_at).label("probe_in"),
        )
        .select_from(
            steps.join(runs, runs.c.run_id == steps.c.run_id)
            .outerjoin(_owner, _owner.c.node_id == steps.c.owner)
            .outerjoin(_child, is_child)
            .outerjoin(effects, effects.c.idempotency_key == steps.c.effect_key)
            .outerjoin(breakers, and_(breakers.c.name == steps.c.uses, breakers.c.state != "closed"))
        )
        .where(steps.c.run_id.in_(run_ids), steps.c.status.in_(OPEN), steps.c.generation == runs.c.generation)
        .order_by(steps.c.run_id, steps.c.created_at, steps.c.path, steps.c.step_id, steps.c.iteration)
    )  # fmt: skip


def open_steps(connection: Connection, run_ids: Sequence[UUID]) -> Mapping[UUID, list[OpenStep]]:
    """Give the steps of each run that are not final, in the order in which the flow asked for them."""
    found: dict[UUID, list[OpenStep]] = defaultdict(list)
    for row in connection.execute(_open(run_ids)).mappings() if run_ids else ():
        found[row["run_id"]].append(_step(row))
    return found


def _step(row: RowMapping) -> OpenStep:
    key = Key(row["generation"], row["path"], row["step_id"], row["iteration"])
    return OpenStep(
        key=str(key),
        kind=row["kind"],
        name=row["name"],
        status=row["status"],
        lane=row["lane"],
        reason=parsed(row["reason"]),
        since=row["since"],
        ready_in=float(row["ready_in"] or 0),
        due_in=_number(row["due_in"]),
        sent_ago=_ago(row["sent_in"]),
        claimed_ago=_ago(row["claimed_in"]),
        owner=row["owner"],
        owner_lives=row["lives"],
        attempt=row["attempt"],
        served=row["is_served"],
        queued=row["queued"] > 0,
        child=row["child"],
        question=_question(row) if row["is_question"] else None,
        breaker=_breaker(row) if row["dependency"] is not None else None,
    )


def _breaker(row: RowMapping) -> str:
    probe_in = _number(row["probe_in"])
    return breaker_words(row["dependency"], state=row["breaker"], why=row["breaker_why"], probe_in=probe_in)


def _question(row: RowMapping) -> Question:
    is_big = row["asked"] is None and row["size"] is not None
    told = {"encoding": row["asked_encoding"], "bytes": row["size"]}
    return Question(row["asked_digest"], told if is_big else shown(row["asked"], row["asked_encoding"]), row["role"])


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _ago(value: Any) -> float | None:
    return None if value is None else max(0.0, -float(value))


def why(connection: Connection, run_id: UUID) -> dict[str, Any] | None:
    """Tell why a run does not move: `{run_id, status, reasons, running}`; None when there is no such run."""
    asked = runs.c.run_id == run_id
    told = (cast(runs.c.reason, Text), cast(runs.c.holds, Text))
    columns = (runs.c.status, runs.c.flow, runs.c.workflow_version, *told, runs.c.tenant_id)
    row = connection.execute(select(*columns).where(asked)).one_or_none()
    if row is None:
        return None
    status, flow, version, reason, holds, tenant = row
    open_ = open_steps(connection, [run_id])[run_id]
    waiting_on = sorted({step.lane for step in open_ if step.status == "ready"})
    stored = parsed(holds)
    facts = RunFacts(
        run_id=str(run_id),
        status=status,
        flow=flow,
        version=version,
        reason=parsed(reason),
        holds=stored if isinstance(stored, Mapping) else {},
        open=open_,
        ahead={lane: _ready_on(connection, lane) for lane in waiting_on},
        lanes=standing(connection, waiting_on, tenant=tenant),
    )
    running = [
        {"step": step.key, "node": step.owner, "for": step.claimed_ago} for step in open_ if step.status == "running"
    ]
    return {"run_id": str(run_id), "status": status, "reasons": reasons(facts), "running": running}


def _ready_on(connection: Connection, lane: str) -> int:
    # By steps_due and steps_queue; bounded, because "more than a thousand" is all that a person needs to know.
    is_queued = and_(steps.c.queued > 0, steps.c.due_at < text("'infinity'"))
    some = [
        select(steps.c.run_id).where(steps.c.status == "ready", steps.c.lane == lane, which).limit(1001).subquery()
        for which in (steps.c.queued == 0, is_queued)
    ]
    counts = [connection.scalar(select(func.count()).select_from(one)) or 0 for one in some]
    return min(sum(counts), 1001)

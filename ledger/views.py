"""What people and programs read of runs: lists, one run with all that belongs to it, its events.

Everything comes back as JSON values, in the form that the public page of the command line promises.
"""

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
    cast,
    func,
    literal,
    select,
    text,
    tuple_,
    union_all,
)

from .document import money, parsed, shown
from .instant import iso
from .key import Key
from .reasons import OpenStep, RunFacts, complete, reasons
from .schema import budgets, effect_history, effects, events, identity, runs, steps
from .states import RunStatus
from .why import open_steps

__all__ = ["find_runs", "list_events", "list_runs", "newest", "read_budget", "read_run", "read_summary"]

Document = dict[str, Any]
_FINAL: Final = frozenset({"succeeded", "failed", "cancelled"})


def _text(column: ColumnElement[Any]) -> ColumnElement[str]:
    # As a text: what psycopg makes of jsonb may fail on numbers that PostgreSQL takes.
    return cast(column, Text).label(str(getattr(column, "name", "")))


def _instant(column: ColumnElement[Any]) -> ColumnElement[str]:
    return iso(column).label(str(getattr(column, "name", "")))


_ENVELOPE: Final = (
    runs.c.run_id, runs.c.tenant_id, runs.c.flow, runs.c.workflow_version, runs.c.status, _text(runs.c.reason),
    runs.c.completed_steps, runs.c.attempt, _instant(runs.c.deadline), _text(runs.c.budget), runs.c.spent_tokens,
    runs.c.spent_usd, runs.c.spent_retries, runs.c.wasted_tokens, runs.c.wasted_usd, _text(runs.c.versions),
    runs.c.state_version, runs.c.input, runs.c.input_encoding, runs.c.result, runs.c.result_encoding,
    _text(runs.c.error), _text(runs.c.tags), runs.c.conversation_id, _instant(runs.c.created_at),
    _instant(runs.c.finished_at), runs.c.event_seq, _text(runs.c.artifacts), runs.c.budget_id,
    *(getattr(budgets.c, name).label(f"shared_{name}") for name in (
        "tokens", "usd", "retries", "spent_tokens", "spent_usd", "spent_retries", "reserved_tokens", "reserved_usd")),
)  # fmt: skip
_ORDER: Final = (runs.c.created_at.desc(), runs.c.run_id.desc())
_READ: Final = select(*_ENVELOPE).select_from(runs.outerjoin(budgets, budgets.c.budget_id == runs.c.budget_id))


def list_runs(
    connection: Connection,
    *,
    tenant: str | None = None,
    status: Sequence[str] = (),
    flow: str | None = None,
    tags: Mapping[str, str] | None = None,
    limit: int = 50,
    before: UUID | None = None,
) -> list[Document]:
    """List runs, the newest first; `before` is the last run of the page before, `flow` may be `name@version`."""
    ids = list(connection.scalars(newest(tenant, status, flow=flow, tags=tags, limit=limit, before=before)))
    # The rows of these ids, whatever the planner would make of a join.
    found = connection.execute(_READ.where(runs.c.run_id.in_(ids)).order_by(*_ORDER)).mappings().all() if ids else ()
    open_ = open_steps(connection, ids)
    return [_envelope(row, open_.get(row["run_id"], ())) for row in found]


def newest(  # the filters of a list
    tenant: str | None = None,
    status: Sequence[str] = (),
    *,
    flow: str | None = None,
    tags: Mapping[str, str] | None = None,
    limit: int = 50,
    before: UUID | None = None,
) -> Select[UUID]:
    """Select the ids of the newest runs that match.

    Each status for itself: it is read off an index in its order, and no more of it than is shown. Of several at once
    the planner would read and sort all there are.
    """
    conditions = _matching(tenant=tenant, flow=flow, tags=tags or {})
    if before is not None:
        # By value, not by position: a run that comes in between moves nothing.
        last = select(runs.c.created_at, runs.c.run_id).where(runs.c.run_id == before)
        conditions.append(tuple_(runs.c.created_at, runs.c.run_id) < last.scalar_subquery())
    # A tenant's runs lie by their status in runs_listed: what has any is in one of these.
    among = tuple(dict.fromkeys(status)) or (tuple(RunStatus) if tenant is not None else ())
    # The status is in the text of the statement: a plan for any status would not know which ones are rare.
    wanted = [runs.c.status == literal(str(one), literal_execute=True) for one in among]
    # By runs_listed with a tenant, runs_in_status, runs_of_flow, runs_of_version, runs_tagged, or runs_newest.
    columns = select(runs.c.run_id, runs.c.created_at).where(*conditions)
    heads = [columns.where(one) for one in wanted] or [columns]
    all_ = union_all(*(head.order_by(*_ORDER).limit(limit).subquery().select() for head in heads)).subquery()
    return select(all_.c.run_id).order_by(all_.c.created_at.desc(), all_.c.run_id.desc()).limit(limit)


def find_runs(connection: Connection, beginning: str, *, limit: int = 5) -> list[UUID]:
    """Find runs by the beginning of their id, as people copy it from a narrow terminal."""
    low, high = (UUID((beginning.replace("-", "") + 32 * filler)[:32]) for filler in "0f")
    query = select(runs.c.run_id).where(runs.c.run_id.between(low, high)).order_by(runs.c.run_id).limit(limit)
    return list(connection.scalars(query))


def _matching(*, tenant: str | None, flow: str | None, tags: Mapping[str, str]) -> list[ColumnElement[bool]]:
    name, _, version = (flow or "").partition("@")
    wanted: tuple[tuple[object, ColumnElement[bool]], ...] = (
        (tenant is not None, runs.c.tenant_id == tenant),
        (name, runs.c.flow == name),
        (version, runs.c.workflow_version == version),
        # The second one says what runs_tagged holds: the planner does not conclude it.
        (tags, and_(runs.c.tags.contains(dict(tags)), runs.c.tags != text("'{}'"))),
    )
    return [condition for asked, condition in wanted if asked]


def _envelope(row: RowMapping, open_: Sequence[OpenStep]) -> Document:
    shared = _shared(row)
    own = parsed(row["budget"])  # of a run that ended before budgets were shared
    own = own if isinstance(own, Mapping) else {}
    return {
        "run_id": str(row["run_id"]),
        "tenant": row["tenant_id"],
        "flow": row["flow"],
        "version": row["workflow_version"],
        "status": row["status"],
        "reason": _reason(row, open_),
        "current": [step.key for step in open_],
        "completed_steps": row["completed_steps"],
        "attempt": row["attempt"],
        "deadline": row["deadline"],
        "budget": shared["budget"] if shared else {name: own.get(name) for name in ("tokens", "usd", "retries")},
        "spent": {"tokens": row["spent_tokens"], "usd": money(row["spent_usd"]), "retries": row["spent_retries"]},
        "wasted": {"tokens": row["wasted_tokens"], "usd": money(row["wasted_usd"])},
        "versions": parsed(row["versions"]),
        "state_version": row["state_version"],
        "input": shown(row["input"], row["input_encoding"]),
        "result": shown(row["result"], row["result_encoding"]),
        "error": parsed(row["error"]),
        "tags": parsed(row["tags"]),
        "conversation": row["conversation_id"],
        "created_at": row["created_at"],
        "finished_at": row["finished_at"],
    }


def _shared(row: RowMapping) -> Document | None:
    """Give the budget that the run spends from, with all that its family has spent and its running steps hold."""
    if row["budget_id"] is None:
        return None
    usd = row["shared_usd"]
    return {
        "run_id": str(row["budget_id"]),
        "budget": {
            "tokens": row["shared_tokens"],
            "usd": None if usd is None else money(usd),
            "retries": row["shared_retries"],
        },
        "spent": {
            "tokens": row["shared_spent_tokens"],
            "usd": money(row["shared_spent_usd"]),
            "retries": row["shared_spent_retries"],
        },
        "reserved": {"tokens": row["shared_reserved_tokens"], "usd": money(row["shared_reserved_usd"])},
    }


def _reason(row: RowMapping, open_: Sequence[OpenStep]) -> Document | None:
    """Give the run's own reason; a run without one has the first of its steps that has, while none of them runs."""
    own = parsed(row["reason"])
    if row["status"] in _FINAL:
        return None
    if isinstance(own, Mapping) and own.get("code"):
        return complete(own, str(row["run_id"]))
    if any(step.status == "running" and step.owner_lives for step in open_):
        return None
    facts = RunFacts(str(row["run_id"]), row["status"], row["flow"], row["workflow_version"], own, open=open_)
    return next(iter(reasons(facts)), None)


def read_summary(connection: Connection, run_id: UUID) -> Document | None:
    """Read one run as lists show it: what it costs does not grow with its steps."""
    row = connection.execute(_READ.where(runs.c.run_id == run_id)).mappings().one_or_none()
    return None if row is None else _envelope(row, open_steps(connection, [run_id]).get(run_id, ()))


def read_budget(connection: Connection, run_id: UUID) -> Document | None:
    """Read the budget that a run shares with its family: {run_id, budget, spent, reserved}; None where it has none."""
    row = connection.execute(_READ.where(runs.c.run_id == run_id)).mappings().one_or_none()
    return None if row is None else _shared(row)


def read_run(connection: Connection, run_id: UUID) -> Document | None:
    """Read one run with its steps and effects; None when there is no such run."""
    row = connection.execute(_READ.where(runs.c.run_id == run_id)).mappings().one_or_none()
    if row is None:
        return None
    open_ = open_steps(connection, [run_id]).get(run_id, ())
    found = parsed(row["artifacts"])
    return {
        **_envelope(row, open_),
        "steps": _read_steps(connection, run_id),
        "effects": _read_effects(connection, run_id),
        "events": row["event_seq"],
        "artifacts": found if isinstance(found, list) else [],
    }


def _read_steps(connection: Connection, run_id: UUID) -> list[Document]:
    key = (steps.c.generation, steps.c.path, steps.c.step_id, steps.c.iteration)
    query = (
        select(
            *key, steps.c.kind, steps.c.status, _text(steps.c.reason), steps.c.attempt, steps.c.recoveries,
            steps.c.epoch, steps.c.lane, func.coalesce(steps.c.owner, steps.c.committed_by).label("node"),
            _instant(steps.c.claimed_at), _instant(steps.c.committed_at), steps.c.tokens, steps.c.usd,
            steps.c.wasted_tokens, steps.c.wasted_usd,
        )
        .where(steps.c.run_id == run_id)
        # As they were committed, then what is open as the flow asked for it.
        .order_by(steps.c.commit_seq.nulls_last(), steps.c.created_at, *key)
    )  # fmt: skip
    return [_step(row, str(run_id)) for row in connection.execute(query).mappings()]


def _step(row: RowMapping, run_id: str) -> Document:
    reason = parsed(row["reason"])
    return {
        "key": _key(row),
        "step": row["step_id"],
        "kind": row["kind"],
        "generation": row["generation"],
        "status": row["status"],
        "reason": complete(reason, run_id, code=row["kind"]) if isinstance(reason, Mapping) else None,
        "attempt": row["attempt"],
        "recoveries": row["recoveries"],
        "epoch": row["epoch"],
        "lane": row["lane"],
        "node": row["node"],
        "started_at": row["claimed_at"],
        "committed_at": row["committed_at"],
        "spent": {
            "tokens": row["tokens"] + row["wasted_tokens"],
            "usd": money(row["usd"] + row["wasted_usd"]),
        },
    }


def _key(row: RowMapping) -> str:
    return str(Key(row["generation"], row["path"], row["step_id"], row["iteration"]))


def _read_effects(connection: Connection, run_id: UUID) -> list[Document]:
    past = _effect_histories(connection, run_id)
    query = (
        select(
            effects.c.idempotency_key, effects.c.generation, effects.c.path, effects.c.step_id, effects.c.iteration,
            effects.c.status, effects.c.attempts, effects.c.external_id,
        )
        .where(effects.c.run_id == run_id)
        .order_by(effects.c.created_at, effects.c.reference)
    )  # fmt: skip
    return [
        {
            "idempotency_key": row["idempotency_key"].hex(),
            "key": _key(row),
            "status": row["status"],
            "attempts": row["attempts"],
            "external_id": row["external_id"],
            "history": past[row["idempotency_key"]],
        }
        for row in connection.execute(query).mappings()
    ]


def _effect_histories(connection: Connection, run_id: UUID) -> Mapping[bytes, list[Document]]:
    own = effect_history
    query = (
        select(own.c.idempotency_key, own.c.status, own.c.actor, own.c.why, _text(own.c.evidence), _instant(own.c.at))
        .join(effects, effects.c.idempotency_key == own.c.idempotency_key)
        .where(effects.c.run_id == run_id)
        .order_by(own.c.idempotency_key, own.c.n)
    )
    found: dict[bytes, list[Document]] = defaultdict(list)
    for key, status, actor, reason, evidence, at in connection.execute(query):
        entry = {"status": status, "actor": actor, "why": reason, "evidence": parsed(evidence), "at": at}
        found[key].append(entry)
    return found


def list_events(connection: Connection, run_id: UUID, *, after: int = 0, limit: int = 1000) -> list[Document]:
    """List a run's events after a number, in order; `id` is what a client hands back after a lost connection."""
    query = (
        select(events.c.seq, events.c.v, events.c.type, events.c.key, _text(events.c.data), _instant(events.c.at))
        .where(events.c.run_id == run_id, events.c.seq > after)
        .order_by(events.c.seq)
        .limit(limit)
    )
    found = connection.execute(query).all()
    incarnation = connection.scalar(select(identity.c.incarnation)) if found else None
    return [
        {"id": f"{incarnation}-{seq}", "seq": seq, "v": v, "type": type_, "key": key, "data": parsed(data), "at": at}
        for seq, v, type_, key, data, at in found
    ]

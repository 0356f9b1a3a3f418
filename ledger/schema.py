"""The ledger's tables as SQLAlchemy sees them: the mirror of the migrations, for queries.

The migrations make the database; a test proves that `METADATA` describes the same one. Nothing is created from here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Double,
    ForeignKey,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Numeric,
    PrimaryKeyConstraint,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from .states import EffectStatus, RunStatus, StepStatus

__all__ = [
    "METADATA", "artifacts", "breaker_events", "breaker_probes", "breakers", "budgets", "compatible", "effect_history",
    "effects", "events", "flows",
    "idempotency_keys", "identity", "lanes", "mailbox", "nodes", "once", "outbox_messages", "runs", "steps",
]  # fmt: skip

METADATA: Final = MetaData(schema="safepoint")

STEP_KEY: Final = ("run_id", "generation", "path", "step_id", "iteration")
KINDS: Final = (
    "start", "step", "effect", "timer", "signal", "approval", "child", "advance", "cancel", "lookup",
    "compensation",
)  # fmt: skip
FINAL_RUNS: Final = tuple(status for status in RunStatus if status.is_final)

_INSTANT = DateTime(timezone=True)
_CLOCK = text("clock_timestamp()")
_NEVER = text("'-infinity'")
_IS_FINAL = "status IN ('succeeded', 'failed', 'cancelled')"
_CLAIMED = "claim_token IS NOT NULL AND expires_at IS NOT NULL"
_OPEN = "status IN ('ready', 'running', 'waiting', 'held')"


def _must(name: str, kind: Any, default: str | int | None = None) -> Column[Any]:
    """Describe a column that is never NULL."""
    return Column(name, kind, nullable=False, server_default=None if default is None else text(str(default)))


def _may(name: str, kind: Any) -> Column[Any]:
    """Describe a column that may be NULL."""
    return Column(name, kind, nullable=True)


def _one_of(name: str, values: Sequence[str], column: str = "status") -> CheckConstraint:
    listed = ", ".join(f"'{value}'" for value in values)
    return CheckConstraint(f"{column} IN ({listed})", name=name)


def _reference(column: str) -> ForeignKey:
    return ForeignKey(f"safepoint.{column}", ondelete="CASCADE")


def _of_run() -> Column[Any]:
    return Column("run_id", Uuid, _reference("runs.run_id"), nullable=False)


def _step_key() -> tuple[Column[Any], ...]:
    return (
        _of_run(),
        _must("generation", Integer),
        _must("path", Text),
        _must("step_id", Text),
        _must("iteration", Integer),
    )


identity = Table(
    "identity", METADATA,
    Column("singleton", Boolean, CheckConstraint("singleton"), primary_key=True, server_default=text("true")),
    _must("incarnation", Uuid, "gen_random_uuid()"), _must("reason", Text, "'created'"),
    _may("timeline", Text), _may("server_started", _INSTANT), _may("last_scan_at", _INSTANT),
    _may("last_scan_by", Text),
    Column("stalled_checked_at", _INSTANT, nullable=False, server_default=_NEVER),
    Column("takeover_after", _INSTANT, nullable=False, server_default=_NEVER),
    Column("changed_at", _INSTANT, nullable=False, server_default=_CLOCK),
)  # fmt: skip

runs = Table(
    "runs", METADATA,
    Column("run_id", Uuid, primary_key=True), _must("tenant_id", Text), _may("conversation_id", Text),
    _must("flow", Text),
    _must("status", Text, "'queued'"), _may("reason", JSONB), _must("holds", JSONB, "'{}'"),
    _may("paused_at", _INSTANT), _may("cancel_at", _INSTANT), _may("ending", Text), _may("current_node", Text),
    _must("completed_steps", Integer, 0), _must("attempt", Integer, 1), _must("priority", Integer, 0),
    _may("deadline", _INSTANT), _may("start_at", _INSTANT),
    _must("input", LargeBinary), _must("input_encoding", Text), _must("input_hash", LargeBinary),
    _must("plan", JSONB, "'[]'"), _must("budget", JSONB, "'{}'"),
    _must("spent_tokens", BigInteger, 0), _must("spent_usd", Numeric, 0), _must("spent_retries", Integer, 0),
    _must("wasted_tokens", BigInteger, 0), _must("wasted_usd", Numeric, 0),
    _must("workflow_version", Text), _may("prompt_version", Text), _may("tool_schema_version", Text),
    _may("model_policy_version", Text), _may("index_version", Text), _must("versions", JSONB, "'{}'"),
    _must("state_version", Integer, 0), _must("generation", Integer, 1), _must("event_seq", Integer, 0),
    _may("result", LargeBinary), _may("result_encoding", Text), _may("error", JSONB),
    _must("artifacts", JSONB, "'[]'"), _must("tags", JSONB, "'{}'"),
    _may("parent_run_id", Uuid), _may("parent_key", Text), _may("budget_id", Uuid),
    _must("created_at", _INSTANT), _must("updated_at", _INSTANT), _may("finished_at", _INSTANT),
    _one_of("runs_status", tuple(RunStatus)),
    _one_of("runs_ending", FINAL_RUNS, "ending"),
    CheckConstraint(f"({_IS_FINAL}) = (finished_at IS NOT NULL)", name="runs_final_has_finished_at"),
    postgresql_with={"fillfactor": 80},
)  # fmt: skip
Index("runs_listed", runs.c.tenant_id, runs.c.created_at.desc())
Index(
    "runs_tagged",
    runs.c.tags,
    postgresql_using="gin",
    postgresql_ops={"tags": "jsonb_path_ops"},
    postgresql_where=text("tags <> '{}'"),
)
Index("runs_live", runs.c.created_at, postgresql_where=text("finished_at IS NULL"))
Index("runs_deadline", runs.c.deadline, postgresql_where=text("finished_at IS NULL AND deadline IS NOT NULL"))
Index("runs_cancelling", runs.c.cancel_at, postgresql_where=text("finished_at IS NULL AND cancel_at IS NOT NULL"))
Index("runs_children", runs.c.parent_run_id, postgresql_where=text("parent_run_id IS NOT NULL"))
Index("runs_budget", runs.c.budget_id, postgresql_where=text("budget_id IS NOT NULL"))

budgets = Table(
    "budgets", METADATA,
    Column("budget_id", Uuid, _reference("runs.run_id"), primary_key=True), _must("tenant_id", Text),
    _may("tokens", BigInteger), _may("usd", Numeric), _may("retries", Integer),
    _must("spent_tokens", BigInteger, 0), _must("spent_usd", Numeric, 0), _must("spent_retries", Integer, 0),
    _must("reserved_tokens", BigInteger, 0), _must("reserved_usd", Numeric, 0),
    _must("is_short", Boolean, "false"), _must("changes", JSONB, "'[]'"), _must("created_at", _INSTANT),
    CheckConstraint("reserved_tokens >= 0 AND reserved_usd >= 0", name="budgets_reserved"),
    CheckConstraint("spent_tokens >= 0 AND spent_usd >= 0 AND spent_retries >= 0", name="budgets_spent"),
    postgresql_with={"fillfactor": 70},
)  # fmt: skip

steps = Table(
    "steps", METADATA,
    *_step_key(), _must("tenant_id", Text), _must("priority", Integer, 0), _may("deadline", _INSTANT),
    _must("kind", Text), _must("name", Text), _must("status", Text), _may("reason", JSONB),
    _must("lane", Text), _must("home_lane", Text), _may("claimed_from", Text), _may("uses", Text),
    _may("due_at", _INSTANT), _must("ready_at", _INSTANT), _may("dispatched_at", _INSTANT),
    _must("dispatches", Integer, 0),
    _may("claim_token", Uuid), _may("committed_token", Uuid), _must("epoch", Integer, 0),
    _may("owner", Text), _may("owner_pid", Integer), _may("owner_pid_start", BigInteger),
    _may("claimed_at", _INSTANT), _may("expires_at", _INSTANT),
    _must("attempt", Integer, 1), _must("recoveries", Integer, 0), _must("deaths", Integer, 0),
    _must("shared_deaths", Integer, 0),
    _may("pending_error", JSONB),
    _must("cleanup", Boolean, "false"), _may("joins", Text),
    _may("input", LargeBinary), _may("input_encoding", Text), _may("input_hash", LargeBinary),
    _may("effect_key", LargeBinary),
    _may("outcome", JSONB), _may("outcome_data", LargeBinary), _may("outcome_encoding", Text),
    _may("result", LargeBinary), _may("result_encoding", Text), _may("result_digest", LargeBinary),
    _may("error", JSONB),
    _may("commit_seq", Integer), _may("at", _INSTANT), _may("first_claimed_at", _INSTANT),
    _may("committed_at", _INSTANT),
    _may("committed_by", Text), _must("created_at", _INSTANT),
    _must("tokens", BigInteger, 0), _must("usd", Numeric, 0), _must("wasted_tokens", BigInteger, 0),
    _must("wasted_usd", Numeric, 0),
    _may("reserve", JSONB), _must("reserved_tokens", BigInteger, 0), _must("reserved_usd", Numeric, 0),
    _must("lost_tokens", BigInteger, 0), _must("lost_usd", Numeric, 0),
    PrimaryKeyConstraint(*STEP_KEY),
    _one_of("steps_kind", KINDS, "kind"),
    _one_of("steps_status", tuple(StepStatus)),
    CheckConstraint("status <> 'ready' OR due_at IS NOT NULL", name="steps_ready_is_due"),
    CheckConstraint(f"status <> 'running' OR ({_CLAIMED})", name="steps_running_has_token"),
    CheckConstraint("(status IN ('succeeded', 'failed')) = (commit_seq IS NOT NULL)", name="steps_final_has_seq"),
    CheckConstraint("status = 'running' OR reserved_tokens = 0 AND reserved_usd = 0", name="steps_reserved_runs"),
    postgresql_with={"fillfactor": 70},
)  # fmt: skip
Index("steps_history", steps.c.run_id, steps.c.commit_seq, unique=True, postgresql_where=text("commit_seq IS NOT NULL"))
Index(
    "steps_due",
    steps.c.lane,
    steps.c.due_at,
    postgresql_where=text("status = 'ready' AND (kind <> 'start' OR dispatched_at IS NOT NULL)"),
)
Index(
    "steps_queued",
    steps.c.lane,
    steps.c.due_at,
    postgresql_where=text("status = 'ready' AND kind = 'start' AND dispatched_at IS NULL"),
)
Index(
    "steps_starts",
    steps.c.lane,
    steps.c.tenant_id,
    steps.c.priority.desc(),
    steps.c.deadline,
    steps.c.due_at,
    postgresql_where=text("status = 'ready' AND kind = 'start' AND dispatched_at IS NULL"),
)
Index("steps_waits_due", steps.c.due_at, postgresql_where=text("status = 'waiting' AND due_at IS NOT NULL"))
Index("steps_open", steps.c.run_id, postgresql_where=text(_OPEN))
Index("steps_running", steps.c.owner, steps.c.claim_token, postgresql_where=text("status = 'running'"))
Index("steps_expiring", steps.c.expires_at, postgresql_where=text("status = 'running'"))
Index(
    "steps_dispatched",
    steps.c.lane,
    steps.c.dispatched_at,
    postgresql_where=text("status = 'ready' AND dispatched_at IS NOT NULL"),
)
Index("steps_in_flight", steps.c.claimed_from, postgresql_where=text("status = 'running'"))
Index("steps_effect", steps.c.effect_key, postgresql_where=text("effect_key IS NOT NULL"))
Index("steps_short", steps.c.run_id, postgresql_where=text("status = 'ready' AND reason ->> 'code' = 'budget'"))
Index("steps_uses", steps.c.uses, steps.c.due_at, postgresql_where=text("status = 'ready' AND uses IS NOT NULL"))
Index(
    "steps_set_aside",
    steps.c.uses,
    steps.c.lane,
    steps.c.tenant_id,
    steps.c.priority.desc(),
    steps.c.deadline,
    steps.c.ready_at,
    postgresql_where=text("status = 'ready' AND reason->>'code' = 'breaker' AND due_at < 'infinity'"),
)
Index("steps_unserved", steps.c.created_at, postgresql_where=text("status = 'ready' AND reason IS NOT NULL"))

once = Table(
    "once", METADATA,
    *_step_key(), _must("name", Text), _must("tenant_id", Text), _must("data", LargeBinary), _must("encoding", Text),
    _must("tokens", BigInteger, 0), _must("usd", Numeric, 0), _must("epoch", Integer), _must("at", _INSTANT),
    PrimaryKeyConstraint(*STEP_KEY, "name"),
)  # fmt: skip

effects = Table(
    "effects", METADATA,
    Column("idempotency_key", LargeBinary, primary_key=True), _must("reference", Text), _must("tenant_id", Text),
    *_step_key(), _must("ordinal", Integer, 1), _must("name", Text, "''"),
    _must("status", Text, "'pending'"), _must("version", Integer, 1), _must("declared", JSONB, "'{}'"),
    _must("request", LargeBinary), _must("request_encoding", Text), _must("request_digest", LargeBinary),
    _may("external_id", Text), _may("result", LargeBinary), _may("result_encoding", Text), _may("error", JSONB),
    _must("attempts", Integer, 0), _may("first_sent_at", _INSTANT), _may("last_sent_at", _INSTANT),
    _may("decision", JSONB), _must("lookups", Integer, 0), _may("last_answer", JSONB), _may("unknown_since", _INSTANT),
    _may("may_send_until", _INSTANT),
    _may("own_until", _INSTANT), _may("older_until", _INSTANT), _may("sent_token", Uuid), _may("sent_by", Text),
    Column("compensates", LargeBinary, _reference("effects.idempotency_key")), _may("commit_seq", Integer),
    _must("created_at", _INSTANT), _may("settled_at", _INSTANT),
    UniqueConstraint(*STEP_KEY, "ordinal", name="effects_once"),
    _one_of("effects_status", tuple(EffectStatus)),
    CheckConstraint("(status IN ('succeeded', 'failed')) = (settled_at IS NOT NULL)", name="effects_settled"),
    CheckConstraint("status <> 'unknown' OR unknown_since IS NOT NULL", name="effects_unknown_since"),
    CheckConstraint(
        "status <> 'executing' OR (sent_token IS NOT NULL AND may_send_until IS NOT NULL)",
        name="effects_executing_is_named",
    ),
)  # fmt: skip
Index(
    "effects_unsettled",
    effects.c.tenant_id,
    effects.c.created_at,
    postgresql_where=text("status IN ('executing', 'unknown')"),
)

Index("effects_compensations", effects.c.compensates, postgresql_where=text("compensates IS NOT NULL"))

effect_history = Table(
    "effect_history", METADATA,
    Column("idempotency_key", LargeBinary, _reference("effects.idempotency_key"), nullable=False),
    _must("n", Integer), _must("tenant_id", Text), _must("status", Text), _must("actor", Text), _may("why", Text),
    _may("evidence", JSONB),
    _must("at", _INSTANT),
    PrimaryKeyConstraint("idempotency_key", "n"),
)  # fmt: skip

events = Table(
    "events", METADATA,
    _of_run(), _must("seq", Integer), _must("tenant_id", Text), _must("v", SmallInteger, 1), _must("type", Text),
    _may("key", Text),
    _must("data", JSONB, "'{}'"), _must("at", _INSTANT),
    PrimaryKeyConstraint("run_id", "seq"),
)  # fmt: skip

mailbox = Table(
    "mailbox", METADATA,
    Column("id", BigInteger, Identity(always=True), primary_key=True), _of_run(), _must("tenant_id", Text),
    _must("kind", Text), _must("name", Text),
    _must("status", Text, "'succeeded'"), _may("payload", LargeBinary), _may("encoding", Text), _may("error", JSONB),
    _may("sender", Text),
    _may("dedupe", Text), _may("consumed_by", Text), _may("consumed_at", _INSTANT), _must("created_at", _INSTANT),
    UniqueConstraint("run_id", "dedupe"),
    _one_of("mailbox_kind", ("signal", "approval", "child"), "kind"),
)  # fmt: skip
Index(
    "mailbox_unread",
    mailbox.c.run_id,
    mailbox.c.kind,
    mailbox.c.name,
    mailbox.c.id,
    postgresql_where=text("consumed_at IS NULL"),
)

outbox_messages = Table(
    "outbox_messages", METADATA,
    Column("id", BigInteger, Identity(always=True), primary_key=True), _must("tenant_id", Text),
    _must("run_id", Uuid), _must("kind", Text),
    _may("target", Uuid), _must("payload", JSONB, "'{}'"), _must("attempts", Integer, 0), _must("due_at", _INSTANT),
    _must("created_at", _INSTANT),
    _one_of("outbox_kind", ("child_end", "child_cancel", "webhook"), "kind"),
)  # fmt: skip
Index("outbox_messages_due", outbox_messages.c.due_at)

nodes = Table(
    "nodes", METADATA,
    Column("node_id", Text, primary_key=True), _must("tenant_id", Text, "''"), _must("kind", Text, "'worker'"),
    _must("host", Text),
    _must("pid", Integer), _must("lanes", ARRAY(Text), "'{}'"), _must("flows", ARRAY(Text), "'{}'"),
    _must("steps", ARRAY(Text), "'{}'"),
    _must("concurrency", Integer, 0), _may("lock_key", BigInteger), _must("server_started", _INSTANT),
    _must("started_at", _INSTANT),
    _must("beat_at", _INSTANT), _may("previous_beat_at", _INSTANT), _must("lease_until", _INSTANT),
    _must("active", ARRAY(Uuid), "'{}'"), _must("previous_active", ARRAY(Uuid), "'{}'"), _must("marks", JSONB, "'{}'"),
    _must("draining", Boolean, "false"), _may("alone", Uuid), _may("stopped_at", _INSTANT),
    _must("place", Text, "''"),
)  # fmt: skip
Index("nodes_live", nodes.c.lease_until, postgresql_where=text("stopped_at IS NULL"))

flows = Table(
    "flows", METADATA,
    _must("name", Text), _must("version", Text), _must("tenant_id", Text, "''"), _must("versions", JSONB, "'{}'"),
    _must("registered_at", _INSTANT),
    PrimaryKeyConstraint("name", "version"),
)  # fmt: skip

lanes = Table(
    "lanes", METADATA,
    Column("name", Text, primary_key=True), _must("tenant_id", Text, "''"), _may("rate", Double), _may("burst", Double),
    _may("in_flight", Integer), _must("window", Integer, 1000), _must("paused", Boolean, "false"),
    _must("tokens", Double, 0),
    Column("refilled_at", _INSTANT, nullable=False, server_default=_NEVER), _must("policy", JSONB, "'{}'"),
    Column("changed_at", _INSTANT, nullable=False, server_default=_CLOCK),
)  # fmt: skip

breakers = Table(
    "breakers", METADATA,
    Column("name", Text, primary_key=True), _must("tenant_id", Text, "''"), _must("state", Text, "'closed'"),
    _may("opened_at", _INSTANT),
    _may("next_probe_at", _INSTANT), _must("detail", JSONB, "'{}'"),
    Column("changed_at", _INSTANT, nullable=False, server_default=_CLOCK), _must("policy", JSONB, "'{}'"),
    _one_of("breakers_state", ("closed", "open", "half_open"), "state"),
    CheckConstraint("state <> 'open' OR next_probe_at IS NOT NULL", name="breakers_open_has_probe"),
)  # fmt: skip

breaker_probes = Table(
    "breaker_probes", METADATA,
    Column("name", Text, _reference("breakers.name"), nullable=False), _must("token", Uuid), _must("tenant_id", Text),
    _must("run_id", Uuid), _must("generation", Integer), _must("path", Text), _must("step_id", Text),
    _must("iteration", Integer), _must("began_at", _INSTANT), _must("lease_until", _INSTANT),
    PrimaryKeyConstraint("name", "token"),
)  # fmt: skip

breaker_events = Table(
    "breaker_events", METADATA,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("name", Text, _reference("breakers.name"), nullable=False), _must("tenant_id", Text, "''"),
    _must("before", Text), _must("after", Text), _must("actor", Text), _must("why", Text),
    _must("facts", JSONB, "'{}'"), _must("at", _INSTANT),
)  # fmt: skip
Index("breaker_events_of", breaker_events.c.name, breaker_events.c.id.desc())

artifacts = Table(
    "artifacts", METADATA,
    _must("tenant_id", Text), _must("sha256", LargeBinary), _must("size", BigInteger), _must("media_type", Text),
    _must("created_at", _INSTANT), _must("touched_at", _INSTANT),
    PrimaryKeyConstraint("tenant_id", "sha256"),
)  # fmt: skip

idempotency_keys = Table(
    "idempotency_keys", METADATA,
    _must("tenant_id", Text), _must("key", Text), _must("run_id", Uuid), _must("flow", Text),
    _must("input_hash", LargeBinary),
    _must("created_at", _INSTANT),
    PrimaryKeyConstraint("tenant_id", "key"),
)  # fmt: skip

compatible = Table("compatible", METADATA, Column("revision", Text, primary_key=True))

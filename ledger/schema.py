"""The ledger's tables as SQLAlchemy sees them: the mirror of the migrations, for queries.

The migrations make the database; a test proves that `METADATA` describes the same one. Nothing is created from here.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Identity,
    Index,
    Integer,
    LargeBinary,
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

from .columns import CLOCK, INSTANT, METADATA, NEVER, STEP_KEY, may, must, of_run, one_of, reference, step_key
from .policy_schema import (
    breaker_events,
    breaker_probes,
    breakers,
    lane_events,
    lane_overrides,
    lane_tenants,
    lanes,
)  # fmt: skip
from .retention_schema import artifact_garbage, artifact_uses, artifacts, pruned_effects, pruned_runs
from .states import EffectStatus, RunStatus, StepStatus

__all__ = [
    "METADATA", "artifact_garbage", "artifact_uses", "artifacts", "breaker_events", "breaker_probes",
    "breakers", "budgets", "compatible", "effect_history", "effects", "events", "flows", "idempotency_keys",
    "identity", "lane_events", "lane_overrides", "lane_tenants", "lanes", "mailbox", "nodes", "once",
    "outbox_messages", "pruned_effects", "pruned_runs", "runs", "steps",
]  # fmt: skip

KINDS: Final = (
    "start", "step", "effect", "timer", "signal", "approval", "child", "advance", "cancel", "lookup",
    "compensation",
)  # fmt: skip
FINAL_RUNS: Final = tuple(status for status in RunStatus if status.is_final)

_IS_FINAL = "status IN ('succeeded', 'failed', 'cancelled')"
_CLAIMED = "claim_token IS NOT NULL AND expires_at IS NOT NULL"
_OPEN = "status IN ('ready', 'running', 'waiting', 'held')"


identity = Table(
    "identity", METADATA,
    Column("singleton", Boolean, CheckConstraint("singleton"), primary_key=True, server_default=text("true")),
    must("incarnation", Uuid, "gen_random_uuid()"), must("reason", Text, "'created'"),
    may("timeline", Text), may("server_started", INSTANT), may("last_scan_at", INSTANT),
    may("last_scan_by", Text),
    Column("stalled_checked_at", INSTANT, nullable=False, server_default=NEVER),
    Column("takeover_after", INSTANT, nullable=False, server_default=NEVER),
    Column("changed_at", INSTANT, nullable=False, server_default=CLOCK),
    Column("stalled_at", INSTANT, nullable=False, server_default=NEVER),
    must("stalled_run", Uuid, "'00000000-0000-0000-0000-000000000000'"),
)  # fmt: skip

runs = Table(
    "runs", METADATA,
    Column("run_id", Uuid, primary_key=True), must("tenant_id", Text), may("conversation_id", Text),
    must("flow", Text),
    must("status", Text, "'queued'"), may("reason", JSONB), must("holds", JSONB, "'{}'"),
    may("paused_at", INSTANT), may("cancel_at", INSTANT), may("ending", Text), may("current_node", Text),
    must("completed_steps", Integer, 0), must("attempt", Integer, 1), must("priority", Integer, 0),
    may("deadline", INSTANT), may("start_at", INSTANT),
    must("input", LargeBinary), must("input_encoding", Text), must("input_hash", LargeBinary),
    must("plan", JSONB, "'[]'"), must("budget", JSONB, "'{}'"),
    must("spent_tokens", BigInteger, 0), must("spent_usd", Numeric, 0), must("spent_retries", Integer, 0),
    must("wasted_tokens", BigInteger, 0), must("wasted_usd", Numeric, 0),
    must("workflow_version", Text), may("prompt_version", Text), may("tool_schema_version", Text),
    may("model_policy_version", Text), may("index_version", Text), must("versions", JSONB, "'{}'"),
    must("state_version", Integer, 0), must("generation", Integer, 1), must("event_seq", Integer, 0),
    may("result", LargeBinary), may("result_encoding", Text), may("error", JSONB),
    must("artifacts", JSONB, "'[]'"), must("tags", JSONB, "'{}'"),
    may("parent_run_id", Uuid), may("parent_key", Text), may("budget_id", Uuid),
    must("created_at", INSTANT), must("updated_at", INSTANT), may("finished_at", INSTANT),
    one_of("runs_status", tuple(RunStatus)),
    one_of("runs_ending", FINAL_RUNS, "ending"),
    CheckConstraint(f"({_IS_FINAL}) = (finished_at IS NOT NULL)", name="runs_final_has_finished_at"),
    postgresql_with={"fillfactor": 80},
)  # fmt: skip
_NEWEST = (runs.c.created_at.desc(), runs.c.run_id.desc())
Index("runs_listed", runs.c.tenant_id, runs.c.status, *_NEWEST)
Index("runs_newest", *_NEWEST)
Index("runs_in_status", runs.c.status, *_NEWEST)
Index("runs_of_flow", runs.c.flow, *_NEWEST, runs.c.workflow_version)
Index("runs_of_version", runs.c.flow, runs.c.workflow_version, *_NEWEST)
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
Index("runs_finished", runs.c.finished_at, runs.c.run_id, postgresql_where=text("finished_at IS NOT NULL"))
Index("runs_budget", runs.c.budget_id, postgresql_where=text("budget_id IS NOT NULL"))

budgets = Table(
    "budgets", METADATA,
    Column("budget_id", Uuid, primary_key=True), must("tenant_id", Text),
    may("tokens", BigInteger), may("usd", Numeric), may("retries", Integer),
    must("spent_tokens", BigInteger, 0), must("spent_usd", Numeric, 0), must("spent_retries", Integer, 0),
    must("reserved_tokens", BigInteger, 0), must("reserved_usd", Numeric, 0),
    must("is_short", Boolean, "false"), must("changes", JSONB, "'[]'"), must("created_at", INSTANT),
    CheckConstraint("reserved_tokens >= 0 AND reserved_usd >= 0", name="budgets_reserved"),
    CheckConstraint("spent_tokens >= 0 AND spent_usd >= 0 AND spent_retries >= 0", name="budgets_spent"),
    postgresql_with={"fillfactor": 70},
)  # fmt: skip

steps = Table(
    "steps", METADATA,
    *step_key(), must("tenant_id", Text), must("priority", Integer, 0), may("deadline", INSTANT),
    must("kind", Text), must("name", Text), must("status", Text), may("reason", JSONB),
    must("lane", Text), must("home_lane", Text), may("claimed_from", Text), may("uses", Text),
    may("due_at", INSTANT), must("ready_at", INSTANT), may("dispatched_at", INSTANT),
    must("dispatches", Integer, 0),
    may("claim_token", Uuid), may("committed_token", Uuid), must("epoch", Integer, 0),
    may("owner", Text), may("owner_pid", Integer), may("owner_pid_start", BigInteger),
    may("claimed_at", INSTANT), may("expires_at", INSTANT),
    must("attempt", Integer, 1), must("recoveries", Integer, 0), must("deaths", Integer, 0),
    must("shared_deaths", Integer, 0),
    may("pending_error", JSONB),
    must("cleanup", Boolean, "false"), may("joins", Text),
    may("input", LargeBinary), may("input_encoding", Text), may("input_hash", LargeBinary),
    may("effect_key", LargeBinary),
    may("outcome", JSONB), may("outcome_data", LargeBinary), may("outcome_encoding", Text),
    may("result", LargeBinary), may("result_encoding", Text), may("result_digest", LargeBinary),
    may("error", JSONB),
    may("commit_seq", Integer), may("at", INSTANT), may("first_claimed_at", INSTANT),
    may("committed_at", INSTANT),
    may("committed_by", Text), must("created_at", INSTANT),
    must("tokens", BigInteger, 0), must("usd", Numeric, 0), must("wasted_tokens", BigInteger, 0),
    must("wasted_usd", Numeric, 0),
    may("reserve", JSONB), must("reserved_tokens", BigInteger, 0), must("reserved_usd", Numeric, 0),
    must("lost_tokens", BigInteger, 0), must("lost_usd", Numeric, 0),
    must("queued", SmallInteger, 0),
    PrimaryKeyConstraint(*STEP_KEY),
    one_of("steps_kind", KINDS, "kind"),
    one_of("steps_status", tuple(StepStatus)),
    CheckConstraint("queued BETWEEN 0 AND 2", name="steps_queued_rank"),
    CheckConstraint("status <> 'ready' OR due_at IS NOT NULL", name="steps_ready_is_due"),
    CheckConstraint(f"status <> 'running' OR ({_CLAIMED})", name="steps_running_has_token"),
    CheckConstraint("(status IN ('succeeded', 'failed')) = (commit_seq IS NOT NULL)", name="steps_final_has_seq"),
    CheckConstraint("status = 'running' OR reserved_tokens = 0 AND reserved_usd = 0", name="steps_reserved_runs"),
    postgresql_with={"fillfactor": 70},
)  # fmt: skip
Index("steps_history", steps.c.run_id, steps.c.commit_seq, unique=True, postgresql_where=text("commit_seq IS NOT NULL"))
Index("steps_due", steps.c.lane, steps.c.due_at, postgresql_where=text("status = 'ready' AND queued = 0"))
_QUEUE = (steps.c.lane, steps.c.tenant_id, steps.c.queued)
Index(
    "steps_queue", *_QUEUE, steps.c.priority.desc(), steps.c.deadline, steps.c.due_at,
    postgresql_where=text("status = 'ready' AND queued > 0 AND due_at < 'infinity'"),
)  # fmt: skip
Index(
    "steps_queue_deadline", *_QUEUE, steps.c.deadline, steps.c.priority.desc(), steps.c.due_at,
    postgresql_where=text("status = 'ready' AND queued > 0 AND due_at < 'infinity' AND deadline IS NOT NULL"),
)  # fmt: skip
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
    *step_key(), must("name", Text), must("tenant_id", Text), must("data", LargeBinary), must("encoding", Text),
    must("tokens", BigInteger, 0), must("usd", Numeric, 0), must("epoch", Integer), must("at", INSTANT),
    PrimaryKeyConstraint(*STEP_KEY, "name"),
)  # fmt: skip

effects = Table(
    "effects", METADATA,
    Column("idempotency_key", LargeBinary, primary_key=True), must("reference", Text), must("tenant_id", Text),
    *step_key(), must("ordinal", Integer, 1), must("name", Text, "''"),
    must("status", Text, "'pending'"), must("version", Integer, 1), must("declared", JSONB, "'{}'"),
    must("request", LargeBinary), must("request_encoding", Text), must("request_digest", LargeBinary),
    may("external_id", Text), may("result", LargeBinary), may("result_encoding", Text), may("error", JSONB),
    must("attempts", Integer, 0), may("first_sent_at", INSTANT), may("last_sent_at", INSTANT),
    may("decision", JSONB), must("lookups", Integer, 0), may("last_answer", JSONB), may("unknown_since", INSTANT),
    may("may_send_until", INSTANT),
    may("own_until", INSTANT), may("older_until", INSTANT), may("sent_token", Uuid), may("sent_by", Text),
    Column("compensates", LargeBinary, reference("effects.idempotency_key")), may("commit_seq", Integer),
    must("created_at", INSTANT), may("settled_at", INSTANT),
    UniqueConstraint(*STEP_KEY, "ordinal", name="effects_once"),
    one_of("effects_status", tuple(EffectStatus)),
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
    Column("idempotency_key", LargeBinary, reference("effects.idempotency_key"), nullable=False),
    must("n", Integer), must("tenant_id", Text), must("status", Text), must("actor", Text), may("why", Text),
    may("evidence", JSONB),
    must("at", INSTANT),
    PrimaryKeyConstraint("idempotency_key", "n"),
)  # fmt: skip

events = Table(
    "events", METADATA,
    of_run(), must("seq", Integer), must("tenant_id", Text), must("v", SmallInteger, 1), must("type", Text),
    may("key", Text),
    must("data", JSONB, "'{}'"), must("at", INSTANT),
    PrimaryKeyConstraint("run_id", "seq"),
)  # fmt: skip

mailbox = Table(
    "mailbox", METADATA,
    Column("id", BigInteger, Identity(always=True), primary_key=True), of_run(), must("tenant_id", Text),
    must("kind", Text), must("name", Text),
    must("status", Text, "'succeeded'"), may("payload", LargeBinary), may("encoding", Text), may("error", JSONB),
    may("sender", Text),
    may("dedupe", Text), may("consumed_by", Text), may("consumed_at", INSTANT), must("created_at", INSTANT),
    UniqueConstraint("run_id", "dedupe"),
    one_of("mailbox_kind", ("signal", "approval", "child"), "kind"),
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
    Column("id", BigInteger, Identity(always=True), primary_key=True), must("tenant_id", Text),
    must("run_id", Uuid), must("kind", Text),
    may("target", Uuid), must("payload", JSONB, "'{}'"), must("attempts", Integer, 0), must("due_at", INSTANT),
    must("created_at", INSTANT),
    one_of("outbox_kind", ("child_end", "child_cancel", "webhook"), "kind"),
)  # fmt: skip
Index("outbox_messages_due", outbox_messages.c.due_at)
Index("outbox_messages_run", outbox_messages.c.run_id)
Index("outbox_messages_target", outbox_messages.c.target, postgresql_where=text("target IS NOT NULL"))

nodes = Table(
    "nodes", METADATA,
    Column("node_id", Text, primary_key=True), must("tenant_id", Text, "''"), must("kind", Text, "'worker'"),
    must("host", Text),
    must("pid", Integer), must("lanes", ARRAY(Text), "'{}'"), must("flows", ARRAY(Text), "'{}'"),
    must("steps", ARRAY(Text), "'{}'"),
    must("concurrency", Integer, 0), may("lock_key", BigInteger), must("server_started", INSTANT),
    must("started_at", INSTANT),
    must("beat_at", INSTANT), may("previous_beat_at", INSTANT), must("lease_until", INSTANT),
    must("active", ARRAY(Uuid), "'{}'"), must("previous_active", ARRAY(Uuid), "'{}'"), must("marks", JSONB, "'{}'"),
    must("draining", Boolean, "false"), may("alone", Uuid), may("stopped_at", INSTANT),
    must("place", Text, "''"),
)  # fmt: skip
Index("nodes_live", nodes.c.lease_until, postgresql_where=text("stopped_at IS NULL"))

flows = Table(
    "flows", METADATA,
    must("name", Text), must("version", Text), must("tenant_id", Text, "''"), must("versions", JSONB, "'{}'"),
    must("registered_at", INSTANT),
    PrimaryKeyConstraint("name", "version"),
)  # fmt: skip

idempotency_keys = Table(
    "idempotency_keys", METADATA,
    must("tenant_id", Text), must("key", Text), must("run_id", Uuid), must("flow", Text),
    must("input_hash", LargeBinary),
    must("created_at", INSTANT),
    PrimaryKeyConstraint("tenant_id", "key"),
)  # fmt: skip

compatible = Table("compatible", METADATA, Column("revision", Text, primary_key=True))

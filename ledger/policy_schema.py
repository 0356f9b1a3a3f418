"""Tables of what operators set and what protects dependencies: lanes, breakers; part of the mirror in `schema`."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Computed,
    Double,
    Identity,
    Index,
    Integer,
    PrimaryKeyConstraint,
    Table,
    Text,
    Uuid,
)  # fmt: skip
from sqlalchemy.dialects.postgresql import JSONB

from .columns import CLOCK, INSTANT, METADATA, NEVER, may, must, one_of, reference

__all__ = [
    "breaker_events", "breaker_probes", "breakers", "lane_events", "lane_overrides", "lane_tenants", "lanes",
]  # fmt: skip

_LIMITED = "rate IS NOT NULL OR in_flight IS NOT NULL OR tenant_in_flight IS NOT NULL"


def _of_lane() -> Column[Any]:
    return Column("lane", Text, reference("lanes.name"), nullable=False)


lanes = Table(
    "lanes", METADATA,
    Column("name", Text, primary_key=True), must("tenant_id", Text, "''"), may("rate", Double), may("burst", Double),
    may("in_flight", Integer), may("window", Integer), must("paused", Boolean, "false"),
    must("tokens", Double, 0),
    Column("refilled_at", INSTANT, nullable=False, server_default=NEVER), must("policy", JSONB, "'{}'"),
    Column("changed_at", INSTANT, nullable=False, server_default=CLOCK),
    may("tenant_in_flight", Integer), must("weights", JSONB, "'{}'"), must("ordering", Text, "'priority'"),
    must("stop_on_breaker", Boolean, "true"), must("inline_slice", Double, 0), must("virtual", Double, 0),
    may("overridden_until", INSTANT),
    Column("limited", Boolean, Computed(_LIMITED, persisted=True)),
    one_of("lanes_ordering", ("priority", "deadline"), "ordering"),
)  # fmt: skip

lane_tenants = Table(
    "lane_tenants", METADATA,
    _of_lane(), must("tenant_id", Text), must("pass", Double),
    PrimaryKeyConstraint("lane", "tenant_id"),
    postgresql_with={"fillfactor": 70},
)  # fmt: skip

lane_overrides = Table(
    "lane_overrides", METADATA,
    _of_lane(), must("key", Text), must("value", JSONB), may("until", INSTANT), must("actor", Text),
    must("why", Text), must("at", INSTANT),
    PrimaryKeyConstraint("lane", "key"),
)  # fmt: skip

lane_events = Table(
    "lane_events", METADATA,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    must("lane", Text), must("tenant_id", Text, "''"), must("what", Text), must("facts", JSONB, "'{}'"),
    must("actor", Text), must("why", Text), must("at", INSTANT),
    one_of("lane_events_what", ("applied", "overridden", "lifted", "over", "removed"), "what"),
)  # fmt: skip
Index("lane_events_of", lane_events.c.lane, lane_events.c.id.desc())

breakers = Table(
    "breakers", METADATA,
    Column("name", Text, primary_key=True), must("tenant_id", Text, "''"), must("state", Text, "'closed'"),
    may("opened_at", INSTANT),
    may("next_probe_at", INSTANT), must("detail", JSONB, "'{}'"),
    Column("changed_at", INSTANT, nullable=False, server_default=CLOCK), must("policy", JSONB, "'{}'"),
    one_of("breakers_state", ("closed", "open", "half_open"), "state"),
    CheckConstraint("state <> 'open' OR next_probe_at IS NOT NULL", name="breakers_open_has_probe"),
)  # fmt: skip

breaker_probes = Table(
    "breaker_probes", METADATA,
    Column("name", Text, reference("breakers.name"), nullable=False), must("token", Uuid), must("tenant_id", Text),
    must("run_id", Uuid), must("generation", Integer), must("path", Text), must("step_id", Text),
    must("iteration", Integer), must("began_at", INSTANT), must("lease_until", INSTANT),
    PrimaryKeyConstraint("name", "token"),
)  # fmt: skip

breaker_events = Table(
    "breaker_events", METADATA,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("name", Text, reference("breakers.name"), nullable=False), must("tenant_id", Text, "''"),
    must("before", Text), must("after", Text), must("actor", Text), must("why", Text),
    must("facts", JSONB, "'{}'"), must("at", INSTANT),
)  # fmt: skip
Index("breaker_events_of", breaker_events.c.name, breaker_events.c.id.desc())

"""Tables of what is kept: artifacts and who refers to them, tombstones; part of the mirror in `schema`."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index, LargeBinary, PrimaryKeyConstraint, Table, Text, Uuid

from .columns import INSTANT, METADATA, must, of_run, one_of, reference

__all__ = ["artifact_garbage", "artifact_uses", "artifacts", "pruned_effects", "pruned_runs"]


artifacts = Table(
    "artifacts", METADATA,
    must("tenant_id", Text), must("sha256", LargeBinary), must("size", BigInteger), must("media_type", Text),
    must("created_at", INSTANT), must("touched_at", INSTANT),
    PrimaryKeyConstraint("tenant_id", "sha256"),
)  # fmt: skip

artifact_uses = Table(
    "artifact_uses", METADATA,
    must("tenant_id", Text), must("sha256", LargeBinary), of_run(),
    PrimaryKeyConstraint("tenant_id", "sha256", "run_id"),
)  # fmt: skip
Index("artifact_uses_run", artifact_uses.c.run_id)

artifact_garbage = Table(
    "artifact_garbage", METADATA,
    must("tenant_id", Text), must("sha256", LargeBinary), must("since", INSTANT),
    PrimaryKeyConstraint("tenant_id", "sha256"),
)  # fmt: skip

pruned_runs = Table(
    "pruned_runs", METADATA,
    Column("run_id", Uuid, primary_key=True), must("tenant_id", Text), must("flow", Text), must("status", Text),
    must("finished_at", INSTANT), must("pruned_at", INSTANT),
    one_of("pruned_runs_status", ("succeeded", "failed", "cancelled")),
)  # fmt: skip
Index("pruned_runs_age", pruned_runs.c.pruned_at)

pruned_effects = Table(
    "pruned_effects", METADATA,
    Column("idempotency_key", LargeBinary, primary_key=True), must("tenant_id", Text),
    Column("run_id", Uuid, reference("pruned_runs.run_id"), nullable=False),
)  # fmt: skip
Index("pruned_effects_run", pruned_effects.c.run_id)

"""Retention: removes from the ledger what ended long ago, batch by batch, each batch a transaction of its own (P40).

Every generator here may be left, or its process killed, between any two lines: a run is whole or gone, and what is
left is found by the next call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, LiteralString
from uuid import UUID

from .artifacts import Discarded, Store
from .connect import Connection

__all__ = [
    "BATCH", "CANDIDATES", "Batch", "Cutoffs", "Group", "artifacts", "blobs", "count", "cutoffs", "dead_rows", "keys",
    "records", "runs", "tombstones",
]  # fmt: skip

BATCH: Final = 100  # runs a transaction (P2)
PAGE: Final = 1000  # rows of the smaller tables a transaction
NOTHING: Final = UUID(int=0)

Group = tuple[str, str, str]  # tenant, flow, status


@dataclass(frozen=True, slots=True)
class Cutoffs:
    """Before when what has ended goes, by the ledger's clock at the start: a long prune does not chase new ends."""

    older: datetime
    failed: datetime
    now: datetime

    def before(self, seconds: float) -> datetime:
        """Return the instant that many seconds before the start."""
        return self.now - timedelta(seconds=seconds)


@dataclass(frozen=True, slots=True)
class Batch:
    """What one transaction, or one look, has come to: runs that go by tenant, flow and status; why others stay."""

    gone: Mapping[Group, int]
    kept: Mapping[str, int]
    rows: int = 0  # removed, of all tables
    again: bool = field(default=False, kw_only=True)  # a new look at what was kept before begins with it

    @property
    def runs(self) -> int:
        """How many runs go."""
        return sum(self.gone.values())


# By runs_finished; locks nothing. Parents that go themselves do not keep their children.
CANDIDATES: Final = """
SELECT r.finished_at, r.run_id, r.tenant_id, r.flow, r.status,
       safepoint.kept_v1(r, %(older)s, %(failed)s, %(unread)s, true)
  FROM safepoint.runs r
 WHERE r.finished_at < greatest(%(older)s, %(failed)s) AND (r.finished_at, r.run_id) > (%(at)s, %(run)s)
   AND (%(tenant)s::text IS NULL OR r.tenant_id = %(tenant)s)
 ORDER BY r.finished_at, r.run_id LIMIT %(limit)s
"""
_PRUNE: Final = """
SELECT seen, at, run, pruned, gone, kept, removed
  FROM safepoint.prune_v1(%(older)s, %(failed)s, %(tenant)s, %(unread)s, %(at)s, %(run)s, %(limit)s)
"""


def cutoffs(connection: Connection, *, older: float, failed: float) -> Cutoffs:
    """Read the ledger's clock, and return the cut-offs for ages in seconds."""
    row = connection.execute("SELECT safepoint.now()").fetchone()
    assert row is not None  # the function answers always
    now: datetime = row[0]
    return Cutoffs(now - timedelta(seconds=older), now - timedelta(seconds=failed), now)


def runs(
    connection: Connection,
    cut: Cutoffs,
    *,
    tenant: str | None = None,
    unread: bool = False,
    limit: int | None = None,
    size: int = BATCH,
) -> Iterator[Batch]:
    """Remove runs, the oldest ends first; one batch a step of the iteration.

    Args:
        connection: an autocommit connection.
        cut: before when they must have ended.
        tenant: only this tenant's.
        unread: also those with mail that their flow has not read.
        limit: at most that many runs.
        size: runs a transaction.
    """
    pruned = 0
    while limit is None or pruned < limit:
        # A child goes after its parent, which often ends later: a look that removed something is followed by another.
        before, waiting = pruned, 0
        for batch in _look(connection, cut, tenant=tenant, unread=unread, left=_left(limit, pruned), size=size):
            yield batch
            pruned += batch.runs
            waiting += batch.kept.get("parent", 0)
        if pruned == before or not waiting:
            return


def _left(limit: int | None, done: int) -> int | None:
    return None if limit is None else limit - done


def _look(
    connection: Connection, cut: Cutoffs, *, tenant: str | None, unread: bool, left: int | None, size: int
) -> Iterator[Batch]:
    at: datetime | str = "-infinity"
    run, again = NOTHING, True
    while left is None or left > 0:
        row = connection.execute(
            _PRUNE,
            {"older": cut.older, "failed": cut.failed, "tenant": tenant, "unread": unread, "at": at, "run": run,
             "limit": size if left is None else min(size, left)},
        ).fetchone()  # fmt: skip
        assert row is not None  # as above
        seen, at, run, pruned, gone, kept, removed = row
        if not seen:
            return
        groups = {(one["tenant"], one["flow"], one["status"]): int(one["runs"]) for one in gone}
        yield Batch(groups, kept, removed, again=again)
        left, again = None if left is None else left - pruned, False


def count(
    connection: Connection, cut: Cutoffs, *, tenant: str | None = None, unread: bool = False, size: int = PAGE
) -> Iterator[Batch]:
    """Look at what `runs` would remove, and remove nothing."""
    at: datetime | str = "-infinity"
    run = NOTHING
    while True:
        found = connection.execute(
            CANDIDATES,
            {"older": cut.older, "failed": cut.failed, "tenant": tenant, "unread": unread, "at": at, "run": run,
             "limit": size},
        ).fetchall()  # fmt: skip
        if not found:
            return
        gone = Counter((row[2], row[3], row[4]) for row in found if row[5] is None)
        yield Batch(gone, Counter(row[5] for row in found if row[5] is not None))
        at, run = found[-1][0], found[-1][1]


def keys(connection: Connection, before: datetime, *, tenant: str | None = None) -> Iterator[int]:
    """Remove idempotency keys of runs that are gone, if they were first used before then; counts a page at a time."""
    yield from _pages(
        connection, "SELECT * FROM safepoint.prune_keys_v1(%s, %s, %s, %s, %s)", before, tenant, start=("", "")
    )


def artifacts(connection: Connection, before: datetime, *, tenant: str | None = None) -> Iterator[int]:
    """Remove the rows of artifacts that no run refers to and nobody has touched since then; `blobs` does the rest."""
    yield from _pages(
        connection, "SELECT * FROM safepoint.prune_artifacts_v1(%s, %s, %s, %s, %s)", before, tenant, start=("", b"")
    )


def _pages(
    connection: Connection, statement: LiteralString, before: datetime, tenant: str | None, *, start: tuple[str, Any]
) -> Iterator[int]:
    place = start
    while True:
        row = connection.execute(statement, (before, tenant, *place, PAGE)).fetchone()
        assert row is not None  # as above
        seen, *rest, removed = row
        if not seen:
            return
        place = (rest[0], rest[1])
        yield removed


def tombstones(connection: Connection, before: datetime, *, tenant: str | None = None) -> Iterator[int]:
    """Forget runs that were pruned before then; counts a page at a time."""
    while True:
        row = connection.execute("SELECT safepoint.prune_tombstones_v1(%s, %s, %s)", (before, tenant, PAGE)).fetchone()
        if row is None or not row[0]:
            return
        yield row[0]


def records(connection: Connection, before: datetime) -> Iterator[Mapping[str, int]]:
    """Remove what breakers and lanes went through before then, and nodes that have stopped before."""
    while True:
        row = connection.execute("SELECT * FROM safepoint.prune_records_v1(%s, %s)", (before, PAGE)).fetchone()
        if row is None or not any(row):
            return
        yield dict(zip(("breaker_events", "lane_events", "nodes"), row, strict=True))


# All by its primary key. The row of an artifact that is in use again stands beside its note.
_GARBAGE: Final = (
    "SELECT tenant_id, sha256 FROM safepoint.artifact_garbage WHERE (tenant_id, sha256) > (%s, %s)"
    " AND (%s::text IS NULL OR tenant_id = %s) ORDER BY tenant_id, sha256 LIMIT %s"
)
_IN_USE: Final = "SELECT EXISTS (SELECT FROM safepoint.artifacts WHERE tenant_id = %s AND sha256 = %s)"
_DONE: Final = "DELETE FROM safepoint.artifact_garbage WHERE tenant_id = %s AND sha256 = %s"


def blobs(connection: Connection, store: Store, *, older_than: float, tenant: str | None = None) -> Iterator[Discarded]:
    """Remove the blobs whose rows are gone; no transaction is open while the store is asked.

    Raises:
        ArtifactStoreUnavailable: the store does not answer; what is left is found by the next call.
    """
    place: tuple[str, bytes] = ("", b"")
    while found := connection.execute(_GARBAGE, (*place, tenant, tenant, PAGE)).fetchall():
        for owner, sha256 in found:
            outcome = _discard(connection, store, owner, sha256, older_than=older_than)
            if outcome is not Discarded.YOUNG:
                connection.execute(_DONE, (owner, sha256))
            yield outcome
        place = (found[-1][0], found[-1][1])


def _discard(connection: Connection, store: Store, owner: str, sha256: bytes, *, older_than: float) -> Discarded:
    def is_used() -> bool:
        row = connection.execute(_IN_USE, (owner, sha256)).fetchone()
        return row is None or bool(row[0])

    return store.discard(owner, sha256.hex(), older_than=older_than, is_used=is_used)


def dead_rows(connection: Connection) -> dict[str, int]:
    """Return how many dead rows the tables hold that lose most by a prune, as PostgreSQL has counted them last."""
    rows = connection.execute(
        "SELECT relname, n_dead_tup FROM pg_stat_user_tables WHERE schemaname = 'safepoint'"
        " AND relname IN ('runs', 'steps', 'events', 'effects', 'effect_history', 'once', 'mailbox') ORDER BY relname"
    ).fetchall()
    return {str(name): int(dead) for name, dead in rows}

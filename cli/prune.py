"""`db prune`: removes what ended long ago, in small transactions that may be interrupted anywhere."""

from __future__ import annotations

import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .access import writing
from .console import document, say, table
from .options import Json, Tenant, seconds_of
from .words import span

if TYPE_CHECKING:
    from ..ledger.connect import Connection
    from ..ledger.prune import Batch, Cutoffs, Group

__all__ = ["prune"]

# A run that has just ended may still be waited for: whoever asks for its result would hear that it was pruned.
SOON = 300.0  # seconds
STATEMENT = 600  # seconds; one run alone may have a million rows, and must not be too large to be removed for ever
NOTE_EVERY = 2.0  # seconds between two words on how far it is
MANY_DEAD = 100_000  # rows; autovacuum comes at a fifth of a table, which may be long after this

OlderThan = Annotated[
    str, typer.Option(metavar="TIME", show_default=False, help="Runs that ended longer ago: 30d, 2h, 30m, 90s.")
]
FailedOlderThan = Annotated[
    str | None,
    typer.Option(
        metavar="TIME", show_default=False, help="The same for failed runs, which a person may reopen until then."
    ),
]
KeysOlderThan = Annotated[
    str | None,
    typer.Option(
        metavar="TIME", show_default=False,
        help="Also idempotency keys of pruned runs, first used longer ago; they are kept for ever when not given.",
    ),
]  # fmt: skip
TombstonesOlderThan = Annotated[
    str, typer.Option(metavar="TIME", help="How long it is known that a run was pruned, and when.")
]
RecordsOlderThan = Annotated[
    str, typer.Option(metavar="TIME", help="Histories of breakers and lanes, and nodes that have stopped, longer ago.")
]
ArtifactsOlderThan = Annotated[
    str, typer.Option(metavar="TIME", help="Artifacts that no run refers to, and nobody has touched for so long.")
]


@dataclass(frozen=True, slots=True)
class Ages:
    """How old what is removed must be, in seconds."""

    older: float
    failed: float
    keys: float | None
    tombstones: float
    records: float
    artifacts: float


@dataclass(slots=True)
class Tally:
    """What one prune has come to so far."""

    gone: Counter[Group] = field(default_factory=Counter)
    kept: Counter[str] = field(default_factory=Counter)
    rows: int = 0
    rest: dict[str, Any] = field(default_factory=dict)

    def add(self, batch: Batch) -> None:
        """Count a batch."""
        if batch.again:
            self.kept.clear()
        self.gone.update(batch.gone)
        self.kept.update(batch.kept)
        self.rows += batch.rows

    @property
    def runs(self) -> int:
        """How many runs go."""
        return self.gone.total()


def prune(  # noqa: PLR0913  # each is an option
    *,
    older_than: OlderThan,
    failed_older_than: FailedOlderThan = None,
    tenant: Tenant = None,
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many runs.", show_default=False)] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count, by tenant and flow.")] = False,
    unread: Annotated[bool, typer.Option("--unread", help="Also runs with signals that they have not read.")] = False,
    keys_older_than: KeysOlderThan = None,
    tombstones_older_than: TombstonesOlderThan = "400d",
    records_older_than: RecordsOlderThan = "30d",
    artifacts_older_than: ArtifactsOlderThan = "7d",
    keep_artifacts: Annotated[bool, typer.Option("--keep-artifacts", help="Leave the artifact store alone.")] = False,
    batch: Annotated[int, typer.Option(min=1, max=100, help="Runs a transaction.")] = 100,
    pause: Annotated[float, typer.Option(min=0, help="Seconds between two transactions.")] = 0.0,
    yes: Annotated[bool, typer.Option("--yes", help="Mean it, even what has ended only minutes ago.")] = False,
    as_json: Json = False,
) -> None:
    """Remove runs that ended long ago, with all that belongs to them.

    What is live, or may still be needed by what is live, stays. It may be interrupted anywhere, and started again.
    """
    ages = _ages(
        older_than, failed_older_than, keys_older_than, tombstones_older_than, records_older_than, artifacts_older_than
    )
    if min(ages.older, ages.failed) < SOON and not (yes or dry_run):
        raise typer.BadParameter(
            f"less than {span(SOON)}: results may still be waited for, and what is pruned is gone; --yes means it",
            param_hint="--older-than",
        )
    from ..ledger import prune as retention  # noqa: PLC0415  # only verbs that write pay for psycopg

    tally, began = Tally(), time.monotonic()
    with writing() as connection:
        connection.execute("SELECT set_config('statement_timeout', %s, false)", (f"{STATEMENT}s",))
        cut = retention.cutoffs(connection, older=ages.older, failed=ages.failed)
        batches = (
            retention.count(connection, cut, tenant=tenant, unread=unread)
            if dry_run
            else retention.runs(connection, cut, tenant=tenant, unread=unread, limit=limit, size=batch)
        )
        _collect(batches, tally, pause=0.0 if dry_run else pause, quiet=as_json)
        trouble = None
        if not dry_run:
            _tidy(connection, cut, ages, tally, tenant=tenant)
            trouble = None if keep_artifacts else _collect_garbage(connection, cut, ages, tally, tenant=tenant)
            tally.rest["dead_rows"] = retention.dead_rows(connection)
    _tell(tally, cut, dry_run=dry_run, seconds=time.monotonic() - began, as_json=as_json)
    if trouble is not None:
        raise trouble


def _ages(older: str, failed: str | None, keys: str | None, tombstones: str, records: str, artifacts: str) -> Ages:
    from ..ledger.artifacts import FRESH  # noqa: PLC0415  # as above

    whole = seconds_of(older, option="--older-than")
    grace = seconds_of(artifacts, option="--artifacts-older-than")
    if grace < 2 * FRESH:
        raise typer.BadParameter(
            f"accepted is {span(2 * FRESH)} or more: who stores something refers to it a little later",
            param_hint="--artifacts-older-than",
        )
    return Ages(
        older=whole,
        failed=whole if failed is None else seconds_of(failed, option="--failed-older-than"),
        keys=None if keys is None else seconds_of(keys, option="--keys-older-than"),
        tombstones=seconds_of(tombstones, option="--tombstones-older-than"),
        records=seconds_of(records, option="--records-older-than"),
        artifacts=grace,
    )


def _collect(batches: Any, tally: Tally, *, pause: float, quiet: bool) -> None:
    """Go through the batches, and say now and then how far it is."""
    noted = time.monotonic()
    for batch in batches:
        tally.add(batch)
        if not quiet and time.monotonic() - noted > NOTE_EVERY:
            sys.stderr.write(f"{tally.runs:,} runs, {tally.rows:,} rows\n")
            noted = time.monotonic()
        time.sleep(pause)


def _tidy(connection: Connection, cut: Cutoffs, ages: Ages, tally: Tally, *, tenant: str | None) -> None:
    """Remove what has a time of its own; what belongs to no tenant only when all of them are meant."""
    from ..ledger import prune as retention  # noqa: PLC0415  # as above

    if ages.keys is not None:
        tally.rest["keys"] = sum(retention.keys(connection, cut.before(ages.keys), tenant=tenant))
    tally.rest["tombstones"] = sum(retention.tombstones(connection, cut.before(ages.tombstones), tenant=tenant))
    if tenant is None:
        records: Counter[str] = Counter(breaker_events=0, lane_events=0, nodes=0)
        for page in retention.records(connection, cut.before(ages.records)):
            records.update(page)
        tally.rest["records"] = dict(records)


def _collect_garbage(
    connection: Connection, cut: Cutoffs, ages: Ages, tally: Tally, *, tenant: str | None
) -> Exception | None:
    """Remove artifacts, row first and blob later; a store that is away is told after all that has been done."""
    from ..config.settings import settings  # noqa: PLC0415  # as above
    from ..ledger import prune as retention  # noqa: PLC0415
    from ..ledger.artifacts import Discarded, Store  # noqa: PLC0415
    from ..ledger.errors import ArtifactStoreUnavailable  # noqa: PLC0415

    rows = sum(retention.artifacts(connection, cut.before(ages.artifacts), tenant=tenant))
    blobs: Counter[Discarded] = Counter()
    trouble = None
    try:
        store = Store(settings().artifacts_url)
        blobs.update(retention.blobs(connection, store, older_than=ages.artifacts, tenant=tenant))
    except ArtifactStoreUnavailable as error:
        trouble = error
    tally.rest["artifacts"] = {"rows": rows, "blobs": blobs[Discarded.GONE], "left": blobs[Discarded.YOUNG]}
    return trouble


def _tell(tally: Tally, cut: Cutoffs, *, dry_run: bool, seconds: float, as_json: bool) -> None:
    groups = sorted(tally.gone.items())
    if as_json:
        by = [{"tenant": t, "flow": flow, "status": status, "runs": n} for (t, flow, status), n in groups]
        document({
            "dry_run": dry_run, "before": cut.older.isoformat(), "failed_before": cut.failed.isoformat(),
            "runs": tally.runs, "rows": tally.rows, "by": by, "kept": dict(tally.kept), **tally.rest,
        })  # fmt: skip
        return
    if groups:
        table(("TENANT", "FLOW", "STATUS", "#RUNS"), [(*group, f"{n:,}") for group, n in groups])
    if dry_run:
        say(f"{tally.runs:,} runs would be removed; nothing was.")
    else:
        say(f"{tally.runs:,} runs were removed, {tally.rows:,} rows in {seconds:.1f} s.")
    if tally.kept:
        say("Old, and kept: " + ", ".join(f"{n:,} ({WHY[why]})" for why, n in tally.kept.most_common()) + ".")
    _tell_rest(tally.rest)


WHY = {
    "live": "reopened meanwhile",
    "recent": "ended again meanwhile",
    "effects": "an effect is unsettled",
    "steps": "a step is open",
    "parent": "the parent is there",
    "children": "a child is live",
    "outbox": "a message is undelivered",
    "mail": "a signal is unread; --unread removes these too",
}


def _tell_rest(rest: dict[str, Any]) -> None:
    told = {"tombstones": rest.get("tombstones", 0), "keys": rest.get("keys", 0), **rest.get("records", {})}
    found = rest.get("artifacts", {})
    told |= {"artifacts": found.get("rows", 0), "blobs": found.get("blobs", 0)}
    parts = [f"{n:,} {name.replace('_', ' ')}" for name, n in told.items() if n]
    if parts:
        say(f"Also removed: {', '.join(parts)}.")
    dead = {name: n for name, n in rest.get("dead_rows", {}).items() if n >= MANY_DEAD}
    if dead:
        names = ", ".join(f"safepoint.{name}" for name in dead)
        say(
            f"{sum(dead.values()):,} dead rows wait for autovacuum, which takes its time on large tables;"
            f" VACUUM (ANALYZE) {names} does it now, and blocks nobody."
        )

"""What steps take of their dependencies, as the ledger has seen it: medians of committed steps; and the live workers.

A sample, not a sum: of the newest runs of the last day, and their children, at most so many steps each. Runs are found
by their ids, which begin with their time (UUIDv7), so that no index is kept for a question that is asked twice a year.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection, text

__all__ = ["Consumption", "Workers", "live_workers", "measured"]

RUNS: Final = 2000  # the newest, and as many of their children
STEPS: Final = 100  # of each run, the newest
DAY: Final = 86_400.0

# By the primary key of runs and by runs_children, then by steps_history; each is walked backwards, up to its limit. A
# clock that is an hour ahead has made ids that are not left out.
_MEASURED: Final = """
WITH ids AS (
    SELECT (lpad(to_hex((extract(epoch FROM safepoint.now() - make_interval(secs => :age)) * 1000)::bigint), 12, '0')
               || '00000000000000000000')::uuid AS first,
           (lpad(to_hex((extract(epoch FROM safepoint.now() + interval '1 hour') * 1000)::bigint), 12, '0')
               || '00000000000000000000')::uuid AS last
), recent AS (
    (SELECT r.run_id FROM safepoint.runs r
      WHERE r.run_id BETWEEN (SELECT first FROM ids) AND (SELECT last FROM ids) ORDER BY r.run_id DESC LIMIT :runs)
    UNION ALL
    (SELECT r.run_id FROM safepoint.runs r
      WHERE r.parent_run_id BETWEEN (SELECT first FROM ids) AND (SELECT last FROM ids)
      ORDER BY r.parent_run_id DESC LIMIT :runs)
), calls AS (
    SELECT s.uses, extract(epoch FROM s.committed_at - s.claimed_at)::double precision AS seconds, s.tokens
      FROM recent CROSS JOIN LATERAL (
          SELECT x.uses, x.status, x.committed_at, x.claimed_at, x.tokens FROM safepoint.steps x
           WHERE x.run_id = recent.run_id AND x.commit_seq IS NOT NULL ORDER BY x.commit_seq DESC LIMIT :steps) s
     WHERE s.uses = ANY (:names) AND s.status = 'succeeded' AND s.claimed_at IS NOT NULL
       AND s.committed_at > safepoint.now() - make_interval(secs => :age)
)
SELECT uses, percentile_cont(0.5) WITHIN GROUP (ORDER BY seconds) AS seconds,
       percentile_cont(0.5) WITHIN GROUP (ORDER BY tokens::double precision) AS tokens, count(*) AS calls
  FROM calls GROUP BY uses
"""
_LIVE: Final = """
SELECT count(*) AS workers, coalesce(sum(concurrency), 0) AS slots FROM safepoint.nodes
 WHERE stopped_at IS NULL AND lease_until > safepoint.now() AND kind = 'worker' AND lanes <> '{control}'
"""


@dataclass(frozen=True, slots=True)
class Consumption:
    """The medians of one dependency's calls."""

    seconds: float
    tokens: float
    calls: int


@dataclass(frozen=True, slots=True)
class Workers:
    """The live workers that execute steps, and their slots."""

    workers: int
    slots: int


def measured(connection: Connection, names: Sequence[str]) -> dict[str, Consumption]:
    """Measure what committed calls of these dependencies took; one that has none is left out."""
    wanted = {"names": list(names), "age": DAY, "runs": RUNS, "steps": STEPS}
    rows = connection.execute(text(_MEASURED), wanted).mappings()
    return {row["uses"]: Consumption(row["seconds"], row["tokens"], row["calls"]) for row in rows}


def live_workers(connection: Connection) -> Workers:
    """Count the workers whose lease has not run out; those of the control lane alone execute no step."""
    (row,) = connection.execute(text(_LIVE)).mappings()
    return Workers(row["workers"], row["slots"])

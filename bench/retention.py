"""What a history costs a claim and its commit, and what removing it costs them: latencies as ratios, rows a second."""

from __future__ import annotations

import contextlib
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID, uuid4

from safepoint.config import embedded
from safepoint.ledger import commit, nodes, prune, steps, upgrade
from safepoint.ledger.connect import Connection, connect
from safepoint.ledger.key import Key

NODE = "bench"
START = Key(1, "", "@start", 1)
# Runs that ended over the last year, each with four steps, nine events, an effect and a key.
HISTORY = """
INSERT INTO safepoint.runs (run_id, tenant_id, flow, status, input, input_encoding, input_hash, result,
                            result_encoding, workflow_version, event_seq, state_version, created_at, updated_at,
                            finished_at)
    SELECT gen_random_uuid(), 'tenant-' || n %% 10, 'old', 'succeeded', x.data, 'json', sha256(x.data), x.data,
           'json', '1', 9, 4, at, at, at
      FROM generate_series(1, %(runs)s) AS n,
           LATERAL (SELECT now() - interval '31 days' - make_interval(secs => n * 28800000.0 / %(runs)s) AS at,
                           convert_to('{"text": "' || repeat('x', 400) || '"}', 'UTF8') AS data) x;
INSERT INTO safepoint.steps (run_id, generation, path, step_id, iteration, tenant_id, kind, name, status, lane,
                             home_lane, ready_at, created_at, result, result_encoding, commit_seq, committed_at)
    SELECT run_id, 1, '', 's', n, tenant_id, 'step', 's', 'succeeded', 'online', 'online', created_at, created_at,
           result, 'json', n, created_at FROM safepoint.runs, generate_series(1, 4) AS n WHERE flow = 'old';
INSERT INTO safepoint.events (run_id, seq, tenant_id, type, key, data, at)
    SELECT run_id, n, tenant_id, 'step.committed', 's#1', '{"epoch": 1, "attempt": 1}', created_at
      FROM safepoint.runs, generate_series(1, 9) AS n WHERE flow = 'old';
INSERT INTO safepoint.effects (idempotency_key, reference, tenant_id, run_id, generation, path, step_id, iteration,
                               status, request, request_encoding, request_digest, created_at, settled_at)
    SELECT sha256(uuid_send(run_id)), 'r', tenant_id, run_id, 1, '', 's', 2, 'succeeded', result, 'json', '',
           created_at, created_at FROM safepoint.runs WHERE flow = 'old';
INSERT INTO safepoint.idempotency_keys (tenant_id, key, run_id, flow, input_hash, created_at)
    SELECT tenant_id, run_id::text, run_id, 'old', input_hash, created_at FROM safepoint.runs WHERE flow = 'old';
VACUUM ANALYZE"""


def pairs(connection: Connection, count: int) -> Iterator[float]:
    """Enqueue, then claim and commit a run's only step, again and again; give the seconds of each claim and commit."""
    lent = steps.Claimer(NODE, 1, 1)
    for _ in range(count):
        row = connection.execute("SELECT safepoint.enqueue('bench', version => '1', tenant => 'live')").fetchone()
        assert row is not None  # the function answers always
        run, token = UUID(str(row[0])), uuid4()
        began = time.perf_counter()
        steps.claim(connection, run, START, lane="online", claimer=lent, token=token, timeout=60)
        result = commit.Result("succeeded", datetime.now(UTC), b"1", "json", b"d")
        commit.commit(
            connection, run, START, token=token, node=NODE, result=result, advanced_from=0,
            ending=commit.Ending("succeeded"),
        )  # fmt: skip
        yield time.perf_counter() - began


def until_pruned(url: str, done: threading.Event, told: dict[str, float]) -> None:
    """Remove the history, and note how fast."""
    with connect(url, name="bench prune") as connection:
        cut = prune.cutoffs(connection, older=30 * 86_400, failed=30 * 86_400)
        began = time.perf_counter()
        runs = rows = batches = 0
        for batch in prune.runs(connection, cut):
            runs, rows, batches = runs + batch.runs, rows + batch.rows, batches + 1
        took = time.perf_counter() - began
        told |= {"runs": runs, "rows": rows, "seconds": took, "batch": took / max(batches, 1)}
    done.set()


def main(*, quick: bool) -> None:
    """Print claim and commit on an empty ledger, on one with a year's history, while that is pruned, and after it."""
    count, history = (200, 4_000) if quick else (1_000, 20_000)
    with _ledger() as url, connect(url, name="bench", statement_timeout=600) as connection:
        nodes.register(connection, nodes.Node(NODE, "host", 1, ("online",), ("bench@1",)), lease=3600, with_lock=False)
        list(pairs(connection, 100))  # plans and pages are warm
        took = {"an empty ledger": list(pairs(connection, count))}
        for statement in HISTORY.split(";"):
            connection.execute(statement.encode(), {"runs": history} if "%(" in statement else None)
        took[f"{history:,} runs of a year"] = list(pairs(connection, count))
        done, told = threading.Event(), dict[str, float]()
        pruner = threading.Thread(target=until_pruned, args=(url, done, told))
        pruner.start()
        beside: list[float] = []
        while not done.is_set():
            beside += pairs(connection, 1)
        pruner.join()
        took["the same while it is pruned"] = beside
        took["after it"] = list(pairs(connection, count))
    _show(took, told)


def _show(took: dict[str, list[float]], told: dict[str, float]) -> None:
    base = statistics.median(next(iter(took.values())))
    print("| claim and commit on | n | median ms | p95 ms | median, ratio |")
    print("| --- | --- | --- | --- | --- |")
    for name, found in took.items():
        half, p95 = statistics.median(found), statistics.quantiles(found, n=20)[-1]
        print(f"| {name} | {len(found)} | {half * 1000:.2f} | {p95 * 1000:.2f} | {half / base:.2f} |")
    print(
        f"\npruned {told['runs']:,.0f} runs, {told['rows']:,.0f} rows in {told['seconds']:.1f} s:"
        f" {told['rows'] / told['seconds']:,.0f} rows/s, {told['batch'] * 1000:.0f} ms a batch"
    )


@contextlib.contextmanager
def _ledger() -> Iterator[str]:
    with (
        tempfile.TemporaryDirectory(prefix="safepoint-bench-") as folder,
        contextlib.closing(embedded.ensure(Path(folder))) as servers,
    ):
        upgrade.upgrade(servers.ledger_url)
        with connect(servers.ledger_url, name="bench") as connection:
            connection.execute("INSERT INTO safepoint.lanes (name) VALUES ('online') ON CONFLICT DO NOTHING")
        yield servers.ledger_url

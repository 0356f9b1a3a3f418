"""`db prune`: what it removes and tells, what it refuses, and that it may be killed anywhere."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from old_runs import old_run
from prepared import Ledger
from safepoint.ledger.artifacts import Store
from safepoint.ledger.connect import connect

Run = Callable[..., Any]


def there(ledger: Ledger) -> set[UUID]:
    return {row[0] for row in ledger.connection.execute("SELECT run_id FROM safepoint.runs").fetchall()}


def test_it_removes_old_runs_and_tells_what_it_did(ledger: Ledger, run: Run) -> None:
    old_run(ledger.connection)
    old_run(ledger.connection, tenant_id="acme", flow="g")
    live = ledger.enqueue()

    found = run("db", "prune", "--older-than", "30d", "--json").document

    assert there(ledger) == {live}
    assert (found["runs"], found["rows"], found["dry_run"], found["kept"]) == (2, 4, False, {})
    assert {"tenant": "acme", "flow": "g", "status": "succeeded", "runs": 1} in found["by"]
    assert found["artifacts"] == {"rows": 0, "blobs": 0, "left": 0}
    assert set(found["dead_rows"]) >= {"runs", "steps", "events"}
    assert "0 runs were removed" in run("db", "prune", "--older-than", "30d").out


def test_a_dry_run_counts_and_removes_nothing(ledger: Ledger, run: Run) -> None:
    old_run(ledger.connection, tenant_id="acme")
    parent = old_run(ledger.connection, "waiting")
    old_run(ledger.connection, parent_run_id=parent)
    before = there(ledger)

    told = run("db", "prune", "--older-than", "30d", "--dry-run")
    found = run("db", "prune", "--older-than", "30d", "--dry-run", "--json").document

    assert there(ledger) == before
    assert "acme" in told.out
    assert "1 runs would be removed; nothing was." in told.out
    assert "1 (the parent is there)" in told.out
    assert (found["runs"], found["kept"]) == (1, {"parent": 1})


def test_a_tenant_a_limit_and_a_time_for_failed_runs_are_kept_to(ledger: Ledger, run: Run) -> None:
    for tenant in ("acme", "acme", "other"):
        old_run(ledger.connection, tenant_id=tenant)
    old_run(ledger.connection, "failed", tenant_id="acme", days=50)

    options = ("--older-than", "30d", "--failed-older-than", "60d", "--tenant", "acme", "--json")
    assert run("db", "prune", *options, "--limit", 1).document["runs"] == 1
    assert run("db", "prune", *options, "--batch", 1, "--pause", 0.001).document["runs"] == 1
    assert len(there(ledger)) == 2


REFUSED = [
    (("--older-than", "90s"), "--yes"),
    (("--older-than", "30d", "--failed-older-than", "90s"), "--yes"),
    (("--older-than", "a month"), "90s, 30m, 2h, 1d"),
    (("--older-than", "0d"), "no length of time"),
    (("--older-than", "30d", "--artifacts-older-than", "5m"), "--artifacts-older-than"),
    ((), "--older-than"),
]


def test_what_it_refuses_is_wrong_usage(ledger: Ledger, run: Run) -> None:
    old = old_run(ledger.connection)

    for options, word in REFUSED:
        ran = run("db", "prune", *options)
        assert (ran.code, ran.out) == (2, "")
        assert word in ran.err
    assert old in there(ledger)


def test_lengths_of_time_are_read(ledger: Ledger, run: Run) -> None:
    for time in ("90s", "30m", "2h", "30d"):
        old_run(ledger.connection)
        assert run("db", "prune", "--older-than", time, "--yes", "--json").document["runs"] == 1


VERBS: tuple[tuple[str, ...], ...] = (
    ("show", "RUN"), ("why", "RUN"), ("watch", "RUN"), ("replay", "RUN"), ("retry", "RUN"), ("cancel", "RUN"),
    ("signal", "RUN", "go"), ("approve", "RUN", "ok"), ("budget", "RUN"), ("runs", "--before", "RUN"),
)  # fmt: skip


def test_p40_every_verb_says_that_a_run_was_pruned(ledger: Ledger, run: Run) -> None:
    old = old_run(ledger.connection)
    run("db", "prune", "--older-than", "30d")

    ran = {verb[0]: run(*(str(old)[:13] if word == "RUN" else word for word in verb)) for verb in VERBS}

    assert {(one.code, one.out) for one in ran.values()} == {(1, "")}
    text = rf"safepoint: Run {old} \(f, succeeded on [0-9-]+\) was pruned on [0-9-]+ [0-9:]+ UTC\.\n"
    assert [name for name, one in ran.items() if not re.fullmatch(text, one.err)] == []


def test_p40_an_effect_of_a_pruned_run_is_not_unknown(ledger: Ledger, run: Run) -> None:
    old, own = old_run(ledger.connection), uuid4().bytes * 2
    ledger.connection.execute(
        "INSERT INTO safepoint.effects (idempotency_key, reference, tenant_id, run_id, generation, path, step_id,"
        " iteration, status, request, request_encoding, request_digest, created_at, settled_at)"
        " VALUES (%s, 'r', 'default', %s, 1, '', 'e', 1, 'succeeded', '', 'json', '', now(), now())",
        (own, old),
    )
    run("db", "prune", "--older-than", "30d")

    for verb in (("show", own.hex()[:12]), ("resolve", own.hex(), "--not-executed", "--why", "I have looked")):
        ran = run("effects", *verb)
        assert ran.code == 1
        assert "was pruned on " in ran.err


def test_a_key_and_its_input_still_name_the_run(ledger: Ledger, run: Run) -> None:
    old = old_run(ledger.connection, flow="triage")
    ledger.connection.execute(
        "INSERT INTO safepoint.idempotency_keys SELECT 'default', 'k', %s, 'triage', sha256('{\"alert\": 1}'),"
        " now() - interval '40 days'",
        (old,),
    )
    run("db", "prune", "--older-than", "30d")

    assert ledger.enqueue(key="k") == old
    assert there(ledger) == set()
    assert run("db", "prune", "--older-than", "30d", "--keys-older-than", "35d", "--json").document["keys"] == 1
    assert ledger.enqueue(key="k") != old


def test_artifacts_go_with_their_blobs_and_a_store_that_is_away_is_said(
    ledger: Ledger, run: Run, clean: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    store = Store(f"file://{tmp_path}/blobs")
    clean.setenv("SAFEPOINT_VALUES__ARTIFACTS", store.url)
    sha256, size = store.put("default", b"x")
    path = Path(store.path("default", sha256))
    os.utime(path, (0, 0))
    row = json.dumps([{"sha256": sha256, "size": size, "media_type": "text/plain"}])
    ledger.connection.execute("SELECT safepoint.touch_artifacts_v1('default', %s::jsonb)", (row,))
    ledger.connection.execute("UPDATE safepoint.artifacts SET touched_at = now() - interval '8 days'")

    kept = run("db", "prune", "--older-than", "30d", "--keep-artifacts", "--json").document
    assert ("artifacts" in kept, path.exists()) == (False, True)
    clean.setenv("SAFEPOINT_VALUES__ARTIFACTS", "nonsense://x")
    away = run("db", "prune", "--older-than", "30d", "--json")
    assert (away.code, away.document["artifacts"]) == (1, {"rows": 1, "blobs": 0, "left": 0})
    assert "The artifact store does not answer" in away.err
    clean.setenv("SAFEPOINT_VALUES__ARTIFACTS", store.url)
    found = run("db", "prune", "--older-than", "30d", "--json").document
    assert (found["artifacts"], path.exists()) == ({"rows": 0, "blobs": 1, "left": 0}, False)


def test_p40_a_prune_that_is_killed_in_the_middle_leaves_every_run_whole_or_gone(
    ledger: Ledger, run: Run, eventually: Callable[..., None], tmp_path: Path
) -> None:
    old = [old_run(ledger.connection, days=90 - n) for n in range(30)]
    ledger.connection.execute(
        "INSERT INTO safepoint.steps (run_id, generation, path, step_id, iteration, tenant_id, kind, name, status,"
        " lane, home_lane, ready_at, created_at) SELECT run_id, 1, '', 's', n, 'default', 'step', 's', 'cancelled',"
        " 'online', 'online', now(), now() FROM safepoint.runs, generate_series(1, 3) AS n"
    )
    command = [sys.executable, "-m", "safepoint", "db", "prune", "--older-than", "30d", "--batch", "10"]

    def sessions(condition: str = "true") -> list[int]:
        query = "SELECT pid FROM pg_stat_activity WHERE application_name = 'safepoint cli' AND datname ="
        found = ledger.connection.execute(f"{query} current_database() AND {condition}".encode()).fetchall()
        return [row[0] for row in found]

    def is_waiting() -> None:
        assert len(sessions("wait_event_type = 'Lock'")) == 1

    def is_over() -> None:
        assert sessions() == []

    with connect(ledger.url, name="test") as holder:
        with holder.transaction():
            # A row of the second batch: it stops there with its tombstones written and a part of its steps deleted.
            holder.execute("SELECT 1 FROM safepoint.steps WHERE run_id = %s FOR UPDATE", (old[15],))
            process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            try:
                eventually(is_waiting, timeout=30)
            finally:
                process.send_signal(signal.SIGKILL)
                process.wait(timeout=10)
            # The server would notice the loss of its client only when it answers; then the batch would be gone, whole.
            ledger.connection.execute("SELECT pg_terminate_backend(%s)", sessions())
        eventually(is_over)

    assert _whole(ledger) == set(old[10:])
    assert _stones(ledger) == set(old[:10])
    assert "20 runs were removed" in run(*command[3:]).out
    assert (_whole(ledger), _stones(ledger)) == (set(), set(old))


def _whole(ledger: Ledger) -> set[UUID]:
    """The runs that are there; each with all of its rows."""
    counts = ledger.connection.execute(
        "SELECT r.run_id, count(s) FROM safepoint.runs r LEFT JOIN safepoint.steps s USING (run_id) GROUP BY 1"
    ).fetchall()
    assert {count for _, count in counts} <= {3}
    steps: psycopg.Cursor[Any] = ledger.connection.execute("SELECT count(*) FROM safepoint.steps")
    assert steps.fetchone() == (3 * len(counts),)
    return {run for run, _ in counts}


def _stones(ledger: Ledger) -> set[UUID]:
    return {row[0] for row in ledger.connection.execute("SELECT run_id FROM safepoint.pruned_runs").fetchall()}

"""A ledger with a past, written by the database itself: runs that have ended within a year, and some that live.

Rows are as the protocol leaves them: a start and some steps a run, three events a step, values of 200 bytes, keys,
effects. A few tenants have most of the runs; `RARE` ones are so many in every ledger, however large.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import Any

from psycopg import ClientCursor
from safepoint.ledger import nodes
from safepoint.ledger.connect import Connection

__all__ = ["NODE", "RARE", "Part", "fill"]

STEPS = 10  # rows a run on average, with its start
RARE = 60  # runs of the rare tenant, flow, tag and version
CHUNK = 50_000  # runs a transaction
NODE = "bench-live"

_KEYS = ("steps", "events", "effects")
_CUT = "ALTER TABLE safepoint.{0} DROP CONSTRAINT {0}_run_id_fkey"
_TIE = """
ALTER TABLE safepoint.{0} ADD CONSTRAINT {0}_run_id_fkey
    FOREIGN KEY (run_id) REFERENCES safepoint.runs ON DELETE CASCADE
"""
_RUNS = """
CREATE TEMP TABLE made AS
SELECT n, uuidv7(at - now()) AS run_id, at, h,
       CASE WHEN n %% %(stride)s = 0 THEN 'rare' ELSE 'tenant-' || floor(50 * (h %% 1000 / 1000.0) ^ 3) END AS tenant,
       CASE WHEN n %% %(stride)s = 1 THEN 'rare_flow' ELSE 'flow-' || h %% 20 END AS flow,
       CASE WHEN n %% %(stride)s = 4 THEN '0' ELSE '1' END AS version,
       CASE WHEN n %% %(stride)s = 2 THEN '{"case": "rare"}'::jsonb
            WHEN n %% 10 = 3 THEN jsonb_build_object('team', 't' || h %% 5, 'ticket', n) ELSE '{}' END AS tags,
       CASE WHEN h %% 100 < 6 THEN 'failed' WHEN h %% 100 < 8 THEN 'cancelled' END AS bad,
       4 + h %% 11 AS steps, convert_to('{"text": "' || repeat(chr(97 + h %% 26), 180) || '"}', 'UTF8') AS data
  FROM (SELECT n, hashint4(n) & 2147483647 AS h,
               now() - interval '10 minutes' - make_interval(secs => (%(total)s - n) * 31536000.0 / %(total)s) AS at
          FROM generate_series(%(first)s, %(last)s) AS n) x;
INSERT INTO safepoint.runs (run_id, tenant_id, flow, status, ending, completed_steps, input, input_encoding, input_hash,
       result, result_encoding, error, workflow_version, event_seq, state_version, tags, spent_tokens, created_at,
       updated_at, finished_at)
    SELECT run_id, tenant, flow, coalesce(bad, 'succeeded'), coalesce(bad, 'succeeded'), steps, data, 'json',
           sha256(data), CASE WHEN bad IS NULL THEN data END, CASE WHEN bad IS NULL THEN 'json' END,
           CASE bad WHEN 'failed' THEN '{"type": "ValueError", "message": "no such thing"}'::jsonb END, version,
           3 + 3 * steps, steps + 1, tags, steps * 120, at, at + interval '1 minute', at + interval '1 minute'
      FROM made;
INSERT INTO safepoint.steps (run_id, generation, path, step_id, iteration, tenant_id, kind, name, status, lane,
       home_lane, claimed_from, ready_at, committed_token, epoch, claimed_at, expires_at, input, input_encoding,
       input_hash, result, result_encoding, result_digest, commit_seq, at, first_claimed_at, committed_at, committed_by,
       created_at, tokens)
    SELECT run_id, 1, '', CASE k WHEN 0 THEN '@start' ELSE 's' || k END, 1, tenant,
           CASE k WHEN 0 THEN 'start' ELSE 'step' END, CASE k WHEN 0 THEN flow ELSE 's' || k END,
           CASE WHEN bad = 'failed' AND k = steps THEN 'failed' ELSE 'succeeded' END, 'online', 'online', 'online', at,
           gen_random_uuid(), 1, at, at + interval '5 minutes', CASE WHEN k > 0 THEN data END,
           CASE WHEN k > 0 THEN 'json' END, CASE WHEN k > 0 THEN sha256(data) END, CASE WHEN k > 0 THEN data END,
           CASE WHEN k > 0 THEN 'json' END, CASE WHEN k > 0 THEN sha256(data) END, k + 1, at, at,
           at + make_interval(secs => k * 4), 'host:4242:1f2e3d4c', at, CASE k WHEN 0 THEN 0 ELSE 120 END
      FROM made, generate_series(0, steps) AS k ORDER BY n, k;
INSERT INTO safepoint.events (run_id, seq, tenant_id, type, key, data, at)
    SELECT run_id, e, tenant, CASE WHEN e = 1 THEN 'run.queued' WHEN e = 2 THEN 'run.started'
               WHEN e = 3 + 3 * steps THEN 'run.' || coalesce(bad, 'succeeded')
               ELSE (ARRAY['step.scheduled', 'step.started', 'step.committed'])[1 + e %% 3] END,
           CASE WHEN e BETWEEN 3 AND 2 + 3 * steps THEN 's' || (e / 3) || '#1' END,
           CASE WHEN e BETWEEN 3 AND 2 + 3 * steps THEN (ARRAY['{"kind": "step", "lane": "online"}',
               '{"at": "2026-01-01T00:00:00+00:00", "epoch": 1, "attempt": 1, "node": "host:4242:1f2e3d4c"}',
               '{"epoch": 1, "kind": "step", "attempt": 1, "recoveries": 0, "tokens": 120}'])[1 + e %% 3]::jsonb
               ELSE '{}' END, at
      FROM made, generate_series(1, 3 + 3 * steps) AS e ORDER BY n, e;
INSERT INTO safepoint.effects (idempotency_key, reference, tenant_id, run_id, generation, path, step_id, iteration,
       status, request, request_encoding, request_digest, result, result_encoding, created_at, settled_at)
    SELECT sha256(uuid_send(run_id)), run_id || '/1/s1#1', tenant, run_id, 1, '', 's1', 1, 'succeeded', data, 'json',
           sha256(data), data, 'json', at, at FROM made WHERE n %% 20 = 0;
INSERT INTO safepoint.idempotency_keys (tenant_id, key, run_id, flow, input_hash, created_at)
    SELECT tenant, 'key-' || n, run_id, flow, sha256(data), at FROM made WHERE n %% 3 = 0;
DROP TABLE made"""
_LIVE = """
CREATE TEMP TABLE living AS
SELECT n, uuidv7(at - now()) AS run_id, at, h, 'tenant-' || floor(50 * (h %% 1000 / 1000.0) ^ 3) AS tenant,
       'flow-' || h %% 20 AS flow, CASE WHEN n < %(running)s THEN 'running' WHEN n < %(running)s + %(held)s THEN 'held'
           WHEN n < %(running)s + %(held)s + %(later)s THEN 'queued' ELSE 'waiting' END AS status,
       convert_to('{"text": "' || repeat(chr(97 + h %% 26), 180) || '"}', 'UTF8') AS data
  FROM (SELECT n, hashint4(n + 77) & 2147483647 AS h, now() - interval '5 minutes'
               - make_interval(secs => (%(count)s - n) * 2592000.0 / %(count)s) AS at
          FROM generate_series(0, %(count)s - 1) AS n) x;
INSERT INTO safepoint.runs (run_id, tenant_id, flow, status, reason, holds, input, input_encoding, input_hash,
       workflow_version, event_seq, state_version, start_at, created_at, updated_at)
    SELECT run_id, tenant, flow, status, CASE status WHEN 'held' THEN hold WHEN 'waiting' THEN wait END,
           CASE status WHEN 'held' THEN jsonb_build_object('poison', hold) ELSE '{}' END, data, 'json', sha256(data),
           '1', 3, 1, CASE status WHEN 'queued' THEN now() + interval '1 day' END, at, at
      FROM living, LATERAL (SELECT jsonb_build_object('code', 'poison', 'since', at, 'text', 'the worker died',
           'next', 'safepoint resume', 'detail', '{}'::jsonb) AS hold, '{"code": "approval", "text": "a person"}'::jsonb
           AS wait) y;
INSERT INTO safepoint.steps (run_id, generation, path, step_id, iteration, tenant_id, kind, name, status, lane,
       home_lane, claimed_from, ready_at, committed_token, epoch, claimed_at, commit_seq, committed_at, created_at)
    SELECT run_id, 1, '', '@start', 1, tenant, 'start', flow, 'succeeded', 'online', 'online', 'online', at,
           gen_random_uuid(), 1, at, 1, at, at FROM living WHERE status <> 'queued';
INSERT INTO safepoint.steps (run_id, generation, path, step_id, iteration, tenant_id, kind, name, status, lane,
       home_lane, claimed_from, due_at, ready_at, claim_token, epoch, owner, claimed_at, expires_at, reason, created_at)
    SELECT run_id, 1, '', CASE status WHEN 'queued' THEN '@start' ELSE 's1' END, 1, tenant,
           CASE WHEN status = 'queued' THEN 'start' WHEN status <> 'waiting' THEN 'step'
                ELSE (ARRAY['approval', 'timer', 'signal'])[1 + h %% 3] END, 's1',
           CASE status WHEN 'queued' THEN 'ready' ELSE status END, 'online', 'online',
           CASE status WHEN 'running' THEN 'online' END,
           CASE WHEN status = 'queued' OR status = 'waiting' AND h %% 3 > 0
                THEN now() + interval '1 day' + make_interval(secs => h %% 2000000) END,
           at, CASE WHEN status = 'running' THEN gen_random_uuid() END, (status = 'running')::integer,
           CASE status WHEN 'running' THEN %(node)s END, CASE status WHEN 'running' THEN now() END,
           CASE status WHEN 'running' THEN now() + interval '7 days' END,
           CASE status WHEN 'waiting' THEN '{"code": "approval", "text": "a person"}'::jsonb END, at FROM living;
INSERT INTO safepoint.events (run_id, seq, tenant_id, type, data, at)
    SELECT run_id, e, tenant, (ARRAY['run.queued', 'run.started', 'step.scheduled'])[e], '{}', at
      FROM living, generate_series(1, 3) AS e;
DROP TABLE living"""
_BEAT = """
UPDATE safepoint.nodes SET lease_until = now() + interval '1 day', beat_at = now(),
       active = ARRAY(SELECT claim_token FROM safepoint.steps WHERE status = 'running' AND owner = %s)
 WHERE node_id = %s
"""


@dataclass(frozen=True, slots=True)
class Part:
    """How much there is: rows of steps that have ended, and runs that wait, are held, run, or start later."""

    rows: int
    waiting: int
    held: int
    running: int
    later: int


def fill(connection: Connection, part: Part) -> None:
    """Write a past and a present, then what autovacuum would do about them; says how far it is, on stderr."""
    total, began = max(part.rows // STEPS, RARE * 5), time.monotonic()
    connection.execute("SET synchronous_commit = off")
    connection.execute("SET statement_timeout = 0")
    for table in _KEYS:  # checked once, at the end
        _do(connection, _CUT.format(table))
    for first in range(0, total, CHUNK):
        last = min(first + CHUNK, total) - 1
        names = {"first": first, "last": last, "total": total, "stride": total // RARE}
        with connection.transaction():
            _do(connection, _RUNS, names)
        print(f"{last + 1:,} of {total:,} runs, {time.monotonic() - began:.0f} s", file=sys.stderr)
    alive = {"waiting": part.waiting, "held": part.held, "running": part.running, "later": part.later}
    with connection.transaction():
        _do(connection, _LIVE, {**alive, "count": sum(alive.values()), "node": NODE})
    for table in _KEYS:
        _do(connection, _TIE.format(table))
    nodes.register(
        connection, nodes.Node(NODE, "gone", 2**22, ("online",), ("flow-0@1",)), lease=86_400, with_lock=False
    )
    connection.execute(_BEAT, (NODE, NODE))
    for table in ("runs", "steps", "events", "effects", "idempotency_keys", "nodes"):
        _do(connection, f"VACUUM (ANALYZE) safepoint.{table}")
    print(f"made in {time.monotonic() - began:.0f} s", file=sys.stderr)


def _do(connection: Connection, script: str, names: dict[str, Any] | None = None) -> None:
    for statement in script.split(";"):
        ClientCursor(connection).execute(statement.encode(), names or {})

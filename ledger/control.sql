-- What people do to a run. Each locks the run first, answers what it found, and is an event with its author.

CREATE FUNCTION safepoint.cancel_v1(p_run uuid, p_by text) RETURNS text LANGUAGE plpgsql
SET search_path = safepoint, pg_temp AS $$
DECLARE
    r runs%ROWTYPE;
    instant timestamptz;
BEGIN
    SELECT * INTO r FROM runs WHERE run_id = p_run FOR NO KEY UPDATE;
    IF NOT FOUND THEN RETURN 'unknown'; END IF;
    instant := safepoint.now();
    IF r.finished_at IS NOT NULL THEN RETURN r.status; END IF;
    IF r.cancel_at IS NOT NULL OR r.ending IS NOT NULL THEN RETURN 'cancelling'; END IF;
    UPDATE steps SET status = 'cancelled', claim_token = NULL, due_at = NULL, reason = NULL
     WHERE run_id = p_run AND status IN ('ready', 'waiting', 'held') AND NOT binds_v1(effect_key);
    UPDATE runs SET cancel_at = instant, status = 'cancelling', updated_at = instant, holds = '{}', paused_at = NULL,
           reason = jsonb_build_object('code', 'cancelling', 'since', instant, 'text', 'cancelled by ' || coalesce(p_by, 'a person'))
     WHERE run_id = p_run;
    -- P32: what a pause has put aside and nobody knows is settled now.
    PERFORM unpark_v1(p_run);
    INSERT INTO outbox_messages (tenant_id, run_id, kind, target, due_at, created_at)
        SELECT tenant_id, p_run, 'child_cancel', run_id, instant, instant FROM runs WHERE parent_run_id = p_run AND finished_at IS NULL;
    IF r.state_version = 0 AND NOT EXISTS (SELECT FROM steps WHERE run_id = p_run AND status = 'running') THEN
        UPDATE runs SET ending = 'cancelled' WHERE run_id = p_run;
        RETURN finish_v1(p_run);
    END IF;
    -- The flow hears of it by a step of its own, so that clean-up runs under a claim like everything else (P16).
    INSERT INTO steps (run_id, generation, path, step_id, iteration, tenant_id, priority, deadline, kind, name, status, lane, home_lane, due_at, ready_at, cleanup, created_at)
        VALUES (p_run, r.generation, '', '@cancel', 1, r.tenant_id, r.priority, r.deadline, 'cancel', r.flow, 'ready', 'online', 'online', instant, instant, true, instant)
        ON CONFLICT DO NOTHING;
    PERFORM pg_notify('safepoint_relay', '');
    RETURN 'cancelling';
END $$;

CREATE FUNCTION safepoint.pause_v1(p_run uuid, p_by text) RETURNS text LANGUAGE plpgsql
SET search_path = safepoint, pg_temp AS $$
DECLARE
    r runs%ROWTYPE;
    instant timestamptz;
BEGIN
    SELECT * INTO r FROM runs WHERE run_id = p_run FOR NO KEY UPDATE;
    IF NOT FOUND THEN RETURN 'unknown'; END IF;
    instant := safepoint.now();
    IF r.finished_at IS NOT NULL OR r.status = 'cancelling' THEN RETURN r.status; END IF;
    IF r.paused_at IS NULL THEN
        UPDATE runs SET paused_at = instant, updated_at = instant WHERE run_id = p_run;
        PERFORM park_v1(p_run);
        PERFORM refresh_v1(p_run);
    END IF;
    RETURN 'paused';
END $$;

-- Clears the pause, or the named hold (all of them when no name is given); what else holds the run stays (P29).
CREATE FUNCTION safepoint.resume_v1(p_run uuid, p_by text, p_code text DEFAULT NULL) RETURNS text LANGUAGE plpgsql
SET search_path = safepoint, pg_temp AS $$
DECLARE
    r runs%ROWTYPE;
    instant timestamptz;
    fresh text;
    mended boolean;
BEGIN
    SELECT * INTO r FROM runs WHERE run_id = p_run FOR NO KEY UPDATE;
    IF NOT FOUND THEN RETURN 'unknown'; END IF;
    instant := safepoint.now();
    IF r.finished_at IS NOT NULL OR r.status = 'cancelling' THEN RETURN r.status; END IF;
    IF r.paused_at IS NULL AND r.holds = '{}' THEN RETURN 'running'; END IF;
    mended := r.holds ?| array['flow_error', 'diverged'];
    UPDATE runs SET updated_at = instant, paused_at = CASE WHEN p_code IS NULL OR p_code = 'paused' THEN NULL ELSE paused_at END,
           holds = CASE WHEN p_code IS NULL THEN '{}' ELSE holds - p_code END
     WHERE run_id = p_run RETURNING * INTO r;
    IF r.holds <> '{}' OR r.paused_at IS NOT NULL THEN
        -- Who lifts the last reason does not know any more that this one stood.
        IF mended AND NOT r.holds ?| array['flow_error', 'diverged'] THEN PERFORM advance_v1(p_run, true); END IF;
        RETURN refresh_v1(p_run);
    END IF;
    -- Whoever resumes wants the other side asked once more.
    UPDATE effects SET lookups = 0 WHERE run_id = p_run AND status = 'unknown';
    UPDATE steps SET status = 'ready', deaths = 0, shared_deaths = 0, attempt = CASE WHEN effect_key IS NULL THEN attempt ELSE 1 END, reason = NULL,
           ready_at = instant, due_at = instant WHERE run_id = p_run AND status = 'held';
    PERFORM unpark_v1(p_run);
    IF r.ending IS NOT NULL THEN
        PERFORM emit_v1(p_run, r.tenant_id, jsonb_build_array(jsonb_build_object('type', 'run.resumed', 'data', jsonb_build_object('by', p_by))));
        PERFORM pg_notify('safepoint_relay', '');
        RETURN stop_v1(p_run, instant);
    END IF;
    PERFORM advance_v1(p_run, mended);
    UPDATE runs SET status = 'running', reason = NULL WHERE run_id = p_run AND status IN ('held', 'waiting');
    PERFORM emit_v1(p_run, r.tenant_id, jsonb_build_array(jsonb_build_object('type', 'run.resumed', 'data', jsonb_build_object('by', p_by))));
    fresh := refresh_v1(p_run);
    PERFORM pg_notify('safepoint_relay', '');
    RETURN fresh;
END $$;

-- P10: a live run with nothing open gets an advance of its own; `p_anyway` also one that has open steps: mended code may ask for more than they.
CREATE FUNCTION safepoint.advance_v1(p_run uuid, p_anyway boolean DEFAULT false) RETURNS boolean LANGUAGE plpgsql
SET search_path = safepoint, pg_temp AS $$
DECLARE
    r runs%ROWTYPE;
    instant timestamptz := safepoint.now();
BEGIN
    SELECT * INTO r FROM runs WHERE run_id = p_run;
    IF r.finished_at IS NOT NULL OR r.ending IS NOT NULL
       OR EXISTS (SELECT FROM steps WHERE run_id = p_run AND status IN ('ready', 'running', 'waiting', 'held') AND (kind = 'advance' OR NOT p_anyway)) THEN
        RETURN false;
    END IF;
    INSERT INTO steps (run_id, generation, path, step_id, iteration, tenant_id, priority, deadline, kind, name, status, lane, home_lane, due_at, ready_at, cleanup, created_at)
        SELECT p_run, r.generation, '', '@advance', 1 + count(*), r.tenant_id, r.priority, r.deadline, 'advance', r.flow, 'ready', 'online', 'online',
               CASE WHEN r.holds <> '{}' OR r.paused_at IS NOT NULL THEN 'infinity' ELSE instant END, instant, r.cancel_at IS NOT NULL, instant
          FROM steps WHERE run_id = p_run AND generation = r.generation AND path = '' AND step_id = '@advance';
    RETURN true;
END $$;

-- P36: a person reopens a failed run in place; committed steps and keys stay, the failed ones get a fresh attempt.
CREATE FUNCTION safepoint.reopen_v1(p_run uuid, p_by text) RETURNS text LANGUAGE plpgsql
SET search_path = safepoint, pg_temp AS $$
DECLARE
    r runs%ROWTYPE;
    instant timestamptz;
BEGIN
    SELECT * INTO r FROM runs WHERE run_id = p_run FOR NO KEY UPDATE;
    IF NOT FOUND THEN RETURN 'unknown'; END IF;
    instant := safepoint.now();
    IF r.status <> 'failed' THEN RETURN 'not failed: ' || r.status; END IF;
    -- Its flow has heard of the cancel, and would hear of it again.
    IF r.cancel_at IS NOT NULL THEN RETURN 'refused: it failed while it was being cancelled'; END IF;
    IF EXISTS (SELECT FROM effects WHERE run_id = p_run AND status IN ('executing', 'unknown')) THEN RETURN 'refused: unsettled effects'; END IF;
    IF EXISTS (SELECT FROM steps WHERE run_id = p_run AND kind = 'compensation') THEN RETURN 'refused: compensation has begun'; END IF;
    IF r.deadline <= instant THEN RETURN 'refused: the deadline has passed'; END IF;
    -- The parent must not hear of an end that is none. Should a relay be delivering it, this waits; then it has been told.
    DELETE FROM outbox_messages WHERE run_id = p_run AND kind = 'child_end';
    IF NOT FOUND AND r.parent_run_id IS NOT NULL THEN RETURN 'refused: its parent has already been told'; END IF;
    UPDATE runs SET status = 'running', attempt = attempt + 1, finished_at = NULL, ending = NULL, error = NULL, result = NULL, result_encoding = NULL,
           paused_at = NULL, reason = NULL, updated_at = instant, state_version = state_version + 1 WHERE run_id = p_run;
    -- A rejected effect that is retried on purpose is a new operation under a new key; one that was never sent keeps its own.
    PERFORM schedule_effect_v1(p_run, e.generation, e.tenant_id, e.path, e.step_id, e.iteration, e.name, e.request_digest, e.request, e.request_encoding,
        e.declared, NULL, instant)
       FROM (SELECT DISTINCT effect_key FROM failed_v1(r)) s JOIN effects e ON e.idempotency_key = s.effect_key WHERE e.status = 'failed';
    UPDATE steps t SET status = 'ready', commit_seq = NULL, error = NULL, committed_token = NULL, attempt = 1, ready_at = instant, due_at = instant,
           dispatched_at = NULL, dispatches = 0, queued = 0, first_claimed_at = NULL, committed_at = NULL
      FROM failed_v1(r) f WHERE (t.run_id, t.generation, t.path, t.step_id, t.iteration) = (f.run_id, f.generation, f.path, f.step_id, f.iteration);
    PERFORM advance_v1(p_run);
    PERFORM emit_v1(p_run, r.tenant_id, jsonb_build_array(jsonb_build_object('type', 'run.resumed',
        'data', jsonb_build_object('by', p_by, 'attempt', r.attempt + 1, 'reopened', true))));
    PERFORM ask_again_v1(p_run, instant);
    PERFORM pg_notify('safepoint_relay', '');
    RETURN 'running';
END $$;

-- What ended a failed run (by `key` the error names the outcome that the flow heard last), and what failed beside it in the same gather. A failure
-- that the flow has caught, and after which it has gone on, stays as it was.
CREATE FUNCTION safepoint.failed_v1(r safepoint.runs) RETURNS SETOF safepoint.steps LANGUAGE sql STABLE
SET search_path = safepoint, pg_temp AS $$
    SELECT f.* FROM steps f, unnest(ARRAY[r.error->>'step', r.error->>'key']) AS last(key)
     WHERE f.run_id = r.run_id AND f.generation = r.generation AND f.status = 'failed' AND f.kind IN ('step', 'effect')
       AND (key_v1(f.path, f.step_id, f.iteration) = last.key
            OR f.path <> '' AND last.key LIKE '%/%' AND split_part(f.path, '.', 1) = split_part(last.key, '.', 1)
               AND NOT EXISTS (SELECT FROM steps x WHERE x.run_id = f.run_id AND x.generation = f.generation AND x.commit_seq > f.commit_seq
                    AND (x.path = f.path OR starts_with(x.path, f.path || '/'))))
$$;

-- An effect that was denied, or whose approval was for an operation before this one, waits for its decision anew: nothing approves itself (G10).
CREATE FUNCTION safepoint.ask_again_v1(p_run uuid, p_now timestamptz) RETURNS void LANGUAGE plpgsql
SET search_path = safepoint, pg_temp AS $$
DECLARE
    x record;
BEGIN
    FOR x IN UPDATE steps s SET status = 'waiting', due_at = NULL, reason = jsonb_build_object('code', 'approval', 'since', p_now,
                    'text', 'waiting for ' || (e.declared->>'requires_approval') || ' to approve ' || s.name)
               FROM effects e WHERE s.run_id = p_run AND s.status = 'ready' AND e.idempotency_key = s.effect_key AND e.status = 'pending'
                AND e.declared->>'requires_approval' <> '' AND NOT coalesce(e.decision ? 'outcome', false)
              RETURNING s.*, encode(e.request_digest, 'hex') AS digest LOOP
        PERFORM emit_v1(p_run, x.tenant_id, jsonb_build_array(jsonb_build_object('type', 'approval.asked', 'key', key_v1(x.path, x.step_id, x.iteration),
            'data', jsonb_build_object('kind', x.kind, 'lane', x.lane, 'name', x.name, 'digest', x.digest)
                    || CASE WHEN x.generation > 1 THEN jsonb_build_object('generation', x.generation) ELSE '{}' END)));
        PERFORM refresh_v1(p_run);
    END LOOP;
END $$;

-- Deadlines that passed (P7) and clean-ups that outlasted their grace; each run under its own lock.
CREATE FUNCTION safepoint.expire_runs_v1(p_limit integer, p_cancel_grace double precision) RETURNS integer LANGUAGE plpgsql
SET search_path = safepoint, pg_temp AS $$
DECLARE
    x record;
    n integer := 0;
    instant timestamptz := safepoint.now();
    grace interval := make_interval(secs => p_cancel_grace);
BEGIN
    -- By runs_deadline and runs_cancelling; found without a lock, so looked at again with it. Row by row: to have them in the order of their ids,
    -- the planner would read all runs.
    FOR x IN SELECT q.run_id, q.overdue FROM (
                 SELECT y.run_id FROM (
                     (SELECT run_id FROM runs WHERE finished_at IS NULL AND ending IS NULL AND deadline <= instant AND cancel_at IS NULL
                       ORDER BY deadline LIMIT p_limit)
                     UNION ALL
                     (SELECT run_id FROM runs WHERE finished_at IS NULL AND ending IS NULL AND cancel_at <= instant - grace ORDER BY cancel_at LIMIT p_limit)) y
                  ORDER BY y.run_id LIMIT p_limit) d CROSS JOIN LATERAL (
                 SELECT o.run_id, o.cancel_at IS NOT NULL AS overdue FROM runs o
                  WHERE o.run_id = d.run_id AND o.finished_at IS NULL AND o.ending IS NULL
                    AND (o.deadline <= instant AND o.cancel_at IS NULL OR o.cancel_at <= instant - grace)
                    FOR NO KEY UPDATE SKIP LOCKED) q LOOP
        IF x.overdue THEN
            UPDATE runs SET ending = 'cancelled' WHERE run_id = x.run_id;
            UPDATE steps SET status = 'cancelled', claim_token = NULL, due_at = NULL WHERE run_id = x.run_id AND status IN ('ready', 'waiting', 'held')
               AND NOT binds_v1(effect_key);
        END IF;
        PERFORM stop_v1(x.run_id, safepoint.now());
        n := n + 1;
    END LOOP;
    RETURN n;
END $$;

-- (e) of the scan: live runs without any open step.
CREATE FUNCTION safepoint.revive_stalled_v1(p_limit integer, p_part integer DEFAULT 20000) RETURNS integer LANGUAGE plpgsql
SET search_path = safepoint, pg_temp AS $$
DECLARE
    suspects uuid[];
    suspect uuid;
    n integer := 0;
    instant timestamptz := safepoint.now();
BEGIN
    -- By runs_live; each look goes on where the one before has ended, and begins anew after the last of them.
    WITH part AS MATERIALIZED (
        SELECT q.run_id, q.created_at, q.holds = '{}' AND q.paused_at IS NULL AND q.ending IS NULL AND q.updated_at < instant - interval '5 s'
               -- OFFSET 0: by steps_open for each, where the planner might read all that is open.
               AND NOT EXISTS (SELECT FROM steps s WHERE s.run_id = q.run_id AND s.status IN ('ready', 'running', 'waiting', 'held') OFFSET 0) AS is_suspect
          FROM identity i CROSS JOIN LATERAL (SELECT o.* FROM runs o WHERE o.finished_at IS NULL AND (o.created_at, o.run_id) > (i.stalled_at, i.stalled_run)
                                               ORDER BY o.created_at, o.run_id LIMIT p_part) q
    ), place AS (
        SELECT created_at, run_id FROM part WHERE (SELECT count(*) FROM part) = p_part ORDER BY created_at DESC, run_id DESC LIMIT 1
    ), noted AS (
        UPDATE identity SET stalled_at = coalesce((SELECT created_at FROM place), '-infinity'),
               stalled_run = coalesce((SELECT run_id FROM place), '00000000-0000-0000-0000-000000000000')
         WHERE stalled_at > '-infinity' OR EXISTS (SELECT FROM place)
    )
    SELECT array_agg(run_id ORDER BY run_id) INTO suspects FROM part WHERE is_suspect;
    FOREACH suspect IN ARRAY coalesce(suspects[:p_limit], '{}') LOOP
        PERFORM FROM runs r WHERE r.run_id = suspect AND r.finished_at IS NULL AND r.holds = '{}' AND r.paused_at IS NULL AND r.ending IS NULL
            AND r.updated_at < instant - interval '5 s' FOR NO KEY UPDATE SKIP LOCKED;
        IF FOUND AND advance_v1(suspect) THEN n := n + 1; END IF;
    END LOOP;
    RETURN n;
END $$;

-- P8: the ledger lost commits; every process that sees another identity drops what it believes.
CREATE FUNCTION safepoint.restored_v1(p_reason text) RETURNS uuid LANGUAGE plpgsql
SET search_path = safepoint, pg_temp AS $$
DECLARE
    fresh uuid;
BEGIN
    UPDATE identity SET incarnation = gen_random_uuid(), reason = p_reason, changed_at = safepoint.now(), takeover_after = '-infinity' RETURNING incarnation INTO fresh;
    PERFORM distrust_effects_v1(p_reason);
    RETURN fresh;
END $$;

-- P8: what the ledger says was not sent may have been, by commits that are lost: it is looked up or held, never simply sent.
CREATE FUNCTION safepoint.distrust_effects_v1(p_reason text) RETURNS integer LANGUAGE plpgsql
SET search_path = safepoint, pg_temp AS $$
DECLARE
    x record;
    n integer := 0;
    instant timestamptz := safepoint.now();
BEGIN
    FOR x IN SELECT e.idempotency_key, e.run_id FROM effects e JOIN runs r ON r.run_id = e.run_id WHERE r.finished_at IS NULL AND e.status IN ('pending', 'executing')
              ORDER BY e.run_id, e.idempotency_key LOOP
        PERFORM FROM runs WHERE run_id = x.run_id FOR NO KEY UPDATE;
        -- An approval that was asked for has still to be given: what waits for it cannot have been sent without.
        UPDATE effects e SET status = 'unknown', version = version + 1, unknown_since = instant, lookups = 0, may_send_until = greatest(e.may_send_until, instant
                    -- A begin that was lost may be executing now, for as long as its call may last.
                    + make_interval(secs => coalesce((e.declared->>'timeout')::double precision, 600))),
               first_sent_at = coalesce(e.first_sent_at, e.created_at)
         WHERE e.idempotency_key = x.idempotency_key AND e.status IN ('pending', 'executing')
           AND NOT EXISTS (SELECT FROM steps s WHERE s.run_id = x.run_id AND s.effect_key = e.idempotency_key AND s.status = 'waiting');
        IF FOUND THEN
            PERFORM note_effect_v1(x.idempotency_key, 'unknown', 'ledger', 'the ledger lost commits: ' || p_reason, NULL);
            n := n + 1;
        END IF;
    END LOOP;
    RETURN n;
END $$;

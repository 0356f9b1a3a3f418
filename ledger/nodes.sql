-- P19: the lease is one row a node; a beat is one statement, however many steps are active. It names the tokens really executing (P4).
CREATE FUNCTION safepoint.register_v1(
    p_node text, p_kind text, p_host text, p_pid integer, p_lanes text[], p_flows text[], p_steps text[], p_concurrency integer,
    p_lock_key bigint, p_lease double precision, p_versions jsonb, p_place text DEFAULT ''
) RETURNS TABLE (incarnation uuid, server_started timestamptz, db_now timestamptz) LANGUAGE plpgsql
SET search_path = safepoint, pg_temp AS $$
#variable_conflict use_column
DECLARE
    instant timestamptz := safepoint.now();
BEGIN
    INSERT INTO nodes (node_id, kind, host, pid, lanes, flows, steps, concurrency, lock_key, server_started, started_at, beat_at, lease_until, place)
        VALUES (p_node, p_kind, p_host, p_pid, p_lanes, p_flows, p_steps, p_concurrency, p_lock_key, pg_postmaster_start_time(),
                instant, instant, instant + make_interval(secs => p_lease), p_place)
        ON CONFLICT (node_id) DO UPDATE SET lock_key = excluded.lock_key, server_started = excluded.server_started,
            lease_until = excluded.lease_until, beat_at = excluded.beat_at, flows = excluded.flows, steps = excluded.steps, stopped_at = NULL;
    INSERT INTO flows (name, version, versions, registered_at)
        SELECT v->>'name', v->>'version', coalesce(v->'versions', '{}'), instant FROM jsonb_array_elements(p_versions) AS e(v) ORDER BY 1, 2
        ON CONFLICT (name, version) DO UPDATE SET versions = excluded.versions;
    -- P15: what waited for somebody who serves it is asked again at once.
    UPDATE steps SET due_at = instant WHERE ctid IN (
        SELECT ctid FROM steps WHERE status = 'ready' AND reason->>'code' = 'no_worker' AND due_at > instant AND due_at < 'infinity'
          LIMIT 10000 FOR NO KEY UPDATE SKIP LOCKED);
    PERFORM pg_notify('safepoint_relay', '');
    RETURN QUERY SELECT i.incarnation, pg_postmaster_start_time(), instant FROM identity i;
END $$;

CREATE FUNCTION safepoint.beat_v1(p_node text, p_active uuid[], p_marks jsonb, p_lease double precision, p_draining boolean)
RETURNS TABLE (known boolean, incarnation uuid, server_started timestamptz, lost uuid[], timeline text, reregister boolean) LANGUAGE plpgsql
SET search_path = safepoint, pg_temp AS $$
#variable_conflict use_column
DECLARE
    registered timestamptz;
    instant timestamptz := safepoint.now();
BEGIN
    UPDATE nodes SET previous_beat_at = beat_at, previous_active = active, beat_at = instant, active = p_active, marks = p_marks,
           lease_until = instant + make_interval(secs => p_lease), draining = draining OR p_draining
     WHERE node_id = p_node AND stopped_at IS NULL RETURNING nodes.server_started INTO registered;
    known := FOUND;
    server_started := pg_postmaster_start_time();
    reregister := NOT known OR registered <> server_started;
    IF cardinality(p_active) > 0 THEN
        SELECT coalesce(array_agg(t), '{}') INTO lost FROM unnest(p_active) AS t
         WHERE NOT EXISTS (SELECT FROM steps s WHERE s.owner = p_node AND s.claim_token = t AND s.status = 'running');
    END IF;
    SELECT i.incarnation INTO incarnation FROM identity i;
    RETURN NEXT;
END $$;

CREATE FUNCTION safepoint.stop_node_v1(p_node text) RETURNS void LANGUAGE sql
SET search_path = safepoint, pg_temp AS $$
    UPDATE nodes SET stopped_at = safepoint.now(), lease_until = safepoint.now(), active = '{}' WHERE node_id = p_node AND stopped_at IS NULL
$$;

-- A step's executor is gone. Confirms it under the locks (the finding may be stale), then the step goes to the recovery lane (P9); the token stays
-- until the next claim replaces it (P35). Counts a recovery, and a death only where the step may be the cause (P23). Never an attempt (G7).
CREATE FUNCTION safepoint.lose_v1(
    p_run uuid, p_generation integer, p_path text, p_step text, p_iteration integer, p_token uuid, p_cause text,
    p_deadly boolean, p_max_deaths integer, p_lane text, p_pid integer, p_pid_start bigint, p_evidence jsonb
) RETURNS text LANGUAGE plpgsql
SET search_path = safepoint, pg_temp AS $$
DECLARE
    r runs%ROWTYPE;
    s steps%ROWTYPE;
    n nodes%ROWTYPE;
    instant timestamptz;
    gone boolean;
    poison boolean;
    back text;
    parked boolean;
    ended boolean;
    dead boolean := p_cause IN ('child', 'released') OR coalesce((p_evidence->>'dead')::boolean, false);
    lost jsonb;
    why jsonb;
BEGIN
    SELECT * INTO r FROM runs WHERE run_id = p_run FOR NO KEY UPDATE;
    SELECT * INTO s FROM steps WHERE run_id = p_run AND generation = p_generation AND path = p_path
        AND step_id = p_step AND iteration = p_iteration FOR NO KEY UPDATE;
    IF s.run_id IS NULL OR s.status <> 'running' OR s.claim_token IS DISTINCT FROM p_token THEN RETURN 'moved'; END IF;
    SELECT * INTO n FROM nodes WHERE node_id = s.owner;
    instant := safepoint.now();
    gone := CASE p_cause
        WHEN 'lease' THEN n.node_id IS NULL OR n.lease_until <= instant
        WHEN 'node' THEN n.node_id IS NULL OR n.stopped_at IS NOT NULL OR NOT has_lock_v1(n.lock_key) AND n.server_started = pg_postmaster_start_time()
        WHEN 'timeout' THEN s.expires_at <= instant
        WHEN 'unnamed' THEN n.lease_until > instant AND s.claimed_at < n.previous_beat_at AND NOT (p_token = ANY (n.active || n.previous_active))
        WHEN 'child' THEN s.owner_pid = p_pid AND s.owner_pid_start = p_pid_start
        WHEN 'released' THEN s.owner_pid = p_pid AND s.owner_pid_start = p_pid_start
        ELSE false END;
    IF NOT coalesce(gone, false) THEN RETURN 'alive'; END IF;
    -- P22: a node that has said goodbye (a drained pool of threads ends with its process) gave its steps back: they keep their lane, nothing counts.
    IF p_cause = 'node' AND n.stopped_at IS NOT NULL THEN p_cause := 'released'; END IF;
    -- P24: a process that has died past its step's time was ended for that, by the pool's hard limit: an attempt, no death.
    IF p_cause = 'child' AND s.expires_at <= instant THEN p_cause := 'timeout'; p_deadly := false; END IF;
    -- P33: its executor is dead, or it had the right to send until then. A lookup that dies has given no answer, and is counted as one.
    UPDATE effects SET lookups = lookups + 1, last_answer = jsonb_build_object('answer', 'error', 'text', 'who asked has died', 'at', instant, 'node', s.owner)
     WHERE idempotency_key = s.effect_key AND status = 'unknown';
    -- A missing lock or lease is no proof (P21): only a dead process sends nothing more; else the claim's own end is its last moment.
    ended := doubt_effect_v1(s.effect_key, CASE WHEN dead OR p_cause = 'released' THEN instant ELSE 'infinity' END,
        NULL, 'scan', 'its executor is gone: ' || p_cause, instant);
    parked := r.holds <> '{}' AND NOT binds_v1(s.effect_key) AND s.kind <> 'compensation' OR r.paused_at IS NOT NULL;
    poison := p_deadly AND s.deaths + 1 > p_max_deaths;
    -- A lane of one's own that has limits is as polite as the recovery lane, and its caps, and its workers, are there for a reason.
    back := CASE WHEN p_cause = 'released' OR s.home_lane <> 'online' AND (SELECT limited FROM lanes WHERE name = s.home_lane) THEN s.home_lane ELSE p_lane END;
    lost := jsonb_strip_nulls(jsonb_build_object('generation', nullif(p_generation, 1), 'cause', p_cause, 'epoch', s.epoch, 'node', s.owner, 'at', s.claimed_at,
        'evidence', nullif(coalesce(p_evidence, '{}') || CASE WHEN p_deadly THEN '{"counted": true}' WHEN p_cause = 'node' THEN '{"shared": true}' ELSE '{}' END::jsonb, '{}'),
        'wasted_tokens', nullif(s.reserved_tokens, 0), 'wasted_usd', nullif(s.reserved_usd, 0)));
    IF poison THEN
        why := jsonb_build_object('code', 'poison', 'since', instant, 'next', 'safepoint resume ' || p_run,
            'text', 'the worker died under step ' || key_v1(p_path, p_step, p_iteration) || ' ' || (s.deaths + 1) || ' times', 'detail', jsonb_build_object(
                'step', key_v1(p_path, p_step, p_iteration), 'deaths', s.deaths + 1, 'shared_deaths', s.shared_deaths, 'evidence', deaths_v1(s, lost, instant)));
    END IF;
    UPDATE steps SET status = CASE WHEN poison THEN 'held' ELSE 'ready' END, owner = NULL, dispatched_at = NULL, dispatches = 0, ready_at = instant,
           lane = back, queued = is_admitted_v1(back)::integer,
           due_at = CASE WHEN parked OR poison THEN 'infinity'::timestamptz ELSE instant END,
           recoveries = s.recoveries + (p_cause NOT IN ('released', 'timeout'))::integer, deaths = s.deaths + p_deadly::integer,
           shared_deaths = s.shared_deaths + (p_cause = 'node' AND NOT p_deadly)::integer,
           reserved_tokens = 0, reserved_usd = 0, lost_tokens = s.reserved_tokens, lost_usd = s.reserved_usd,
           wasted_tokens = wasted_tokens + s.reserved_tokens, wasted_usd = wasted_usd + s.reserved_usd,
           pending_error = CASE WHEN p_cause = 'timeout' AND (s.effect_key IS NULL OR ended) THEN jsonb_build_object('type', 'StepTimeout', 'message',
               'the attempt ran past its timeout') ELSE s.pending_error END,
           reason = why
     WHERE run_id = p_run AND generation = p_generation AND path = p_path AND step_id = p_step AND iteration = p_iteration;
    PERFORM emit_v1(p_run, r.tenant_id, jsonb_build_array(jsonb_build_object('type', 'step.lost', 'key', key_v1(p_path, p_step, p_iteration), 'data', lost)));
    IF poison AND s.kind = 'compensation' THEN
        PERFORM hold_compensation_v1(p_run);
        PERFORM stop_v1(p_run, instant);
    ELSIF s.kind = 'compensation' OR binds_v1(s.effect_key) AND (r.ending IS NOT NULL OR r.cancel_at IS NOT NULL AND NOT s.cleanup) THEN
        PERFORM stop_v1(p_run, instant);
    ELSIF r.ending IS NOT NULL OR r.cancel_at IS NOT NULL AND NOT s.cleanup THEN
        UPDATE steps SET status = 'cancelled', claim_token = NULL, due_at = NULL, reason = NULL WHERE run_id = p_run AND generation = p_generation
            AND path = p_path AND step_id = p_step AND iteration = p_iteration;
        PERFORM stop_v1(p_run, instant);
    ELSIF poison THEN
        PERFORM hold_v1(p_run, 'poison', why->>'text', why->>'next', why->'detail');
    ELSE
        PERFORM refresh_v1(p_run);
    END IF;
    PERFORM waste_v1(r.budget_id, s);
    -- While others wait on its lane the relay comes by itself; a word for each of ten thousand orphans would be a round for each, and its commits, which
    -- PostgreSQL lets through one by one, would hold up everybody else's.
    SELECT lane INTO s.lane FROM steps WHERE run_id = p_run AND generation = p_generation AND path = p_path AND step_id = p_step AND iteration = p_iteration;
    PERFORM pg_notify('safepoint_relay', '') WHERE NOT is_admitted_v1(s.lane) OR (SELECT true FROM steps o WHERE o.status = 'ready' AND o.queued > 0
        AND o.due_at < 'infinity' AND o.lane = s.lane AND o.run_id <> p_run ORDER BY o.lane, o.tenant_id LIMIT 1) IS NULL;
    RETURN CASE WHEN poison THEN 'poison' ELSE 'lost' END;
END $$;

-- The deaths for which a step is held, the newest last, at most twenty: those that count since a person gave it all its chances, and those that it
-- shared with others. From the events of its run (events_pkey), which it has few of that are losses.
CREATE FUNCTION safepoint.deaths_v1(s safepoint.steps, p_last jsonb, p_now timestamptz) RETURNS jsonb LANGUAGE sql STABLE
SET search_path = safepoint, pg_temp AS $$
    WITH past AS (
        SELECT e.at, e.data FROM events e
         WHERE e.run_id = s.run_id AND e.type = 'step.lost' AND e.key = key_v1(s.path, s.step_id, s.iteration)
           AND coalesce((e.data->>'generation')::integer, 1) = s.generation AND e.data->'evidence' ?| array['counted', 'shared']
         ORDER BY e.seq DESC LIMIT least(s.deaths + s.shared_deaths, 19)
    ), all_of_them AS (SELECT at, data FROM past UNION ALL SELECT p_now, p_last)
    SELECT jsonb_agg(data->'evidence' || jsonb_strip_nulls(jsonb_build_object('at', at, 'cause', data->'cause', 'epoch', data->'epoch', 'node', data->'node',
               'ran', round(extract(epoch FROM at - (data->>'at')::timestamptz)::numeric, 1))) - 'counted' - 'dead' ORDER BY at, (data->>'epoch')::integer)
      FROM all_of_them
$$;

-- P21: whether some session holds a node's advisory lock. Its absence is a suspicion, never proof.
CREATE FUNCTION safepoint.has_lock_v1(p_key bigint) RETURNS boolean LANGUAGE sql VOLATILE
SET search_path = safepoint, pg_temp AS $$
    SELECT p_key IS NULL OR EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
        AND ((classid::bigint << 32) | objid::bigint) = p_key)
$$;

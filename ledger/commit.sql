-- The one transaction that ends a step (G5): result, snapshot, next steps, events and outbox, visible together or not at all.
-- The fence (P5): the claim token must still stand. A takeover keeps it until the next claim replaces it, so a late commit of an executor
-- that nobody has replaced is accepted (P35). P26: an advance counts only from the state version that stands.
CREATE FUNCTION safepoint.commit_v1(
    p_run uuid, p_generation integer, p_path text, p_step text, p_iteration integer, p_token uuid, p_from integer, p_joins text,
    p_status text, p_result bytea, p_encoding text, p_digest bytea, p_error jsonb, p_at timestamptz, p_tokens bigint, p_usd numeric,
    p_next jsonb, p_ending jsonb, p_ending_data bytea, p_ending_encoding text, p_hold jsonb, p_notes jsonb, p_artifacts jsonb,
    p_grace double precision, p_node text, p_settle jsonb DEFAULT NULL, p_effect jsonb DEFAULT NULL, p_claim jsonb DEFAULT NULL,
    OUT answer text, OUT state_version integer, OUT late boolean, OUT next_rows jsonb, OUT status text, OUT claimed_run jsonb, OUT claimed_at timestamptz
) LANGUAGE plpgsql
SET search_path = safepoint, pg_temp AS $$
#variable_conflict use_column
DECLARE
    r runs%ROWTYPE;
    s steps%ROWTYPE;
    instant timestamptz;
    stopping boolean;
    fresh text;
    log jsonb;
    wait boolean := false;
    settled text;
    called text := key_v1(p_path, p_step, p_iteration);
BEGIN
    SELECT * INTO r FROM runs WHERE run_id = p_run FOR NO KEY UPDATE;
    SELECT * INTO s FROM steps WHERE run_id = p_run AND generation = p_generation AND path = p_path
        AND step_id = p_step AND iteration = p_iteration FOR NO KEY UPDATE;
    instant := safepoint.now();
    state_version := r.state_version;
    status := r.status;
    -- P3: the answer of an earlier, identical commit was lost.
    IF s.committed_token = p_token THEN answer := 'already'; PERFORM settle_v1(p_settle); RETURN; END IF;
    IF s.run_id IS NULL OR r.finished_at IS NOT NULL OR s.claim_token IS DISTINCT FROM p_token
       OR s.status NOT IN ('running', 'ready', 'held') THEN
        answer := 'lost'; PERFORM settle_v1(p_settle); RETURN;
    END IF;
    -- P29: a live claim's result is always stored; a run that is stopping gets no next step from it.
    stopping := r.ending IS NOT NULL OR r.cancel_at IS NOT NULL AND NOT s.cleanup OR coalesce(r.deadline <= instant, false) AND NOT s.cleanup;
    IF p_from IS NOT NULL AND p_from <> r.state_version AND NOT stopping THEN
        answer := 'stale'; PERFORM settle_v1(p_settle); RETURN;
    END IF;
    -- Fan-in (P26): a bare member of a gather need not advance while another one is open; who comes last advances. Counted under the run's lock.
    IF p_joins IS NOT NULL AND NOT stopping THEN
        IF NOT EXISTS (SELECT FROM steps o WHERE o.run_id = p_run AND o.generation = p_generation
                AND o.joins = p_joins AND o.status IN ('ready', 'running', 'waiting', 'held')
                AND (o.path, o.step_id, o.iteration) <> (p_path, p_step, p_iteration)) THEN
            answer := 'stale'; PERFORM settle_v1(p_settle); RETURN;
        END IF;
    END IF;
    late := s.status <> 'running';
    IF s.effect_key IS NOT NULL THEN
        settled := settle_effect_v1(s, r.state_version + 1, p_status, p_result, p_encoding, p_error, p_node, p_effect, instant);
    END IF;
    UPDATE steps SET status = p_status, reason = NULL, claim_token = NULL, committed_token = p_token, due_at = NULL, owner = NULL,
           dispatched_at = NULL, result = p_result, result_encoding = p_encoding, result_digest = p_digest, error = p_error, at = p_at,
           commit_seq = r.state_version + 1, committed_at = instant, committed_by = p_node, pending_error = NULL,
           reserved_tokens = 0, reserved_usd = 0,
           -- What a failed attempt has cost is kept apart, as that of one that is repeated.
           tokens = tokens + CASE p_status WHEN 'failed' THEN 0 ELSE p_tokens END, usd = usd + CASE p_status WHEN 'failed' THEN 0 ELSE p_usd END,
           wasted_tokens = wasted_tokens + CASE p_status WHEN 'failed' THEN p_tokens ELSE 0 END,
           wasted_usd = wasted_usd + CASE p_status WHEN 'failed' THEN p_usd ELSE 0 END
     WHERE run_id = p_run AND generation = p_generation AND path = p_path AND step_id = p_step AND iteration = p_iteration;
    -- Its worker was dead, and yet it has committed: no poison. What else holds the run stays (P29).
    IF s.status = 'held' THEN
        IF NOT EXISTS (SELECT FROM steps WHERE run_id = p_run AND status = 'held') THEN
            r.holds := r.holds - 'poison' - 'unknown_effect';
            IF r.holds = '{}' AND r.paused_at IS NULL THEN PERFORM unpark_v1(p_run); END IF;
        END IF;
    END IF;
    IF s.kind IN ('start', 'advance', 'cancel') THEN
        log := CASE WHEN s.kind = 'start' AND s.generation = 1 THEN '[{"type": "run.started"}]'::jsonb ELSE '[]'::jsonb END;
    ELSE
        log := jsonb_build_array(
            jsonb_build_object('type', 'step.started', 'key', called, 'data', jsonb_build_object(
                'at', s.claimed_at, 'epoch', s.epoch, 'attempt', s.attempt, 'node', coalesce(s.owner, p_node))),
            jsonb_build_object('type', CASE p_status WHEN 'succeeded' THEN 'step.committed' ELSE 'step.failed' END,
                'key', called, 'data', jsonb_strip_nulls(jsonb_build_object('epoch', s.epoch, 'kind', s.kind,
                'attempt', s.attempt, 'recoveries', s.recoveries, 'tokens', nullif(p_tokens, 0), 'usd', nullif(p_usd, 0),
                'error', p_error, 'late', CASE WHEN late THEN true END))));
    END IF;
    IF settled IS NOT NULL THEN
        log := log || jsonb_build_array(jsonb_build_object('type', 'effect.settled', 'key', called, 'data', jsonb_strip_nulls(
            jsonb_build_object('status', settled, 'by', p_node, 'why', p_effect->>'why', 'external_id', p_effect->>'external_id'))));
    END IF;
    IF p_notes IS NOT NULL THEN log := log || p_notes; END IF;
    -- An advance asks for all that the flow waits for: mended code may ask for more, and what has a row is asked for already. What was cancelled
    -- when a reopened run had failed is asked for anew.
    IF s.kind = 'advance' AND p_next IS NOT NULL THEN
        DELETE FROM steps k USING jsonb_array_elements(p_next) AS e(v) WHERE k.run_id = p_run AND k.generation = r.generation AND k.status = 'cancelled'
           AND k.path = v->>'path' AND k.step_id = v->>'step' AND k.iteration = (v->>'iteration')::integer;
        p_next := (SELECT jsonb_agg(v ORDER BY o) FROM jsonb_array_elements(p_next) WITH ORDINALITY AS e(v, o) WHERE NOT EXISTS (
            SELECT FROM steps k WHERE k.run_id = p_run AND k.generation = r.generation AND k.path = v->>'path' AND k.step_id = v->>'step'
               AND k.iteration = (v->>'iteration')::integer));
    END IF;
    -- A child, or the next generation, is told what is left after this step.
    IF r.budget_id IS NOT NULL AND NOT stopping THEN r.budget := left_v1(r, p_tokens, p_usd); END IF;
    IF NOT stopping AND p_next IS NOT NULL AND jsonb_array_length(p_next) > 0 THEN
        -- P31: what would be claimed at once is written as it is after that.
        IF p_claim IS NOT NULL AND NOT late AND p_hold IS NULL THEN next_rows := insert_running_v1(r, p_next, p_claim, p_node, s.cleanup, instant); END IF;
        IF next_rows IS NOT NULL THEN
            claimed_at := instant;
            claimed_run := run_facts_v1(r, p_tokens, p_usd);
        ELSE
            next_rows := insert_steps_v1(r.run_id, r.generation, r.tenant_id, p_next, p_grace, r.holds <> '{}' OR r.paused_at IS NOT NULL OR p_hold IS NOT NULL,
                                         s.cleanup, instant, r);
        END IF;
        IF jsonb_array_length(p_next) = 1 AND p_next->0->>'kind' = 'step' THEN  -- what is asked for nearly always needs no query
            log := log || jsonb_build_array(jsonb_build_object('type', 'step.scheduled', 'key', next_rows->0->>'key',
                'data', jsonb_build_object('kind', 'step', 'lane', p_next->0->>'lane')));
        ELSE
        log := log || (SELECT coalesce(jsonb_agg(jsonb_build_object('type', CASE WHEN x->>'kind' = 'approval' OR x->'effect'->>'requires_approval' <> '' THEN 'approval.asked' ELSE 'step.scheduled' END,
                        'key', key_v1(x->>'path', x->>'step', (x->>'iteration')::integer),
                        'data', jsonb_build_object('kind', x->>'kind', 'lane', x->>'lane') || CASE WHEN x->>'kind' = 'approval' OR x->'effect'->>'requires_approval' <> ''
                            THEN jsonb_build_object('name', x->>'name', 'digest', x->>'hash') ELSE '{}' END) ORDER BY o), '[]') FROM jsonb_array_elements(p_next) WITH ORDINALITY AS e(x, o));
        SELECT bool_and(x->>'status' = 'waiting') INTO wait FROM jsonb_array_elements(next_rows) AS x;
        END IF;
    END IF;
    -- A key names a step within its generation only.
    IF p_generation > 1 THEN
        log := (SELECT coalesce(jsonb_agg(CASE WHEN v->>'key' IS NULL THEN v ELSE jsonb_set(v, '{data,generation}', to_jsonb(p_generation)) END ORDER BY o), '[]')
                  FROM jsonb_array_elements(log) WITH ORDINALITY AS e(v, o));
    END IF;
    -- What nearly no commit changes is a statement of its own: a column that is named costs, and its triggers are asked.
    IF p_notes IS NOT NULL OR p_artifacts IS NOT NULL OR p_status = 'failed' OR late THEN
        UPDATE runs SET holds = r.holds, wasted_tokens = wasted_tokens + CASE p_status WHEN 'failed' THEN p_tokens ELSE 0 END,
               wasted_usd = wasted_usd + CASE p_status WHEN 'failed' THEN p_usd ELSE 0 END,
               plan = CASE WHEN p_notes IS NULL THEN plan ELSE jsonb_path_query_array(plan || p_notes, '$[last - 49 to last]') END
         WHERE run_id = p_run;
        IF p_artifacts IS NOT NULL THEN UPDATE runs SET artifacts = artifacts || p_artifacts WHERE run_id = p_run; END IF;
    END IF;
    fresh := CASE r.status WHEN 'queued' THEN 'running' ELSE r.status END;
    UPDATE runs SET state_version = r.state_version + 1, updated_at = instant, event_seq = r.event_seq + jsonb_array_length(log), status = fresh,
           completed_steps = completed_steps + (s.kind IN ('step', 'effect') AND p_status = 'succeeded')::integer,
           spent_tokens = spent_tokens + p_tokens, spent_usd = spent_usd + p_usd, current_node = coalesce(next_rows->0->>'key', current_node)
     WHERE run_id = p_run;
    INSERT INTO events (run_id, seq, tenant_id, type, key, data, at)
        SELECT p_run, r.event_seq + e.ord, r.tenant_id, e.v->>'type', e.v->>'key', coalesce(e.v->'data', '{}'), instant
          FROM jsonb_array_elements(log) WITH ORDINALITY AS e(v, ord);
    IF p_artifacts IS NOT NULL THEN PERFORM touch_artifacts_v1(r.tenant_id, p_artifacts); END IF;
    IF NOT stopping AND p_hold IS NOT NULL THEN
        PERFORM hold_v1(p_run, p_hold->>'code', p_hold->>'text', p_hold->>'next', p_hold->'detail');
    END IF;
    IF NOT stopping AND p_ending IS NOT NULL THEN
        IF p_ending->>'status' = 'continued' THEN
            next_rows := continue_v1(r, p_ending, p_ending_data, p_ending_encoding, p_grace, instant);
        ELSE
            UPDATE runs SET ending = p_ending->>'status', error = nullif(p_ending->'error', 'null'), result = p_ending_data, result_encoding = p_ending_encoding
             WHERE run_id = p_run;
        END IF;
    END IF;
    IF stopping OR p_ending IS NOT NULL THEN
        fresh := stop_v1(p_run, instant);
    ELSIF fresh <> 'running' OR wait OR next_rows IS NULL OR late THEN
        fresh := refresh_v1(p_run);
    END IF;
    IF r.budget_id IS NOT NULL OR s.lost_tokens <> 0 OR s.lost_usd <> 0 THEN PERFORM spend_v1(r.budget_id, s, p_tokens, p_usd, 0); END IF;
    answer := 'committed'; state_version := r.state_version + 1; status := fresh;
    IF p_settle IS NOT NULL THEN PERFORM settle_v1(p_settle); END IF;
END $$;

-- G6: the effect is settled in the transaction that stores the step's outcome. A step may fail while its effect is unknown to nobody only: an error that
-- does not say what became of the request (`p_effect` does) must not pass for a failure.
CREATE FUNCTION safepoint.settle_effect_v1(
    s safepoint.steps, p_seq integer, p_status text, p_result bytea, p_encoding text, p_error jsonb, p_node text, p_effect jsonb, p_now timestamptz
) RETURNS text LANGUAGE plpgsql
SET search_path = safepoint, pg_temp AS $$
DECLARE
    e effects%ROWTYPE;
BEGIN
    SELECT * INTO e FROM effects WHERE idempotency_key = s.effect_key FOR NO KEY UPDATE;
    IF e.status = p_status THEN  -- settled by a person, a webhook or late evidence: this stores it
        UPDATE effects SET commit_seq = p_seq WHERE idempotency_key = s.effect_key;
        RETURN NULL;
    END IF;
    IF p_status = 'failed' AND (e.status = 'succeeded' OR e.status <> 'pending' AND p_effect->>'why' IS NULL) THEN
        RAISE EXCEPTION 'effect % is %: a failure must say that it was not executed', e.reference, e.status USING ERRCODE = 'check_violation',
            CONSTRAINT = 'effects_unsettled_failure';
    END IF;
    UPDATE effects SET status = p_status, version = version + 1, result = p_result, result_encoding = p_encoding, error = p_error, settled_at = p_now,
           external_id = coalesce(p_effect->>'external_id', external_id), commit_seq = p_seq, unknown_since = NULL,
           last_answer = CASE WHEN p_effect ? 'answer' THEN (p_effect->'answer') || jsonb_build_object('at', p_now, 'node', p_node) ELSE last_answer END,
           lookups = lookups + coalesce(p_effect ? 'answer', false)::integer
     WHERE idempotency_key = s.effect_key;
    PERFORM note_effect_v1(s.effect_key, p_status, p_node, p_effect->>'why', jsonb_strip_nulls(jsonb_build_object('epoch', s.epoch, 'error', p_error,
        'outcome', CASE p_status WHEN 'succeeded' THEN 'succeeded' END)));
    RETURN p_status;
END $$;

-- What a stopping run comes to: cancelled at once past its deadline, final once nothing of it runs (P29, P32).
CREATE FUNCTION safepoint.stop_v1(p_run uuid, p_now timestamptz) RETURNS text LANGUAGE plpgsql
SET search_path = safepoint, pg_temp AS $$
DECLARE
    r runs%ROWTYPE;
BEGIN
    SELECT * INTO r FROM runs WHERE run_id = p_run;
    IF r.ending IS NULL AND r.deadline <= p_now AND r.cancel_at IS NULL THEN
        UPDATE runs SET ending = 'failed', updated_at = p_now, paused_at = NULL, error = jsonb_build_object('type', 'DeadlineExceeded',
               'message', 'the deadline ' || to_char(r.deadline AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') || ' has passed')
         WHERE run_id = p_run;
        UPDATE steps SET status = 'cancelled', claim_token = NULL, due_at = NULL, reason = NULL
         WHERE run_id = p_run AND status IN ('ready', 'waiting', 'held') AND NOT binds_v1(effect_key);
        PERFORM unpark_v1(p_run);
        -- P30: cancel travels down.
        INSERT INTO outbox_messages (tenant_id, run_id, kind, target, due_at, created_at)
            SELECT tenant_id, p_run, 'child_cancel', run_id, p_now, p_now FROM runs WHERE parent_run_id = p_run AND finished_at IS NULL;
    END IF;
    RETURN finish_v1(p_run);
END $$;

-- An attempt failed and the policy says again: the delay is a row, the lane its own (P9); spending is kept apart as wasted.
CREATE FUNCTION safepoint.retry_v1(
    p_run uuid, p_generation integer, p_path text, p_step text, p_iteration integer, p_token uuid,
    p_error jsonb, p_delay double precision, p_tokens bigint, p_usd numeric, p_notes jsonb, p_node text, p_counts boolean DEFAULT true,
    p_hold jsonb DEFAULT NULL
) RETURNS TABLE (answer text, ready_at timestamptz) LANGUAGE plpgsql
SET search_path = safepoint, pg_temp AS $$
#variable_conflict use_column
DECLARE
    r runs%ROWTYPE;
    s steps%ROWTYPE;
    instant timestamptz;
    parked boolean;
BEGIN
    SELECT * INTO r FROM runs WHERE run_id = p_run FOR NO KEY UPDATE;
    SELECT * INTO s FROM steps WHERE run_id = p_run AND generation = p_generation AND path = p_path
        AND step_id = p_step AND iteration = p_iteration FOR NO KEY UPDATE;
    instant := safepoint.now();
    -- P3: committed_token also marks the attempt that a retry ended.
    IF s.committed_token = p_token THEN answer := 'already'; ready_at := s.ready_at; RETURN NEXT; RETURN; END IF;
    IF s.run_id IS NULL OR r.finished_at IS NOT NULL OR s.claim_token IS DISTINCT FROM p_token OR s.status NOT IN ('running', 'ready', 'held') THEN
        answer := 'lost'; RETURN NEXT; RETURN;
    END IF;
    IF p_counts AND s.kind <> 'compensation' AND r.budget_id IS NOT NULL AND NOT may_retry_v1(r.budget_id) THEN
        IF p_hold IS NULL THEN answer := 'budget'; RETURN NEXT; RETURN; END IF;
    ELSE
        p_hold := NULL;
    END IF;
    parked := p_hold IS NOT NULL OR r.holds <> '{}' AND s.kind <> 'compensation' OR r.paused_at IS NOT NULL;
    ready_at := instant + make_interval(secs => p_delay);
    -- Of an effect only what has certainly not left is tried again like any step.
    UPDATE effects SET status = 'pending', version = version + 1, error = p_error WHERE idempotency_key = s.effect_key AND status = 'executing';
    IF FOUND THEN PERFORM note_effect_v1(s.effect_key, 'pending', p_node, 'it was not sent', p_error); END IF;
    UPDATE steps SET status = 'ready', attempt = s.attempt + p_counts::integer, claim_token = NULL, committed_token = p_token, owner = NULL, lane = s.home_lane,
           ready_at = instant + make_interval(secs => p_delay), dispatched_at = NULL, dispatches = 0, queued = 0, pending_error = NULL, error = p_error,
           due_at = CASE WHEN parked THEN 'infinity' ELSE instant + make_interval(secs => p_delay) END,
           reason = jsonb_build_object('code', 'retry', 'since', instant, 'text', 'attempt ' || (s.attempt + p_counts::integer) || ' after ' || coalesce(p_error->>'type', 'an error'),
               'until', instant + make_interval(secs => p_delay)),
           wasted_tokens = wasted_tokens + p_tokens, wasted_usd = wasted_usd + p_usd, reserved_tokens = 0, reserved_usd = 0
     WHERE run_id = p_run AND generation = p_generation AND path = p_path AND step_id = p_step AND iteration = p_iteration;
    UPDATE runs SET spent_tokens = spent_tokens + p_tokens, spent_usd = spent_usd + p_usd, wasted_tokens = wasted_tokens + p_tokens,
           wasted_usd = wasted_usd + p_usd, spent_retries = spent_retries + p_counts::integer, updated_at = instant,
           plan = CASE WHEN p_notes IS NULL THEN plan ELSE jsonb_path_query_array(plan || p_notes, '$[last - 49 to last]') END
     WHERE run_id = p_run;
    PERFORM emit_v1(p_run, r.tenant_id, jsonb_build_array(
        jsonb_build_object('type', 'step.started', 'key', key_v1(p_path, p_step, p_iteration), 'data', jsonb_build_object(
            'at', s.claimed_at, 'epoch', s.epoch, 'attempt', s.attempt, 'node', coalesce(s.owner, p_node)) || CASE WHEN p_generation > 1 THEN jsonb_build_object('generation', p_generation) ELSE '{}' END),
        jsonb_build_object('type', 'step.retried', 'key', key_v1(p_path, p_step, p_iteration), 'data', jsonb_build_object(
            'attempt', s.attempt, 'error', p_error, 'ready_at', instant + make_interval(secs => p_delay)) || CASE WHEN p_generation > 1 THEN jsonb_build_object('generation', p_generation) ELSE '{}' END)) || coalesce(p_notes, '[]'));
    IF s.kind <> 'compensation' AND NOT binds_v1(s.effect_key) AND (r.ending IS NOT NULL OR r.cancel_at IS NOT NULL AND NOT s.cleanup
            OR r.deadline <= instant AND NOT s.cleanup) THEN
        UPDATE steps SET status = 'cancelled', due_at = NULL, reason = NULL WHERE run_id = p_run AND generation = p_generation
            AND path = p_path AND step_id = p_step AND iteration = p_iteration;
        PERFORM stop_v1(p_run, instant);
    ELSIF p_hold IS NOT NULL THEN
        PERFORM hold_v1(p_run, p_hold->>'code', p_hold->>'text', p_hold->>'next', p_hold->'detail');
    ELSE
        PERFORM refresh_v1(p_run);
    END IF;
    PERFORM spend_v1(r.budget_id, s, p_tokens, p_usd, p_counts::integer);
    answer := 'retried';
    RETURN NEXT;
END $$;

-- A claim given back without an outcome: the worker drains, the flow diverges, its version is missing. No attempt, no recovery is counted (P22); what it
-- has spent all the same is wasted.
CREATE FUNCTION safepoint.release_v1(
    p_run uuid, p_generation integer, p_path text, p_step text, p_iteration integer, p_token uuid, p_why text, p_hold jsonb, p_delay double precision,
    p_tokens bigint DEFAULT 0, p_usd numeric DEFAULT 0
) RETURNS text LANGUAGE plpgsql
SET search_path = safepoint, pg_temp AS $$
DECLARE
    r runs%ROWTYPE;
    s steps%ROWTYPE;
    instant timestamptz;
BEGIN
    SELECT * INTO r FROM runs WHERE run_id = p_run FOR NO KEY UPDATE;
    SELECT * INTO s FROM steps WHERE run_id = p_run AND generation = p_generation AND path = p_path
        AND step_id = p_step AND iteration = p_iteration FOR NO KEY UPDATE;
    instant := safepoint.now();
    IF s.run_id IS NULL OR s.status <> 'running' OR s.claim_token IS DISTINCT FROM p_token THEN RETURN 'lost'; END IF;
    PERFORM doubt_effect_v1(s.effect_key, instant, NULL, coalesce(s.owner, ''), 'given back: ' || p_why, instant);
    UPDATE steps SET status = 'ready', claim_token = NULL, committed_token = p_token, owner = NULL, lane = s.home_lane, dispatched_at = NULL, dispatches = 0,
           ready_at = instant + make_interval(secs => p_delay),
           due_at = CASE WHEN r.paused_at IS NOT NULL OR r.holds <> '{}' AND NOT binds_v1(s.effect_key) AND s.kind <> 'compensation' THEN 'infinity'
                    ELSE instant + make_interval(secs => p_delay) END,
           wasted_tokens = wasted_tokens + p_tokens, wasted_usd = wasted_usd + p_usd, reserved_tokens = 0, reserved_usd = 0
     WHERE run_id = p_run AND generation = p_generation AND path = p_path AND step_id = p_step AND iteration = p_iteration;
    IF p_tokens <> 0 OR p_usd <> 0 THEN
        UPDATE runs SET spent_tokens = spent_tokens + p_tokens, spent_usd = spent_usd + p_usd, wasted_tokens = wasted_tokens + p_tokens,
               wasted_usd = wasted_usd + p_usd WHERE run_id = p_run;
    END IF;
    PERFORM emit_v1(p_run, r.tenant_id, jsonb_build_array(jsonb_build_object('type', 'step.lost', 'key', key_v1(p_path, p_step, p_iteration),
        'data', jsonb_build_object('cause', p_why, 'epoch', s.epoch, 'node', s.owner) || CASE WHEN p_generation > 1 THEN jsonb_build_object('generation', p_generation) ELSE '{}' END)));
    IF p_hold IS NOT NULL THEN
        PERFORM hold_v1(p_run, p_hold->>'code', p_hold->>'text', p_hold->>'next', p_hold->'detail');
    END IF;
    IF s.kind <> 'compensation' AND NOT binds_v1(s.effect_key) AND (r.ending IS NOT NULL OR r.cancel_at IS NOT NULL AND NOT s.cleanup
            OR coalesce(r.deadline <= instant, false) AND NOT s.cleanup) THEN
        UPDATE steps SET status = 'cancelled', due_at = NULL WHERE run_id = p_run AND generation = p_generation
            AND path = p_path AND step_id = p_step AND iteration = p_iteration;
        PERFORM stop_v1(p_run, instant);
    ELSE
        PERFORM refresh_v1(p_run);
    END IF;
    PERFORM spend_v1(r.budget_id, s, p_tokens, p_usd, 0);
    PERFORM pg_notify('safepoint_relay', '');
    RETURN 'released';
END $$;

-- How an effect that nobody knows about is settled: by its lookup, by the same key again, by late evidence, by a person or a webhook; or held.

-- A claim of an effect ends without settling it: the call's outcome is unknown (executing becomes unknown), or the lookup could not tell.
-- p_answer is what the lookup said; p_counts whether the attempt counts for the retry policy; p_hold why nobody but a person can go on.
CREATE FUNCTION safepoint.unsettle_effect_v1(
    p_run uuid, p_generation integer, p_path text, p_step text, p_iteration integer, p_token uuid, p_error jsonb, p_answer jsonb,
    p_delay double precision, p_counts boolean, p_hold text, p_tokens bigint, p_usd numeric, p_notes jsonb, p_node text
) RETURNS text LANGUAGE plpgsql
SET search_path = safepoint, pg_temp AS $$
DECLARE
    r runs%ROWTYPE;
    s steps%ROWTYPE;
    e effects%ROWTYPE;
    instant timestamptz;
    until timestamptz;
    parked boolean;
BEGIN
    SELECT * INTO r FROM runs WHERE run_id = p_run FOR NO KEY UPDATE;
    SELECT * INTO s FROM steps WHERE run_id = p_run AND generation = p_generation AND path = p_path
        AND step_id = p_step AND iteration = p_iteration FOR NO KEY UPDATE;
    SELECT * INTO e FROM effects WHERE idempotency_key = s.effect_key FOR NO KEY UPDATE;
    instant := safepoint.now();
    IF s.committed_token = p_token THEN RETURN 'already'; END IF;
    IF s.run_id IS NULL OR r.finished_at IS NOT NULL OR s.claim_token IS DISTINCT FROM p_token OR s.status NOT IN ('running', 'ready', 'held') THEN
        RETURN 'lost';
    END IF;
    -- The call has come back: nothing of it can be sent any more. One that was given up may still send until its claim would have ended.
    IF e.status = 'executing' AND (p_error->>'not_executed')::boolean THEN
        UPDATE effects SET status = 'pending', version = version + 1, error = p_error WHERE idempotency_key = e.idempotency_key;
        PERFORM note_effect_v1(e.idempotency_key, 'pending', p_node, 'it was not executed', p_error);
    ELSIF e.status = 'executing' THEN
        PERFORM doubt_effect_v1(e.idempotency_key, CASE p_error->>'type' WHEN 'StepTimeout' THEN 'infinity' ELSE instant END, p_error, p_node,
                                coalesce(p_error->>'message', 'no answer'), instant);
    END IF;
    IF e.status = 'unknown' AND p_error IS NOT NULL THEN UPDATE effects SET error = p_error WHERE idempotency_key = e.idempotency_key; END IF;
    IF p_answer IS NOT NULL THEN
        -- One that is not believed yet has used up nothing of the lookup's policy.
        UPDATE effects SET lookups = lookups + (NOT p_answer ? 'early')::integer, last_answer = p_answer || jsonb_build_object('at', instant, 'node', p_node)
         WHERE idempotency_key = e.idempotency_key;
        PERFORM note_effect_v1(e.idempotency_key, e.status, p_node, 'the lookup says: ' || (p_answer->>'answer'), p_answer);
    END IF;
    until := instant + make_interval(secs => p_delay);
    parked := r.paused_at IS NOT NULL;
    -- Settled by somebody else meanwhile: the next claim commits that. An undoing that was never sent is held as well as one that nobody knows.
    IF p_hold IS NOT NULL AND (e.status IN ('executing', 'unknown') OR e.status = 'pending' AND s.kind = 'compensation') THEN until := 'infinity'; ELSE p_hold := NULL; END IF;
    UPDATE steps SET status = CASE WHEN p_hold IS NULL THEN 'ready' ELSE 'held' END, attempt = s.attempt + p_counts::integer, claim_token = NULL,
           committed_token = p_token, owner = NULL, lane = s.home_lane, ready_at = CASE WHEN p_hold IS NULL THEN until ELSE instant END,
           dispatched_at = NULL, dispatches = 0, queued = 0, pending_error = NULL, error = coalesce(p_error, s.error),
           due_at = CASE WHEN parked THEN 'infinity' ELSE until END,
           reason = CASE WHEN p_hold IS NOT NULL THEN jsonb_build_object('code', CASE s.kind WHEN 'compensation' THEN 'compensation' ELSE 'unknown_effect' END,
                        'since', instant, 'text', p_hold, 'next', 'safepoint effects --run ' || p_run)
                    ELSE jsonb_build_object('code', 'retry', 'since', instant, 'until', until, 'text', CASE WHEN p_answer IS NOT NULL
                        THEN 'whether it was executed is asked again; the last answer: ' || (p_answer->>'answer')
                        ELSE 'its outcome is unknown: ' || coalesce(p_error->>'type', 'no answer') END) END,
           wasted_tokens = wasted_tokens + p_tokens, wasted_usd = wasted_usd + p_usd, reserved_tokens = 0, reserved_usd = 0
     WHERE run_id = p_run AND generation = p_generation AND path = p_path AND step_id = p_step AND iteration = p_iteration;
    UPDATE runs SET spent_tokens = spent_tokens + p_tokens, spent_usd = spent_usd + p_usd, wasted_tokens = wasted_tokens + p_tokens,
           wasted_usd = wasted_usd + p_usd, spent_retries = spent_retries + p_counts::integer, updated_at = instant,
           plan = CASE WHEN p_notes IS NULL THEN plan ELSE jsonb_path_query_array(plan || p_notes, '$[last - 49 to last]') END
     WHERE run_id = p_run;
    IF p_notes IS NOT NULL THEN PERFORM emit_v1(p_run, r.tenant_id, p_notes); END IF;
    IF r.ending IS NOT NULL OR r.cancel_at IS NOT NULL OR coalesce(r.deadline <= instant, false) THEN
        IF p_hold IS NOT NULL AND s.kind = 'compensation' THEN PERFORM hold_compensation_v1(p_run); END IF;
        PERFORM stop_v1(p_run, instant);
    ELSIF p_hold IS NOT NULL THEN
        PERFORM hold_unknown_v1(p_run);
    ELSE
        PERFORM refresh_v1(p_run);
    END IF;
    PERFORM spend_v1(r.budget_id, s, p_tokens, p_usd, p_counts::integer);
    PERFORM pg_notify('safepoint_relay', '');
    RETURN CASE WHEN p_hold IS NULL THEN 'unsettled' ELSE 'held' END;
END $$;

-- A verdict whose result does not fit what the effect returns settles nothing: whoever gave it had not the code to check it. The effect is unknown again, and
-- held for another word; what was said stays in its history (P34).
CREATE FUNCTION safepoint.unfit_effect_v1(
    p_run uuid, p_generation integer, p_path text, p_step text, p_iteration integer, p_token uuid, p_error jsonb, p_node text
) RETURNS text LANGUAGE plpgsql
SET search_path = safepoint, pg_temp AS $$
DECLARE
    s steps%ROWTYPE;
    e effects%ROWTYPE;
    instant timestamptz;
BEGIN
    PERFORM FROM runs WHERE run_id = p_run FOR NO KEY UPDATE;
    SELECT * INTO s FROM steps WHERE run_id = p_run AND generation = p_generation AND path = p_path
        AND step_id = p_step AND iteration = p_iteration FOR NO KEY UPDATE;
    instant := safepoint.now();
    IF s.claim_token = p_token AND s.status IN ('running', 'ready', 'held') THEN
        UPDATE effects SET status = 'unknown', version = version + 1, unknown_since = instant, settled_at = NULL, result = NULL, result_encoding = NULL,
               error = p_error
         WHERE idempotency_key = s.effect_key AND status = 'succeeded' AND commit_seq IS NULL AND decision ? 'resolved' RETURNING * INTO e;
        IF FOUND THEN
            PERFORM note_effect_v1(e.idempotency_key, 'unknown', p_node, 'the result does not fit: ' || (p_error->>'message'), p_error);
            PERFORM emit_v1(p_run, e.tenant_id, jsonb_build_array(jsonb_build_object('type', 'effect.unknown', 'key', key_v1(p_path, p_step, p_iteration),
                'data', jsonb_build_object('why', 'the result does not fit')
                        || CASE WHEN p_generation > 1 THEN jsonb_build_object('generation', p_generation) ELSE '{}' END)));
        END IF;
    END IF;
    RETURN unsettle_effect_v1(p_run, p_generation, p_path, p_step, p_iteration, p_token, NULL, NULL, 0, false,
        'the result that was given does not fit: ' || (p_error->>'message'), 0, 0, NULL, p_node);
END $$;

-- What lets a settled effect's step go on: the next claim commits the stored outcome, or sends what was not executed.
CREATE FUNCTION safepoint.free_effect_v1(e safepoint.effects, p_now timestamptz) RETURNS void LANGUAGE plpgsql
SET search_path = safepoint, pg_temp AS $$
DECLARE
    r runs%ROWTYPE;
BEGIN
    UPDATE steps SET status = 'ready', reason = NULL, lane = home_lane, queued = 0, ready_at = p_now, dispatched_at = NULL, dispatches = 0, deaths = 0,
           shared_deaths = 0, due_at = p_now
     WHERE effect_key = e.idempotency_key AND run_id = e.run_id AND status IN ('ready', 'held');
    PERFORM hold_unknown_v1(e.run_id);
    SELECT * INTO r FROM runs WHERE run_id = e.run_id;
    IF r.holds ? 'compensation' AND NOT EXISTS (SELECT FROM steps WHERE run_id = e.run_id AND kind = 'compensation' AND status = 'held') THEN
        UPDATE runs SET holds = holds - 'compensation', status = 'cancelling' WHERE run_id = e.run_id RETURNING * INTO r;
    END IF;
    IF r.holds <> '{}' OR r.paused_at IS NOT NULL THEN PERFORM park_v1(e.run_id); END IF;
    IF r.ending IS NOT NULL OR r.cancel_at IS NOT NULL THEN PERFORM stop_v1(e.run_id, p_now); ELSE PERFORM refresh_v1(e.run_id); END IF;
    PERFORM pg_notify('safepoint_relay', '');
END $$;

-- P34: an executor that has lost its lease says that its call succeeded. It settles what is unknown, and stands against what people say later.
CREATE FUNCTION safepoint.evidence_effect_v1(p_run uuid, p_key bytea, p_node text, p_epoch integer, p_result bytea, p_encoding text, p_external text)
RETURNS text LANGUAGE plpgsql
SET search_path = safepoint, pg_temp AS $$
DECLARE
    r runs%ROWTYPE;
    e effects%ROWTYPE;
    instant timestamptz;
BEGIN
    SELECT * INTO r FROM runs WHERE run_id = p_run FOR NO KEY UPDATE;
    PERFORM FROM steps WHERE run_id = p_run AND effect_key = p_key FOR NO KEY UPDATE;
    SELECT * INTO e FROM effects WHERE idempotency_key = p_key AND run_id = p_run FOR NO KEY UPDATE;
    instant := safepoint.now();
    IF NOT FOUND THEN RETURN 'unknown'; END IF;
    IF EXISTS (SELECT FROM effect_history WHERE idempotency_key = p_key AND actor = p_node AND evidence @> jsonb_build_object('epoch', p_epoch, 'outcome', 'succeeded')) THEN
        RETURN 'already';
    END IF;
    IF e.status IN ('unknown', 'pending') AND e.attempts > 0 AND r.finished_at IS NULL THEN
        UPDATE effects SET status = 'succeeded', version = version + 1, result = p_result, result_encoding = p_encoding,
               external_id = coalesce(p_external, external_id), settled_at = instant, error = NULL
         WHERE idempotency_key = p_key;
        PERFORM note_effect_v1(p_key, 'succeeded', p_node, 'its executor had lost the lease, and knows that it succeeded',
                               jsonb_build_object('epoch', p_epoch, 'outcome', 'succeeded'));
        PERFORM emit_v1(p_run, r.tenant_id, jsonb_build_array(jsonb_build_object('type', 'effect.settled', 'key', key_v1(e.path, e.step_id, e.iteration),
            'data', jsonb_build_object('status', 'succeeded', 'by', p_node, 'why', 'late evidence'))));
        PERFORM free_effect_v1(e, instant);
        RETURN 'settled';
    END IF;
    PERFORM note_effect_v1(p_key, e.status, p_node, 'its executor had lost the lease, and knows that it succeeded',
                           jsonb_build_object('epoch', p_epoch, 'outcome', 'succeeded'));
    RETURN 'noted';
END $$;

-- A person's or a webhook's word on an effect that is unknown (R27, P34): refused when stale, settled, under way, early, or against evidence of success.
CREATE FUNCTION safepoint.resolve_effect_v1(
    p_key bytea, p_version integer, p_verdict text, p_result bytea, p_encoding text, p_error jsonb, p_actor text, p_why text
) RETURNS TABLE (answer text, status text, version integer, run_id uuid, text text) LANGUAGE plpgsql
SET search_path = safepoint, pg_temp AS $$
#variable_conflict use_column
DECLARE
    r runs%ROWTYPE;
    e effects%ROWTYPE;
    instant timestamptz;
    stops boolean;
    stuck boolean;
    surely timestamptz;
BEGIN
    SELECT x.run_id INTO run_id FROM effects x WHERE x.idempotency_key = p_key;
    IF NOT FOUND THEN answer := 'unknown'; RETURN NEXT; RETURN; END IF;
    SELECT * INTO r FROM runs q WHERE q.run_id = resolve_effect_v1.run_id FOR NO KEY UPDATE;
    PERFORM FROM steps s WHERE s.run_id = r.run_id AND s.effect_key = p_key FOR NO KEY UPDATE;
    SELECT * INTO e FROM effects x WHERE x.idempotency_key = p_key FOR NO KEY UPDATE;
    instant := safepoint.now();
    status := e.status; version := e.version;
    -- A compensation that cannot finish and was not sent may have been done by hand.
    stuck := e.compensates IS NOT NULL AND EXISTS (SELECT FROM steps s WHERE s.run_id = r.run_id AND s.effect_key = p_key AND s.status = 'held');
    surely := e.may_send_until + make_interval(secs => coalesce((e.declared->>'authoritative_after')::double precision, 0));
    answer := CASE
        WHEN e.status IN ('succeeded', 'failed') THEN 'settled'
        WHEN p_version IS NOT NULL AND p_version <> e.version THEN 'stale'
        WHEN e.status = 'executing' THEN 'executing'
        WHEN e.status = 'pending' AND NOT stuck THEN 'pending'
        -- P33: a person who has looked and found nothing may have looked before the request arrived.
        WHEN p_verdict <> 'succeeded' AND e.status = 'unknown' AND instant < surely THEN 'early'
        WHEN p_verdict <> 'succeeded' AND is_done_v1(p_key) THEN 'evidence'
        ELSE 'resolved' END;
    IF answer = 'early' THEN
        text := to_char(surely AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS') || ' UTC';
        RETURN NEXT; RETURN;
    ELSIF answer <> 'resolved' THEN
        SELECT h.actor || coalesce(': ' || h.why, '') INTO text FROM effect_history h WHERE h.idempotency_key = p_key
           AND (answer <> 'evidence' OR h.evidence->>'outcome' = 'succeeded') ORDER BY h.n DESC LIMIT 1;
        RETURN NEXT; RETURN;
    END IF;
    -- What was not executed is not sent any more by a run that is stopping.
    stops := p_verdict = 'not_executed' AND NOT EXISTS (SELECT FROM steps s WHERE s.run_id = r.run_id AND s.effect_key = p_key AND s.kind = 'compensation')
             AND (r.ending IS NOT NULL OR r.cancel_at IS NOT NULL OR coalesce(r.deadline <= instant, false));
    status := CASE WHEN p_verdict = 'not_executed' AND NOT stops THEN 'pending' WHEN p_verdict = 'succeeded' THEN 'succeeded' ELSE 'failed' END;
    UPDATE effects x SET status = resolve_effect_v1.status, version = x.version + 1, unknown_since = NULL,
           result = CASE p_verdict WHEN 'succeeded' THEN p_result END, result_encoding = CASE p_verdict WHEN 'succeeded' THEN p_encoding END,
           error = CASE WHEN stops THEN jsonb_build_object('type', 'NotSent', 'message', 'it was not executed, and the run is stopping')
                        WHEN p_verdict = 'failed' THEN p_error END,
           settled_at = CASE resolve_effect_v1.status WHEN 'pending' THEN NULL ELSE instant END,
           -- An effect's approval keeps its own place; a decision on an unknown is of this shape.
           decision = coalesce(x.decision, '{}') || jsonb_build_object('resolved', jsonb_build_object('verdict', p_verdict, 'by', p_actor, 'why', p_why, 'at', instant))
     WHERE x.idempotency_key = p_key RETURNING x.version INTO version;
    PERFORM note_effect_v1(p_key, status, p_actor, p_why, jsonb_strip_nulls(jsonb_build_object('verdict', p_verdict, 'error', p_error)));
    PERFORM emit_v1(r.run_id, r.tenant_id, jsonb_build_array(jsonb_build_object('type', 'effect.settled', 'key', key_v1(e.path, e.step_id, e.iteration),
        'data', jsonb_build_object('status', status, 'verdict', p_verdict, 'by', p_actor, 'why', p_why))));
    IF stops THEN
        UPDATE steps s SET status = 'cancelled', due_at = NULL, reason = NULL, claim_token = NULL WHERE s.run_id = r.run_id AND s.effect_key = p_key
            AND s.status IN ('ready', 'held');
    END IF;
    PERFORM free_effect_v1(e, instant);
    RETURN NEXT;
END $$;

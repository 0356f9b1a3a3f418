-- The side-effect ledger: what is to be sent, whether it may have been, what came of it. Every function here is called with the run locked (P1).

-- What an effect is called whatever its input is: by this a lookup can ask after a restore, when the input may differ (P8).
CREATE FUNCTION safepoint.reference_v1(p_run uuid, p_generation integer, p_path text, p_step text, p_iteration integer, p_ordinal integer)
RETURNS text LANGUAGE sql IMMUTABLE
SET search_path = safepoint, pg_temp AS $$
    SELECT p_run || '/' || p_generation || '/' || key_v1(p_path, p_step, p_iteration) || CASE WHEN p_ordinal > 1 THEN '~' || p_ordinal ELSE '' END
$$;

CREATE FUNCTION safepoint.effect_key_v1(p_reference text, p_hash bytea) RETURNS bytea LANGUAGE sql IMMUTABLE
SET search_path = safepoint, pg_temp AS $$ SELECT sha256(convert_to(p_reference, 'UTF8') || p_hash) $$;

-- Every transition is a row: who, when, why, and what is known of it.
CREATE FUNCTION safepoint.note_effect_v1(p_key bytea, p_status text, p_actor text, p_why text, p_evidence jsonb) RETURNS void LANGUAGE sql
SET search_path = safepoint, pg_temp AS $$
    INSERT INTO effect_history (idempotency_key, n, tenant_id, status, actor, why, evidence, at)
        SELECT p_key, 1 + (SELECT count(*) FROM effect_history WHERE idempotency_key = p_key), tenant_id, p_status, p_actor, p_why, p_evidence, safepoint.now()
          FROM effects WHERE idempotency_key = p_key
$$;

-- P32: nobody knows, or it has been done and the run has not heard of it: such a step is never cancelled.
CREATE FUNCTION safepoint.binds_v1(p_key bytea) RETURNS boolean LANGUAGE sql STABLE
SET search_path = safepoint, pg_temp AS $$
    SELECT p_key IS NOT NULL AND EXISTS (SELECT FROM effects WHERE idempotency_key = p_key AND status IN ('executing', 'unknown', 'succeeded'))
$$;

-- G6: the request and its key, in the transaction that schedules the step. A row that was never sent makes room for what mended code asks now;
-- one that was sent stays, and what is asked now is a new operation with a key of its own.
CREATE FUNCTION safepoint.schedule_effect_v1(
    p_run uuid, p_generation integer, p_tenant text, p_path text, p_step text, p_iteration integer, p_name text, p_hash bytea,
    p_request bytea, p_encoding text, p_declared jsonb, p_compensates bytea, p_now timestamptz
) RETURNS bytea LANGUAGE plpgsql
SET search_path = safepoint, pg_temp AS $$
DECLARE
    place integer;
    label text;
    made bytea;
BEGIN
    UPDATE steps SET effect_key = NULL WHERE run_id = p_run AND generation = p_generation AND path = p_path AND step_id = p_step AND iteration = p_iteration;
    DELETE FROM effects WHERE run_id = p_run AND generation = p_generation AND path = p_path AND step_id = p_step AND iteration = p_iteration
        AND attempts = 0 AND status IN ('pending', 'failed');
    SELECT 1 + coalesce(max(ordinal), 0) INTO place FROM effects
     WHERE run_id = p_run AND generation = p_generation AND path = p_path AND step_id = p_step AND iteration = p_iteration;
    label := reference_v1(p_run, p_generation, p_path, p_step, p_iteration, place);
    made := effect_key_v1(label, p_hash);
    INSERT INTO effects (idempotency_key, reference, tenant_id, run_id, generation, path, step_id, iteration, ordinal, name, request, request_encoding,
                         request_digest, declared, compensates, created_at)
        VALUES (made, label, p_tenant, p_run, p_generation, p_path, p_step, p_iteration, place, p_name, p_request, p_encoding, p_hash,
                coalesce(p_declared, '{}'), p_compensates, p_now);
    PERFORM note_effect_v1(made, 'pending', 'flow', CASE WHEN place > 1 THEN 'asked for again' ELSE 'asked for' END, NULL);
    UPDATE steps SET effect_key = made WHERE run_id = p_run AND generation = p_generation AND path = p_path AND step_id = p_step AND iteration = p_iteration;
    RETURN made;
END $$;

-- P34: somebody who executed it knows that it succeeded, whatever has become of the result.
CREATE FUNCTION safepoint.is_done_v1(p_key bytea) RETURNS boolean LANGUAGE sql STABLE
SET search_path = safepoint, pg_temp AS $$
    SELECT EXISTS (SELECT FROM effect_history WHERE idempotency_key = p_key AND evidence->>'outcome' = 'succeeded')
$$;

-- What a claimer is told of its effect.
CREATE FUNCTION safepoint.effect_facts_v1(e safepoint.effects, p_now timestamptz) RETURNS jsonb LANGUAGE sql STABLE
SET search_path = safepoint, pg_temp AS $$
    SELECT jsonb_build_object('key', encode(e.idempotency_key, 'hex'), 'reference', e.reference, 'status', e.status, 'version', e.version,
        'attempts', e.attempts, 'lookups', e.lookups, 'digest', encode(e.request_digest, 'hex'), 'decision', e.decision, 'error', e.error,
        'compensates', encode(e.compensates, 'hex'), 'unknown_for', extract(epoch FROM p_now - e.unknown_since),
        'first_sent_ago', extract(epoch FROM p_now - e.first_sent_at), 'may_send_for', extract(epoch FROM e.may_send_until - p_now), 'is_done', is_done_v1(e.idempotency_key))
$$;

-- G6, P33: the last word before the send, durable before anything leaves. `send` is a first sending (or one after "not executed"), `again` the same
-- key once more although it may have been executed. p_asked_at: an instant of this clock before the lookup was begun that said "not executed".
-- Answers: begun, lost, changed (not the frozen request), unapproved, settled, evidence (of success), early (wait), held, stopping, expired (retention).
CREATE FUNCTION safepoint.begin_effect_v1(
    p_run uuid, p_generation integer, p_path text, p_step text, p_iteration integer, p_token uuid, p_digest bytea, p_how text,
    p_timeout double precision, p_after double precision, p_retention double precision, p_asked_at timestamptz
) RETURNS TABLE (answer text, wait double precision, attempt integer) LANGUAGE plpgsql
SET search_path = safepoint, pg_temp AS $$
#variable_conflict use_column
DECLARE
    r runs%ROWTYPE;
    s steps%ROWTYPE;
    e effects%ROWTYPE;
    instant timestamptz;
    stopping boolean;
BEGIN
    SELECT * INTO r FROM runs WHERE run_id = p_run FOR NO KEY UPDATE;
    SELECT * INTO s FROM steps WHERE run_id = p_run AND generation = p_generation AND path = p_path
        AND step_id = p_step AND iteration = p_iteration FOR NO KEY UPDATE;
    SELECT * INTO e FROM effects WHERE idempotency_key = s.effect_key FOR NO KEY UPDATE;
    instant := safepoint.now();
    wait := 0; attempt := e.attempts;
    IF s.run_id IS NULL OR e.idempotency_key IS NULL OR r.finished_at IS NOT NULL OR s.status <> 'running' OR s.claim_token IS DISTINCT FROM p_token THEN
        answer := 'lost'; RETURN NEXT; RETURN;
    END IF;
    -- P3: the answer of an earlier, identical call was lost.
    IF e.status = 'executing' AND e.sent_token = p_token THEN answer := 'begun'; RETURN NEXT; RETURN; END IF;
    stopping := s.kind <> 'compensation' AND (r.ending IS NOT NULL OR r.cancel_at IS NOT NULL AND NOT s.cleanup
                OR coalesce(r.deadline <= instant, false) AND NOT s.cleanup);
    answer := CASE
        WHEN e.status IN ('succeeded', 'failed') THEN 'settled'
        WHEN e.status = 'executing' OR p_how = 'again' AND e.status <> 'unknown' THEN 'lost'
        WHEN e.request_digest <> p_digest THEN 'changed'
        WHEN e.declared->>'requires_approval' IS NOT NULL AND NOT coalesce(e.decision->>'outcome' = 'approved'
             AND e.decision->>'digest' = encode(p_digest, 'hex'), false) THEN 'unapproved'
        -- P34: who knows that it succeeded is not overruled by a lookup that has not heard of it yet.
        WHEN p_how = 'send' AND e.attempts > 0 AND is_done_v1(e.idempotency_key) THEN 'evidence'
        WHEN p_how = 'send' AND e.status = 'unknown'
             AND p_asked_at < e.may_send_until + make_interval(secs => p_after) THEN 'early'
        WHEN p_how = 'again' AND p_retention IS NOT NULL
             -- The request may arrive as late as its call may last, and as it may be held up on its way.
             AND e.first_sent_at + make_interval(secs => p_retention) < instant + make_interval(secs => p_timeout + p_after) THEN 'expired'
        WHEN p_how = 'send' AND stopping THEN 'stopping'
        WHEN r.paused_at IS NOT NULL OR p_how = 'send' AND r.holds <> '{}' AND s.kind <> 'compensation' THEN 'held'
        ELSE 'begun' END;
    IF answer = 'early' THEN
        wait := extract(epoch FROM e.may_send_until + make_interval(secs => p_after) - instant) + 0.05;
    ELSIF answer IN ('stopping', 'held') AND p_how = 'send' AND e.status = 'unknown' THEN
        -- Believed to be not executed, and not to be sent now.
        UPDATE effects SET status = 'pending', version = version + 1, error = NULL, unknown_since = NULL WHERE idempotency_key = e.idempotency_key;
        PERFORM note_effect_v1(e.idempotency_key, 'pending', s.owner, 'the lookup says: not executed', NULL);
    ELSIF answer = 'begun' THEN
        UPDATE effects SET status = 'executing', version = version + 1, attempts = attempts + 1, first_sent_at = coalesce(first_sent_at, instant),
               last_sent_at = instant, older_until = may_send_until, own_until = instant + make_interval(secs => p_timeout),
               may_send_until = greatest(may_send_until, instant + make_interval(secs => p_timeout)), sent_token = p_token, sent_by = s.owner, error = NULL,
               unknown_since = NULL
         WHERE idempotency_key = e.idempotency_key RETURNING attempts INTO attempt;
        UPDATE steps SET expires_at = instant + make_interval(secs => p_timeout) WHERE run_id = p_run AND generation = p_generation AND path = p_path
            AND step_id = p_step AND iteration = p_iteration;
        PERFORM note_effect_v1(e.idempotency_key, 'executing', s.owner, CASE WHEN p_how = 'again' THEN 'sent again under the same key'
            WHEN e.status = 'unknown' THEN 'the lookup says: not executed' END, jsonb_build_object('epoch', s.epoch));
        PERFORM emit_v1(p_run, r.tenant_id, jsonb_build_array(jsonb_build_object('type', 'effect.executing', 'key', key_v1(p_path, p_step, p_iteration),
            'data', jsonb_build_object('attempt', attempt, 'epoch', s.epoch, 'node', s.owner)
                    || CASE WHEN p_generation > 1 THEN jsonb_build_object('generation', p_generation) ELSE '{}' END)));
    END IF;
    RETURN NEXT;
END $$;

-- An executing effect whose executor is gone, or whose call has ended without an answer that settles it.
CREATE FUNCTION safepoint.doubt_effect_v1(p_key bytea, p_until timestamptz, p_error jsonb, p_actor text, p_why text, p_now timestamptz) RETURNS boolean
LANGUAGE plpgsql
SET search_path = safepoint, pg_temp AS $$
DECLARE
    e effects%ROWTYPE;
BEGIN
    UPDATE effects SET status = 'unknown', version = version + 1, unknown_since = p_now, lookups = 0, error = coalesce(p_error, error),
           own_until = least(own_until, p_until), may_send_until = greatest(older_until, least(own_until, p_until))
     WHERE idempotency_key = p_key AND status = 'executing' RETURNING * INTO e;
    IF NOT FOUND THEN RETURN false; END IF;
    PERFORM note_effect_v1(p_key, 'unknown', p_actor, p_why, p_error);
    PERFORM emit_v1(e.run_id, e.tenant_id, jsonb_build_array(jsonb_build_object('type', 'effect.unknown', 'key', key_v1(e.path, e.step_id, e.iteration),
        'data', jsonb_build_object('why', p_why) || CASE WHEN e.generation > 1 THEN jsonb_build_object('generation', e.generation) ELSE '{}' END)));
    RETURN true;
END $$;

-- The hold `unknown_effect` stands as long as a held step's effect is unknown; its text names every one of them (P29).
CREATE FUNCTION safepoint.hold_unknown_v1(p_run uuid) RETURNS void LANGUAGE plpgsql
SET search_path = safepoint, pg_temp AS $$
DECLARE
    r runs%ROWTYPE;
    names text;
    parts jsonb;
BEGIN
    SELECT * INTO r FROM runs WHERE run_id = p_run;
    SELECT string_agg(key_v1(e.path, e.step_id, e.iteration), ', ' ORDER BY e.created_at), jsonb_agg(jsonb_build_object('key',
           key_v1(e.path, e.step_id, e.iteration), 'idempotency_key', encode(e.idempotency_key, 'hex'), 'error', e.error, 'last_answer', e.last_answer,
           'runbook', e.declared->>'runbook') ORDER BY e.created_at) INTO names, parts
      FROM steps s JOIN effects e ON e.idempotency_key = s.effect_key WHERE s.run_id = p_run AND s.status = 'held' AND e.status = 'unknown';
    IF names IS NOT NULL THEN
        IF r.ending IS NULL AND r.cancel_at IS NULL THEN
            PERFORM hold_v1(p_run, 'unknown_effect', 'nobody knows whether ' || names || ' was executed', 'safepoint effects --run ' || p_run,
                            jsonb_build_object('effects', parts));
        END IF;
    ELSIF r.holds ? 'unknown_effect' THEN
        UPDATE runs SET holds = holds - 'unknown_effect', updated_at = safepoint.now() WHERE run_id = p_run RETURNING * INTO r;
        IF r.holds = '{}' AND r.paused_at IS NULL THEN
            PERFORM unpark_v1(p_run);
            PERFORM advance_v1(p_run);
        END IF;
        PERFORM refresh_v1(p_run);
    END IF;
END $$;

-- What a run that ends had asked for and never sent is settled with it: nothing of a final run is open.
CREATE FUNCTION safepoint.drop_effects_v1(p_run uuid, p_now timestamptz) RETURNS void LANGUAGE plpgsql
SET search_path = safepoint, pg_temp AS $$
DECLARE
    x record;
BEGIN
    FOR x IN UPDATE effects e SET status = 'failed', version = version + 1, settled_at = p_now, error = jsonb_build_object('type', 'NotSent',
                    'message', 'the run went on, or ended, before it was sent')
              WHERE e.run_id = p_run AND e.status = 'pending' AND NOT EXISTS (SELECT FROM steps s WHERE s.effect_key = e.idempotency_key
                AND s.run_id = p_run AND s.status IN ('ready', 'running', 'waiting', 'held')) RETURNING e.idempotency_key LOOP
        PERFORM note_effect_v1(x.idempotency_key, 'failed', 'flow', 'never sent', NULL);
    END LOOP;
END $$;

-- P16, P27: inserts what the flow asks for next. A wait looks into the mailbox here, under the run's lock. A step that the committer will
-- publish is due after the grace (P17). Answers the rows as they stand: {key, status, due, queued, ...}; who commits publishes what is not queued: steps of
-- a lane without limits, and of a wide gather no more than its first ones, or a run with a thousand branches would stand before everybody else's step.
-- What is queued the relay admits; it is told so (P17: not for each, and for no step that goes straight out).
CREATE FUNCTION safepoint.insert_steps_v1(
    p_run uuid, p_generation integer, p_tenant text, p_next jsonb, p_grace double precision, p_parked boolean, p_cleanup boolean,
    p_now timestamptz, r safepoint.runs
) RETURNS jsonb LANGUAGE plpgsql
SET search_path = safepoint, pg_temp AS $$
DECLARE
    answer jsonb;
    x jsonb;
    mail mailbox%ROWTYPE;
    child uuid;
    due timestamptz;
    held_back boolean;
BEGIN
    -- One ordinary step is what is asked for nearly always: it goes in as it is, by the rules that the statement below has for any number of rows.
    IF jsonb_array_length(p_next) = 1 AND p_next->0->>'kind' = 'step' THEN
        x := p_next->0;
        held_back := is_admitted_v1(x->>'lane');
        due := CASE WHEN p_parked THEN 'infinity' WHEN held_back THEN p_now ELSE p_now + make_interval(secs => p_grace) END;
        INSERT INTO steps (run_id, generation, path, step_id, iteration, tenant_id, priority, deadline, kind, name, status, lane, home_lane, uses, queued, due_at,
                           ready_at, input_hash, input, input_encoding, cleanup, joins, reserve, created_at)
            VALUES (p_run, p_generation, x->>'path', x->>'step', (x->>'iteration')::integer, p_tenant, r.priority, r.deadline, 'step', x->>'name', 'ready', x->>'lane', x->>'lane',
                    x->>'uses', held_back::integer, due, p_now, decode(x->>'hash', 'hex'), decode(x->>'request', 'base64'), x->>'encoding', p_cleanup, x->>'joins',
                    nullif(x->'reserve', 'null'), p_now);
        answer := jsonb_build_array(jsonb_build_object('path', x->>'path', 'step', x->>'step', 'iteration', x->'iteration', 'kind', 'step', 'name', x->>'name', 'lane', x->>'lane',
            'status', 'ready', 'queued', held_back, 'due', nullif(due, 'infinity'), 'attempt', 1, 'epoch', 0, 'key', key_v1(x->>'path', x->>'step', (x->>'iteration')::integer)));
        IF held_back THEN PERFORM wake_relay_v1(p_run, answer); END IF;
        RETURN answer;
    END IF;
    WITH asked AS (
        -- An effect that needs approval waits for it, its request frozen.
        SELECT j.*, o, kind NOT IN ('step', 'effect') OR coalesce(effect->>'requires_approval', '') <> '' AS waits, coalesce(z.is_admitted, false) AS is_admitted,
               row_number() OVER (PARTITION BY lane ORDER BY o) > 16 AS is_wide FROM jsonb_array_elements(p_next) WITH ORDINALITY AS e(v, o),
               jsonb_to_record(v) AS j(path text, step text, iteration integer, kind text, name text, lane text, hash text, uses text,
                                       delay double precision, until timestamptz, request text, encoding text, reason jsonb, joins text, effect jsonb, reserve jsonb)
               LEFT JOIN (SELECT l.name AS of_lane, l.limited OR l.paused AS is_admitted FROM lanes l) z ON z.of_lane = lane
    ), written AS (
        INSERT INTO steps (run_id, generation, path, step_id, iteration, tenant_id, priority, deadline, kind, name, status, reason, lane, home_lane, uses, queued, due_at,
                           ready_at, input_hash, input, input_encoding, cleanup, joins, reserve, created_at)
            SELECT p_run, p_generation, path, step, iteration, p_tenant, r.priority, r.deadline, kind, name,
                   CASE WHEN waits THEN 'waiting' ELSE 'ready' END,
                   CASE WHEN waits THEN jsonb_build_object('since', p_now) || coalesce(reason, '{}') END,
                   lane, lane, uses, (NOT waits AND (is_admitted OR is_wide))::integer,
                   CASE WHEN waits THEN coalesce(until, p_now + make_interval(secs => delay))
                        WHEN p_parked THEN 'infinity' WHEN is_admitted OR is_wide THEN p_now ELSE p_now + make_interval(secs => p_grace) END,
                   p_now, decode(hash, 'hex'), CASE WHEN kind <> 'effect' THEN decode(request, 'base64') END, CASE WHEN kind <> 'effect' THEN encoding END, p_cleanup, joins, reserve, p_now
              FROM asked ORDER BY o
            RETURNING path, step_id, iteration, kind, name, lane, status, queued, due_at, attempt, epoch
    )
    SELECT jsonb_agg(jsonb_build_object('path', path, 'step', step_id, 'iteration', iteration, 'kind', kind, 'name', name, 'lane', lane, 'status', status,
               'queued', queued > 0, 'due', nullif(due_at, 'infinity'), 'attempt', attempt, 'epoch', epoch, 'key', key_v1(path, step_id, iteration))) INTO answer FROM written;
    PERFORM wake_relay_v1(p_run, answer);
    PERFORM schedule_effect_v1(p_run, p_generation, p_tenant, v->>'path', v->>'step', (v->>'iteration')::integer, v->>'name', decode(v->>'hash', 'hex'),
        coalesce(decode(v->>'request', 'base64'), 'null'), coalesce(v->>'encoding', 'json'), v->'effect', NULL, p_now)
       FROM jsonb_array_elements(p_next) AS e(v) WHERE v->>'kind' = 'effect';
    FOR x IN SELECT v FROM jsonb_array_elements(p_next) AS e(v) WHERE v->>'kind' IN ('signal', 'child') LOOP
        IF x->>'kind' = 'child' THEN
            child := (x->'child'->>'run_id')::uuid;
            PERFORM create_run_v1(child, p_tenant, x->'child'->>'flow', x->'child'->>'version', decode(x->'child'->>'input', 'base64'),
                x->'child'->>'encoding', decode(x->'child'->>'hash', 'hex'), r.deadline, r.budget, r.priority, r.tags, r.conversation_id, NULL,
                x->'child'->'versions', p_run, key_v1(x->>'path', x->>'step', (x->>'iteration')::integer));
            PERFORM pg_notify('safepoint_relay', '');
        END IF;
        SELECT * INTO mail FROM mailbox m WHERE m.run_id = p_run AND m.kind = x->>'kind'
            AND m.name = CASE WHEN x->>'kind' = 'child' THEN key_v1(x->>'path', x->>'step', (x->>'iteration')::integer) ELSE x->>'name' END
            AND m.consumed_at IS NULL ORDER BY m.id LIMIT 1;
        IF FOUND THEN
            held_back := is_admitted_v1(x->>'lane');
            due := CASE WHEN p_parked THEN 'infinity' WHEN held_back THEN p_now ELSE p_now + make_interval(secs => p_grace) END;
            PERFORM consume_v1(mail, p_generation, x->>'path', x->>'step', (x->>'iteration')::integer, p_now, due);
            answer := (SELECT jsonb_agg(CASE WHEN a->>'path' = x->>'path' AND a->>'step' = x->>'step' AND a->'iteration' = x->'iteration'
                         THEN a || jsonb_build_object('status', 'ready', 'queued', held_back, 'due', nullif(due, 'infinity')) ELSE a END)
                         FROM jsonb_array_elements(answer) AS e(a));
        END IF;
    END LOOP;
    RETURN answer;
END $$;

-- P17: tells the relay of rows that it is to admit, unless others of their lane wait already: then it comes by itself, as soon as the lane has room.
CREATE FUNCTION safepoint.wake_relay_v1(p_run uuid, p_rows jsonb) RETURNS void LANGUAGE plpgsql
SET search_path = safepoint, pg_temp AS $$
BEGIN
    IF EXISTS (SELECT FROM jsonb_array_elements(p_rows) AS e(a) WHERE (a->>'queued')::boolean AND (SELECT true FROM steps o WHERE o.status = 'ready'
        AND o.queued > 0 AND o.due_at < 'infinity' AND o.lane = a->>'lane' AND o.run_id <> p_run ORDER BY o.lane, o.tenant_id LIMIT 1) IS NULL) THEN
        PERFORM pg_notify('safepoint_relay', '');
    END IF;
END $$;

-- P28: one guarded update decides a wait; the mail is marked in the same transaction.
CREATE FUNCTION safepoint.consume_v1(
    p_mail safepoint.mailbox, p_generation integer, p_path text, p_step text, p_iteration integer, p_now timestamptz, p_due timestamptz
) RETURNS boolean LANGUAGE plpgsql
SET search_path = safepoint, pg_temp AS $$
BEGIN
    UPDATE steps SET status = 'ready', reason = NULL, ready_at = p_now, due_at = p_due, dispatched_at = NULL,
           outcome = jsonb_strip_nulls(jsonb_build_object('status', p_mail.status, 'error', p_mail.error, 'sender', p_mail.sender)),
           outcome_data = p_mail.payload, outcome_encoding = p_mail.encoding
     WHERE run_id = p_mail.run_id AND generation = p_generation AND path = p_path AND step_id = p_step AND iteration = p_iteration
       AND status = 'waiting';
    IF NOT FOUND THEN RETURN false; END IF;
    UPDATE mailbox SET consumed_at = p_now, consumed_by = p_generation || ':' || key_v1(p_path, p_step, p_iteration) WHERE id = p_mail.id;
    RETURN true;
END $$;

-- A new generation: its own @start, the old one's rows stay as history.
CREATE FUNCTION safepoint.continue_v1(r safepoint.runs, p_ending jsonb, p_input bytea, p_encoding text, p_grace double precision,
    p_now timestamptz) RETURNS jsonb LANGUAGE plpgsql
SET search_path = safepoint, pg_temp AS $$
DECLARE
    due timestamptz := CASE WHEN r.holds <> '{}' OR r.paused_at IS NOT NULL THEN 'infinity' ELSE p_now + make_interval(secs => p_grace) END;
BEGIN
    UPDATE runs SET generation = r.generation + 1, budget = r.budget, input = p_input, input_encoding = p_encoding, input_hash = decode(p_ending->>'hash', 'hex')
     WHERE run_id = r.run_id;
    UPDATE steps SET status = 'cancelled', claim_token = NULL, due_at = NULL, reason = NULL
     WHERE run_id = r.run_id AND status IN ('ready', 'waiting') AND NOT binds_v1(effect_key);
    PERFORM drop_effects_v1(r.run_id, p_now);
    INSERT INTO steps (run_id, generation, path, step_id, iteration, tenant_id, priority, deadline, kind, name, status, lane, home_lane, due_at, ready_at, created_at)
        VALUES (r.run_id, r.generation + 1, '', '@start', 1, r.tenant_id, r.priority, r.deadline, 'start', r.flow, 'ready', 'online', 'online', due, p_now, p_now);
    RETURN jsonb_build_array(jsonb_build_object('path', '', 'step', '@start', 'iteration', 1, 'kind', 'start', 'name', r.flow, 'lane', 'online',
        'status', 'ready', 'queued', is_admitted_v1('online'), 'due', nullif(due, 'infinity'), 'attempt', 1, 'epoch', 0, 'key', '@start#1', 'generation', r.generation + 1));
END $$;

CREATE FUNCTION safepoint.touch_artifacts_v1(p_tenant text, p_artifacts jsonb) RETURNS void LANGUAGE sql
SET search_path = safepoint, pg_temp AS $$
    INSERT INTO artifacts (tenant_id, sha256, size, media_type, created_at, touched_at)
        -- One row for each content, in one order: what a step and its flow return is often the same.
        SELECT DISTINCT ON (a->>'sha256') p_tenant, decode(a->>'sha256', 'hex'), (a->>'size')::bigint, a->>'media_type', safepoint.now(),
               safepoint.now() FROM jsonb_array_elements(p_artifacts) AS e(a) ORDER BY a->>'sha256'
    ON CONFLICT (tenant_id, sha256) DO UPDATE SET touched_at = excluded.touched_at
$$;


-- P37: when a run has failed or was cancelled, what its effects have done is undone: newest commit first, one at a time, each an effect of its own.

-- Puts the next compensation on its way, if there is one. Called when nothing of the run runs and no effect of it is unsettled.
CREATE FUNCTION safepoint.compensate_v1(p_run uuid, p_now timestamptz) RETURNS boolean LANGUAGE plpgsql
SET search_path = safepoint, pg_temp AS $$
DECLARE
    r runs%ROWTYPE;
    e effects%ROWTYPE;
    undo text;
    home text;
    dependency text;
BEGIN
    SELECT * INTO r FROM runs WHERE run_id = p_run;
    IF EXISTS (SELECT FROM steps WHERE run_id = p_run AND kind = 'compensation' AND status IN ('ready', 'running', 'held')) THEN RETURN true; END IF;
    -- Succeeded at the other side, whoever found that out; a compensation that a person has given up is not begun again.
    SELECT * INTO e FROM effects x WHERE x.run_id = p_run AND x.status = 'succeeded' AND x.compensates IS NULL AND (x.declared->>'compensate')::boolean
        AND NOT EXISTS (SELECT FROM effects c WHERE c.compensates = x.idempotency_key) ORDER BY x.commit_seq DESC NULLS FIRST, x.settled_at DESC LIMIT 1;
    IF NOT FOUND THEN RETURN false; END IF;
    undo := 'compensate:' || e.step_id;
    SELECT home_lane, uses INTO home, dependency FROM steps WHERE run_id = p_run AND generation = e.generation AND path = e.path AND step_id = e.step_id AND iteration = e.iteration;
    INSERT INTO steps (run_id, generation, path, step_id, iteration, tenant_id, priority, deadline, kind, name, status, lane, home_lane, uses, due_at, ready_at, input_hash, cleanup, created_at)
        VALUES (p_run, e.generation, e.path, undo, e.iteration, r.tenant_id, r.priority, r.deadline, 'compensation', e.name, 'ready', coalesce(home, 'online'), coalesce(home, 'online'), dependency,
                CASE WHEN r.paused_at IS NULL THEN p_now ELSE 'infinity' END, p_now, sha256(coalesce(e.result, 'null')), true, p_now);
    PERFORM schedule_effect_v1(p_run, e.generation, r.tenant_id, e.path, undo, e.iteration, e.name, sha256(coalesce(e.result, 'null')),
        coalesce(e.result, 'null'), coalesce(e.result_encoding, 'json'), jsonb_build_object('runbook', e.declared->>'runbook'), e.idempotency_key, p_now);
    PERFORM emit_v1(p_run, r.tenant_id, jsonb_build_array(jsonb_build_object('type', 'step.scheduled', 'key', key_v1(e.path, undo, e.iteration),
        'data', jsonb_build_object('kind', 'compensation', 'lane', coalesce(home, 'online'), 'generation', nullif(e.generation, 1)))));
    PERFORM pg_notify('safepoint_relay', '');
    RETURN true;
END $$;

-- One that cannot finish holds the run, which then says what is undone and what is not.
CREATE FUNCTION safepoint.hold_compensation_v1(p_run uuid) RETURNS void LANGUAGE plpgsql
SET search_path = safepoint, pg_temp AS $$
DECLARE
    instant timestamptz := safepoint.now();
    done jsonb;
    undone jsonb;
    stuck text;
BEGIN
    SELECT coalesce(jsonb_agg(key_v1(x.path, x.step_id, x.iteration) ORDER BY x.commit_seq DESC) FILTER (WHERE c.status = 'succeeded'), '[]'),
           coalesce(jsonb_agg(key_v1(x.path, x.step_id, x.iteration) ORDER BY x.commit_seq DESC) FILTER (WHERE c.status IS DISTINCT FROM 'succeeded'), '[]')
      INTO done, undone FROM effects x LEFT JOIN effects c ON c.compensates = x.idempotency_key
     WHERE x.run_id = p_run AND x.status = 'succeeded' AND x.compensates IS NULL AND (x.declared->>'compensate')::boolean;
    SELECT string_agg(key_v1(path, step_id, iteration), ', ') INTO stuck FROM steps WHERE run_id = p_run AND kind = 'compensation' AND status = 'held';
    UPDATE runs SET updated_at = instant, holds = holds || jsonb_build_object('compensation', jsonb_build_object('code', 'compensation', 'since', instant,
           'text', stuck || ' cannot finish; undone: ' || coalesce((SELECT string_agg(v, ', ') FROM jsonb_array_elements_text(done) AS e(v)), 'nothing')
                   || '; not undone: ' || coalesce((SELECT string_agg(v, ', ') FROM jsonb_array_elements_text(undone) AS e(v)), 'nothing'),
           'next', 'safepoint effects --run ' || p_run, 'detail', jsonb_build_object('undone', done, 'not_undone', undone)))
     WHERE run_id = p_run;
    PERFORM pg_notify('safepoint_run', p_run::text);
END $$;

-- What a run that is ending still waits for, as its reason: an effect that nobody knows about, or a compensation.
CREATE FUNCTION safepoint.ending_v1(p_run uuid, p_now timestamptz) RETURNS void LANGUAGE plpgsql
SET search_path = safepoint, pg_temp AS $$
DECLARE
    r runs%ROWTYPE;
    doubts text;
    undoing text;
    fresh text := 'cancelling';
    why jsonb;
BEGIN
    SELECT * INTO r FROM runs WHERE run_id = p_run;
    SELECT string_agg(key_v1(path, step_id, iteration), ', ' ORDER BY created_at) INTO doubts FROM effects WHERE run_id = p_run AND status = 'unknown';
    SELECT string_agg(key_v1(path, step_id, iteration), ', ') INTO undoing FROM steps
     WHERE run_id = p_run AND kind = 'compensation' AND status IN ('ready', 'running', 'held');
    IF r.holds ? 'compensation' THEN
        fresh := 'held'; why := r.holds->'compensation';
    ELSIF doubts IS NOT NULL THEN
        why := jsonb_build_object('code', 'unknown_effect', 'text', 'it is ending, and nobody knows whether ' || doubts || ' was executed',
                                  'next', 'safepoint effects --run ' || p_run);
    ELSIF undoing IS NOT NULL THEN
        why := jsonb_build_object('code', 'compensation', 'text', 'what its effects have done is being undone: ' || undoing);
    ELSE
        why := coalesce(r.reason, jsonb_build_object('code', 'cancelling', 'text', 'it is ending; something of it still runs'));
    END IF;
    why := jsonb_build_object('since', coalesce(CASE WHEN r.reason->>'code' = why->>'code' THEN r.reason->'since' END, to_jsonb(p_now))) || why;
    IF r.status <> fresh OR r.reason IS DISTINCT FROM why THEN
        UPDATE runs SET status = fresh, reason = why, updated_at = p_now WHERE run_id = p_run;
        IF fresh = 'held' AND r.status <> 'held' THEN
            PERFORM emit_v1(p_run, r.tenant_id, jsonb_build_array(jsonb_build_object('type', 'run.held', 'data', why)));
        END IF;
    END IF;
END $$;

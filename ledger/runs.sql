-- What several transitions of a run share. Every function here is called with the run's row locked (P1).

-- G11: numbers events without gaps; the counter lives in the locked run row.
CREATE FUNCTION safepoint.emit_v1(p_run uuid, p_tenant text, p_events jsonb) RETURNS integer LANGUAGE plpgsql
SET search_path = safepoint, pg_temp AS $$
DECLARE
    n integer := jsonb_array_length(p_events);
    last integer;
    instant timestamptz := safepoint.now();
BEGIN
    IF n = 0 THEN RETURN NULL; END IF;
    UPDATE runs SET event_seq = event_seq + n WHERE run_id = p_run RETURNING event_seq INTO last;
    INSERT INTO events (run_id, seq, tenant_id, type, key, data, at)
        SELECT p_run, last - n + e.ord, p_tenant, e.v->>'type', e.v->>'key', coalesce(e.v->'data', '{}'), instant
          FROM jsonb_array_elements(p_events) WITH ORDINALITY AS e(v, ord);
    RETURN last;
END $$;

CREATE FUNCTION safepoint.key_v1(p_path text, p_step text, p_iteration integer) RETURNS text LANGUAGE plpgsql IMMUTABLE
SET search_path = safepoint, pg_temp AS $$ BEGIN RETURN CASE p_path WHEN '' THEN '' ELSE p_path || '/' END || p_step || '#' || p_iteration; END $$;

-- P32: a run that is ending becomes final only when nothing of it runs and no effect is unsettled.
CREATE FUNCTION safepoint.finish_v1(p_run uuid) RETURNS text LANGUAGE plpgsql
SET search_path = safepoint, pg_temp AS $$
DECLARE
    r runs%ROWTYPE;
    instant timestamptz := safepoint.now();
BEGIN
    SELECT * INTO r FROM runs WHERE run_id = p_run;
    IF r.ending IS NULL OR r.finished_at IS NOT NULL THEN RETURN r.status; END IF;
    UPDATE steps SET status = 'cancelled', claim_token = NULL, due_at = NULL, owner = NULL, reason = NULL
     WHERE run_id = p_run AND status IN ('ready', 'waiting', 'held') AND kind <> 'compensation' AND NOT binds_v1(effect_key);
    IF EXISTS (SELECT FROM steps WHERE run_id = p_run AND status = 'running')
       OR EXISTS (SELECT FROM effects WHERE run_id = p_run AND status IN ('executing', 'unknown'))
       -- Settled by somebody, and not yet committed: its result belongs to the run's history, and to what is compensated.
       OR EXISTS (SELECT FROM steps WHERE run_id = p_run AND status IN ('ready', 'held') AND binds_v1(effect_key))
       OR r.ending <> 'succeeded' AND compensate_v1(p_run, instant) THEN
        PERFORM ending_v1(p_run, instant);
        RETURN (SELECT status FROM runs WHERE run_id = p_run);
    END IF;
    PERFORM drop_effects_v1(p_run, instant);
    PERFORM emit_v1(p_run, r.tenant_id, jsonb_build_array(jsonb_build_object('type', 'run.' || r.ending,
        'data', jsonb_strip_nulls(jsonb_build_object('error', r.error)))));
    UPDATE runs SET status = r.ending, reason = NULL, holds = '{}', finished_at = instant, updated_at = instant, current_node = NULL
     WHERE run_id = p_run;
    -- P30: a run that did not succeed takes what it has begun with it; a clean-up may have begun more since the cancel.
    IF r.ending <> 'succeeded' THEN
        INSERT INTO outbox_messages (tenant_id, run_id, kind, target, due_at, created_at)
            SELECT tenant_id, p_run, 'child_cancel', run_id, instant, instant FROM runs WHERE parent_run_id = p_run AND finished_at IS NULL;
    END IF;
    -- The parent hears of it by mail; the two runs are never locked together.
    IF r.parent_run_id IS NOT NULL THEN
        INSERT INTO outbox_messages (tenant_id, run_id, kind, target, due_at, created_at)
            VALUES (r.tenant_id, p_run, 'child_end', r.parent_run_id, instant, instant);
        PERFORM pg_notify('safepoint_relay', '');
    END IF;
    PERFORM pg_notify('safepoint_run', p_run::text);
    RETURN r.ending;
END $$;

-- The status that follows from a live run's rows, with the reason a person reads.
CREATE FUNCTION safepoint.refresh_v1(p_run uuid) RETURNS text LANGUAGE plpgsql
SET search_path = safepoint, pg_temp AS $$
DECLARE
    r runs%ROWTYPE;
    instant timestamptz := safepoint.now();
    w record;
    fresh text;
    why jsonb;
BEGIN
    SELECT * INTO r FROM runs WHERE run_id = p_run;
    IF r.finished_at IS NOT NULL OR r.status = 'cancelling' OR r.ending IS NOT NULL THEN RETURN r.status; END IF;
    IF r.holds <> '{}' THEN
        fresh := 'held';
        SELECT value INTO why FROM jsonb_each(r.holds) ORDER BY value->>'since' LIMIT 1;
    ELSIF r.paused_at IS NOT NULL THEN
        fresh := 'waiting';
        why := jsonb_build_object('code', 'paused', 'since', r.paused_at, 'text', 'paused by a person', 'next', 'safepoint resume ' || p_run);
    ELSIF EXISTS (SELECT FROM steps WHERE run_id = p_run AND (status = 'running' OR status = 'ready' AND ready_at <= instant
                  AND reason->>'code' IS DISTINCT FROM 'breaker')) THEN
        fresh := CASE WHEN r.status = 'queued' THEN 'queued' ELSE 'running' END;
    ELSE
        SELECT s.reason, s.kind, s.name, s.due_at, s.created_at, s.ready_at, s.status INTO w FROM steps s
         WHERE run_id = p_run AND status IN ('ready', 'waiting')
         ORDER BY (s.reason IS NULL), s.due_at NULLS LAST LIMIT 1;
        fresh := CASE WHEN r.status = 'queued' THEN 'queued' ELSE 'waiting' END;
        why := CASE WHEN r.status = 'queued' THEN NULL ELSE w.reason END;
    END IF;
    IF fresh IS DISTINCT FROM r.status OR why IS DISTINCT FROM r.reason THEN
        UPDATE runs SET status = fresh, reason = why, updated_at = instant WHERE run_id = p_run;
        IF fresh <> r.status AND fresh IN ('waiting', 'held') THEN
            PERFORM emit_v1(p_run, r.tenant_id, jsonb_build_array(jsonb_build_object('type', 'run.' || fresh, 'data', coalesce(why, '{}'))));
        END IF;
    END IF;
    RETURN fresh;
END $$;

-- Takes the run's ready steps out of dispatch while it is held or paused; P14: due_at stays set. What is refused takes no place of its lane. P32: what is to be settled goes on in a held run.
CREATE FUNCTION safepoint.park_v1(p_run uuid) RETURNS void LANGUAGE sql
SET search_path = safepoint, pg_temp AS $$
    UPDATE steps SET due_at = 'infinity', dispatched_at = NULL WHERE run_id = p_run AND status = 'ready'
        AND (NOT binds_v1(effect_key) AND kind <> 'compensation' OR EXISTS (SELECT FROM runs WHERE run_id = p_run AND paused_at IS NOT NULL))
$$;

CREATE FUNCTION safepoint.unpark_v1(p_run uuid) RETURNS void LANGUAGE sql
SET search_path = safepoint, pg_temp AS $$
    UPDATE steps SET due_at = greatest(ready_at, safepoint.now()), dispatched_at = NULL
     WHERE run_id = p_run AND status = 'ready' AND due_at = 'infinity'
$$;

-- G9, P29: stops claims, not commits. Several reasons may stand at once, each under a name of its own.
CREATE FUNCTION safepoint.hold_v1(p_run uuid, p_code text, p_text text, p_next text, p_detail jsonb) RETURNS void LANGUAGE plpgsql
SET search_path = safepoint, pg_temp AS $$
DECLARE
    instant timestamptz := safepoint.now();
BEGIN
    UPDATE runs SET updated_at = instant,
           holds = holds || jsonb_build_object(p_code, jsonb_build_object(
               'code', p_code, 'since', instant, 'text', p_text, 'next', p_next, 'detail', coalesce(p_detail, '{}')))
     WHERE run_id = p_run;
    PERFORM park_v1(p_run);
    PERFORM refresh_v1(p_run);
    -- Who waits for the result hears that a person has to act first.
    PERFORM pg_notify('safepoint_run', p_run::text);
END $$;

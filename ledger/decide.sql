-- What people decide (P28): an approval that a flow asks for, and one effect's frozen request. A decision is bound to the run, the step key, the
-- digest of what was shown and the expiry; one guarded update under the run's lock makes it, and whoever comes second hears what stands.

CREATE FUNCTION safepoint.wire_v1(s safepoint.steps) RETURNS text LANGUAGE sql STABLE
SET search_path = safepoint, pg_temp AS $$
    SELECT CASE s.generation WHEN 1 THEN '' ELSE 'g' || s.generation || ':' END || key_v1(s.path, s.step_id, s.iteration)
$$;

-- What an approval is called by: its name, or its step key. A step or a signal of that name is none.
CREATE FUNCTION safepoint.is_asked_as_v1(s safepoint.steps, p_name text) RETURNS boolean LANGUAGE sql STABLE
SET search_path = safepoint, pg_temp AS $$
    SELECT (s.kind = 'approval' OR s.kind = 'effect' AND EXISTS (SELECT FROM effects e WHERE e.idempotency_key = s.effect_key
                AND e.declared->>'requires_approval' IS NOT NULL))
       AND p_name IN (s.name, key_v1(s.path, s.step_id, s.iteration), wire_v1(s))
$$;

-- What is shown with a question, by its digest: of the effect's frozen request, or of the approval's `show`.
CREATE FUNCTION safepoint.shown_v1(s safepoint.steps) RETURNS text LANGUAGE sql STABLE
SET search_path = safepoint, pg_temp AS $$
    SELECT encode(coalesce((SELECT e.request_digest FROM effects e WHERE e.idempotency_key = s.effect_key), s.input_hash), 'hex')
$$;

CREATE FUNCTION safepoint.instant_text_v1(p_at timestamptz) RETURNS text LANGUAGE sql STABLE
SET search_path = safepoint, pg_temp AS $$ SELECT to_char(p_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS') || ' UTC' $$;

-- For a refusal: all that a run asks for now, as what can be typed.
CREATE FUNCTION safepoint.asked_v1(p_run uuid, p_generation integer) RETURNS text LANGUAGE sql STABLE
SET search_path = safepoint, pg_temp AS $$
    SELECT coalesce('asked now: ' || string_agg(wire_v1(s) || ' (' || s.name || ', digest ' || left(shown_v1(s), 12)
               || CASE WHEN s.due_at IS NULL THEN ')' ELSE ', until ' || instant_text_v1(s.due_at) || ')' END, '; ' ORDER BY s.created_at, s.path, s.step_id),
           'nothing is asked now')
      FROM steps s WHERE s.run_id = p_run AND s.generation = p_generation AND s.status = 'waiting' AND s.kind IN ('approval', 'effect')
$$;

-- For a refusal: what was decided about a question, by whom and when; NULL while nothing is.
CREATE FUNCTION safepoint.decided_v1(s safepoint.steps) RETURNS text LANGUAGE sql STABLE
SET search_path = safepoint, pg_temp AS $$
    SELECT CASE WHEN s.outcome->>'status' = 'expired' THEN wire_v1(s) || ' expired at ' || instant_text_v1(s.ready_at) || ', which approves nothing'
                WHEN d.decision IS NOT NULL THEN wire_v1(s) || ' was ' || coalesce(d.decision->>'outcome', 'decided') || coalesce(' by ' || (d.decision->>'by'), '')
                     || coalesce(' at ' || instant_text_v1((d.decision->>'at')::timestamptz), '') END
      FROM (SELECT CASE s.kind WHEN 'approval' THEN s.outcome || jsonb_build_object('by', s.outcome->>'sender')
                   -- What was resolved later stands beside it.
                   ELSE (SELECT e.decision FROM effects e WHERE e.idempotency_key = s.effect_key AND e.decision ? 'outcome') END) AS d(decision)
$$;

-- Decides one question. p_seen is what the program has read just before, `<key> <digest>`; p_digest the beginning that the person typed, or NULL.
-- p_data is the decision as the flow will read it (sealed or not), p_covers its digest; an effect's approval has none: its request is frozen.
-- Answers: decided | unknown | final | cancelling | expired | already | moved | ambiguous | changed | edited | not_asked, with the text that says why.
CREATE FUNCTION safepoint.decide_v1(
    p_run uuid, p_name text, p_approved boolean, p_by text, p_note text, p_data bytea, p_encoding text, p_covers text, p_edited boolean,
    p_digest text, p_seen text, p_id uuid
) RETURNS TABLE (answer text, key text, text text) LANGUAGE plpgsql
SET search_path = safepoint, pg_temp AS $$
#variable_conflict use_column
DECLARE
    r runs%ROWTYPE;
    s steps%ROWTYPE;
    q steps%ROWTYPE;
    instant timestamptz;
    asked integer;
    fitting integer;
    fresh jsonb;
BEGIN
    -- P1: the run, then its steps, then the effect.
    SELECT * INTO r FROM runs WHERE run_id = p_run FOR NO KEY UPDATE;
    IF NOT FOUND THEN answer := 'unknown'; RETURN NEXT; RETURN; END IF;
    -- P7: the clock decides, read after the lock; not the moment a scan comes by.
    instant := safepoint.now();
    -- P3: the answer to this very call was lost.
    SELECT x.* INTO q FROM steps x LEFT JOIN effects e ON e.idempotency_key = x.effect_key
     WHERE x.run_id = p_run AND p_id::text IN (x.outcome->>'id', e.decision->>'id') LIMIT 1;
    IF FOUND THEN answer := 'decided'; key := wire_v1(q); RETURN NEXT; RETURN; END IF;
    SELECT count(*), count(*) FILTER (WHERE p_digest IS NULL OR shown_v1(x) LIKE p_digest || '%') INTO asked, fitting
      FROM steps x WHERE x.run_id = p_run AND x.generation = r.generation AND x.status = 'waiting' AND is_asked_as_v1(x, p_name);
    -- The newest question of that name that is open no more.
    SELECT x.* INTO q FROM steps x WHERE x.run_id = p_run AND x.status <> 'waiting' AND is_asked_as_v1(x, p_name)
        AND (p_digest IS NULL OR asked = 0 OR x.generation = r.generation AND shown_v1(x) LIKE p_digest || '%')
     ORDER BY x.generation DESC, x.created_at DESC, x.iteration DESC LIMIT 1;
    SELECT x.* INTO s FROM steps x WHERE x.run_id = p_run AND x.generation = r.generation AND x.status = 'waiting' AND is_asked_as_v1(x, p_name)
        AND (p_digest IS NULL OR shown_v1(x) LIKE p_digest || '%') ORDER BY x.created_at, x.path, x.iteration LIMIT 1 FOR NO KEY UPDATE;
    CASE
        WHEN r.finished_at IS NOT NULL THEN answer := 'final'; text := 'the run is ' || r.status;
        WHEN asked = 0 AND q.outcome->>'status' = 'expired' THEN answer := 'expired';
        WHEN asked = 0 AND decided_v1(q) IS NOT NULL THEN answer := 'already';
        WHEN r.ending IS NOT NULL OR r.cancel_at IS NOT NULL AND NOT coalesce(s.cleanup, false) THEN
            answer := 'cancelling'; text := 'the run is ' || r.status;
        WHEN asked = 0 AND q.run_id IS NOT NULL THEN answer := 'moved'; text := 'the run has gone on without ' || wire_v1(q);
        WHEN asked = 0 THEN answer := 'not_asked'; text := p_name || ' is not asked, and what has not been shown cannot be decided';
        WHEN fitting = 0 THEN answer := 'changed'; text := 'nothing of the digest ' || p_digest || ' is asked as ' || p_name;
        -- A command that is typed twice must not decide the next round, which shows the same.
        WHEN p_digest IS NOT NULL AND q.run_id IS NOT NULL AND p_name = s.name AND decided_v1(q) IS NOT NULL THEN
            answer := 'already'; text := 'the same is asked again: name it by its step key, ' || wire_v1(s);
        WHEN fitting > 1 THEN answer := 'ambiguous'; text := p_name || ' is asked ' || fitting || ' times: name one by its step key';
        WHEN s.due_at <= instant THEN answer := 'expired'; text := wire_v1(s) || ' expired at ' || instant_text_v1(s.due_at) || ', which approves nothing';
        WHEN r.deadline <= instant AND NOT s.cleanup THEN
            answer := 'expired'; text := 'the deadline of the run passed at ' || instant_text_v1(r.deadline);
        WHEN p_seen IS DISTINCT FROM wire_v1(s) || ' ' || shown_v1(s) THEN
            answer := 'changed'; text := 'what is asked as ' || p_name || ' has just changed: look at it, then decide';
        WHEN s.kind <> 'approval' AND p_edited THEN
            answer := 'edited'; text := 'the request of ' || s.name || ' is frozen: deny it, and let the flow ask again';
        ELSE answer := 'decided';
    END CASE;
    IF answer <> 'decided' THEN
        text := concat_ws('; ', text, decided_v1(q), CASE WHEN r.finished_at IS NULL THEN asked_v1(p_run, r.generation) END);
        RETURN NEXT; RETURN;
    END IF;
    key := wire_v1(s);
    fresh := jsonb_strip_nulls(jsonb_build_object('outcome', CASE WHEN p_approved THEN 'approved' ELSE 'denied' END, 'by', p_by, 'note', p_note,
        'digest', shown_v1(s), 'at', instant, 'id', p_id));
    IF s.kind <> 'approval' THEN PERFORM decide_effect_v1(s.effect_key, fresh); END IF;
    -- P28: the one guarded update; a run that is held or paused keeps its step parked (P14).
    UPDATE steps SET status = 'ready', reason = NULL, ready_at = instant, dispatched_at = NULL,
           due_at = CASE WHEN r.holds <> '{}' OR r.paused_at IS NOT NULL THEN 'infinity' ELSE instant END,
           outcome = CASE s.kind WHEN 'approval' THEN fresh || jsonb_build_object('status', 'succeeded', 'sender', p_by, 'covers', p_covers) END,
           outcome_data = CASE s.kind WHEN 'approval' THEN p_data END, outcome_encoding = CASE s.kind WHEN 'approval' THEN p_encoding END
     WHERE run_id = p_run AND generation = s.generation AND path = s.path AND step_id = s.step_id AND iteration = s.iteration AND status = 'waiting';
    IF NOT FOUND THEN RAISE EXCEPTION '% of run % is not waiting although its run is locked', key, p_run; END IF;
    PERFORM emit_v1(p_run, r.tenant_id, jsonb_build_array(jsonb_build_object('type', 'approval.decided', 'key', key_v1(s.path, s.step_id, s.iteration),
        'data', (fresh - 'id' - 'at') || jsonb_build_object('name', s.name)
            || CASE WHEN s.generation > 1 THEN jsonb_build_object('generation', s.generation) ELSE '{}' END)));
    PERFORM refresh_v1(p_run);
    PERFORM pg_notify('safepoint_relay', '');
    RETURN NEXT;
END $$;

-- The decision stands beside the frozen request, and in its history; whether it covers what would be sent is asked again right before the send.
CREATE FUNCTION safepoint.decide_effect_v1(p_key bytea, p_decision jsonb) RETURNS void LANGUAGE plpgsql
SET search_path = safepoint, pg_temp AS $$
BEGIN
    UPDATE effects SET decision = coalesce(decision, '{}') || p_decision WHERE idempotency_key = p_key AND status = 'pending' AND NOT coalesce(decision ? 'outcome', false);
    IF NOT FOUND THEN RAISE EXCEPTION 'effect % has been decided or sent although its step waits', encode(p_key, 'hex'); END IF;
    PERFORM note_effect_v1(p_key, 'pending', 'person:' || (p_decision->>'by'), concat_ws(': ', p_decision->>'outcome', p_decision->>'note'),
                           jsonb_build_object('decision', p_decision->>'outcome', 'digest', p_decision->>'digest'));
END $$;

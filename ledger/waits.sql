-- A signal or a child's end: stored as mail, and the wait that asks for it is decided, under the run's lock (P27). What people decide is no mail:
-- a decision that comes before its question could not have been shown (decide_v1).
-- Answers: delivered (a wait took it), stored (kept for a wait to come), duplicate (same dedupe), unknown, final.
CREATE FUNCTION safepoint.mail_v1(
    p_run uuid, p_kind text, p_name text, p_payload bytea, p_encoding text, p_sender text, p_dedupe text,
    p_status text DEFAULT 'succeeded', p_error jsonb DEFAULT NULL
) RETURNS text LANGUAGE plpgsql
SET search_path = safepoint, pg_temp AS $$
DECLARE
    r runs%ROWTYPE;
    m mailbox%ROWTYPE;
    w steps%ROWTYPE;
    instant timestamptz;
BEGIN
    IF p_kind NOT IN ('signal', 'child') THEN
        RAISE EXCEPTION 'kind: % is no mail. Accepted: signal, child; an approval is decided by decide_v1', p_kind USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT * INTO r FROM runs WHERE run_id = p_run FOR NO KEY UPDATE;
    IF NOT FOUND THEN RETURN 'unknown'; END IF;
    instant := safepoint.now();
    IF r.finished_at IS NOT NULL THEN RETURN 'final'; END IF;
    INSERT INTO mailbox (run_id, tenant_id, kind, name, status, payload, encoding, error, sender, dedupe, created_at)
        VALUES (p_run, r.tenant_id, p_kind, p_name, p_status, p_payload, p_encoding, p_error, p_sender, p_dedupe, instant)
        ON CONFLICT (run_id, dedupe) DO NOTHING RETURNING * INTO m;
    IF m.id IS NULL THEN RETURN 'duplicate'; END IF;
    SELECT * INTO w FROM steps s WHERE s.run_id = p_run AND s.status = 'waiting' AND s.kind = p_kind AND s.generation = r.generation
        AND (s.name = p_name OR p_kind = 'child' AND key_v1(s.path, s.step_id, s.iteration) = p_name)
        -- P7: the clock decides, not the moment a scan comes by; an expired wait takes no mail.
        AND (s.due_at IS NULL OR s.due_at > instant)
        ORDER BY s.created_at, s.path, s.iteration LIMIT 1 FOR NO KEY UPDATE;
    IF NOT FOUND THEN RETURN 'stored'; END IF;
    PERFORM consume_v1(m, w.generation, w.path, w.step_id, w.iteration, instant,
        CASE WHEN r.holds <> '{}' OR r.paused_at IS NOT NULL THEN 'infinity' ELSE instant END);
    PERFORM refresh_v1(p_run);
    PERFORM pg_notify('safepoint_relay', '');
    RETURN 'delivered';
END $$;

-- (d) of the scan: timers that are due and waits that expired become ready with their outcome. An expiry is an outcome, never an approval (P28).
-- One plan for all: to judge an instant anew the planner would look at the ends of the index, which costs more than the search.
CREATE FUNCTION safepoint.fire_due_v1(p_limit integer) RETURNS integer LANGUAGE plpgsql
SET search_path = safepoint, pg_temp SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    x record;
    fired jsonb;
    n integer := 0;
    instant timestamptz := safepoint.now();
BEGIN
    FOR x IN SELECT q.run_id, q.tenant_id FROM (SELECT DISTINCT s.run_id FROM (
                 SELECT run_id FROM steps WHERE status = 'waiting' AND due_at <= instant AND kind <> 'effect' ORDER BY due_at LIMIT p_limit) s ORDER BY 1) d
              CROSS JOIN LATERAL (SELECT o.run_id, o.tenant_id FROM runs o WHERE o.run_id = d.run_id FOR NO KEY UPDATE SKIP LOCKED) q LOOP
        -- G10: an effect that waits for its approval has no outcome of a clock's.
        WITH expired AS (UPDATE steps s SET status = 'ready', reason = NULL, ready_at = instant, dispatched_at = NULL,
               due_at = CASE WHEN r.holds <> '{}' OR r.paused_at IS NOT NULL THEN 'infinity' ELSE instant END,
               outcome = CASE s.kind WHEN 'timer' THEN '{"status": "succeeded"}'::jsonb
                   WHEN 'approval' THEN '{"status": "expired"}'::jsonb
                   ELSE jsonb_build_object('status', 'failed', 'error', jsonb_build_object('type', 'TimeoutError',
                        'message', 'no ' || s.kind || ' ' || s.name || ' came in time')) END
          FROM runs r WHERE r.run_id = x.run_id AND s.run_id = x.run_id AND s.status = 'waiting' AND s.kind <> 'effect' AND s.due_at <= instant
         RETURNING s.*)
        SELECT jsonb_agg(CASE s.kind WHEN 'approval' THEN jsonb_build_object('type', 'approval.decided', 'key', key_v1(s.path, s.step_id, s.iteration),
                   'data', jsonb_build_object('outcome', 'expired', 'name', s.name) || CASE WHEN s.generation > 1 THEN jsonb_build_object('generation', s.generation)
                   ELSE '{}' END) END) INTO fired FROM expired s;
        IF fired IS NOT NULL THEN
            n := n + 1;
            fired := jsonb_path_query_array(fired, '$[*] ? (@ != null)');
            PERFORM emit_v1(x.run_id, x.tenant_id, fired);
            PERFORM refresh_v1(x.run_id);
        END IF;
    END LOOP;
    RETURN n;
END $$;

-- P30: ends of children reach their parents, cancels go down; one message at a time, each under the target's lock alone.
CREATE FUNCTION safepoint.deliver_v1(p_limit integer) RETURNS integer LANGUAGE plpgsql
SET search_path = safepoint, pg_temp AS $$
DECLARE
    x outbox_messages%ROWTYPE;
    c runs%ROWTYPE;
    n integer := 0;
    instant timestamptz := safepoint.now();
BEGIN
    FOR x IN SELECT * FROM outbox_messages WHERE due_at <= instant AND kind IN ('child_end', 'child_cancel')
              ORDER BY target, id LIMIT p_limit LOOP
        -- A run that is gone hears of nothing: its messages must not stand before the others for ever.
        PERFORM FROM runs WHERE run_id = x.target FOR NO KEY UPDATE SKIP LOCKED;
        CONTINUE WHEN NOT FOUND AND EXISTS (SELECT FROM runs WHERE run_id = x.target);
        DELETE FROM outbox_messages WHERE id = x.id;
        CONTINUE WHEN NOT FOUND;
        IF x.kind = 'child_cancel' THEN
            PERFORM cancel_v1(x.target, 'parent');
        ELSE
            SELECT * INTO c FROM runs WHERE run_id = x.run_id;
            CONTINUE WHEN NOT FOUND;
            PERFORM mail_v1(x.target, 'child', c.parent_key, c.result, c.result_encoding, x.run_id::text, 'child:' || x.run_id,
                CASE c.status WHEN 'succeeded' THEN 'succeeded' ELSE 'failed' END,
                CASE c.status WHEN 'succeeded' THEN NULL WHEN 'cancelled' THEN jsonb_build_object('type', 'Cancelled', 'message', 'the child run was cancelled')
                     ELSE c.error END);
        END IF;
        n := n + 1;
    END LOOP;
    RETURN n;
END $$;

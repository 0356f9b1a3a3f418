-- P38: a named part of a step, committed by itself. Fenced like every write of an executor; the first writer of a name wins and the loser reads.
-- Locks the run, then the step, then looks. What it has cost is charged in the same transaction and never again.
-- Answers `written` (also when sent again, P3), `read` (with the row of who was first) or `lost`.
CREATE FUNCTION safepoint.once_v1(
    p_run uuid, p_generation integer, p_path text, p_step text, p_iteration integer, p_token uuid, p_name text, p_data bytea, p_encoding text,
    p_tokens bigint, p_usd numeric
) RETURNS TABLE (answer text, data bytea, encoding text) LANGUAGE plpgsql
SET search_path = safepoint, pg_temp AS $$
#variable_conflict use_column
DECLARE
    r runs%ROWTYPE;
    s steps%ROWTYPE;
BEGIN
    SELECT * INTO r FROM runs WHERE run_id = p_run FOR NO KEY UPDATE;
    SELECT * INTO s FROM steps WHERE run_id = p_run AND generation = p_generation AND path = p_path
        AND step_id = p_step AND iteration = p_iteration FOR NO KEY UPDATE;
    IF s.run_id IS NULL OR r.finished_at IS NOT NULL OR s.claim_token IS DISTINCT FROM p_token
       OR s.status NOT IN ('running', 'ready', 'held') THEN
        answer := 'lost'; RETURN NEXT; RETURN;
    END IF;
    -- An equal row of this very claim is this call's own, whose answer was lost.
    SELECT CASE WHEN o.epoch = s.epoch AND o.data = p_data AND o.encoding = p_encoding THEN 'written' ELSE 'read' END, o.data, o.encoding
      INTO answer, data, encoding FROM once o WHERE o.run_id = p_run AND o.generation = p_generation
        AND o.path = p_path AND o.step_id = p_step AND o.iteration = p_iteration AND o.name = p_name;
    IF FOUND THEN RETURN NEXT; RETURN; END IF;
    INSERT INTO once (run_id, generation, path, step_id, iteration, name, tenant_id, data, encoding, tokens, usd, epoch, at)
        VALUES (p_run, p_generation, p_path, p_step, p_iteration, p_name, r.tenant_id, p_data, p_encoding, p_tokens, p_usd, s.epoch, safepoint.now());
    IF p_tokens <> 0 OR p_usd <> 0 THEN PERFORM spend_part_v1(r.budget_id, s, p_tokens, p_usd); END IF;
    answer := 'written'; data := NULL; encoding := NULL;
    RETURN NEXT;
END $$;

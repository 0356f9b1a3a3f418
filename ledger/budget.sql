-- Budgets (G7): bounds of tokens, money and retries that a run shares with its children. `budgets.reserved_*` is what running steps hold,
-- `budgets.spent_*` what all runs of the family have spent. Called with run and step locked; the budget is locked last (P1).

-- Asks for a step's reservation before it starts. Writes nothing of the step but that it waits; the claim itself takes what is granted.
-- Answers {left: {tokens, usd, retries}} with one of: `reserved` (granted), `lacks` (tokens or usd: the budget is used up, nothing is granted, the
-- claimer says so), `waits` (what is left is held by others, which may give some of it back: refused, P14). p_free: counted, and neither refused
-- nor put off, for what settles an effect goes on (P32), and so does a clean-up. p_again: the claim stood before (P4), nothing more is granted.
CREATE FUNCTION safepoint.reserve_v1(p_budget uuid, s safepoint.steps, p_free boolean, p_again boolean, p_now timestamptz) RETURNS jsonb LANGUAGE plpgsql
SET search_path = safepoint, pg_temp AS $$
DECLARE
    b budgets%ROWTYPE;
    wants_tokens bigint := coalesce((s.reserve->>'tokens')::bigint, 0);
    wants_usd numeric := coalesce((s.reserve->>'usd')::numeric, 0);
    asks boolean := wants_tokens > 0 OR wants_usd > 0;
    lacks text;
    answer jsonb;
BEGIN
    -- Who reserves nothing is bound by what is spent, not by what others hold: no lock.
    IF asks AND NOT p_again THEN
        SELECT * INTO b FROM budgets WHERE budget_id = p_budget FOR NO KEY UPDATE;
    ELSE
        SELECT * INTO b FROM budgets WHERE budget_id = p_budget;
    END IF;
    IF NOT FOUND THEN RETURN NULL; END IF;
    -- least and greatest pass NULLs over: what is not bounded must not come out as nothing left.
    answer := jsonb_build_object('left', jsonb_build_object(
        'tokens', CASE WHEN b.tokens IS NOT NULL THEN greatest(0, b.tokens - b.spent_tokens - b.reserved_tokens + s.reserved_tokens) END,
        'usd', CASE WHEN b.usd IS NOT NULL THEN greatest(0, b.usd - b.spent_usd - b.reserved_usd + s.reserved_usd) END,
        'retries', CASE WHEN b.retries IS NOT NULL THEN greatest(0, b.retries - b.spent_retries) END));
    IF NOT p_free AND s.reserved_tokens = 0 AND s.reserved_usd = 0 THEN
        lacks := CASE WHEN b.tokens - b.spent_tokens < greatest(1, wants_tokens) THEN 'tokens'
                      WHEN b.usd - b.spent_usd <= 0 OR b.usd - b.spent_usd < wants_usd THEN 'usd'
                      WHEN asks AND p_again THEN 'tokens' END;
        IF lacks IS NOT NULL THEN
            RETURN answer || jsonb_build_object('lacks', lacks, 'limit', CASE lacks WHEN 'tokens' THEN b.tokens ELSE b.usd END,
                'rest', CASE lacks WHEN 'tokens' THEN greatest(0, b.tokens - b.spent_tokens) ELSE greatest(0, b.usd - b.spent_usd) END,
                'wants', CASE lacks WHEN 'tokens' THEN wants_tokens ELSE wants_usd END);
        END IF;
        IF asks AND (b.tokens - b.spent_tokens - b.reserved_tokens < wants_tokens OR b.usd - b.spent_usd - b.reserved_usd < wants_usd) THEN
            UPDATE budgets SET is_short = true WHERE budget_id = p_budget;
            PERFORM wait_for_budget_v1(s, p_now);
            RETURN answer || '{"waits": true}';
        END IF;
    END IF;
    IF asks AND NOT p_again THEN
        UPDATE budgets SET reserved_tokens = reserved_tokens + wants_tokens, reserved_usd = reserved_usd + wants_usd WHERE budget_id = p_budget;
        RETURN answer || '{"reserved": true}';
    END IF;
    RETURN answer;
END $$;

-- P14: no attempt is consumed; asked again when a reservation is settled, and by itself the more seldom the longer it has waited, but never later than
-- it was due anyway.
CREATE FUNCTION safepoint.wait_for_budget_v1(s safepoint.steps, p_now timestamptz) RETURNS void LANGUAGE plpgsql
SET search_path = safepoint, pg_temp AS $$
DECLARE
    since timestamptz := CASE WHEN s.reason->>'code' = 'budget' THEN (s.reason->>'since')::timestamptz ELSE p_now END;
BEGIN
    UPDATE steps SET dispatched_at = NULL, due_at = least(due_at, p_now + greatest(interval '1 s', least(interval '30 s', (p_now - since) / 2))),
           reason = jsonb_build_object('code', 'budget', 'since', since, 'text',
               'what is left of the run''s budget is reserved by steps that run; it starts when they give enough of it back')
     WHERE run_id = s.run_id AND generation = s.generation AND path = s.path AND step_id = s.step_id AND iteration = s.iteration AND status = 'ready';
END $$;

-- P38: settles the reservation of the attempt that this transaction ends: what was spent is charged, the rest is given back. A claim that was lost and
-- charged as wasted, and that ends late after all (P35), is charged what it says instead.
CREATE FUNCTION safepoint.spend_v1(p_budget uuid, s safepoint.steps, p_tokens bigint, p_usd numeric, p_retries integer) RETURNS void LANGUAGE plpgsql
SET search_path = safepoint, pg_temp AS $$
DECLARE
    was_short boolean;
BEGIN
    IF s.lost_tokens <> 0 OR s.lost_usd <> 0 THEN
        UPDATE steps SET wasted_tokens = wasted_tokens - s.lost_tokens, wasted_usd = wasted_usd - s.lost_usd, lost_tokens = 0, lost_usd = 0
         WHERE run_id = s.run_id AND generation = s.generation AND path = s.path AND step_id = s.step_id AND iteration = s.iteration;
        UPDATE runs SET spent_tokens = spent_tokens - s.lost_tokens, spent_usd = spent_usd - s.lost_usd, wasted_tokens = wasted_tokens - s.lost_tokens,
               wasted_usd = wasted_usd - s.lost_usd WHERE run_id = s.run_id;
    END IF;
    IF p_budget IS NULL OR (p_tokens, p_usd, p_retries, s.reserved_tokens, s.reserved_usd, s.lost_tokens, s.lost_usd) = (0, 0, 0, 0, 0, 0, 0) THEN
        RETURN;
    END IF;
    UPDATE budgets SET spent_tokens = spent_tokens + p_tokens - s.lost_tokens, spent_usd = spent_usd + p_usd - s.lost_usd,
           spent_retries = spent_retries + p_retries, reserved_tokens = reserved_tokens - s.reserved_tokens,
           reserved_usd = reserved_usd - s.reserved_usd
     WHERE budget_id = p_budget RETURNING is_short INTO was_short;
    IF was_short THEN PERFORM wake_short_v1(p_budget); END IF;
END $$;

-- The steps that wait for this budget are asked again, in whichever run they are. Only when they are due changes, and rows that somebody holds are
-- skipped: no run lock is needed, and nothing is waited for.
CREATE FUNCTION safepoint.wake_short_v1(p_budget uuid) RETURNS void LANGUAGE plpgsql
SET search_path = safepoint, pg_temp AS $$
DECLARE
    instant timestamptz := safepoint.now();
BEGIN
    UPDATE budgets SET is_short = false WHERE budget_id = p_budget;
    UPDATE steps SET due_at = instant WHERE ctid IN (
        SELECT s.ctid FROM steps s WHERE s.status = 'ready' AND s.reason->>'code' = 'budget' AND s.due_at > instant AND s.due_at < 'infinity'
           AND EXISTS (SELECT FROM runs r WHERE r.run_id = s.run_id AND r.budget_id = p_budget)
         ORDER BY s.created_at LIMIT 16 FOR NO KEY UPDATE OF s SKIP LOCKED);
    IF FOUND THEN PERFORM pg_notify('safepoint_relay', ''); END IF;
END $$;

-- P38: the attempt's executor is gone, and nobody knows what it has spent: what it had reserved is charged as wasted, by the transaction that takes the
-- step away. A crash can only count too much.
CREATE FUNCTION safepoint.waste_v1(p_budget uuid, s safepoint.steps) RETURNS void LANGUAGE plpgsql
SET search_path = safepoint, pg_temp AS $$
BEGIN
    IF (s.reserved_tokens, s.reserved_usd) = (0, 0) THEN RETURN; END IF;
    UPDATE runs SET spent_tokens = spent_tokens + s.reserved_tokens, spent_usd = spent_usd + s.reserved_usd,
           wasted_tokens = wasted_tokens + s.reserved_tokens, wasted_usd = wasted_usd + s.reserved_usd WHERE run_id = s.run_id;
    PERFORM spend_v1(p_budget, s, s.reserved_tokens, s.reserved_usd, 0);
END $$;

-- What was spent inside an attempt and is committed before its end (`once`): taken out of the reservation, so that it is not charged again; of a claim
-- that was lost, out of what was charged for it.
CREATE FUNCTION safepoint.spend_part_v1(p_budget uuid, s safepoint.steps, p_tokens bigint, p_usd numeric) RETURNS void LANGUAGE plpgsql
SET search_path = safepoint, pg_temp AS $$
DECLARE
    held_tokens bigint := least(s.reserved_tokens, p_tokens);
    held_usd numeric := least(s.reserved_usd, p_usd);
    back_tokens bigint := least(s.lost_tokens, p_tokens);
    back_usd numeric := least(s.lost_usd, p_usd);
BEGIN
    UPDATE steps SET tokens = tokens + p_tokens, usd = usd + p_usd, reserved_tokens = reserved_tokens - held_tokens, reserved_usd = reserved_usd - held_usd,
           lost_tokens = lost_tokens - back_tokens, lost_usd = lost_usd - back_usd, wasted_tokens = wasted_tokens - back_tokens,
           wasted_usd = wasted_usd - back_usd
     WHERE run_id = s.run_id AND generation = s.generation AND path = s.path AND step_id = s.step_id AND iteration = s.iteration;
    UPDATE runs SET spent_tokens = spent_tokens + p_tokens - back_tokens, spent_usd = spent_usd + p_usd - back_usd,
           wasted_tokens = wasted_tokens - back_tokens, wasted_usd = wasted_usd - back_usd, updated_at = safepoint.now() WHERE run_id = s.run_id;
    UPDATE budgets SET spent_tokens = spent_tokens + p_tokens - back_tokens, spent_usd = spent_usd + p_usd - back_usd,
           reserved_tokens = reserved_tokens - held_tokens, reserved_usd = reserved_usd - held_usd WHERE budget_id = p_budget;
END $$;

-- Whether one more retry is within the budget; the row stays locked, so that two steps do not both take the last one.
CREATE FUNCTION safepoint.may_retry_v1(p_budget uuid) RETURNS boolean LANGUAGE plpgsql
SET search_path = safepoint, pg_temp AS $$
DECLARE
    b budgets%ROWTYPE;
BEGIN
    SELECT * INTO b FROM budgets WHERE budget_id = p_budget FOR NO KEY UPDATE;
    RETURN coalesce(b.spent_retries < b.retries, true);
END $$;

-- What a flow that begins now is told it has: fixed in its run, for a replay must see the same. p_tokens, p_usd: what this transaction is about to charge.
CREATE FUNCTION safepoint.left_v1(r safepoint.runs, p_tokens bigint, p_usd numeric) RETURNS jsonb LANGUAGE sql STABLE
SET search_path = safepoint, pg_temp AS $$
    SELECT coalesce((SELECT jsonb_strip_nulls(jsonb_build_object(
               'tokens', CASE WHEN b.tokens IS NOT NULL THEN greatest(0, b.tokens - b.spent_tokens - p_tokens) END,
               'usd', CASE WHEN b.usd IS NOT NULL THEN greatest(0, b.usd - b.spent_usd - p_usd) END,
               'retries', CASE WHEN b.retries IS NOT NULL THEN greatest(0, b.retries - b.spent_retries) END))
          FROM budgets b WHERE b.budget_id = r.budget_id), r.budget)
$$;

-- A person adds to a budget, whichever of its runs they name. Answers {answer: raised, already (this id has been), unknown, unbounded (detail: of what),
-- final}, and which runs are held for it. It lifts no hold: those are other runs, locked one by one (P2).
CREATE FUNCTION safepoint.raise_budget_v1(p_run uuid, p_id uuid, p_tokens bigint, p_usd numeric, p_retries integer, p_by text, p_why text)
RETURNS jsonb LANGUAGE plpgsql
SET search_path = safepoint, pg_temp AS $$
DECLARE
    r runs%ROWTYPE;
    b budgets%ROWTYPE;
    instant timestamptz;
    lacks text;
    added jsonb := jsonb_strip_nulls(jsonb_build_object('tokens', p_tokens, 'usd', p_usd, 'retries', p_retries));
BEGIN
    SELECT * INTO r FROM runs WHERE run_id = p_run FOR NO KEY UPDATE;
    IF NOT FOUND THEN RETURN '{"answer": "unknown"}'; END IF;
    IF r.status IN ('succeeded', 'cancelled') THEN RETURN jsonb_build_object('answer', 'final', 'detail', r.status); END IF;
    SELECT * INTO b FROM budgets WHERE budget_id = r.budget_id FOR NO KEY UPDATE;
    instant := safepoint.now();
    IF b.changes @> jsonb_build_array(jsonb_build_object('id', p_id)) THEN RETURN '{"answer": "already"}'; END IF;
    lacks := CASE WHEN b.budget_id IS NULL THEN 'anything' WHEN added ? 'tokens' AND b.tokens IS NULL THEN 'tokens'
                  WHEN added ? 'usd' AND b.usd IS NULL THEN 'usd' WHEN added ? 'retries' AND b.retries IS NULL THEN 'retries' END;
    IF lacks IS NOT NULL THEN RETURN jsonb_build_object('answer', 'unbounded', 'detail', lacks); END IF;
    UPDATE budgets SET tokens = tokens + coalesce(p_tokens, 0), usd = usd + coalesce(p_usd, 0), retries = retries + coalesce(p_retries, 0),
           changes = changes || jsonb_build_object('id', p_id, 'by', p_by, 'why', p_why, 'at', instant, 'run', p_run, 'added', added)
     WHERE budget_id = b.budget_id;
    IF r.finished_at IS NULL THEN
        PERFORM emit_v1(p_run, r.tenant_id, jsonb_build_array(jsonb_build_object('type', 'budget.raised', 'data',
            jsonb_strip_nulls(jsonb_build_object('by', p_by, 'why', p_why, 'added', added)))));
    END IF;
    PERFORM wake_short_v1(b.budget_id);
    RETURN '{"answer": "raised"}';
END $$;

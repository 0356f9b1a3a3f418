-- P31: going on in place. A commit, and in the same transaction the claim of the one step that follows from it, with the guards of any claim and a token
-- made before: one round trip and one flush a step. Only on a lane that allows it (`inline_slice`, which an override shortens), for as long as the task is
-- young, and no longer than a quarter of that while others wait for the lane's workers: their messages are dispatched and nobody has claimed them.
CREATE FUNCTION safepoint.go_on_v1(
    p_run uuid, p_generation integer, p_path text, p_step text, p_iteration integer, p_token uuid, p_from integer, p_joins text,
    p_status text, p_result bytea, p_encoding text, p_digest bytea, p_error jsonb, p_at timestamptz, p_tokens bigint, p_usd numeric,
    p_next jsonb, p_ending jsonb, p_ending_data bytea, p_ending_encoding text, p_hold jsonb, p_notes jsonb, p_artifacts jsonb,
    p_grace double precision, p_node text, p_settle jsonb, p_effect jsonb,
    -- The step that follows, and who claims it: path, step, iteration, lane, token, pid, pid_start, timeout, era, age (of the Celery task, seconds).
    p_claim jsonb
) RETURNS TABLE (
    committed jsonb, answer text, reason text, kind text, epoch integer, attempt integer, recoveries integer, tokens_so_far bigint,
    input bytea, input_encoding text, input_hash bytea, pending_error jsonb, outcome jsonb, outcome_data bytea, outcome_encoding text,
    first_claimed_at timestamptz, dispatched_at timestamptz, db_now timestamptz, state_version integer, generation integer, era text, seen integer, run jsonb,
    run_input bytea, run_input_encoding text, effect jsonb, effect_data bytea, effect_encoding text,
    h_seq integer[], h_path text[], h_step text[], h_iteration integer[], h_kind text[], h_status text[], h_hash bytea[],
    h_result bytea[], h_encoding text[], h_error jsonb, h_at timestamptz[], h_tokens bigint[], h_usd numeric[]
) LANGUAGE plpgsql
SET search_path = safepoint, pg_temp AS $$
#variable_conflict use_column
DECLARE
    durable text := current_setting('synchronous_commit');
    a record;
    l lanes%ROWTYPE;
BEGIN
    a := commit_v1(p_run, p_generation, p_path, p_step, p_iteration, p_token, p_from, p_joins, p_status, p_result, p_encoding, p_digest,
        p_error, p_at, p_tokens, p_usd, p_next, p_ending, p_ending_data, p_ending_encoding, p_hold, p_notes, p_artifacts, p_grace, p_node, p_settle, p_effect,
        p_claim);
    committed := jsonb_build_object('answer', a.answer, 'state_version', a.state_version, 'late', a.late, 'rows', a.next_rows, 'status', a.status);
    IF a.claimed_at IS NOT NULL THEN  -- it was written as claimed, for the first time, with all that is to be known before it
        answer := 'claimed'; kind := 'step'; epoch := 1; attempt := 1; recoveries := 0; tokens_so_far := 0;
        input := decode(p_next->0->>'request', 'base64'); input_encoding := p_next->0->>'encoding'; input_hash := decode(p_next->0->>'hash', 'hex'); first_claimed_at := a.claimed_at; db_now := a.claimed_at;
        state_version := a.state_version; generation := p_generation; era := p_claim->>'era'; seen := a.state_version; run := a.claimed_run;
        RETURN NEXT; RETURN;
    END IF;
    answer := 'refused';
    SELECT * INTO l FROM lanes WHERE name = p_claim->>'lane';
    -- P3: `already` is the answer to a repeat; the claim that came with the first one is answered again (P4).
    IF a.answer NOT IN ('committed', 'already') THEN reason := a.answer;
    ELSIF (p_claim->>'age')::double precision >= l.inline_slice THEN reason := 'the slice is over';
    ELSIF (p_claim->>'age')::double precision >= l.inline_slice / 4 AND EXISTS (SELECT FROM steps WHERE status = 'ready' AND lane = l.name
            AND dispatched_at < safepoint.now() - interval '50 ms') THEN reason := 'others wait';
    ELSE
        RETURN QUERY SELECT committed, k.* FROM claim_v1(p_run, p_generation, p_claim->>'path', p_claim->>'step', (p_claim->>'iteration')::integer, l.name,
            p_node, (p_claim->>'token')::uuid, (p_claim->>'pid')::integer, (p_claim->>'pid_start')::bigint, (p_claim->>'timeout')::double precision,
            -- A repeat does not know what it has missed since: it is told the whole history.
            CASE a.answer WHEN 'committed' THEN a.state_version ELSE -1 END, p_claim->>'era', NULL, true) k;
        -- A claim alone need not be durable; what was committed here must be.
        PERFORM set_config('synchronous_commit', durable, true);
        RETURN;
    END IF;
    RETURN NEXT;
END $$;

-- P31: writes the one step that follows as it is once claimed, where no guard of a claim has anything to say; NULL, and nothing is written, where one may,
-- or a claim has more to do (a budget, an effect, a probe): then the row goes in as ready and is claimed, or refused, like any other.
CREATE FUNCTION safepoint.insert_running_v1(r safepoint.runs, p_next jsonb, p_claim jsonb, p_node text, p_cleanup boolean, p_now timestamptz)
RETURNS jsonb LANGUAGE plpgsql
SET search_path = safepoint, pg_temp AS $$
DECLARE
    x jsonb := p_next->0;
    age double precision := (p_claim->>'age')::double precision;
    may boolean;
BEGIN
    IF jsonb_array_length(p_next) <> 1 OR x->>'kind' <> 'step' OR x ? 'reserve' OR r.budget_id IS NOT NULL OR r.holds <> '{}' OR r.paused_at IS NOT NULL
       OR r.ending IS NOT NULL OR r.cancel_at IS NOT NULL OR r.deadline <= p_now OR p_claim->>'era' <> r.attempt || '.' || r.generation
       OR (p_claim->>'path', p_claim->>'step', p_claim->>'iteration', p_claim->>'lane') <> (x->>'path', x->>'step', x->>'iteration', x->>'lane') THEN
        RETURN NULL;
    END IF;
    SELECT age < l.inline_slice / 4 AND NOT l.paused AND NOT l.limited AND NOT n.draining AND n.stopped_at IS NULL AND n.alone IS NULL
           AND r.flow || '@' || r.workflow_version = ANY (n.flows) INTO may FROM lanes l, nodes n WHERE l.name = p_claim->>'lane' AND n.node_id = p_node;
    IF may IS NOT TRUE THEN RETURN NULL; END IF;
    IF x ? 'uses' THEN
        IF EXISTS (SELECT FROM breakers b WHERE b.name = x->>'uses' AND b.state <> 'closed') THEN RETURN NULL; END IF;
    END IF;
    INSERT INTO steps (run_id, generation, path, step_id, iteration, tenant_id, priority, deadline, kind, name, status, lane, home_lane, uses, claimed_from,
                       claim_token, epoch, owner, owner_pid, owner_pid_start, claimed_at, first_claimed_at, expires_at, ready_at, input_hash, input,
                       input_encoding, cleanup, joins, created_at)
        VALUES (r.run_id, r.generation, x->>'path', x->>'step', (x->>'iteration')::integer, r.tenant_id, r.priority, r.deadline, 'step', x->>'name', 'running',
                x->>'lane', x->>'lane', x->>'uses', x->>'lane', (p_claim->>'token')::uuid, 1, p_node, (p_claim->>'pid')::integer,
                (p_claim->>'pid_start')::bigint, p_now, p_now, p_now + make_interval(secs => (p_claim->>'timeout')::double precision), p_now,
                decode(x->>'hash', 'hex'), decode(x->>'request', 'base64'), x->>'encoding', p_cleanup, x->>'joins', p_now);
    RETURN jsonb_build_array(jsonb_build_object('path', x->>'path', 'step', x->>'step', 'iteration', x->'iteration', 'kind', 'step', 'name', x->>'name',
        'lane', x->>'lane', 'status', 'running', 'queued', false, 'due', NULL, 'attempt', 1, 'epoch', 1, 'key', key_v1(x->>'path', x->>'step', (x->>'iteration')::integer)));
END $$;

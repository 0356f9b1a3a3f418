-- Gives one worker the right to execute a step. Locks the run, then the step, then looks, then writes (P1).
-- A repeat with the same token answers Claimed again (P4). Commits asynchronously: a claim lost in a crash of the server leaves
-- the step ready, and the token in every later WHERE refuses the executor that believed in it (P5). An effect's claim is durable.
CREATE FUNCTION safepoint.claim_v1(
    p_run uuid, p_generation integer, p_path text, p_step text, p_iteration integer, p_lane text,
    p_node text, p_token uuid, p_pid integer, p_pid_start bigint, p_timeout double precision,
    p_seen integer, p_era text, p_settle jsonb DEFAULT NULL, p_in_place boolean DEFAULT false
) RETURNS TABLE (
    answer text, reason text, kind text, epoch integer, attempt integer, recoveries integer, tokens_so_far bigint,
    input bytea, input_encoding text, input_hash bytea, pending_error jsonb, outcome jsonb, outcome_data bytea, outcome_encoding text,
    first_claimed_at timestamptz, dispatched_at timestamptz, db_now timestamptz, state_version integer, generation integer, era text, seen integer, run jsonb,
    run_input bytea, run_input_encoding text, effect jsonb, effect_data bytea, effect_encoding text,
    h_seq integer[], h_path text[], h_step text[], h_iteration integer[], h_kind text[], h_status text[], h_hash bytea[],
    h_result bytea[], h_encoding text[], h_error jsonb, h_at timestamptz[], h_tokens bigint[], h_usd numeric[]
) LANGUAGE plpgsql
SET search_path = safepoint, pg_temp AS $$
#variable_conflict use_column
DECLARE
    r runs%ROWTYPE;
    s steps%ROWTYPE;
    n record;  -- the node, and what its lane says
    instant timestamptz;
    no text;
    again boolean := false;
    e effects%ROWTYPE;
    settles boolean := false;
    purse jsonb;
BEGIN
    SELECT * INTO r FROM runs WHERE run_id = p_run FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        answer := 'refused'; reason := 'stale: no such run'; PERFORM settle_v1(p_settle); RETURN NEXT; RETURN;
    END IF;
    SELECT * INTO s FROM steps WHERE run_id = p_run AND generation = p_generation AND path = p_path
        AND step_id = p_step AND iteration = p_iteration FOR NO KEY UPDATE;
    IF s.effect_key IS NOT NULL THEN
        SELECT * INTO e FROM effects WHERE idempotency_key = s.effect_key FOR NO KEY UPDATE;
        -- P32: what nobody knows, or the run has not heard of, is settled although the run is held, past its deadline or ending.
        settles := s.kind = 'compensation' OR e.status IN ('unknown', 'executing', 'succeeded', 'failed');
    END IF;
    instant := safepoint.now();
    SELECT x.draining OR x.stopped_at IS NOT NULL AS draining, x.alone, x.flows, l.paused AS lane_paused, l.limited AS lane_limited INTO n
      FROM (SELECT) one LEFT JOIN nodes x ON x.node_id = p_node LEFT JOIN lanes l ON l.name = p_lane;
    IF s.run_id IS NULL THEN no := 'stale: no such step';
    ELSIF s.status = 'running' AND s.claim_token = p_token THEN again := true;
    ELSIF s.status <> 'ready' THEN no := 'stale: ' || s.status;
    -- P4: a claim whose answer was lost, repeated, used and ended may arrive only now; nobody would execute it.
    ELSIF s.committed_token = p_token THEN no := 'stale: that claim has ended';
    ELSIF s.lane <> p_lane THEN no := 'stale: lane ' || s.lane;
    ELSIF r.finished_at IS NOT NULL THEN no := 'stale: run is final';
    ELSIF s.ready_at > instant THEN no := 'later';
    ELSIF r.holds <> '{}' AND NOT settles THEN no := 'held';
    ELSIF r.paused_at IS NOT NULL THEN no := 'paused';
    -- A limited lane's caps count what it has admitted: an old message of a row that has not been let through again is no way around them.
    ELSIF n.lane_paused OR n.lane_limited AND s.dispatched_at IS NULL THEN no := 'lane';
    ELSIF r.ending IS NOT NULL AND NOT settles THEN no := 'stale: run is ending';
    ELSIF r.cancel_at IS NOT NULL AND NOT s.cleanup AND NOT settles THEN no := 'stale: run is cancelling';
    ELSIF r.deadline <= instant AND NOT s.cleanup AND NOT settles THEN no := 'deadline';
    ELSIF n.draining IS NOT FALSE THEN no := 'draining';  -- NULL: no such node
    ELSIF NOT (r.flow || '@' || r.workflow_version = ANY (n.flows)) THEN no := 'version';
    -- P23: what was there when processes died, twice, with others beside it runs alone; then its death is its own, and no innocent's.
    ELSIF n.alone IS NOT NULL AND executes_v1(p_node, n.alone) THEN no := 'alone';
    ELSIF s.shared_deaths >= 2 AND executes_v1(p_node, NULL) THEN no := 'alone';
    END IF;
    IF no IS NULL AND NOT again AND s.uses IS NOT NULL THEN
        -- In place budgets are locked already, which come last: there nothing probes, and what may not go through is left to a claim of its own.
        no := CASE WHEN NOT p_in_place THEN breaker_refusal_v1(s, p_token, p_lane, p_timeout, instant)
                   WHEN EXISTS (SELECT FROM breakers b WHERE b.name = s.uses AND b.state <> 'closed') THEN 'breaker' END;
    END IF;
    -- G7: budgets come last in the order of locks. Where nothing is left the claim is given, so that its flow hears of it.
    IF no IS NULL AND r.budget_id IS NOT NULL AND s.kind IN ('step', 'effect', 'compensation') THEN
        purse := reserve_v1(r.budget_id, s, settles OR s.cleanup, again, instant);
        IF purse ? 'waits' THEN
            no := 'budget';
            DELETE FROM breaker_probes WHERE token = p_token;  -- it will not probe anything
        END IF;
    END IF;
    IF no IS NOT NULL THEN
        -- P14: a refusal never moves due_at later; one that only this node gives sends the step on its way again.
        IF no IN ('draining', 'version', 'alone', 'lane') THEN
            UPDATE steps SET due_at = least(due_at, instant), dispatched_at = NULL WHERE run_id = p_run AND generation = p_generation
                AND path = p_path AND step_id = p_step AND iteration = p_iteration AND status = 'ready';
        END IF;
        answer := 'refused'; reason := no; PERFORM settle_v1(p_settle); RETURN NEXT; RETURN;
    END IF;
    -- P38: what is reserved must not be forgotten while its executor spends it.
    IF s.effect_key IS NULL AND NOT coalesce(purse ? 'reserved', false) THEN PERFORM set_config('synchronous_commit', 'off', true); END IF;
    IF NOT again THEN
        UPDATE steps SET status = 'running', reason = NULL, due_at = NULL, queued = 0, claim_token = p_token, epoch = s.epoch + 1, owner = p_node,
               owner_pid = p_pid, owner_pid_start = p_pid_start, claimed_at = instant, claimed_from = s.lane, lane = s.home_lane,
               expires_at = instant + make_interval(secs => p_timeout), first_claimed_at = coalesce(s.first_claimed_at, instant),
               reserved_tokens = CASE WHEN purse IS NULL OR purse ? 'reserved' THEN coalesce((s.reserve->>'tokens')::bigint, 0) ELSE 0 END,
               reserved_usd = CASE WHEN purse IS NULL OR purse ? 'reserved' THEN coalesce((s.reserve->>'usd')::numeric, 0) ELSE 0 END,
               lost_tokens = 0, lost_usd = 0
         WHERE run_id = p_run AND generation = p_generation AND path = p_path AND step_id = p_step AND iteration = p_iteration
         RETURNING epoch, first_claimed_at INTO s.epoch, s.first_claimed_at;
        IF s.shared_deaths >= 2 THEN UPDATE nodes SET alone = p_token WHERE node_id = p_node; END IF;
        IF r.status = 'waiting' THEN
            UPDATE runs SET status = 'running', reason = NULL, updated_at = instant WHERE run_id = p_run;
        END IF;
    END IF;
    answer := 'claimed'; kind := s.kind; epoch := s.epoch; attempt := s.attempt; recoveries := s.recoveries; tokens_so_far := s.tokens + s.wasted_tokens;
    input := coalesce(e.request, s.input); input_encoding := coalesce(e.request_encoding, s.input_encoding); input_hash := s.input_hash; pending_error := s.pending_error;
    outcome := s.outcome; outcome_data := s.outcome_data; outcome_encoding := s.outcome_encoding;
    first_claimed_at := s.first_claimed_at; dispatched_at := s.dispatched_at; db_now := instant;
    state_version := r.state_version; generation := r.generation; era := r.attempt || '.' || r.generation;
    seen := CASE WHEN p_era = r.attempt || '.' || r.generation THEN p_seen ELSE -1 END;
    run := run_facts_v1(r, 0, 0) || jsonb_build_object('alone', s.shared_deaths >= 2, 'purse', purse, 'usd_so_far', (s.usd + s.wasted_usd)::text,
        -- Nothing follows from a step of such a run: its outcome is stored, the flow does not go on (P29).
        'still', r.holds <> '{}' OR r.ending IS NOT NULL OR r.cancel_at IS NOT NULL AND NOT s.cleanup OR coalesce(r.deadline <= instant, false) AND NOT s.cleanup);
    IF s.uses IS NOT NULL THEN
        IF EXISTS (SELECT FROM breaker_probes p WHERE p.name = s.uses AND p.token = p_token) THEN run := run || '{"probe": true}'; END IF;
    END IF;
    IF e.idempotency_key IS NOT NULL THEN
        effect := effect_facts_v1(e, instant);
        IF e.status = 'succeeded' THEN effect_data := e.result; effect_encoding := e.result_encoding; END IF;
    END IF;
    IF seen < 0 THEN run_input := r.input; run_input_encoding := r.input_encoding; END IF;
    IF r.state_version > seen THEN  -- else there is nothing that the claimer does not know
        SELECT array_agg(h.commit_seq ORDER BY h.commit_seq), array_agg(h.path ORDER BY h.commit_seq), array_agg(h.step_id ORDER BY h.commit_seq),
               array_agg(h.iteration ORDER BY h.commit_seq), array_agg(h.kind ORDER BY h.commit_seq), array_agg(h.status ORDER BY h.commit_seq),
               array_agg(h.input_hash ORDER BY h.commit_seq), array_agg(h.result ORDER BY h.commit_seq),
               array_agg(h.result_encoding ORDER BY h.commit_seq), jsonb_agg(h.error ORDER BY h.commit_seq), array_agg(h.at ORDER BY h.commit_seq),
               array_agg(h.tokens + h.wasted_tokens ORDER BY h.commit_seq), array_agg(h.usd + h.wasted_usd ORDER BY h.commit_seq)
          INTO h_seq, h_path, h_step, h_iteration, h_kind, h_status, h_hash, h_result, h_encoding, h_error, h_at, h_tokens, h_usd
          FROM steps h WHERE h.run_id = p_run AND h.commit_seq > seen AND h.generation = r.generation AND h.kind <> 'compensation';
    END IF;
    IF p_settle IS NOT NULL THEN PERFORM settle_v1(p_settle); END IF;
    RETURN NEXT;
END $$;

-- What an executor hears of the run: of a step that is new and executed for the first time; the claim of any other says more. With what the commit
-- that tells it has spent.
CREATE FUNCTION safepoint.run_facts_v1(r safepoint.runs, p_tokens bigint, p_usd numeric) RETURNS jsonb LANGUAGE plpgsql STABLE
SET search_path = safepoint, pg_temp AS $$
BEGIN
    RETURN jsonb_build_object('tenant', r.tenant_id, 'flow', r.flow, 'version', r.workflow_version, 'deadline', r.deadline,
        'budget', r.budget, 'spent_tokens', r.spent_tokens + p_tokens, 'spent_usd', r.spent_usd + p_usd, 'spent_retries', r.spent_retries,
        'versions', r.versions, 'tags', r.tags, 'created_at', r.created_at, 'cancel_at', r.cancel_at, 'conversation', r.conversation_id,
        'alone', false, 'purse', NULL, 'usd_so_far', '0', 'still', false);
END $$;

-- Whether a node executes something, or the step of this claim. A function, so that a claim asks only where it must: in an expression of PL/pgSQL
-- a subquery is a statement of its own, whatever stands before it.
CREATE FUNCTION safepoint.executes_v1(p_node text, p_token uuid) RETURNS boolean LANGUAGE plpgsql STABLE
SET search_path = safepoint, pg_temp AS $$
BEGIN
    RETURN EXISTS (SELECT FROM steps WHERE owner = p_node AND status = 'running' AND (p_token IS NULL OR claim_token = p_token));
END $$;

-- P17: what this process published is due again only after redispatch_after; rows that somebody holds are skipped, so it never waits.
-- What waits to be admitted is settled by no ticket of before: it would take a place that nobody has given it (P12).
-- Called last: these rows are of other runs, and whoever holds them must wait for nothing more (P1, P2).
CREATE FUNCTION safepoint.settle_v1(p_rows jsonb) RETURNS integer LANGUAGE plpgsql
SET search_path = safepoint, pg_temp AS $$
DECLARE
    x record;
    place tid;
    n integer := 0;
    instant timestamptz := safepoint.now();
BEGIN
    IF p_rows IS NULL THEN RETURN 0; END IF;
    -- Row by row, each by its key: of a set the planner cannot know how small it is, and would read the table.
    FOR x IN SELECT * FROM jsonb_to_recordset(p_rows) AS j(run uuid, generation integer, path text, step text, iteration integer, due timestamptz, after double precision) LOOP
        SELECT s.ctid INTO place FROM steps s WHERE s.run_id = x.run AND s.generation = x.generation AND s.path = x.path AND s.step_id = x.step AND s.iteration = x.iteration
           AND s.status = 'ready' AND s.due_at = x.due AND s.queued = 0
           AND (s.dispatched_at IS NOT NULL OR NOT is_limited_v1(s.lane)) FOR NO KEY UPDATE SKIP LOCKED;
        IF FOUND THEN
            UPDATE steps SET dispatched_at = instant, due_at = instant + make_interval(secs => x.after), dispatches = dispatches + 1 WHERE ctid = place;
            n := n + 1;
        END IF;
    END LOOP;
    RETURN n;
END $$;

-- Whether a lane lets only so many through.
CREATE FUNCTION safepoint.is_limited_v1(p_lane text) RETURNS boolean LANGUAGE plpgsql STABLE
SET search_path = safepoint, pg_temp AS $$
BEGIN
    RETURN EXISTS (SELECT FROM lanes WHERE name = p_lane AND limited);
END $$;

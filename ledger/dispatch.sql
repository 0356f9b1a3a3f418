-- What may be published now. A step is due by its own column (P10); continuing steps go straight out, starts and re-dispatches are admitted
-- within the lane's window, tenants in turn, then priority, then deadline (P12). A row that was dispatched and not settled is due again after
-- the grace and goes out again: its relay died, or the broker did not answer. Only SKIP LOCKED, and neither status nor fence is touched: no run
-- lock is needed here.
CREATE FUNCTION safepoint.dispatch_v1(p_limit integer, p_grace double precision, p_redispatch double precision)
RETURNS TABLE (
    run_id uuid, generation integer, path text, step_id text, iteration integer, kind text, name text, lane text, attempt integer, epoch integer,
    due timestamptz, dispatches integer
) LANGUAGE plpgsql
SET search_path = safepoint, pg_temp AS $$
#variable_conflict use_column
DECLARE
    l record;
    sends integer;
    slots integer;
    lost_before timestamptz;
    instant timestamptz := safepoint.now();
BEGIN
    PERFORM tend_breakers_v1(p_limit);
    -- Two questions: what goes on is in steps_due, what is to be admitted in steps_queued.
    FOR l IN SELECT x.name, x.rate IS NOT NULL OR x.in_flight IS NOT NULL AS is_limited FROM lanes x WHERE NOT x.paused AND (
                 EXISTS (SELECT FROM steps s WHERE s.status = 'ready' AND s.lane = x.name
                    AND (s.kind <> 'start' OR s.dispatched_at IS NOT NULL) AND s.due_at <= instant)
                 OR EXISTS (SELECT FROM steps s WHERE s.status = 'ready' AND s.lane = x.name
                    AND s.kind = 'start' AND s.dispatched_at IS NULL AND s.due_at <= instant)) ORDER BY x.name LOOP
        SELECT * INTO sends, slots FROM lane_room_v1(l.name, p_limit);
        CONTINUE WHEN sends IS NULL;
        lost_before := lost_before_v1(l.name, p_redispatch);
        RETURN QUERY
        WITH RECURSIVE live AS MATERIALIZED (
            SELECT DISTINCT n.flows, n.steps FROM nodes n
             WHERE n.stopped_at IS NULL AND n.lease_until > instant AND NOT n.draining AND l.name = ANY (n.lanes)
        ), tenants AS (
            -- One look into steps_starts for each tenant, however many starts it has: who comes last is seen as well as who came first.
            (SELECT s.tenant_id FROM steps s WHERE slots > 0 AND s.status = 'ready' AND s.kind = 'start' AND s.dispatched_at IS NULL
                AND s.lane = l.name ORDER BY s.tenant_id LIMIT 1)
            UNION ALL
            SELECT (SELECT s.tenant_id FROM steps s WHERE s.status = 'ready' AND s.kind = 'start' AND s.dispatched_at IS NULL AND s.lane = l.name
                       AND s.tenant_id > t.tenant_id ORDER BY s.tenant_id LIMIT 1)
              FROM tenants t WHERE t.tenant_id IS NOT NULL
        ), share AS MATERIALIZED (
            SELECT 1 + p_limit / greatest(1, count(t.tenant_id)) AS rows FROM tenants t
        ), candidates AS MATERIALIZED (
            (SELECT s.*, true AS goes_on FROM steps s WHERE s.status = 'ready' AND s.lane = l.name
                AND (s.kind <> 'start' OR s.dispatched_at IS NOT NULL) AND s.due_at <= instant ORDER BY s.due_at LIMIT p_limit * 4)
            UNION ALL
            (SELECT c.*, false FROM tenants t CROSS JOIN LATERAL (
                SELECT s.* FROM steps s WHERE s.status = 'ready' AND s.kind = 'start' AND s.dispatched_at IS NULL AND s.lane = l.name
                   AND s.tenant_id = t.tenant_id AND s.due_at <= instant
                 ORDER BY s.priority DESC, s.deadline, s.due_at LIMIT (SELECT rows FROM share)) c)
        ), judged AS MATERIALIZED (
            SELECT c.run_id, c.generation, c.path, c.step_id, c.iteration, c.dispatched_at, c.due_at, c.tenant_id, r.priority, r.deadline,
                   c.goes_on AND c.dispatched_at IS NULL AS straight,
                   EXISTS (SELECT FROM live v WHERE r.flow || '@' || r.workflow_version = ANY (v.flows)
                              AND (c.kind NOT IN ('step', 'effect', 'compensation') OR v.steps = '{}' OR c.name = ANY (v.steps))) AS is_served,
                   c.dispatched_at IS NULL OR c.dispatched_at < lost_before
                       OR c.due_at <= c.dispatched_at + make_interval(secs => p_grace) AS is_sendable
              FROM candidates c JOIN runs r ON r.run_id = c.run_id
        ), ranked AS (
            SELECT j.*, row_number() OVER (PARTITION BY straight, j.tenant_id ORDER BY j.priority DESC, j.deadline, j.due_at) AS turn,
                   -- Who takes a slot: not what has been dispatched before, for that has one.
                   j.dispatched_at IS NULL AND (l.is_limited OR NOT j.straight) AS takes_slot
              FROM judged j WHERE is_served AND is_sendable
        ), placed AS (
            SELECT k.*, row_number() OVER (PARTITION BY takes_slot ORDER BY straight DESC, turn, priority DESC, deadline, due_at, run_id) AS place
              FROM ranked k
        ), admitted AS (
            SELECT * FROM placed WHERE NOT takes_slot OR place <= slots
             ORDER BY straight DESC, turn, priority DESC, deadline, due_at, run_id LIMIT sends
        ), locked AS (
            SELECT s.run_id, s.generation, s.path, s.step_id, s.iteration FROM admitted a
              JOIN steps s USING (run_id, generation, path, step_id, iteration)
             WHERE s.status = 'ready' AND s.due_at = a.due_at AND s.lane = l.name
             ORDER BY s.run_id, s.generation, s.path, s.step_id, s.iteration
               FOR NO KEY UPDATE OF s SKIP LOCKED
        ), sent AS (
            UPDATE steps s SET due_at = instant + make_interval(secs => p_grace), dispatched_at = instant,
                   reason = CASE WHEN s.reason->>'code' IN ('no_worker', 'lane', 'retry') THEN NULL ELSE s.reason END
              FROM locked k WHERE s.run_id = k.run_id AND s.generation = k.generation AND s.path = k.path
               AND s.step_id = k.step_id AND s.iteration = k.iteration
            RETURNING s.run_id, s.generation, s.path, s.step_id, s.iteration, s.kind, s.name, s.lane, s.attempt, s.epoch, s.due_at, s.dispatches
        ), unserved AS (
            -- P15: nothing is sent that nobody serves; a node that registers asks again at once. Asked ever more seldom, or a backlog
            -- that nobody serves would always stand before what somebody does.
            UPDATE steps s SET due_at = instant + least(interval '60 s', greatest(interval '5 s', (instant - k.since) / 2)),
                   reason = jsonb_build_object('code', 'no_worker', 'since', k.since, 'text', 'no live worker serves this flow version on lane '
                   || l.name, 'next', 'start a worker for lane ' || l.name || ' that has the flow, or see safepoint versions')
              FROM (SELECT s.run_id, s.generation, s.path, s.step_id, s.iteration,
                           CASE s.reason->>'code' WHEN 'no_worker' THEN (s.reason->>'since')::timestamptz ELSE instant END AS since FROM judged j
                      JOIN steps s USING (run_id, generation, path, step_id, iteration)
                     WHERE NOT j.is_served AND s.status = 'ready' AND s.due_at = j.due_at FOR NO KEY UPDATE OF s SKIP LOCKED) k
             WHERE s.run_id = k.run_id AND s.generation = k.generation AND s.path = k.path AND s.step_id = k.step_id AND s.iteration = k.iteration
        ), waiting_longer AS (
            -- P11: time since dispatch alone is no evidence of loss; asked again later, never sent for that.
            UPDATE steps s SET due_at = instant + make_interval(secs => p_redispatch)
              FROM (SELECT s.run_id, s.generation, s.path, s.step_id, s.iteration FROM judged j
                      JOIN steps s USING (run_id, generation, path, step_id, iteration)
                     WHERE j.is_served AND NOT j.is_sendable AND s.status = 'ready' AND s.due_at = j.due_at FOR NO KEY UPDATE OF s SKIP LOCKED) k
             WHERE s.run_id = k.run_id AND s.generation = k.generation AND s.path = k.path AND s.step_id = k.step_id AND s.iteration = k.iteration
        )
        SELECT * FROM sent;
        GET DIAGNOSTICS sends = ROW_COUNT;
        UPDATE lanes x SET tokens = x.tokens - sends WHERE x.name = l.name AND x.rate IS NOT NULL AND sends > 0;
    END LOOP;
END $$;

-- How many messages of a lane may go out now (`sends`), and how many rows that are not in flight yet may join those that are (`slots`): within
-- the window, or the in-flight cap. Under the lane's row lock, so that both hold over any number of relays; while another relay has it, a
-- limited lane answers nothing, another one lets only continuing steps out. Counted from rows, never kept in a counter that a dead relay
-- would leak (P12). A weakness: at the edge of its bucket a lane may send its burst and one second's rate within a second.
CREATE FUNCTION safepoint.lane_room_v1(p_lane text, p_limit integer) RETURNS TABLE (sends integer, slots integer) LANGUAGE plpgsql
SET search_path = safepoint, pg_temp AS $$
DECLARE
    l lanes%ROWTYPE;
    instant timestamptz;
    sent integer;
BEGIN
    SELECT * INTO l FROM lanes WHERE name = p_lane FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN QUERY SELECT p_limit, 0 FROM lanes x WHERE x.name = p_lane AND x.rate IS NULL AND x.in_flight IS NULL;
        RETURN;
    END IF;
    instant := safepoint.now();
    sends := p_limit;
    IF l.rate IS NOT NULL THEN
        l.tokens := least(coalesce(l.burst, greatest(l.rate, 1)), l.tokens + l.rate * greatest(0, least(86400,
            extract(epoch FROM instant - greatest(l.refilled_at, instant - interval '1 day')))));
        UPDATE lanes SET tokens = l.tokens, refilled_at = instant WHERE name = p_lane;
        sends := least(p_limit, floor(l.tokens));
    END IF;
    sent := (SELECT count(*) FROM (SELECT FROM steps WHERE status = 'ready' AND lane = p_lane AND dispatched_at IS NOT NULL LIMIT l."window") x);
    slots := greatest(0, least(l."window" - sent, l.in_flight - sent
        - CASE WHEN l.in_flight IS NOT NULL THEN (SELECT count(*) FROM steps WHERE status = 'running' AND claimed_from = p_lane) END));
    RETURN NEXT;
END $$;

-- P11: what was dispatched before this instant and not claimed is lost: the lane has overtaken it by more than the wait, or live nodes with
-- a free hand have consumed the lane that long and found nothing to claim.
CREATE FUNCTION safepoint.lost_before_v1(p_lane text, p_redispatch double precision) RETURNS timestamptz LANGUAGE plpgsql STABLE
SET search_path = safepoint, pg_temp AS $$
DECLARE
    patience interval := make_interval(secs => p_redispatch);
    instant timestamptz := safepoint.now();
    overtaken timestamptz;
    claimed timestamptz;
    is_idle boolean;
BEGIN
    SELECT max(to_timestamp((n.marks->p_lane->>1)::double precision)), max(to_timestamp((n.marks->p_lane->>0)::double precision)),
           bool_or(n.stopped_at IS NULL AND n.lease_until > instant AND NOT n.draining AND cardinality(n.active) < n.concurrency
               AND n.started_at < instant - patience)
      INTO overtaken, claimed, is_idle
      FROM nodes n WHERE p_lane = ANY (n.lanes) AND n.lease_until > instant - interval '1 hour';
    RETURN greatest('-infinity', overtaken - patience,
        CASE WHEN is_idle AND coalesce(claimed, '-infinity') < instant - patience THEN instant - patience END);
END $$;

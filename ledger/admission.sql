-- Admission: what of a lane's queue goes out next (P12). Tenants take turns by weight, with a virtual time as in start-time fair queueing (Goyal, Vin,
-- Cheng: Start-Time Fair Queueing, 1996): a tenant's k-th row has the tag max(its pass, the lane's virtual time) + (k - 1) / weight, the smallest tags
-- go, and a tenant that was away gets no credit for it. Turns outlive a round, so that a lane that lets one row a round through is as fair as one that
-- lets a hundred. Within a tenant what continues a run comes before a start, then priority, then deadline, then age (or deadline before priority).
-- With the lane's row locked; p_room rows at most, and of a tenant no more than its cap leaves: counted from rows, like everything.
-- Cost: one look into steps_queue for each tenant that has something there, and one for each row admitted, however many lie behind them. So that this holds
-- whatever the planner thinks of a backlog, plans are made once for all lanes and tenants (left to itself it plans each look anew over a large backlog, which
-- costs more than looking), and by indexes alone, row by row (it cannot know how few rows a limit that is a parameter lets through).
CREATE FUNCTION safepoint.admit_v1(l safepoint.lanes, p_room integer, p_grace double precision, p_now timestamptz)
RETURNS SETOF safepoint.steps LANGUAGE plpgsql
SET search_path = safepoint, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    x steps%ROWTYPE;
    without text[] := '{}';
    served text[];
    unserved text[];
BEGIN
    -- P15: what nobody serves leaves the queue and is no turn. Then it is looked again: further into the queues, and not at who has nothing else there.
    FOR look IN 1..5 LOOP
        EXIT WHEN p_room <= 0;
        l.virtual := (SELECT virtual FROM lanes WHERE name = l.name);
        served := '{}'; unserved := '{}';
        FOR x IN SELECT * FROM take_turns_v1(l, p_room, CASE look WHEN 1 THEN 0 ELSE 1000 END, without, p_grace, p_now) LOOP
            IF x.run_id IS NULL THEN
                unserved := unserved || x.tenant_id;
            ELSE
                served := served || x.tenant_id;
                p_room := p_room - 1;
                RETURN NEXT x;
            END IF;
        END LOOP;
        EXIT WHEN unserved = '{}';
        IF look > 1 THEN without := without || ARRAY(SELECT t FROM unnest(unserved) AS t EXCEPT SELECT t FROM unnest(served) AS t); END IF;
    END LOOP;
END $$;

-- One look: what takes its turn now, and a row with nothing but the tenant for each one who has something that nobody serves. p_deep is how many rows are
-- looked at beyond the turns.
CREATE FUNCTION safepoint.take_turns_v1(
    l safepoint.lanes, p_room integer, p_deep integer, p_without text[], p_grace double precision, p_now timestamptz
) RETURNS SETOF safepoint.steps LANGUAGE plpgsql
SET search_path = safepoint, pg_temp AS $$
BEGIN
    RETURN QUERY
    WITH RECURSIVE live AS MATERIALIZED (
        SELECT DISTINCT n.flows, n.steps FROM nodes n
         WHERE n.stopped_at IS NULL AND n.lease_until > p_now AND NOT n.draining AND l.name = ANY (n.lanes)
    ), tenants AS (
        (SELECT s.tenant_id FROM steps s WHERE s.status = 'ready' AND s.queued > 0 AND s.due_at < 'infinity' AND s.lane = l.name
          ORDER BY s.tenant_id LIMIT 1)
        UNION ALL
        SELECT (SELECT s.tenant_id FROM steps s WHERE s.status = 'ready' AND s.queued > 0 AND s.due_at < 'infinity' AND s.lane = l.name
                   AND s.tenant_id > t.tenant_id ORDER BY s.tenant_id LIMIT 1)
          FROM tenants t WHERE t.tenant_id IS NOT NULL
    ), busy AS MATERIALIZED (
        SELECT x.tenant_id, count(*)::integer AS rows FROM (
            SELECT s.tenant_id FROM steps s WHERE l.tenant_in_flight IS NOT NULL AND s.status = 'ready' AND s.lane = l.name AND s.dispatched_at IS NOT NULL
            UNION ALL
            SELECT s.tenant_id FROM steps s WHERE l.tenant_in_flight IS NOT NULL AND s.status = 'running' AND s.claimed_from = l.name) x
         GROUP BY x.tenant_id
    ), chosen AS MATERIALIZED (
        -- Whoever is not among the first p_room by pass gets nothing this time.
        SELECT t.tenant_id, greatest(l.virtual, coalesce(q.pass, l.virtual)) AS pass, least(greatest(coalesce((l.weights->>t.tenant_id)::double precision, 1), 1e-6), 1e6) AS weight,
               least(p_room, l.tenant_in_flight - coalesce(b.rows, 0)) AS most
          FROM tenants t LEFT JOIN lane_tenants q ON q.lane = l.name AND q.tenant_id = t.tenant_id LEFT JOIN busy b ON b.tenant_id = t.tenant_id
         WHERE t.tenant_id IS NOT NULL AND t.tenant_id <> ALL (p_without) AND (l.tenant_in_flight IS NULL OR coalesce(b.rows, 0) < l.tenant_in_flight)
         ORDER BY 2, 1 LIMIT p_room
    ), tags AS (
        -- Passes differ by one turn at most, so nobody's share is over twice its part; what a tenant with few rows leaves over goes out in the next round.
        SELECT c.tenant_id, c.pass, c.weight FROM chosen c CROSS JOIN LATERAL generate_series(1, least(c.most,
                   1 + ceil(2 * p_room * c.weight / (SELECT sum(weight) FROM chosen)))::integer) AS k
         ORDER BY c.pass + (k - 1) / c.weight, c.tenant_id LIMIT p_room
    ), turns AS MATERIALIZED (
        SELECT t.tenant_id, t.pass, t.weight, count(*)::integer AS share FROM tags t GROUP BY t.tenant_id, t.pass, t.weight
    ), found AS MATERIALIZED (
        SELECT t.share, s.* FROM turns t CROSS JOIN LATERAL (SELECT h.*, row_number() OVER () AS nth
            FROM heads_v1(l, t.tenant_id, greatest(t.share, p_deep / (SELECT count(*)::integer FROM turns))) h) s
    ), judged AS MATERIALIZED (
        SELECT f.run_id, f.generation, f.path, f.step_id, f.iteration, f.due_at, f.tenant_id, f.share, f.nth,
               EXISTS (SELECT FROM live v WHERE r.flow || '@' || r.workflow_version = ANY (v.flows)
                   AND (f.kind NOT IN ('step', 'effect', 'compensation') OR v.steps = '{}' OR f.name = ANY (v.steps))) AS is_served
          -- Row by row, here and below: a planner that cannot know how few rows are found would read whole tables for them.
          FROM found f CROSS JOIN LATERAL (SELECT x.flow, x.workflow_version FROM runs x WHERE x.run_id = f.run_id OFFSET 0) r
    ), placed AS (
        SELECT *, row_number() OVER (PARTITION BY tenant_id ORDER BY nth) AS place FROM judged WHERE is_served
    ), locked AS (
        SELECT s.ctid FROM (SELECT * FROM placed WHERE place <= share ORDER BY run_id, generation, path, step_id, iteration) j CROSS JOIN LATERAL (
            SELECT x.ctid FROM steps x WHERE x.run_id = j.run_id AND x.generation = j.generation AND x.path = j.path AND x.step_id = j.step_id
               AND x.iteration = j.iteration AND x.status = 'ready' AND x.queued > 0 AND x.due_at = j.due_at AND x.lane = l.name
               AND (x.uses IS NULL OR NOT is_shut_v1(x, l.stop_on_breaker))
               FOR NO KEY UPDATE SKIP LOCKED) s
    ), sent AS (
        UPDATE steps s SET queued = 0, due_at = p_now + make_interval(secs => p_grace), dispatched_at = p_now, reason = CASE WHEN s.reason->>'code' IN ('no_worker', 'lane', 'retry') THEN NULL ELSE s.reason END
         WHERE s.ctid = ANY (ARRAY(SELECT k.ctid FROM locked k))
        RETURNING s.*
    ), served AS MATERIALIZED (
        SELECT t.tenant_id, t.pass + count(*) / t.weight AS pass, t.pass + (count(*) - 1) / t.weight AS tag
          FROM sent JOIN turns t USING (tenant_id) GROUP BY t.tenant_id, t.pass, t.weight
    ), passed AS (
        INSERT INTO lane_tenants AS q (lane, tenant_id, pass) SELECT l.name, tenant_id, pass FROM served
        ON CONFLICT (lane, tenant_id) DO UPDATE SET pass = excluded.pass
    ), moved AS (
        UPDATE lanes x SET virtual = greatest(x.virtual, v.tag) FROM (SELECT max(tag) AS tag FROM served) v WHERE x.name = l.name AND v.tag IS NOT NULL
    ), unserved AS (
        SELECT tenant_id, wait_for_worker_v1(run_id, generation, path, step_id, iteration, due_at, l.name, p_now, false) AS waits FROM judged WHERE NOT is_served
    )
    SELECT * FROM sent
    UNION ALL
    SELECT r.* FROM (SELECT tenant_id FROM unserved WHERE waits GROUP BY tenant_id) u, LATERAL jsonb_populate_record(NULL::steps, jsonb_build_object('tenant_id', u.tenant_id)) r;
END $$;

-- The first rows of one tenant's queue, read off an index in their order. By deadline there are two for each rank: those that have one, then the others.
CREATE FUNCTION safepoint.heads_v1(l safepoint.lanes, p_tenant text, p_rows integer) RETURNS SETOF safepoint.steps LANGUAGE plpgsql STABLE
SET search_path = safepoint, pg_temp AS $$
DECLARE
    rank integer;
    n integer;
    found_so_far integer := 0;
BEGIN
    IF l.ordering = 'priority' THEN
        RETURN QUERY SELECT s.* FROM steps s
             WHERE s.status = 'ready' AND s.queued > 0 AND s.due_at < 'infinity' AND s.lane = l.name AND s.tenant_id = p_tenant
             ORDER BY s.queued, s.priority DESC, s.deadline, s.due_at LIMIT p_rows;
        RETURN;
    END IF;
    FOR rank IN 1..2 LOOP
        RETURN QUERY SELECT s.* FROM steps s WHERE s.status = 'ready' AND s.queued > 0 AND s.due_at < 'infinity' AND s.deadline IS NOT NULL
                AND s.lane = l.name AND s.tenant_id = p_tenant AND s.queued = rank
             ORDER BY s.deadline, s.priority DESC, s.due_at LIMIT p_rows - found_so_far;
        GET DIAGNOSTICS n = ROW_COUNT;
        found_so_far := found_so_far + n;
        EXIT WHEN found_so_far >= p_rows;
        RETURN QUERY SELECT s.* FROM steps s WHERE s.status = 'ready' AND s.queued > 0 AND s.due_at < 'infinity' AND s.deadline IS NULL
                AND s.lane = l.name AND s.tenant_id = p_tenant AND s.queued = rank
             -- The index's order; the deadlines say nothing here, but without them the planner would sort the whole queue.
             ORDER BY s.priority DESC, s.deadline, s.due_at LIMIT p_rows - found_so_far;
        GET DIAGNOSTICS n = ROW_COUNT;
        found_so_far := found_so_far + n;
        EXIT WHEN found_so_far >= p_rows;
    END LOOP;
END $$;

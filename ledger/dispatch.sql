-- What may be published now. A step is due by its own column (P10). What continues a run goes straight out, unless its lane is limited or crowded; that,
-- and every start, is queued and admitted: tenants in turn, then priority, then deadline (P12; admission.sql). A row that was dispatched and not settled
-- is due again after the grace and goes out again: its relay died, or the broker did not answer. Rows are taken with SKIP LOCKED, and neither status nor
-- fence is touched: no run lock is needed here. A lane's row is locked first: what holds of a lane holds over any number of relays; a lane that another
-- relay has is left to it.
CREATE FUNCTION safepoint.dispatch_v1(p_limit integer, p_grace double precision, p_redispatch double precision)
RETURNS TABLE (
    run_id uuid, generation integer, path text, step_id text, iteration integer, kind text, name text, lane text, attempt integer, epoch integer,
    due timestamptz, dispatches integer
) LANGUAGE plpgsql
SET search_path = safepoint, pg_temp AS $$
#variable_conflict use_column
DECLARE
    l lanes%ROWTYPE;
    work text;
    room record;
    sent integer;
    n integer;
    instant timestamptz := safepoint.now();
BEGIN
    PERFORM tend_breakers_v1(p_limit);
    PERFORM end_overrides_v1();
    FOR work IN SELECT x.name FROM lanes x WHERE NOT x.paused AND (
                 EXISTS (SELECT FROM steps s WHERE s.status = 'ready' AND s.queued = 0 AND s.lane = x.name AND s.due_at <= instant)
                 -- In the index's order, or a planner that expects many rows reads the table for the first one.
                 OR (SELECT true FROM steps s WHERE s.status = 'ready' AND s.queued > 0 AND s.due_at < 'infinity' AND s.lane = x.name
                      ORDER BY s.lane, s.tenant_id LIMIT 1)) ORDER BY x.name LOOP
        SELECT * INTO l FROM lanes WHERE name = work AND NOT paused FOR NO KEY UPDATE SKIP LOCKED;
        CONTINUE WHEN NOT FOUND;
        instant := safepoint.now();
        SELECT * INTO room FROM lane_room_v1(l, p_limit, instant);
        PERFORM queue_due_v1(l, room.straight, instant);
        RETURN QUERY SELECT s.run_id, s.generation, s.path, s.step_id, s.iteration, s.kind, s.name, s.lane, s.attempt, s.epoch, s.due_at, s.dispatches
            FROM send_due_v1(l, room.sends, room.straight, p_limit, p_grace, p_redispatch, instant) s;
        GET DIAGNOSTICS sent = ROW_COUNT;
        RETURN QUERY SELECT s.run_id, s.generation, s.path, s.step_id, s.iteration, s.kind, s.name, s.lane, s.attempt, s.epoch, s.due_at, s.dispatches
            FROM admit_v1(l, least(room.sends - sent, room.slots), p_grace, instant) s;
        GET DIAGNOSTICS n = ROW_COUNT;
        sent := sent + n;
        UPDATE lanes x SET tokens = room.tokens - sent, refilled_at = instant WHERE x.name = l.name AND x.rate IS NOT NULL AND sent > 0;
    END LOOP;
END $$;

-- How many messages of a lane may go out now (`sends`), how many rows that are not in flight yet may join those that are (`slots`), how many may go
-- straight out, and what the bucket holds. With the lane's row locked; counted from rows, never kept in a counter that a dead relay would leak (P12).
-- A lane without a window of its own has one that keeps its workers busy and no more: what waits in the broker waits first come, first served, and a
-- tenant with three steps stands behind all of it. A weakness: at the edge of its bucket a lane may send its burst and one second's rate within a second.
CREATE FUNCTION safepoint.lane_room_v1(
    l safepoint.lanes, p_limit integer, p_now timestamptz, OUT sends integer, OUT slots integer, OUT straight integer, OUT tokens double precision
) LANGUAGE plpgsql
SET search_path = safepoint, pg_temp AS $$
DECLARE
    places integer;
    sent integer;
BEGIN
    sends := p_limit;
    IF l.rate IS NOT NULL THEN
        tokens := tokens_v1(l, p_now);
        sends := CASE WHEN l.rate > 0 THEN least(p_limit, floor(tokens)) ELSE 0 END;
    END IF;
    places := coalesce(l."window", (SELECT least(1000, greatest(64, 16 * sum(n.concurrency))) FROM nodes n
        WHERE n.stopped_at IS NULL AND n.lease_until > p_now AND NOT n.draining AND l.name = ANY (n.lanes)));
    sent := (SELECT count(*) FROM (SELECT FROM steps WHERE status = 'ready' AND lane = l.name AND dispatched_at IS NOT NULL
        LIMIT greatest(places, l.in_flight, 1000)) x);
    slots := greatest(0, least(places - sent, l.in_flight - sent
        - CASE WHEN l.in_flight IS NOT NULL THEN (SELECT count(*) FROM steps WHERE status = 'running' AND claimed_from = l.name) END));
    straight := CASE WHEN l.limited THEN 0 ELSE greatest(0, greatest(places, 100) - sent) END;
END $$;

-- What is due, has not been sent and may not go straight out joins the lane's queue, where the tenants' turns are found without reading what lies before
-- them: starts whose time has come, and what is past the lane's straight places, so that who has a hundred thousand timers due at once delays nobody.
CREATE FUNCTION safepoint.queue_due_v1(l safepoint.lanes, p_straight integer, p_now timestamptz) RETURNS integer LANGUAGE plpgsql
SET search_path = safepoint, pg_temp AS $$
DECLARE
    n integer;
BEGIN
    UPDATE steps s SET queued = CASE WHEN k.begins AND NOT EXISTS (SELECT FROM runs r WHERE r.run_id = s.run_id AND r.parent_run_id IS NOT NULL) THEN 2 ELSE 1 END
      FROM (SELECT x.run_id, x.generation, x.path, x.step_id, x.iteration, d.begins
              FROM (SELECT d.*, count(*) FILTER (WHERE NOT d.begins) OVER (ORDER BY d.due_at ROWS UNBOUNDED PRECEDING) AS place
                      FROM (SELECT d.run_id, d.generation, d.path, d.step_id, d.iteration, d.due_at, d.kind = 'start' AND d.generation = 1 AND d.epoch = 0 AS begins FROM steps d
                             WHERE d.status = 'ready' AND d.queued = 0 AND d.lane = l.name AND d.due_at <= p_now AND d.dispatched_at IS NULL
                             ORDER BY d.due_at LIMIT 2000 + p_straight) d) d
              JOIN steps x USING (run_id, generation, path, step_id, iteration)
             WHERE (d.begins OR d.place > p_straight) AND x.status = 'ready' AND x.queued = 0 AND x.due_at = d.due_at FOR NO KEY UPDATE OF x SKIP LOCKED) k
     WHERE (s.run_id, s.generation, s.path, s.step_id, s.iteration) = (k.run_id, k.generation, k.path, k.step_id, k.iteration);
    GET DIAGNOSTICS n = ROW_COUNT;
    RETURN n;
END $$;

-- Sends what goes straight out, and again what its broker has lost (P11) or its relay never settled; those have a place already and take no slot.
CREATE FUNCTION safepoint.send_due_v1(
    l safepoint.lanes, p_sends integer, p_straight integer, p_limit integer, p_grace double precision, p_redispatch double precision, p_now timestamptz
) RETURNS SETOF safepoint.steps LANGUAGE plpgsql
SET search_path = safepoint, pg_temp AS $$
DECLARE
    lost_before timestamptz;
BEGIN
    IF NOT EXISTS (SELECT FROM steps s WHERE s.status = 'ready' AND s.queued = 0 AND s.lane = l.name AND s.due_at <= p_now) THEN RETURN; END IF;
    lost_before := lost_before_v1(l.name, p_redispatch);
    RETURN QUERY
    WITH live AS MATERIALIZED (
        SELECT DISTINCT n.flows, n.steps FROM nodes n
         WHERE n.stopped_at IS NULL AND n.lease_until > p_now AND NOT n.draining AND l.name = ANY (n.lanes)
    ), found AS MATERIALIZED (
        SELECT s.* FROM steps s WHERE s.status = 'ready' AND s.queued = 0 AND s.lane = l.name AND s.due_at <= p_now ORDER BY s.due_at LIMIT p_limit * 4
    ), judged AS MATERIALIZED (
        SELECT f.run_id, f.generation, f.path, f.step_id, f.iteration, f.due_at, f.dispatched_at IS NULL AS is_new, f.kind = 'start' AND f.generation = 1 AND f.epoch = 0 AS begins,
               EXISTS (SELECT FROM live v WHERE r.flow || '@' || r.workflow_version = ANY (v.flows)
                   AND (f.kind NOT IN ('step', 'effect', 'compensation') OR v.steps = '{}' OR f.name = ANY (v.steps))) AS is_served,
               f.dispatched_at IS NULL OR f.dispatched_at < lost_before OR f.due_at <= f.dispatched_at + make_interval(secs => p_grace) AS is_sendable
          FROM found f JOIN runs r ON r.run_id = f.run_id
    ), placed AS (
        SELECT j.*, row_number() OVER (PARTITION BY is_new ORDER BY j.due_at, run_id) AS place FROM judged j WHERE is_served AND is_sendable AND NOT (is_new AND begins)
    ), locked AS (
        SELECT s.run_id, s.generation, s.path, s.step_id, s.iteration
          FROM (SELECT * FROM placed p WHERE NOT is_new OR place <= p_straight ORDER BY is_new DESC, p.due_at, run_id LIMIT p_sends) a
          JOIN steps s USING (run_id, generation, path, step_id, iteration)
         WHERE s.status = 'ready' AND s.queued = 0 AND s.due_at = a.due_at AND s.lane = l.name
         ORDER BY s.run_id, s.generation, s.path, s.step_id, s.iteration
           FOR NO KEY UPDATE OF s SKIP LOCKED
    ), sent AS (
        UPDATE steps s SET due_at = p_now + make_interval(secs => p_grace), dispatched_at = p_now, reason = CASE WHEN s.reason->>'code' IN ('no_worker', 'lane', 'retry') THEN NULL ELSE s.reason END
          FROM locked k WHERE (s.run_id, s.generation, s.path, s.step_id, s.iteration) = (k.run_id, k.generation, k.path, k.step_id, k.iteration)
        RETURNING s.*
    ), unserved AS (
        SELECT wait_for_worker_v1(run_id, generation, path, step_id, iteration, due_at, l.name, p_now, is_sendable) FROM judged WHERE NOT is_served
    ), waiting_longer AS (
        -- P11: time since dispatch alone is no evidence of loss; asked again later, never sent for that.
        UPDATE steps s SET due_at = p_now + make_interval(secs => p_redispatch)
          FROM (SELECT s.run_id, s.generation, s.path, s.step_id, s.iteration FROM judged j
                  JOIN steps s USING (run_id, generation, path, step_id, iteration)
                 WHERE j.is_served AND NOT j.is_sendable AND s.status = 'ready' AND s.due_at = j.due_at FOR NO KEY UPDATE OF s SKIP LOCKED) k
         WHERE (s.run_id, s.generation, s.path, s.step_id, s.iteration) = (k.run_id, k.generation, k.path, k.step_id, k.iteration)
    )
    SELECT * FROM sent WHERE (SELECT count(*) FROM unserved) >= 0;
END $$;

-- P15: nothing is sent that nobody serves; a node that registers asks again at once. It leaves the queue, where it would stand before what somebody
-- serves, and is asked about ever more seldom. What was sent and is not lost keeps its place: who comes back finds its message (P11).
CREATE FUNCTION safepoint.wait_for_worker_v1(
    p_run uuid, p_generation integer, p_path text, p_step text, p_iteration integer, p_due timestamptz, p_lane text, p_now timestamptz,
    p_lost boolean
) RETURNS boolean LANGUAGE plpgsql
SET search_path = safepoint, pg_temp AS $$
DECLARE
    since timestamptz;
BEGIN
    SELECT CASE s.reason->>'code' WHEN 'no_worker' THEN (s.reason->>'since')::timestamptz ELSE p_now END INTO since FROM steps s
     WHERE run_id = p_run AND generation = p_generation AND path = p_path AND step_id = p_step AND iteration = p_iteration
       AND status = 'ready' AND due_at = p_due FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN RETURN false; END IF;
    UPDATE steps s SET queued = 0, due_at = p_now + least(interval '60 s', greatest(interval '5 s', (p_now - since) / 2)),
           dispatched_at = CASE WHEN NOT p_lost THEN dispatched_at END,
           reason = jsonb_build_object('code', 'no_worker', 'since', since, 'text', 'no live worker serves this flow version on lane ' || p_lane,
           'next', 'start a worker for lane ' || p_lane || ' that has the flow, or see safepoint versions')
     WHERE run_id = p_run AND generation = p_generation AND path = p_path AND step_id = p_step AND iteration = p_iteration;
    RETURN true;
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

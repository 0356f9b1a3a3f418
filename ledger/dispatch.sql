-- What may be published now. A step is due by its own column (P10); continuing steps go straight out, starts and re-dispatches are admitted
-- within the lane's window, tenants in turn, then priority, then deadline (P12). A dispatched row is due again after the grace, so a relay
-- that dies before it settles loses nothing. Only SKIP LOCKED, and neither status nor fence is touched: no run lock is needed here.
CREATE FUNCTION safepoint.dispatch_v1(p_limit integer, p_grace double precision, p_redispatch double precision)
RETURNS TABLE (
    run_id uuid, generation integer, path text, step_id text, iteration integer, kind text, name text, lane text, attempt integer, epoch integer,
    due timestamptz, dispatches integer
) LANGUAGE plpgsql
SET search_path = safepoint, pg_temp AS $$
#variable_conflict use_column
DECLARE
    l record;
    room integer;
    instant timestamptz := safepoint.now();
BEGIN
    FOR l IN SELECT DISTINCT x.name FROM lanes x WHERE NOT x.paused AND EXISTS (
                 SELECT FROM steps s WHERE s.status = 'ready' AND s.lane = x.name AND s.due_at <= instant) ORDER BY x.name LOOP
        room := lane_room_v1(l.name, p_limit);
        CONTINUE WHEN room IS NULL;
        RETURN QUERY
        WITH served AS MATERIALIZED (
            SELECT DISTINCT f FROM nodes n, unnest(n.flows) AS f
             WHERE n.stopped_at IS NULL AND n.lease_until > instant AND NOT n.draining AND l.name = ANY (n.lanes)
        ), candidates AS MATERIALIZED (
            (SELECT s.*, true AS straight FROM steps s WHERE s.status = 'ready' AND s.lane = l.name
                AND (s.kind = 'start' AND s.dispatched_at IS NULL) = false AND s.due_at <= instant ORDER BY s.due_at LIMIT p_limit * 4)
            UNION ALL
            (SELECT s.*, false FROM steps s WHERE s.status = 'ready' AND s.lane = l.name
                AND (s.kind = 'start' AND s.dispatched_at IS NULL) = true AND s.due_at <= instant ORDER BY s.due_at LIMIT p_limit * 10)
        ), judged AS MATERIALIZED (
            SELECT c.run_id, c.generation, c.path, c.step_id, c.iteration, c.dispatched_at, c.due_at, c.tenant_id, r.priority, r.deadline,
                   c.straight AND c.dispatched_at IS NULL AS straight,
                   (r.flow || '@' || r.workflow_version) IN (SELECT f FROM served) AS is_served,
                   c.dispatched_at IS NULL OR is_lost_v1(l.name, c.dispatched_at, p_redispatch) AS is_sendable
              FROM candidates c JOIN runs r ON r.run_id = c.run_id
        ), ranked AS (
            SELECT j.*, row_number() OVER (PARTITION BY straight, j.tenant_id ORDER BY j.priority DESC, j.deadline NULLS LAST, j.due_at) AS turn
              FROM judged j WHERE is_served AND is_sendable
        ), admitted AS (
            SELECT a.* FROM (
                SELECT k.*, row_number() OVER (ORDER BY straight DESC, turn, priority DESC, deadline NULLS LAST, due_at) AS place,
                       count(*) FILTER (WHERE NOT straight) OVER (ORDER BY straight DESC, turn, priority DESC, deadline NULLS LAST, due_at) AS bounded
                  FROM ranked k) a
             WHERE a.place <= CASE WHEN lane_is_limited_v1(l.name) THEN room ELSE p_limit END
               AND (lane_is_limited_v1(l.name) OR a.straight OR a.bounded <= room)
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
            -- P15: nothing is sent that nobody serves; a node that registers asks again at once.
            UPDATE steps s SET due_at = instant + interval '5 s', reason = jsonb_build_object('code', 'no_worker',
                   'since', coalesce(s.reason->>'since', instant::text), 'text', 'no live worker serves this flow version on lane ' || l.name,
                   'next', 'start a worker for lane ' || l.name || ' that has the flow, or see safepoint versions')
              FROM (SELECT s.run_id, s.generation, s.path, s.step_id, s.iteration FROM judged j
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
        GET DIAGNOSTICS room = ROW_COUNT;
        PERFORM lane_take_v1(l.name, room);
    END LOOP;
END $$;

CREATE FUNCTION safepoint.lane_is_limited_v1(p_lane text) RETURNS boolean LANGUAGE sql STABLE
SET search_path = safepoint, pg_temp AS $$ SELECT rate IS NOT NULL OR in_flight IS NOT NULL FROM lanes WHERE name = p_lane $$;

-- How many of a lane may go out now. Limited lanes: the bucket and the in-flight cap, under the lane's row lock, so that the limit holds over
-- any number of relays; NULL when another relay has the lane. Counted from rows, never kept in a counter a dead relay would leak (P12).
CREATE FUNCTION safepoint.lane_room_v1(p_lane text, p_limit integer) RETURNS integer LANGUAGE plpgsql
SET search_path = safepoint, pg_temp AS $$
DECLARE
    l lanes%ROWTYPE;
    room double precision := p_limit;
    instant timestamptz;
BEGIN
    IF NOT lane_is_limited_v1(p_lane) THEN
        SELECT least(p_limit, greatest(0, "window" - (SELECT count(*) FROM (SELECT FROM steps
                WHERE status = 'ready' AND lane = p_lane AND dispatched_at IS NOT NULL LIMIT "window") x)))
          INTO room FROM lanes WHERE name = p_lane;
        RETURN room;
    END IF;
    SELECT * INTO l FROM lanes WHERE name = p_lane FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN RETURN NULL; END IF;
    instant := safepoint.now();
    IF l.rate IS NOT NULL THEN
        l.tokens := least(coalesce(l.burst, greatest(l.rate, 1)),
            l.tokens + l.rate * least(extract(epoch FROM instant - greatest(l.refilled_at, instant - interval '1 day')), 86400));
        UPDATE lanes SET tokens = l.tokens, refilled_at = instant WHERE name = p_lane;
        room := least(room, floor(l.tokens));
    END IF;
    IF l.in_flight IS NOT NULL THEN
        room := least(room, l.in_flight
            - (SELECT count(*) FROM steps WHERE status = 'running' AND claimed_from = p_lane)
            - (SELECT count(*) FROM steps WHERE status = 'ready' AND lane = p_lane AND dispatched_at IS NOT NULL));
    END IF;
    RETURN greatest(room, 0);
END $$;

CREATE FUNCTION safepoint.lane_take_v1(p_lane text, p_taken integer) RETURNS void LANGUAGE sql
SET search_path = safepoint, pg_temp AS $$
    UPDATE lanes SET tokens = tokens - p_taken WHERE name = p_lane AND rate IS NOT NULL AND p_taken > 0
$$;

-- P11: lost is what the lane has overtaken by more than the wait, or what lies in a lane that live, idle nodes consume without claiming.
CREATE FUNCTION safepoint.is_lost_v1(p_lane text, p_dispatched timestamptz, p_redispatch double precision) RETURNS boolean LANGUAGE sql STABLE
SET search_path = safepoint, pg_temp AS $$
    SELECT coalesce(bool_or(
        to_timestamp((n.marks->p_lane->>1)::double precision) > p_dispatched + make_interval(secs => p_redispatch)), false)
        OR (coalesce(bool_or(n.stopped_at IS NULL AND n.lease_until > safepoint.now() AND NOT n.draining AND cardinality(n.active) < n.concurrency
                AND greatest(n.started_at, p_dispatched) < safepoint.now() - make_interval(secs => p_redispatch)), false)
            AND coalesce(max(to_timestamp((n.marks->p_lane->>0)::double precision)), '-infinity') < safepoint.now() - make_interval(secs => p_redispatch))
      FROM nodes n WHERE p_lane = ANY (n.lanes) AND n.lease_until > safepoint.now() - interval '1 hour'
$$;

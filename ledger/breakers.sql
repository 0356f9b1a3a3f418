-- Breakers of dependencies, as claims and the relay meet them (P39). What outcomes come to is judged elsewhere, by a pure function, under the row's lock.
-- A step of an open breaker is set aside: ready, unclaimed, its due_at far away (P10: never gone), in an index of its own (steps_set_aside), so that a
-- backlog of it stands before nothing. The relay lets out what the breaker admits.

-- Probes still wanted that are not under way. A probe is a lease: its row counts while the step runs under the token that took it and its time is not
-- over; what ended without an outcome (a crash, a defect of the caller's) counts no more, and another step probes.
CREATE FUNCTION safepoint.breaker_room_v1(b safepoint.breakers, p_now timestamptz) RETURNS integer LANGUAGE sql STABLE
SET search_path = safepoint, pg_temp AS $$
    SELECT CASE WHEN b.state = 'open' AND coalesce(b.next_probe_at, p_now) > p_now THEN 0 ELSE
        coalesce((b.policy->>'probes')::integer, 3) - CASE b.state WHEN 'half_open' THEN coalesce((b.detail->>'good')::integer, 0) ELSE 0 END
        - (SELECT count(*)::integer FROM breaker_probes p JOIN steps s USING (run_id, generation, path, step_id, iteration)
            WHERE p.name = b.name AND p.lease_until > p_now AND s.status = 'running' AND s.claim_token = p.token) END
$$;

-- Lanes may let their steps through whatever the breakers say: stop_on_breaker = false.
CREATE FUNCTION safepoint.heeds_breakers_v1(p_lane text) RETURNS boolean LANGUAGE sql STABLE
SET search_path = safepoint, pg_temp AS $$
    SELECT coalesce((SELECT stop_on_breaker FROM lanes WHERE name = p_lane), true)
$$;

CREATE FUNCTION safepoint.breaker_reason_v1(b safepoint.breakers, p_reason jsonb, p_now timestamptz) RETURNS jsonb LANGUAGE sql STABLE
SET search_path = safepoint, pg_temp AS $$
    SELECT jsonb_build_object('code', 'breaker', 'since', CASE p_reason->>'code' WHEN 'breaker' THEN p_reason->'since' ELSE to_jsonb(p_now) END,
        'text', 'the breaker of ' || b.name || ' is ' || replace(b.state, '_', ' ') || coalesce(': ' || nullif(b.detail->>'why', ''), ''),
        'next', 'safepoint breakers')
$$;

-- Whether a claim of the step would call its dependency: not one that only stores what is settled, or judges an attempt that the scan has ended (P24).
CREATE FUNCTION safepoint.calls_v1(s safepoint.steps) RETURNS boolean LANGUAGE sql STABLE
SET search_path = safepoint, pg_temp AS $$
    SELECT s.pending_error IS NULL AND NOT EXISTS (SELECT FROM effects WHERE idempotency_key = s.effect_key AND status IN ('succeeded', 'failed'))
$$;

-- Whether admission stops before a step: its dependency is let alone, and it is none of those that were let out to ask. A backlog is set aside batch by
-- batch; until then nothing of it goes out to be refused.
CREATE FUNCTION safepoint.is_shut_v1(s safepoint.steps, p_heeds boolean) RETURNS boolean LANGUAGE sql STABLE
SET search_path = safepoint, pg_temp AS $$
    SELECT p_heeds AND s.reason->>'let_out' IS NULL AND EXISTS (SELECT FROM breakers b WHERE b.name = s.uses AND b.state <> 'closed') AND calls_v1(s)
$$;

-- What a claim asks last, with run and step locked: NULL to go on, or `breaker` with the step set aside. While the breaker is closed this is one read;
-- only a probe takes the row's lock, so that there are never more of them than wanted. P14: no attempt is consumed, due_at never moves later.
CREATE FUNCTION safepoint.breaker_refusal_v1(s safepoint.steps, p_token uuid, p_lane text, p_timeout double precision, p_now timestamptz)
RETURNS text LANGUAGE plpgsql
SET search_path = safepoint, pg_temp AS $$
DECLARE
    b breakers%ROWTYPE;
BEGIN
    SELECT * INTO b FROM breakers WHERE name = s.uses;
    IF NOT FOUND OR b.state = 'closed' OR NOT heeds_breakers_v1(p_lane) OR NOT calls_v1(s) THEN RETURN NULL; END IF;
    IF b.state = 'half_open' OR b.next_probe_at <= p_now THEN
        SELECT * INTO b FROM breakers WHERE name = s.uses FOR NO KEY UPDATE;
        IF b.state = 'closed' THEN RETURN NULL; END IF;
        IF breaker_room_v1(b, p_now) > 0 THEN
            IF b.state = 'open' THEN
                PERFORM turn_breaker_v1(b.name, 'half_open', b.opened_at, b.next_probe_at, b.detail || '{"good": 0}', 'claim', 'its pause is over', NULL);
            END IF;
            INSERT INTO breaker_probes (name, token, tenant_id, run_id, generation, path, step_id, iteration, began_at, lease_until)
                VALUES (b.name, p_token, s.tenant_id, s.run_id, s.generation, s.path, s.step_id, s.iteration, p_now, p_now + least(
                    make_interval(secs => p_timeout), make_interval(secs => greatest(coalesce((b.detail->>'pause')::double precision, 0),
                    coalesce((b.policy->>'open_for')::double precision, 15)))))
                ON CONFLICT (name, token) DO NOTHING;
            RETURN NULL;
        END IF;
    END IF;
    -- A moment earlier, so that the ticket of who has published it settles it no more.
    UPDATE steps SET due_at = least(due_at - interval '1 ms', p_now + interval '1 hour'), dispatched_at = NULL, queued = 0, reason = breaker_reason_v1(b, s.reason, p_now)
     WHERE run_id = s.run_id AND generation = s.generation AND path = s.path AND step_id = s.step_id AND iteration = s.iteration AND status = 'ready';
    PERFORM refresh_v1(s.run_id);
    RETURN 'breaker';
END $$;

-- The relay's part, before it looks at the lanes: sets aside what is due and may not go (so no message is sent for it), and lets out what may: all of a
-- closed breaker's, batch by batch, of the others as many a lane as probes are wanted. Only SKIP LOCKED (P2); an hour is the safety net of a row that
-- nobody lets out.
CREATE FUNCTION safepoint.tend_breakers_v1(p_limit integer) RETURNS integer LANGUAGE plpgsql
SET search_path = safepoint, pg_temp AS $$
DECLARE
    b breakers%ROWTYPE;
    l record;
    room integer;
    instant timestamptz := safepoint.now();
    moved integer := 0;
BEGIN
    FOR b IN SELECT x.* FROM breakers x WHERE x.state <> 'closed' OR EXISTS (
                SELECT FROM steps s WHERE s.status = 'ready' AND s.reason->>'code' = 'breaker' AND s.due_at < 'infinity' AND s.uses = x.name)
              ORDER BY x.name LOOP
        room := CASE b.state WHEN 'closed' THEN p_limit ELSE breaker_room_v1(b, instant) END;
        IF b.state <> 'closed' THEN
            moved := moved + set_aside_v1(b, room <= 0 AND b.state = 'open', p_limit * 4, instant);
        END IF;
        CONTINUE WHEN room <= 0;
        FOR l IN SELECT x.name FROM lanes x ORDER BY x.name LOOP
            moved := moved + let_out_v1(b, l.name, room, instant);
        END LOOP;
    END LOOP;
    RETURN moved;
END $$;

-- P2: whose run somebody holds keeps the reason that it shows, until it is claimed.
CREATE FUNCTION safepoint.set_aside_v1(b safepoint.breakers, p_shut boolean, p_limit integer, p_now timestamptz) RETURNS integer LANGUAGE plpgsql
SET search_path = safepoint, pg_temp AS $$
DECLARE
    moved uuid[];
BEGIN
    WITH aside AS (
        UPDATE steps s SET due_at = p_now + interval '1 hour', dispatched_at = NULL, queued = 0, reason = breaker_reason_v1(b, s.reason, p_now)
          FROM (SELECT d.run_id, d.generation, d.path, d.step_id, d.iteration FROM steps d
                 WHERE d.status = 'ready' AND d.uses = b.name AND d.due_at <= p_now AND heeds_breakers_v1(d.lane) AND calls_v1(d)
                   -- What was let out to probe stays so, unless the breaker has opened again since.
                   AND (p_shut OR d.reason->>'let_out' IS NULL)
                 ORDER BY d.due_at LIMIT p_limit FOR NO KEY UPDATE SKIP LOCKED) x
         WHERE (s.run_id, s.generation, s.path, s.step_id, s.iteration) = (x.run_id, x.generation, x.path, x.step_id, x.iteration)
        RETURNING s.run_id)
    SELECT array_agg(run_id) INTO moved FROM aside;
    PERFORM refresh_v1(r.run_id) FROM (SELECT run_id FROM runs WHERE run_id = ANY (moved) ORDER BY run_id FOR NO KEY UPDATE SKIP LOCKED) r;
    RETURN coalesce(cardinality(moved), 0);
END $$;

-- Tenants in turn, then priority, then deadline: who has a hundred thousand rows aside does not keep back who has three. What is on its way to probe
-- already counts: it is due, or dispatched a moment ago.
CREATE FUNCTION safepoint.let_out_v1(b safepoint.breakers, p_lane text, p_room integer, p_now timestamptz) RETURNS integer LANGUAGE plpgsql
SET search_path = safepoint, pg_temp AS $$
DECLARE
    n integer := 0;
BEGIN
    IF b.state <> 'closed' THEN
        p_room := p_room - (SELECT count(*) FROM (SELECT FROM steps s WHERE s.status = 'ready' AND s.reason->>'code' = 'breaker' AND s.due_at < 'infinity'
            AND s.uses = b.name AND s.lane = p_lane AND s.due_at <= p_now + interval '10 s' AND s.reason->>'let_out' IS NOT NULL LIMIT p_room) x);
    END IF;
    IF p_room <= 0 THEN RETURN 0; END IF;
    WITH RECURSIVE tenants AS (
        (SELECT s.tenant_id FROM steps s WHERE s.status = 'ready' AND s.reason->>'code' = 'breaker' AND s.due_at < 'infinity' AND s.uses = b.name
            AND s.lane = p_lane ORDER BY s.tenant_id LIMIT 1)
        UNION ALL
        SELECT (SELECT s.tenant_id FROM steps s WHERE s.status = 'ready' AND s.reason->>'code' = 'breaker' AND s.due_at < 'infinity' AND s.uses = b.name
                   AND s.lane = p_lane AND s.tenant_id > t.tenant_id ORDER BY s.tenant_id LIMIT 1)
          FROM tenants t WHERE t.tenant_id IS NOT NULL
    ), found AS (
        SELECT c.*, row_number() OVER (PARTITION BY c.tenant_id ORDER BY c.priority DESC, c.deadline, c.ready_at) AS turn FROM tenants t CROSS JOIN LATERAL (
            SELECT s.run_id, s.generation, s.path, s.step_id, s.iteration, s.tenant_id, s.priority, s.deadline, s.ready_at FROM steps s
             WHERE s.status = 'ready' AND s.reason->>'code' = 'breaker' AND s.due_at < 'infinity' AND s.uses = b.name AND s.lane = p_lane
               AND s.tenant_id = t.tenant_id AND (b.state = 'closed' OR s.reason->>'let_out' IS NULL)
             ORDER BY s.priority DESC, s.deadline, s.ready_at LIMIT p_room) c
    ), locked AS (
        SELECT s.run_id, s.generation, s.path, s.step_id, s.iteration FROM (SELECT * FROM found ORDER BY turn, priority DESC, deadline, ready_at LIMIT p_room) f
          JOIN steps s USING (run_id, generation, path, step_id, iteration)
         WHERE s.status = 'ready' AND s.reason->>'code' = 'breaker' AND s.due_at < 'infinity' FOR NO KEY UPDATE OF s SKIP LOCKED
    )
    UPDATE steps s SET due_at = greatest(s.ready_at, p_now), dispatched_at = NULL,
           reason = CASE b.state WHEN 'closed' THEN NULL ELSE s.reason || jsonb_build_object('let_out', p_now) END
      FROM locked k WHERE (s.run_id, s.generation, s.path, s.step_id, s.iteration) = (k.run_id, k.generation, k.path, k.step_id, k.iteration);
    GET DIAGNOSTICS n = ROW_COUNT;
    RETURN n;
END $$;

-- A breaker's new state, with its row locked by the caller: the row, an event for each change, no probes of the round before, and a word to the relay.
CREATE FUNCTION safepoint.turn_breaker_v1(
    p_name text, p_state text, p_opened timestamptz, p_probe timestamptz, p_detail jsonb, p_actor text, p_why text, p_facts jsonb, p_anyway boolean DEFAULT false
) RETURNS boolean LANGUAGE plpgsql
SET search_path = safepoint, pg_temp AS $$
DECLARE
    before text := (SELECT state FROM breakers WHERE name = p_name);
    instant timestamptz := safepoint.now();
    turned boolean := before <> p_state OR p_anyway;
BEGIN
    UPDATE breakers SET state = p_state, opened_at = p_opened, next_probe_at = p_probe, detail = p_detail,
           changed_at = CASE WHEN turned THEN instant ELSE changed_at END WHERE name = p_name;
    IF NOT turned THEN RETURN false; END IF;
    DELETE FROM breaker_probes WHERE name = p_name;
    INSERT INTO breaker_events (name, tenant_id, before, after, actor, why, facts, at)
        SELECT name, tenant_id, before, p_state, p_actor, p_why, coalesce(p_facts, '{}'), instant FROM breakers WHERE name = p_name;
    DELETE FROM breaker_events WHERE name = p_name AND at < instant - interval '30 days';
    PERFORM pg_notify('safepoint_relay', '');
    RETURN true;
END $$;

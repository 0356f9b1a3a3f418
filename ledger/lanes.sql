-- What a lane lets through: the file's policy, and over it what a person has set, until when and why. Both are kept; the columns of `lanes` have what
-- holds now, so that whoever admits or claims reads one row. Every change is under that row's lock, has an event, and wakes the relay.

-- What a lane's bucket holds, by the limits that its row has.
CREATE FUNCTION safepoint.tokens_v1(l safepoint.lanes, p_now timestamptz) RETURNS double precision LANGUAGE sql STABLE
SET search_path = safepoint, pg_temp AS $$
    SELECT least(coalesce(l.burst, greatest(l.rate, 1)), l.tokens + l.rate * greatest(0, least(86400,
        extract(epoch FROM p_now - greatest(l.refilled_at, p_now - interval '1 day')))))
$$;

-- The columns from policy and overrides, with the row locked. A lane that gets its first rate begins with a full bucket, and keeps no more than it holds;
-- what has come in until now came in at the rate of before.
CREATE FUNCTION safepoint.refresh_lane_v1(p_lane text) RETURNS void LANGUAGE plpgsql
SET search_path = safepoint, pg_temp AS $$
DECLARE
    e jsonb;
    bucket double precision;
BEGIN
    SELECT x.policy || coalesce((SELECT jsonb_object_agg(o.key, o.value) FROM lane_overrides o WHERE o.lane = x.name), '{}') INTO e FROM lanes x WHERE x.name = p_lane;
    bucket := coalesce((e->>'burst')::double precision, greatest((e->>'rate')::double precision, 1));
    UPDATE lanes x SET rate = (e->>'rate')::double precision, burst = (e->>'burst')::double precision, in_flight = (e->>'in_flight')::integer,
           tenant_in_flight = (e->>'tenant_in_flight')::integer, "window" = (e->>'window')::integer, paused = coalesce((e->>'paused')::boolean, false),
           weights = coalesce(nullif(e->'weights', 'null'), '{}'), ordering = coalesce(e->>'order', 'priority'),
           stop_on_breaker = coalesce((e->>'stop_on_breaker')::boolean, true), inline_slice = coalesce((e->>'inline_slice')::double precision, 0),
           tokens = CASE WHEN x.rate IS NULL THEN coalesce(bucket, 0) ELSE least(tokens_v1(x, safepoint.now()), bucket) END, refilled_at = safepoint.now(),
           overridden_until = (SELECT min(until) FROM lane_overrides o WHERE o.lane = x.name), changed_at = safepoint.now()
     WHERE x.name = p_lane;
    PERFORM pg_notify('safepoint_relay', '');
END $$;

-- The file's word on one lane. Answers `added`, `changed` or `same`; overrides stand. With p_only_missing a lane that exists is left as it is.
CREATE FUNCTION safepoint.apply_lane_v1(p_lane text, p_policy jsonb, p_only_missing boolean, p_actor text, p_why text) RETURNS text LANGUAGE plpgsql
SET search_path = safepoint, pg_temp AS $$
DECLARE
    before jsonb;
    wanted jsonb := jsonb_strip_nulls(p_policy);
BEGIN
    INSERT INTO lanes (name, policy) VALUES (p_lane, wanted) ON CONFLICT (name) DO NOTHING;
    IF FOUND THEN
        PERFORM refresh_lane_v1(p_lane);
    ELSIF p_only_missing THEN
        RETURN 'same';
    ELSE
        SELECT policy INTO before FROM lanes WHERE name = p_lane FOR NO KEY UPDATE;
        IF before = wanted THEN RETURN 'same'; END IF;
        UPDATE lanes SET policy = wanted WHERE name = p_lane;
        PERFORM refresh_lane_v1(p_lane);
    END IF;
    INSERT INTO lane_events (lane, what, facts, actor, why, at)
        VALUES (p_lane, 'applied', jsonb_strip_nulls(jsonb_build_object('before', before, 'after', wanted)), p_actor, p_why, safepoint.now());
    RETURN CASE WHEN before IS NULL THEN 'added' ELSE 'changed' END;
END $$;

-- A person's word over the file's, until it is over (NULL: until it is lifted). Later words replace earlier ones key by key. False: no such lane.
CREATE FUNCTION safepoint.override_lane_v1(p_lane text, p_values jsonb, p_seconds double precision, p_actor text, p_why text) RETURNS boolean LANGUAGE plpgsql
SET search_path = safepoint, pg_temp AS $$
DECLARE
    instant timestamptz;
    ends timestamptz;
BEGIN
    PERFORM FROM lanes WHERE name = p_lane FOR NO KEY UPDATE;
    IF NOT FOUND THEN RETURN false; END IF;
    instant := safepoint.now();
    ends := instant + make_interval(secs => p_seconds);
    INSERT INTO lane_overrides (lane, key, value, until, actor, why, at)
        SELECT p_lane, v.key, v.value, ends, p_actor, p_why, instant FROM jsonb_each(p_values) AS v
        ON CONFLICT (lane, key) DO UPDATE SET value = excluded.value, until = excluded.until, actor = excluded.actor, why = excluded.why, at = excluded.at;
    INSERT INTO lane_events (lane, what, facts, actor, why, at)
        VALUES (p_lane, 'overridden', jsonb_strip_nulls(jsonb_build_object('values', p_values, 'until', ends)), p_actor, p_why, instant);
    PERFORM refresh_lane_v1(p_lane);
    RETURN true;
END $$;

-- Takes overrides back before their end: these keys, or all (NULL). Answers the keys that were overridden; NULL: no such lane.
CREATE FUNCTION safepoint.lift_overrides_v1(p_lane text, p_keys text[], p_actor text, p_why text) RETURNS text[] LANGUAGE plpgsql
SET search_path = safepoint, pg_temp AS $$
DECLARE
    lifted text[];
BEGIN
    PERFORM FROM lanes WHERE name = p_lane FOR NO KEY UPDATE;
    IF NOT FOUND THEN RETURN NULL; END IF;
    WITH gone AS (DELETE FROM lane_overrides WHERE lane = p_lane AND (p_keys IS NULL OR key = ANY (p_keys)) RETURNING key)
    SELECT coalesce(array_agg(key ORDER BY key), '{}') INTO lifted FROM gone;
    IF lifted <> '{}' THEN
        INSERT INTO lane_events (lane, what, facts, actor, why, at)
            VALUES (p_lane, 'lifted', jsonb_build_object('keys', lifted), p_actor, p_why, safepoint.now());
        PERFORM refresh_lane_v1(p_lane);
    END IF;
    RETURN lifted;
END $$;

-- The relay's part: overrides whose time is over. One read of a few rows while there are none; a lane that somebody holds comes next time.
CREATE FUNCTION safepoint.end_overrides_v1() RETURNS integer LANGUAGE plpgsql
SET search_path = safepoint, pg_temp AS $$
DECLARE
    l record;
    ended jsonb;
    n integer := 0;
BEGIN
    IF NOT EXISTS (SELECT FROM lanes WHERE overridden_until <= safepoint.now()) THEN RETURN 0; END IF;
    FOR l IN SELECT name FROM lanes WHERE overridden_until <= safepoint.now() ORDER BY name FOR NO KEY UPDATE SKIP LOCKED LOOP
        WITH gone AS (DELETE FROM lane_overrides WHERE lane = l.name AND until <= safepoint.now() RETURNING key, value)
        SELECT jsonb_object_agg(key, value) INTO ended FROM gone;
        INSERT INTO lane_events (lane, what, facts, actor, why, at)
            VALUES (l.name, 'over', jsonb_build_object('values', ended), 'relay', 'its time is over', safepoint.now());
        PERFORM refresh_lane_v1(l.name);
        n := n + 1;
    END LOOP;
    RETURN n;
END $$;

-- Whether what becomes ready on a lane waits to be admitted by the relay, and is never published by who has committed it.
CREATE FUNCTION safepoint.is_admitted_v1(p_lane text) RETURNS boolean LANGUAGE sql STABLE
SET search_path = safepoint, pg_temp AS $$
    SELECT coalesce((SELECT limited OR paused FROM lanes WHERE name = p_lane), false)
$$;

-- Turns that say nothing any more, and the audit of long ago. Called by the scan; SKIP LOCKED, so that it never waits for an admission (P2).
CREATE FUNCTION safepoint.tidy_lanes_v1() RETURNS void LANGUAGE sql
SET search_path = safepoint, pg_temp AS $$
    DELETE FROM lane_tenants WHERE (lane, tenant_id) IN (
        SELECT q.lane, q.tenant_id FROM lane_tenants q JOIN lanes l ON l.name = q.lane WHERE q.pass <= l.virtual - 1 LIMIT 1000 FOR UPDATE OF q SKIP LOCKED);
    DELETE FROM lane_events WHERE at < safepoint.now() - interval '400 days'
$$;

-- Retention (P40): what ended long ago goes, in small transactions, each run whole; a tombstone stays. Lock order: run, steps, effects, mailbox, outbox,
-- budget (P1), the runs in the order of their ids (P2). Nothing here locks what a claim or a commit of a live run needs.

-- Why a run stays; NULL when nothing keeps it. Asked under the run's lock: a final run changes only by being reopened. With p_ahead a parent that will be
-- pruned before its child does not keep it.
CREATE FUNCTION safepoint.kept_v1(r safepoint.runs, p_older timestamptz, p_failed timestamptz, p_unread boolean, p_ahead boolean) RETURNS text LANGUAGE plpgsql STABLE
SET search_path = safepoint, pg_temp AS $$
BEGIN
    RETURN CASE
        WHEN r.finished_at IS NULL THEN 'live'
        WHEN r.finished_at >= CASE r.status WHEN 'failed' THEN p_failed ELSE p_older END THEN 'recent'
        WHEN EXISTS (SELECT FROM effects e WHERE e.run_id = r.run_id AND e.status IN ('pending', 'executing', 'unknown')) THEN 'effects'
        WHEN EXISTS (SELECT FROM steps s WHERE s.run_id = r.run_id AND s.status IN ('ready', 'running', 'waiting', 'held')) THEN 'steps'
        -- A child goes after its parent: the parent may be live, and its result may hold what the child has stored.
        WHEN EXISTS (SELECT FROM runs p WHERE p.run_id = r.parent_run_id AND (NOT p_ahead OR kept_v1(p, p_older, p_failed, p_unread, true) IS NOT NULL)) THEN 'parent'
        WHEN EXISTS (SELECT FROM runs c WHERE c.parent_run_id = r.run_id AND c.finished_at IS NULL) THEN 'children'
        WHEN EXISTS (SELECT FROM outbox_messages o WHERE o.target = r.run_id) OR EXISTS (SELECT FROM outbox_messages o WHERE o.run_id = r.run_id) THEN 'outbox'
        WHEN NOT p_unread AND EXISTS (SELECT FROM mailbox m WHERE m.run_id = r.run_id AND m.consumed_at IS NULL) THEN 'mail'
    END;
END $$;

-- One batch: looks at the next runs that ended before the cut-offs, after the place (p_at, p_run), and removes those that nothing keeps. Answers how many
-- it has looked at (0: that was the last), the place to go on from, what is gone by tenant, flow and status, why others stay, and the rows removed.
CREATE FUNCTION safepoint.prune_v1(
    p_older timestamptz, p_failed timestamptz, p_tenant text, p_unread boolean, p_at timestamptz, p_run uuid, p_limit integer
) RETURNS TABLE (seen integer, at timestamptz, run uuid, pruned integer, gone jsonb, kept jsonb, removed bigint) LANGUAGE plpgsql
SET search_path = safepoint, pg_temp AS $$
#variable_conflict use_column
DECLARE
    found uuid[];
    chosen uuid[];
    shared uuid[];
    n bigint;
    instant timestamptz := safepoint.now();
BEGIN
    IF p_limit NOT BETWEEN 1 AND 100 THEN
        RAISE EXCEPTION 'limit: % is no size of a batch; accepted is 1 to 100', p_limit USING ERRCODE = 'invalid_parameter_value';
    END IF;
    -- One batch at a time in the whole ledger: two that remove the last users of a budget at once would both leave it.
    PERFORM pg_advisory_xact_lock(hashtext('safepoint.prune'));
    -- By runs_finished. At most as many runs as have 20,000 events together, and at least one: a batch stays short.
    SELECT count(*), (array_agg(x.finished_at ORDER BY x.finished_at DESC, x.run_id DESC))[1], (array_agg(x.run_id ORDER BY x.finished_at DESC, x.run_id DESC))[1],
           array_agg(x.run_id)
      INTO seen, at, run, found
      FROM (SELECT y.run_id, y.finished_at, y.event_seq, sum(y.event_seq) OVER (ORDER BY y.finished_at, y.run_id) AS total FROM (
                SELECT r.run_id, r.finished_at, r.event_seq FROM runs r
                 WHERE r.finished_at < greatest(p_older, p_failed) AND (r.finished_at, r.run_id) > (p_at, p_run) AND (p_tenant IS NULL OR r.tenant_id = p_tenant)
                 ORDER BY r.finished_at, r.run_id LIMIT p_limit) y) x
     WHERE x.total <= 20000 OR x.total = x.event_seq;
    pruned := 0; removed := 0; gone := '[]'; kept := '{}';
    IF seen = 0 THEN RETURN NEXT; RETURN; END IF;
    -- P1: lock, then look. Who holds one of them (a person who reopens it) keeps it; the next prune comes by again.
    chosen := ARRAY(SELECT r.run_id FROM runs r WHERE r.run_id = ANY (found) ORDER BY r.run_id FOR UPDATE SKIP LOCKED);
    WITH judged AS MATERIALIZED (
        SELECT r.run_id, r.budget_id, kept_v1(r, p_older, p_failed, p_unread, false) AS why FROM runs r WHERE r.run_id = ANY (chosen)
    )
    SELECT (SELECT array_agg(j.run_id) FROM judged j WHERE j.why IS NULL), (SELECT array_agg(DISTINCT j.budget_id) FROM judged j WHERE j.why IS NULL),
           (SELECT coalesce(jsonb_object_agg(y.why, y.n), '{}') FROM (SELECT j.why, count(*) AS n FROM judged j WHERE j.why IS NOT NULL GROUP BY 1) y)
      INTO found, shared, kept;
    IF found IS NULL THEN RETURN NEXT; RETURN; END IF;
    SELECT jsonb_agg(jsonb_build_object('tenant', x.tenant_id, 'flow', x.flow, 'status', x.status, 'runs', x.n)) INTO gone FROM (
        SELECT r.tenant_id, r.flow, r.status, count(*) AS n FROM runs r WHERE r.run_id = ANY (found) GROUP BY 1, 2, 3) x;
    INSERT INTO pruned_runs (run_id, tenant_id, flow, status, finished_at, pruned_at)
        SELECT r.run_id, r.tenant_id, r.flow, r.status, r.finished_at, instant FROM runs r WHERE r.run_id = ANY (found)
        ON CONFLICT DO NOTHING;
    INSERT INTO pruned_effects (idempotency_key, tenant_id, run_id)
        SELECT e.idempotency_key, e.tenant_id, e.run_id FROM effects e WHERE e.run_id = ANY (found)
        ON CONFLICT DO NOTHING;
    -- All of a table at once; what cascades from the runs finds nothing more.
    DELETE FROM steps WHERE run_id = ANY (found);
    GET DIAGNOSTICS n = ROW_COUNT; removed := removed + n;
    DELETE FROM once WHERE run_id = ANY (found);
    GET DIAGNOSTICS n = ROW_COUNT; removed := removed + n;
    DELETE FROM effects WHERE run_id = ANY (found);
    GET DIAGNOSTICS n = ROW_COUNT; removed := removed + n;
    DELETE FROM mailbox WHERE run_id = ANY (found);
    GET DIAGNOSTICS n = ROW_COUNT; removed := removed + n;
    DELETE FROM events WHERE run_id = ANY (found);
    GET DIAGNOSTICS n = ROW_COUNT; removed := removed + n;
    DELETE FROM artifact_uses WHERE run_id = ANY (found);
    GET DIAGNOSTICS n = ROW_COUNT; removed := removed + n;
    DELETE FROM runs WHERE run_id = ANY (found);
    GET DIAGNOSTICS pruned = ROW_COUNT; removed := removed + pruned;
    DELETE FROM budgets b WHERE b.budget_id = ANY (shared) AND NOT EXISTS (SELECT FROM runs r WHERE r.budget_id = b.budget_id);
    GET DIAGNOSTICS n = ROW_COUNT; removed := removed + n;
    RETURN NEXT;
END $$;

-- Keys of runs that are gone, by the primary key. A key is the promise that its input runs once: it goes only when somebody says after how long.
CREATE FUNCTION safepoint.prune_keys_v1(p_before timestamptz, p_tenant text, p_at_tenant text, p_at_key text, p_limit integer)
RETURNS TABLE (seen integer, tenant text, key text, removed integer) LANGUAGE plpgsql
SET search_path = safepoint, pg_temp AS $$
#variable_conflict use_column
BEGIN
    SELECT count(*), (array_agg(x.tenant_id ORDER BY x.tenant_id DESC, x.key DESC))[1], (array_agg(x.key ORDER BY x.tenant_id DESC, x.key DESC))[1]
      INTO seen, tenant, key
      FROM (SELECT k.tenant_id, k.key FROM idempotency_keys k WHERE (k.tenant_id, k.key) > (p_at_tenant, p_at_key) AND (p_tenant IS NULL OR k.tenant_id = p_tenant)
             ORDER BY k.tenant_id, k.key LIMIT p_limit) x;
    DELETE FROM idempotency_keys k USING (
        SELECT o.tenant_id, o.key FROM idempotency_keys o
         WHERE (o.tenant_id, o.key) > (p_at_tenant, p_at_key) AND (o.tenant_id, o.key) <= (prune_keys_v1.tenant, prune_keys_v1.key)
           AND (p_tenant IS NULL OR o.tenant_id = p_tenant) AND o.created_at < p_before AND NOT EXISTS (SELECT FROM runs r WHERE r.run_id = o.run_id)
         ORDER BY o.tenant_id COLLATE "C", o.key COLLATE "C" FOR UPDATE SKIP LOCKED) x
     WHERE k.tenant_id = x.tenant_id AND k.key = x.key;
    GET DIAGNOSTICS removed = ROW_COUNT;
    RETURN NEXT;
END $$;

-- Tombstones, with the keys of their effects; by pruned_runs_age.
CREATE FUNCTION safepoint.prune_tombstones_v1(p_before timestamptz, p_tenant text, p_limit integer) RETURNS integer LANGUAGE plpgsql
SET search_path = safepoint, pg_temp AS $$
DECLARE
    n integer;
BEGIN
    DELETE FROM pruned_runs WHERE run_id IN (
        SELECT p.run_id FROM (SELECT o.run_id FROM pruned_runs o WHERE o.pruned_at < p_before AND (p_tenant IS NULL OR o.tenant_id = p_tenant)
                               ORDER BY o.pruned_at LIMIT p_limit) x JOIN pruned_runs p USING (run_id) ORDER BY p.run_id FOR UPDATE OF p SKIP LOCKED);
    GET DIAGNOSTICS n = ROW_COUNT;
    RETURN n;
END $$;

-- What breakers and lanes have been through, but for the last of each, and nodes that have stopped, or have not been heard of, for that long.
CREATE FUNCTION safepoint.prune_records_v1(p_before timestamptz, p_limit integer) RETURNS TABLE (breaker_events integer, lane_events integer, nodes integer)
LANGUAGE plpgsql
SET search_path = safepoint, pg_temp AS $$
#variable_conflict use_column
BEGIN
    DELETE FROM breaker_events WHERE id IN (
        SELECT e.id FROM breaker_events e WHERE e.at < p_before AND EXISTS (SELECT FROM breaker_events l WHERE l.name = e.name AND l.id > e.id)
         ORDER BY e.id LIMIT p_limit FOR UPDATE SKIP LOCKED);
    GET DIAGNOSTICS breaker_events = ROW_COUNT;
    DELETE FROM lane_events WHERE id IN (
        SELECT e.id FROM lane_events e WHERE e.at < p_before AND EXISTS (SELECT FROM lane_events l WHERE l.lane = e.lane AND l.id > e.id)
         ORDER BY e.id LIMIT p_limit FOR UPDATE SKIP LOCKED);
    GET DIAGNOSTICS lane_events = ROW_COUNT;
    -- A step that such a node still seems to run is the scan's to take over, which looks at the node's row.
    DELETE FROM nodes WHERE node_id IN (
        SELECT w.node_id FROM nodes w WHERE coalesce(w.stopped_at, w.lease_until) < p_before
           AND NOT EXISTS (SELECT FROM steps s WHERE s.owner = w.node_id AND s.status = 'running')
         ORDER BY w.node_id LIMIT p_limit FOR UPDATE SKIP LOCKED);
    GET DIAGNOSTICS nodes = ROW_COUNT;
    RETURN NEXT;
END $$;

-- Artifacts that no run refers to and nobody has touched since p_before, by the primary key: the row goes, and the blob is noted as garbage (row first,
-- blob later). Looked at again under the lock: a commit that refers to it meanwhile has touched it, or waits for this lock and then makes the row anew.
CREATE FUNCTION safepoint.prune_artifacts_v1(p_before timestamptz, p_tenant text, p_at_tenant text, p_at_sha256 bytea, p_limit integer)
RETURNS TABLE (seen integer, tenant text, sha256 bytea, removed integer) LANGUAGE plpgsql
SET search_path = safepoint, pg_temp AS $$
#variable_conflict use_column
DECLARE
    x record;
    instant timestamptz := safepoint.now();
BEGIN
    SELECT count(*), (array_agg(y.tenant_id ORDER BY y.tenant_id DESC, y.sha256 DESC))[1], (array_agg(y.sha256 ORDER BY y.tenant_id DESC, y.sha256 DESC))[1]
      INTO seen, tenant, sha256
      FROM (SELECT a.tenant_id, a.sha256 FROM artifacts a WHERE (a.tenant_id, a.sha256) > (p_at_tenant, p_at_sha256) AND (p_tenant IS NULL OR a.tenant_id = p_tenant)
             ORDER BY a.tenant_id, a.sha256 LIMIT p_limit) y;
    removed := 0;
    FOR x IN SELECT a.tenant_id, a.sha256 FROM artifacts a
              WHERE (a.tenant_id, a.sha256) > (p_at_tenant, p_at_sha256) AND (a.tenant_id, a.sha256) <= (prune_artifacts_v1.tenant, prune_artifacts_v1.sha256)
                AND (p_tenant IS NULL OR a.tenant_id = p_tenant) AND a.touched_at < p_before
                AND NOT EXISTS (SELECT FROM artifact_uses u WHERE u.tenant_id = a.tenant_id AND u.sha256 = a.sha256)
              ORDER BY a.sha256, a.tenant_id FOR UPDATE SKIP LOCKED LOOP
        DELETE FROM artifacts a WHERE a.tenant_id = x.tenant_id AND a.sha256 = x.sha256 AND a.touched_at < p_before
           AND NOT EXISTS (SELECT FROM artifact_uses u WHERE u.tenant_id = a.tenant_id AND u.sha256 = a.sha256);
        CONTINUE WHEN NOT FOUND;
        removed := removed + 1;
        INSERT INTO artifact_garbage (tenant_id, sha256, since) VALUES (x.tenant_id, x.sha256, instant) ON CONFLICT DO NOTHING;
    END LOOP;
    RETURN NEXT;
END $$;

-- Which of the named contents a tenant has, as a run's list of artifacts has them: what its input says, and what the client names that has sealed it.
-- FOR KEY SHARE: a commit that touches them goes on beside an app's open transaction, what removes them does not.
CREATE FUNCTION safepoint.named_artifacts_v1(p_tenant text, p_input bytea, p_encoding text, p_named text[]) RETURNS jsonb LANGUAGE plpgsql
SET search_path = safepoint, pg_temp AS $$
BEGIN
    IF p_encoding = 'json' THEN
        p_named := p_named || ARRAY(SELECT m[1] FROM regexp_matches(convert_from(p_input, 'UTF8'), '"sha256"\s*:\s*"([0-9a-f]{64})"', 'g') AS m);
    END IF;
    RETURN (SELECT coalesce(jsonb_agg(jsonb_build_object('sha256', encode(x.sha256, 'hex'), 'size', x.size, 'media_type', x.media_type, 'name', NULL)), '[]')
              FROM (SELECT a.sha256, a.size, a.media_type FROM artifacts a
                     WHERE a.tenant_id = p_tenant AND a.sha256 = ANY (ARRAY(SELECT decode(n, 'hex') FROM unnest(p_named) AS n WHERE n ~ '^[0-9a-f]{64}$'))
                     ORDER BY a.sha256 FOR KEY SHARE) x);
END $$;

-- A live run is handed artifacts by a signal: it refers to them from now on.
CREATE FUNCTION safepoint.hand_artifacts_v1(p_run uuid, p_named text[]) RETURNS void LANGUAGE plpgsql
SET search_path = safepoint, pg_temp AS $$
DECLARE
    r runs%ROWTYPE;
BEGIN
    SELECT * INTO r FROM runs WHERE run_id = p_run FOR NO KEY UPDATE;
    IF r.finished_at IS NULL AND r.run_id IS NOT NULL THEN
        UPDATE runs SET artifacts = artifacts || named_artifacts_v1(r.tenant_id, NULL, NULL, p_named) WHERE run_id = p_run;
    END IF;
END $$;

-- Counts who refers to what: the new entries of a run's list of artifacts.
CREATE FUNCTION safepoint.use_artifacts() RETURNS trigger LANGUAGE plpgsql
SET search_path = safepoint, pg_temp AS $$
DECLARE
    known integer := 0;
BEGIN
    IF jsonb_typeof(NEW.artifacts) <> 'array' THEN RETURN NULL; END IF;
    IF TG_OP = 'UPDATE' AND jsonb_typeof(OLD.artifacts) = 'array' THEN known := jsonb_array_length(OLD.artifacts); END IF;
    INSERT INTO artifact_uses (tenant_id, sha256, run_id)
        SELECT DISTINCT NEW.tenant_id, decode(a->>'sha256', 'hex'), NEW.run_id FROM jsonb_array_elements(NEW.artifacts) WITH ORDINALITY AS e(a, o)
         WHERE o > known AND a->>'sha256' ~ '^[0-9a-f]{64}$'
        ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$;

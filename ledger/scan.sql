-- The orphan scan's two statements. The first finds, for the pure verdict; the second does what needs no verdict.

-- Facts about running steps that may have lost their executor; empty when another scan holds the lock or has just been (a beat more or less
-- changes nothing). P20: after a time without a ledger (no scan, no beat for a third of a lease, another server start or timeline) nothing is
-- taken over for one lease: `frozen`.
CREATE FUNCTION safepoint.orphans_v1(p_by text, p_interval double precision, p_lease double precision, p_limit integer) RETURNS TABLE (
    ran boolean, frozen boolean, run_id uuid, generation integer, path text, step_id text, iteration integer, token uuid, owner text,
    lease_over boolean, lock_missing boolean, stopped boolean, expired boolean, unnamed boolean, neighbours integer
) LANGUAGE plpgsql
SET search_path = safepoint, pg_temp AS $$
#variable_conflict use_column
DECLARE
    i identity%ROWTYPE;
    instant timestamptz;
    alive timestamptz;
    line text;
BEGIN
    ran := false; frozen := true;
    IF NOT pg_try_advisory_xact_lock(hashtext('safepoint.scan')) THEN RETURN NEXT; RETURN; END IF;
    instant := safepoint.now();
    SELECT * INTO i FROM identity;
    IF i.last_scan_at > instant - make_interval(secs => p_interval * 0.25) AND i.server_started = pg_postmaster_start_time() THEN
        RETURN NEXT; RETURN;
    END IF;
    SELECT max(n.beat_at) INTO alive FROM nodes n WHERE n.stopped_at IS NULL;
    line := CASE WHEN pg_is_in_recovery() THEN i.timeline ELSE substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) END;
    IF i.last_scan_at IS NOT NULL AND (i.server_started IS DISTINCT FROM pg_postmaster_start_time() OR i.timeline IS DISTINCT FROM line
           -- With a short lease, two of the scan's own intervals: else a scan that comes seldom would be a gap each time.
           OR greatest(i.last_scan_at, alive) < instant - make_interval(secs => greatest(p_lease / 3, p_interval * 2))) THEN
        i.takeover_after := instant + make_interval(secs => p_lease);
    END IF;
    UPDATE identity SET last_scan_at = instant, last_scan_by = p_by, server_started = pg_postmaster_start_time(), takeover_after = i.takeover_after,
           -- P8: another timeline is a promoted standby, which may have lost commits.
           incarnation = CASE WHEN i.timeline IS NOT NULL AND i.timeline <> line THEN gen_random_uuid() ELSE incarnation END,
           reason = CASE WHEN i.timeline IS NOT NULL AND i.timeline <> line THEN 'timeline ' || line ELSE reason END, timeline = line;
    IF i.timeline IS NOT NULL AND i.timeline <> line THEN PERFORM distrust_effects_v1('timeline ' || line); END IF;
    ran := true; frozen := i.takeover_after > instant;
    RETURN QUERY
        WITH suspects AS MATERIALIZED (
            SELECT n.node_id, n.lease_until <= instant AS lease_over, n.stopped_at IS NOT NULL AS stopped,
                   n.lock_key IS NOT NULL AND n.server_started = pg_postmaster_start_time() AND NOT has_lock_v1(n.lock_key) AS lock_missing,
                   n.previous_beat_at, n.active || n.previous_active AS named
              FROM nodes n WHERE n.node_id IN (SELECT DISTINCT s.owner FROM steps s WHERE s.status = 'running')
        )
        SELECT true, i.takeover_after > instant, s.run_id, s.generation, s.path, s.step_id, s.iteration, s.claim_token, s.owner,
               coalesce(n.lease_over, true), coalesce(n.lock_missing, false), coalesce(n.stopped, true), s.expires_at <= instant,
               coalesce(s.claimed_at < n.previous_beat_at AND NOT s.claim_token = ANY (n.named), false),
               (count(*) OVER (PARTITION BY s.owner))::integer - 1
          FROM steps s LEFT JOIN suspects n ON n.node_id = s.owner
         WHERE s.status = 'running' AND (n.node_id IS NULL OR n.lease_over OR n.stopped OR n.lock_missing OR s.expires_at <= instant
               OR s.claimed_at < n.previous_beat_at AND NOT s.claim_token = ANY (n.named))
         ORDER BY s.owner, s.run_id LIMIT p_limit;
    IF NOT FOUND THEN RETURN NEXT; END IF;
END $$;

CREATE FUNCTION safepoint.chores_v1(p_limit integer, p_cancel_grace double precision) RETURNS TABLE (
    fired integer, ended integer, revived integer, delivered integer, undelivered integer, unsettled integer
) LANGUAGE plpgsql
SET search_path = safepoint, pg_temp SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    instant timestamptz := safepoint.now();
BEGIN
    fired := fire_due_v1(p_limit);
    ended := expire_runs_v1(p_limit, p_cancel_grace);
    -- A stalled run is a bug's work, and looking for one costs a pass over the live runs: now and then is enough, and of very many a part at a time.
    UPDATE identity SET stalled_checked_at = instant
     WHERE stalled_checked_at < instant - CASE stalled_at WHEN '-infinity' THEN interval '30 s' ELSE interval '5 s' END;
    revived := CASE WHEN FOUND THEN revive_stalled_v1(p_limit) ELSE 0 END;
    delivered := deliver_v1(p_limit);
    -- In the indexes' order (steps_due, steps_queue), or a planner that expects few rows reads all that is open.
    SELECT count(*) FILTER (WHERE x.dispatched_at IS NULL), count(*) FILTER (WHERE x.dispatched_at IS NOT NULL) INTO undelivered, unsettled FROM (
        SELECT s.dispatched_at FROM lanes l JOIN LATERAL (
            (SELECT dispatched_at FROM steps s WHERE s.status = 'ready' AND s.lane = l.name AND s.queued = 0 AND s.due_at <= instant
              ORDER BY s.lane, s.due_at LIMIT p_limit)
            UNION ALL
            (SELECT dispatched_at FROM steps s WHERE s.status = 'ready' AND s.lane = l.name AND s.queued > 0 AND s.due_at < 'infinity'
              ORDER BY s.lane, s.tenant_id LIMIT p_limit)) s ON true) x;
    PERFORM tidy_lanes_v1();
    RETURN NEXT;
END $$;

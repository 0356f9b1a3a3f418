-- P18: anything that speaks SQL enqueues in its own transaction. The caller makes the run id and may repeat the call with it.
-- Answers the run id that stands: an equal key with equal input gives the first one; other input raises SP001.
CREATE FUNCTION safepoint.enqueue(
    flow text, input jsonb, tenant text DEFAULT 'default', key text DEFAULT NULL, version text DEFAULT NULL,
    deadline timestamptz DEFAULT NULL, budget jsonb DEFAULT '{}', priority integer DEFAULT 0, tags jsonb DEFAULT '{}',
    conversation text DEFAULT NULL, start_at timestamptz DEFAULT NULL, versions jsonb DEFAULT '{}', run_id uuid DEFAULT NULL,
    raw bytea DEFAULT NULL, encoding text DEFAULT 'json', hash bytea DEFAULT NULL
) RETURNS uuid LANGUAGE plpgsql
SET search_path = safepoint, pg_temp AS $$
DECLARE
    id uuid := coalesce(enqueue.run_id, gen_random_uuid());
    data bytea := coalesce(enqueue.raw, convert_to(enqueue.input::text, 'UTF8'));
    digest bytea := coalesce(enqueue.hash, sha256(convert_to(enqueue.input::text, 'UTF8')));
    owner idempotency_keys%ROWTYPE;
    served text := enqueue.version;
    answer uuid;
BEGIN
    IF enqueue.flow IS NULL OR enqueue.flow = '' THEN
        RAISE EXCEPTION 'flow: a name is required' USING ERRCODE = 'SP002';
    END IF;
    IF served IS NULL THEN
        SELECT f.version INTO served FROM flows f WHERE f.name = enqueue.flow ORDER BY f.registered_at DESC LIMIT 1;
        IF served IS NULL THEN
            RAISE EXCEPTION 'flow %: no worker has served it yet; name its version, or start a worker that has it', enqueue.flow
                USING ERRCODE = 'SP003';
        END IF;
    END IF;
    IF enqueue.key IS NOT NULL THEN
        -- Waits for the first writer of the key and then sees its row.
        INSERT INTO idempotency_keys AS k (tenant_id, key, run_id, flow, input_hash, created_at)
            VALUES (enqueue.tenant, enqueue.key, id, enqueue.flow, digest, now())
            ON CONFLICT ON CONSTRAINT idempotency_keys_pkey DO UPDATE SET key = k.key RETURNING * INTO owner;
        IF owner.flow <> enqueue.flow OR owner.input_hash <> digest THEN
            RAISE EXCEPTION 'key % belongs to run % with another input', enqueue.key, owner.run_id
                USING ERRCODE = 'SP001', DETAIL = owner.run_id::text;
        END IF;
        IF owner.run_id <> id THEN RETURN owner.run_id; END IF;
    END IF;
    answer := create_run_v1(id, enqueue.tenant, enqueue.flow, served, data, enqueue.encoding, digest, enqueue.deadline,
        enqueue.budget, enqueue.priority, enqueue.tags, enqueue.conversation, enqueue.start_at, enqueue.versions, NULL, NULL);
    -- P17: one wake-up for the transaction; PostgreSQL folds equal notifications.
    PERFORM pg_notify('safepoint_relay', '');
    RETURN answer;
END $$;

-- The run and its @start#1 step (P16); a repeat with the same id changes nothing.
CREATE FUNCTION safepoint.create_run_v1(
    p_id uuid, p_tenant text, p_flow text, p_version text, p_input bytea, p_encoding text, p_hash bytea, p_deadline timestamptz,
    p_budget jsonb, p_priority integer, p_tags jsonb, p_conversation text, p_start_at timestamptz, p_versions jsonb,
    p_parent uuid, p_parent_key text
) RETURNS uuid LANGUAGE plpgsql
SET search_path = safepoint, pg_temp AS $$
DECLARE
    instant timestamptz := now();
    ready timestamptz := greatest(instant, coalesce(p_start_at, instant));
BEGIN
    INSERT INTO runs (run_id, tenant_id, conversation_id, flow, priority, deadline, start_at, input, input_encoding, input_hash, budget,
                      workflow_version, prompt_version, tool_schema_version, model_policy_version, index_version, versions, tags,
                      parent_run_id, parent_key, created_at, updated_at, event_seq)
        VALUES (p_id, p_tenant, p_conversation, p_flow, p_priority, p_deadline, p_start_at, p_input, p_encoding, p_hash, coalesce(p_budget, '{}'),
                p_version, p_versions->>'prompt', p_versions->>'tool_schema', p_versions->>'model_policy', p_versions->>'index',
                coalesce(p_versions, '{}'), coalesce(p_tags, '{}'), p_parent, p_parent_key, instant, instant, 1)
        ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN RETURN p_id; END IF;
    INSERT INTO steps (run_id, generation, path, step_id, iteration, tenant_id, kind, name, status, lane, home_lane, due_at, ready_at, created_at)
        VALUES (p_id, 1, '', '@start', 1, p_tenant, 'start', p_flow, 'ready', 'online', 'online', ready, ready, instant);
    INSERT INTO events (run_id, seq, tenant_id, type, data, at)
        VALUES (p_id, 1, p_tenant, 'run.queued', jsonb_build_object('flow', p_flow, 'version', p_version), instant);
    RETURN p_id;
END $$;

-- Accepting runs (P18): one function, from anything that speaks SQL, in the transaction that is open there. Nothing here knows a broker.
-- These names say safepoint.now(): a bare now() is pg_catalog's, the start of the transaction, which may lie long back in an app's own.

-- What a client asks for: times may be instants or seconds from now, by the ledger's clock.
CREATE TYPE safepoint.enqueue_request_v1 AS (
    n integer, run_id uuid, flow text, version text, versions jsonb, input json, input_base64 text, hash text, encoding text, tenant text, key text,
    deadline timestamptz, deadline_in double precision, start_at timestamptz, start_in double precision, budget jsonb, priority integer, tags jsonb,
    conversation text, artifacts text[]
);

-- A run as it is inserted.
CREATE TYPE safepoint.new_run_v1 AS (
    n integer, run_id uuid, tenant text, flow text, version text, versions jsonb, input bytea, encoding text, hash bytea, key text,
    deadline timestamptz, start_at timestamptz, budget jsonb, priority integer, tags jsonb, conversation text, parent uuid, parent_key text,
    artifacts text[]
);

-- The text that a JSON document is hashed by. PostgreSQL has ordered the keys of a jsonb and decoded its strings already; what is left is
-- that 1, 1.0 and 10e-1 are one number: outside of strings, which the expression passes over, zeros that end a fraction go.
CREATE FUNCTION safepoint.canonical_v1(p_document jsonb) RETURNS text LANGUAGE plpgsql IMMUTABLE
SET search_path = safepoint, pg_temp AS $$
BEGIN
    RETURN regexp_replace(p_document::text, '("(?:[^"\\]|\\.)*")|(\.[0-9]*[1-9])0+(?![0-9])|\.0+(?![0-9])', '\1\2', 'g');
END $$;

-- An id that sorts by time, for callers that make none.
CREATE FUNCTION safepoint.run_id_v1(instant timestamptz) RETURNS uuid LANGUAGE plpgsql VOLATILE
SET search_path = safepoint, pg_temp AS $$
BEGIN
    RETURN encode(set_bit(set_bit(overlay(uuid_send(gen_random_uuid())
        PLACING substring(int8send((extract(epoch FROM instant) * 1000)::bigint) FROM 3) FROM 1 FOR 6), 52, 1), 53, 1), 'hex')::uuid;
END $$;

-- Which ledger this is, on which server: a copy of a database has the incarnation of its original, but is another place.
CREATE FUNCTION safepoint.place_v1() RETURNS text LANGUAGE plpgsql STABLE
SET search_path = safepoint, pg_temp AS $$
BEGIN
    RETURN (SELECT concat_ws('/', i.incarnation, d.oid, extract(epoch FROM pg_postmaster_start_time()))
              FROM identity i, pg_database d WHERE d.datname = current_database());
END $$;

-- What is wrong with a request, beginning with the field's name. In two parts: an expression costs its whole length once a transaction, and most
-- requests say nothing that the second one looks at.
CREATE FUNCTION safepoint.enqueue_fault_v1(x safepoint.enqueue_request_v1) RETURNS text LANGUAGE plpgsql IMMUTABLE
SET search_path = safepoint, pg_temp AS $$
DECLARE
    fault text;
BEGIN
    fault := CASE
        WHEN coalesce(x.flow, '') = '' THEN 'flow: a name is required'
        WHEN x.input_base64 IS NULL AND coalesce(json_typeof(x.input), '') <> 'object'
            THEN 'input: accepted is an object of named arguments, as in {"alert": {}}'
        WHEN coalesce(x.tenant, '') = '' OR octet_length(x.tenant) > 200 THEN 'tenant: accepted is a text of 1 to 200 bytes'
        WHEN x.key = '' OR octet_length(x.key) > 1000 THEN 'key: accepted is a text of 1 to 1000 bytes'
        WHEN x.priority < 0 THEN 'priority: accepted is a whole number that is not negative'
        END;
    IF fault IS NOT NULL OR x.budget IS NULL AND x.tags IS NULL AND x.deadline IS NULL AND x.start_at IS NULL AND x.versions IS NULL THEN
        RETURN fault;
    END IF;
    RETURN CASE
        WHEN x.budget <> '{}' AND (jsonb_typeof(x.budget) <> 'object' OR x.budget - '{tokens,usd,retries}'::text[] <> '{}'
            OR x.budget->>'tokens' !~ '^[0-9]{1,18}$' OR x.budget->>'retries' !~ '^[0-9]{1,9}$' OR x.budget->>'usd' !~ '^[0-9]{1,12}(\.[0-9]+)?$')
            THEN 'budget: accepted are whole numbers for tokens and retries, a number for usd, none of them negative'
        WHEN x.tags <> '{}' AND (jsonb_typeof(x.tags) <> 'object' OR jsonb_path_exists(x.tags, '$.* ? (@.type() != "string")'))
            THEN 'tags: accepted are texts by text, as in {"team": "sre"}'
        WHEN x.deadline NOT BETWEEN '0001-01-02' AND '9999-12-30' THEN 'deadline: accepted is an instant up to the year 9999'
        WHEN x.start_at NOT BETWEEN '0001-01-02' AND '9999-12-30' THEN 'start_at: accepted is an instant up to the year 9999'
        WHEN jsonb_typeof(x.versions) <> 'object' THEN 'versions: accepted is an object'
        END;
END $$;

-- Accepts the runs of a JSON array. Answers a row for each: `accepted`, with the id of the run that stands (its key's first one, or this one),
-- or why not: `conflict` (the key's run had another input), `unknown` (the flow), `bad` (detail names the field), `taken` (the id is another
-- run's), `elsewhere` (this is not the ledger that the caller means). A single request that is refused has written nothing, and the transaction
-- it is in goes on; of several requests a refusal is raised, so that no part of them stays.
-- Lock order: keys in byte order, then the new rows. A key waits for its first writer and sees it, in whichever transaction that is.
-- SECURITY DEFINER: an app's role needs USAGE on the schema and EXECUTE on this function, and no right on any table.
CREATE FUNCTION safepoint.enqueue_v1(p_requests json, p_ledger text DEFAULT NULL)
RETURNS TABLE (n integer, run_id uuid, verdict text, detail text) LANGUAGE plpgsql SECURITY DEFINER
SET search_path = safepoint, pg_temp AS $$
#variable_conflict use_column
DECLARE
    asked enqueue_request_v1;
    served flows;
    rows new_run_v1[] := '{}';
    making new_run_v1[];
    one new_run_v1;
    fresh uuid[];
    document text;
    has_keys boolean := false;
    instant timestamptz := safepoint.now();
BEGIN
    IF p_ledger IS NOT NULL THEN
        detail := place_v1();
        IF p_ledger <> detail THEN
            verdict := 'elsewhere'; n := 0;
            RETURN NEXT; RETURN;
        END IF;
    END IF;
    FOR asked IN SELECT * FROM json_populate_recordset(NULL::enqueue_request_v1, p_requests) LOOP
        detail := enqueue_fault_v1(asked);
        verdict := CASE WHEN detail IS NOT NULL THEN 'bad' END;
        IF detail IS NULL AND asked.version IS NULL AND served.name IS DISTINCT FROM asked.flow THEN
            SELECT f.* INTO served FROM flows f WHERE f.name = asked.flow LIMIT 1;
            IF NOT FOUND THEN
                verdict := 'unknown'; detail := asked.flow;
            ELSIF EXISTS (SELECT FROM flows f WHERE f.name = asked.flow AND f.version <> served.version) THEN
                -- A version that a live worker serves before others, then what came last.
                SELECT f.* INTO served FROM flows f WHERE f.name = asked.flow
                 ORDER BY EXISTS (SELECT FROM nodes w WHERE w.stopped_at IS NULL AND w.lease_until > instant
                                    AND f.name || '@' || f.version = ANY (w.flows)) DESC, f.registered_at DESC, f.version DESC LIMIT 1;
            END IF;
        END IF;
        IF verdict IS NOT NULL THEN
            IF json_array_length(p_requests) > 1 THEN PERFORM refuse_v1(verdict, detail, NULL); END IF;
            n := asked.n;
            RETURN NEXT; RETURN;
        END IF;
        has_keys := has_keys OR asked.key IS NOT NULL;
        document := CASE WHEN asked.hash IS NULL THEN asked.input::jsonb::text END;
        rows := rows || ROW(asked.n, coalesce(asked.run_id, run_id_v1(instant)), asked.tenant, asked.flow,
            coalesce(asked.version, served.version), coalesce(asked.versions, CASE WHEN asked.version IS NULL THEN served.versions END, '{}'),
            coalesce(decode(asked.input_base64, 'base64'), convert_to(asked.input::text, 'UTF8')), coalesce(asked.encoding, 'json'),
            coalesce(decode(asked.hash, 'hex'), sha256(convert_to(
                CASE WHEN document ~ '\.[0-9]*0([^0-9]|$)' THEN canonical_v1(document::jsonb) ELSE document END, 'UTF8'))),
            asked.key, coalesce(asked.deadline, instant + make_interval(secs => asked.deadline_in)),
            coalesce(asked.start_at, instant + make_interval(secs => asked.start_in)), coalesce(asked.budget, '{}'), coalesce(asked.priority, 0),
            coalesce(asked.tags, '{}'), asked.conversation, NULL, NULL,
            asked.artifacts)::new_run_v1;
    END LOOP;
    -- P17: one wake-up for the transaction; PostgreSQL folds equal notifications.
    PERFORM pg_notify('safepoint_relay', '');
    making := rows;
    -- P40: a key that stood before is not written again; its run may have been pruned since.
    IF has_keys AND cardinality(rows) = 1 THEN
        one := rows[1];
        INSERT INTO idempotency_keys (tenant_id, key, run_id, flow, input_hash, created_at)
            VALUES (one.tenant, one.key, one.run_id, one.flow, one.hash, instant) ON CONFLICT DO NOTHING;
        IF NOT FOUND THEN making := '{}'; END IF;
    ELSIF has_keys THEN
        WITH written AS (
            INSERT INTO idempotency_keys (tenant_id, key, run_id, flow, input_hash, created_at)
                SELECT x.tenant, x.key, x.run_id, x.flow, x.hash, instant FROM (
                    SELECT DISTINCT ON (tenant COLLATE "C", key COLLATE "C") * FROM unnest(rows) WHERE key IS NOT NULL
                     ORDER BY tenant COLLATE "C", key COLLATE "C", n) x
                ON CONFLICT DO NOTHING RETURNING run_id
        )
        SELECT array_agg(run_id) INTO fresh FROM written;
        making := ARRAY(SELECT x FROM unnest(rows) AS x WHERE x.key IS NULL OR x.run_id IN (SELECT unnest(fresh)));
    END IF;
    IF create_runs_v1(making, instant) = cardinality(rows) THEN
        verdict := 'accepted';
        FOREACH one IN ARRAY rows LOOP
            n := one.n; run_id := one.run_id; detail := one.key;
            RETURN NEXT;
        END LOOP;
        RETURN;
    END IF;
    RETURN QUERY
        SELECT x.n, coalesce(k.run_id, x.run_id), CASE
                   WHEN k.flow <> x.flow OR k.input_hash <> x.hash
                       THEN CASE WHEN cardinality(rows) > 1 THEN refuse_v1('conflict', x.key, k.run_id) ELSE 'conflict' END
                   WHEN EXISTS (SELECT FROM (SELECT r.run_id, r.tenant_id, r.flow FROM runs r UNION ALL SELECT p.run_id, p.tenant_id, p.flow FROM pruned_runs p) o
                                 WHERE o.run_id = x.run_id AND (o.tenant_id, o.flow) <> (x.tenant, x.flow))
                       THEN CASE WHEN cardinality(rows) > 1 THEN refuse_v1('taken', x.run_id::text, x.run_id) ELSE 'taken' END
                   ELSE 'accepted' END, x.key
          -- OFFSET 0 keeps this a look-up by the key's index for each row; flattened, the planner would hash the whole table.
          FROM unnest(rows) AS x LEFT JOIN LATERAL (
              SELECT o.run_id, o.flow, o.input_hash FROM idempotency_keys o WHERE x.key IS NOT NULL AND o.tenant_id = x.tenant AND o.key = x.key OFFSET 0
          ) k ON true
         ORDER BY x.n;
END $$;

-- Raises what a verdict says; the detail is for programs.
CREATE FUNCTION safepoint.refuse_v1(p_verdict text, p_detail text, p_run uuid) RETURNS text LANGUAGE plpgsql
SET search_path = safepoint, pg_temp AS $$
BEGIN
    CASE p_verdict
        WHEN 'conflict' THEN
            RAISE EXCEPTION 'the key % was used for run % with another input', p_detail, p_run
                USING ERRCODE = 'SP001', DETAIL = p_run::text, HINT = p_detail;
        WHEN 'unknown' THEN
            RAISE EXCEPTION 'flow %: no worker has served it yet; name its version, or start a worker that has it', p_detail
                USING ERRCODE = 'SP003', DETAIL = p_detail;
        WHEN 'taken' THEN
            RAISE EXCEPTION 'run_id %: another run has this id', p_run USING ERRCODE = 'SP004', DETAIL = p_run::text;
        ELSE
            RAISE EXCEPTION '%', p_detail USING ERRCODE = 'SP002', DETAIL = p_detail;
    END CASE;
END $$;

-- Runs, each with its @start#1 step (P16) and its first event; answers how many are new. A repeat with the same id waits for the first one,
-- finds its rows and changes nothing.
CREATE FUNCTION safepoint.create_runs_v1(p_rows safepoint.new_run_v1[], instant timestamptz) RETURNS integer LANGUAGE plpgsql
SET search_path = safepoint, pg_temp AS $$
DECLARE
    fresh uuid[];
    gone uuid[];
    one new_run_v1;
    named jsonb := '[]';
    spends_from uuid;
BEGIN
    -- One run is what is asked for nearly always: it goes in as it is, by the rules that the statements below have for any number of rows.
    IF cardinality(p_rows) = 1 THEN
        one := p_rows[1];
        IF one.artifacts IS NOT NULL OR one.encoding = 'json' AND position('"sha256"'::bytea IN one.input) > 0 THEN
            named := named_artifacts_v1(one.tenant, one.input, one.encoding, one.artifacts);
        END IF;
        IF one.parent IS NOT NULL THEN
            spends_from := (SELECT p.budget_id FROM runs p WHERE p.run_id = one.parent);
        ELSIF one.budget <> '{}' AND jsonb_strip_nulls(one.budget) <> '{}' THEN
            spends_from := one.run_id;
        END IF;
        INSERT INTO runs (run_id, tenant_id, conversation_id, flow, priority, deadline, start_at, input, input_encoding, input_hash, budget,
                          workflow_version, prompt_version, tool_schema_version, model_policy_version, index_version, versions, tags,
                          parent_run_id, parent_key, artifacts, budget_id, created_at, updated_at, event_seq)
            VALUES (one.run_id, one.tenant, one.conversation, one.flow, one.priority, one.deadline, one.start_at, one.input, one.encoding, one.hash, one.budget,
                    one.version, one.versions->>'prompt', one.versions->>'tool_schema', one.versions->>'model_policy', one.versions->>'index',
                    one.versions, one.tags, one.parent, one.parent_key, named, spends_from, instant, instant, 1)
            ON CONFLICT DO NOTHING;
        IF NOT FOUND THEN RETURN 0; END IF;
        INSERT INTO steps (run_id, generation, path, step_id, iteration, tenant_id, priority, deadline, kind, name, status, lane, home_lane, queued,
                           due_at, ready_at, created_at)
            SELECT one.run_id, 1, '', '@start', 1, one.tenant, one.priority, one.deadline, 'start', one.flow, 'ready', 'online', 'online',
                   CASE WHEN one.start_at > instant THEN 0 WHEN one.parent IS NOT NULL THEN 1 ELSE 2 END,
                   greatest(instant, one.start_at), greatest(instant, one.start_at), instant
             WHERE NOT EXISTS (SELECT FROM pruned_runs p WHERE p.run_id = one.run_id);
        IF NOT FOUND THEN
            DELETE FROM runs WHERE run_id = one.run_id;
            RETURN 0;
        END IF;
        IF spends_from = one.run_id THEN
            INSERT INTO budgets (budget_id, tenant_id, tokens, usd, retries, created_at)
                VALUES (one.run_id, one.tenant, (one.budget->>'tokens')::bigint, (one.budget->>'usd')::numeric, (one.budget->>'retries')::integer, instant)
                ON CONFLICT DO NOTHING;
        END IF;
        INSERT INTO events (run_id, seq, tenant_id, type, data, at)
            VALUES (one.run_id, 1, one.tenant, 'run.queued', jsonb_build_object('flow', one.flow, 'version', one.version), instant);
        RETURN 1;
    END IF;
    WITH written AS (
        INSERT INTO runs (run_id, tenant_id, conversation_id, flow, priority, deadline, start_at, input, input_encoding, input_hash, budget,
                          workflow_version, prompt_version, tool_schema_version, model_policy_version, index_version, versions, tags,
                          parent_run_id, parent_key, artifacts, budget_id, created_at, updated_at, event_seq)
            SELECT x.run_id, x.tenant, x.conversation, x.flow, x.priority, x.deadline, x.start_at, x.input, x.encoding, x.hash, x.budget,
                   x.version, x.versions->>'prompt', x.versions->>'tool_schema', x.versions->>'model_policy', x.versions->>'index',
                   x.versions, x.tags, x.parent, x.parent_key,
                   CASE WHEN x.artifacts IS NOT NULL OR x.encoding = 'json' AND position('"sha256"'::bytea IN x.input) > 0
                        THEN named_artifacts_v1(x.tenant, x.input, x.encoding, x.artifacts) ELSE '[]' END,
                   -- A child spends from its parent's budget, whose row is locked.
                   CASE WHEN x.parent IS NOT NULL THEN (SELECT p.budget_id FROM runs p WHERE p.run_id = x.parent)
                        WHEN jsonb_strip_nulls(x.budget) <> '{}' THEN x.run_id END, instant, instant, 1
              FROM unnest(p_rows) AS x
            ON CONFLICT DO NOTHING RETURNING run_id
    )
    SELECT coalesce(array_agg(w.run_id), '{}') INTO fresh FROM written w;
    -- The others have their rows; where an id stands twice, its first request was the one. What is left meets no row of its own.
    IF cardinality(fresh) < cardinality(p_rows) THEN
        p_rows := ARRAY(SELECT DISTINCT ON ((p_rows[i]).run_id) p_rows[i] FROM generate_subscripts(p_rows, 1) AS i
                        WHERE (p_rows[i]).run_id = ANY (fresh) ORDER BY (p_rows[i]).run_id, i);
    END IF;
    -- P40: an id whose run was pruned makes no second one; looked at after the insert, which has waited for a prune under way. OFFSET 0 as above.
    gone := ARRAY(SELECT x.run_id FROM unnest(p_rows) AS x WHERE EXISTS (SELECT FROM pruned_runs p WHERE p.run_id = x.run_id OFFSET 0));
    IF gone <> '{}' THEN
        DELETE FROM runs WHERE run_id = ANY (gone);
        p_rows := ARRAY(SELECT x FROM unnest(p_rows) AS x WHERE NOT x.run_id = ANY (gone));
    END IF;
    INSERT INTO budgets (budget_id, tenant_id, tokens, usd, retries, created_at)
        SELECT x.run_id, x.tenant, (x.budget->>'tokens')::bigint, (x.budget->>'usd')::numeric, (x.budget->>'retries')::integer, instant
          FROM unnest(p_rows) AS x WHERE x.parent IS NULL AND jsonb_strip_nulls(x.budget) <> '{}'
        ON CONFLICT DO NOTHING;
    -- P12: priority and deadline are in the step as well, where the index of the queue can read them. A child goes on with its parent's run.
    INSERT INTO steps (run_id, generation, path, step_id, iteration, tenant_id, priority, deadline, kind, name, status, lane, home_lane, queued, due_at,
                       ready_at, created_at)
        SELECT x.run_id, 1, '', '@start', 1, x.tenant, x.priority, x.deadline, 'start', x.flow, 'ready', 'online', 'online',
               CASE WHEN x.start_at > instant THEN 0 WHEN x.parent IS NOT NULL THEN 1 ELSE 2 END,
               greatest(instant, x.start_at), greatest(instant, x.start_at), instant
          FROM unnest(p_rows) AS x;
    INSERT INTO events (run_id, seq, tenant_id, type, data, at)
        SELECT x.run_id, 1, x.tenant, 'run.queued', jsonb_build_object('flow', x.flow, 'version', x.version), instant
          FROM unnest(p_rows) AS x;
    RETURN cardinality(p_rows);
END $$;

-- A child's run, in the commit of its parent.
CREATE FUNCTION safepoint.create_run_v1(
    p_id uuid, p_tenant text, p_flow text, p_version text, p_input bytea, p_encoding text, p_hash bytea, p_deadline timestamptz,
    p_budget jsonb, p_priority integer, p_tags jsonb, p_conversation text, p_start_at timestamptz, p_versions jsonb,
    p_parent uuid, p_parent_key text
) RETURNS uuid LANGUAGE plpgsql
SET search_path = safepoint, pg_temp AS $$
BEGIN
    PERFORM create_runs_v1(ARRAY[ROW(0, p_id, p_tenant, p_flow, p_version, coalesce(p_versions, '{}'), p_input, p_encoding, p_hash, NULL,
        p_deadline, p_start_at, coalesce(p_budget, '{}'), p_priority, coalesce(p_tags, '{}'), p_conversation, p_parent, p_parent_key, NULL
        )::new_run_v1], safepoint.now());
    RETURN p_id;
END $$;

-- The public face, for SQL: SELECT safepoint.enqueue(flow => 'incident', input => '{"alert": {"id": 42}}', key => 'alert-42').
-- Answers the id of the run that stands. SQLSTATE SP001: the key has another input; SP002: a bad argument; SP003: no worker has served the flow
-- yet; SP004: the id is another run's.
CREATE FUNCTION safepoint.enqueue(
    flow text, input jsonb DEFAULT '{}', tenant text DEFAULT 'default', key text DEFAULT NULL, version text DEFAULT NULL,
    deadline timestamptz DEFAULT NULL, budget jsonb DEFAULT NULL, priority integer DEFAULT 0, tags jsonb DEFAULT NULL,
    conversation text DEFAULT NULL, start_at timestamptz DEFAULT NULL, versions jsonb DEFAULT NULL, run_id uuid DEFAULT NULL
) RETURNS uuid LANGUAGE plpgsql SECURITY DEFINER
SET search_path = safepoint, pg_temp AS $$
DECLARE
    answer record;
BEGIN
    SELECT * INTO answer FROM enqueue_v1(json_build_array(json_build_object('n', 0, 'run_id', run_id, 'flow', flow, 'version', version,
        'versions', versions, 'input', input, 'tenant', tenant, 'key', key, 'deadline', deadline, 'start_at', start_at, 'budget', budget,
        'priority', priority, 'tags', tags, 'conversation', conversation)));
    IF answer.verdict <> 'accepted' THEN PERFORM refuse_v1(answer.verdict, answer.detail, answer.run_id); END IF;
    RETURN answer.run_id;
END $$;

-- Retention (P40): what is removed leaves a small row behind, artifacts are counted by who refers to them.

-- What is left of a run that was pruned: late writers and late questions are told.
CREATE TABLE safepoint.pruned_runs (
    run_id      uuid PRIMARY KEY,
    tenant_id   text NOT NULL,
    flow        text NOT NULL,
    status      text NOT NULL CONSTRAINT pruned_runs_status CHECK (status IN ('succeeded', 'failed', 'cancelled')),
    finished_at timestamptz NOT NULL,
    pruned_at   timestamptz NOT NULL
);
CREATE INDEX pruned_runs_age ON safepoint.pruned_runs (pruned_at);

-- A late webhook knows its effect's key, not the run.
CREATE TABLE safepoint.pruned_effects (
    idempotency_key bytea PRIMARY KEY,
    tenant_id       text NOT NULL,
    run_id          uuid NOT NULL REFERENCES safepoint.pruned_runs ON DELETE CASCADE
);
CREATE INDEX pruned_effects_run ON safepoint.pruned_effects (run_id);

-- Which run refers to which content; written by the trigger on runs.artifacts, gone with the run.
CREATE TABLE safepoint.artifact_uses (
    tenant_id   text NOT NULL,
    sha256      bytea NOT NULL,
    run_id      uuid NOT NULL REFERENCES safepoint.runs ON DELETE CASCADE,
    PRIMARY KEY (tenant_id, sha256, run_id)
);
CREATE INDEX artifact_uses_run ON safepoint.artifact_uses (run_id);
INSERT INTO safepoint.artifact_uses (tenant_id, sha256, run_id)
    SELECT DISTINCT r.tenant_id, decode(a->>'sha256', 'hex'), r.run_id FROM safepoint.runs r,
           jsonb_array_elements(CASE jsonb_typeof(r.artifacts) WHEN 'array' THEN r.artifacts ELSE '[]' END) AS e(a)
     WHERE a->>'sha256' ~ '^[0-9a-f]{64}$';

-- Blobs whose row is gone and that are still to be removed from the store.
CREATE TABLE safepoint.artifact_garbage (
    tenant_id   text NOT NULL,
    sha256      bytea NOT NULL,
    since       timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, sha256)
);

-- A budget outlives the run that it was given to, while others spend from it.
ALTER TABLE safepoint.budgets DROP CONSTRAINT budgets_budget_id_fkey;

-- What ended long ago is found by these; neither is touched by a commit that does not end a run or is no child's.
CREATE INDEX runs_finished ON safepoint.runs (finished_at, run_id) WHERE finished_at IS NOT NULL;
CREATE INDEX outbox_messages_run ON safepoint.outbox_messages (run_id);
CREATE INDEX outbox_messages_target ON safepoint.outbox_messages (target) WHERE target IS NOT NULL;

-- What an input refers to that is sealed: the client says so. A ledger that is made anew has these types only after this file.
DO $$ BEGIN
    IF to_regtype('safepoint.new_run_v1') IS NOT NULL THEN
        ALTER TYPE safepoint.enqueue_request_v1 ADD ATTRIBUTE artifacts text[];
        ALTER TYPE safepoint.new_run_v1 ADD ATTRIBUTE artifacts text[];
    END IF;
END $$;

-- The trigger's function is replaced with the others (prune.sql).
CREATE FUNCTION safepoint.use_artifacts() RETURNS trigger LANGUAGE plpgsql
SET search_path = safepoint, pg_temp AS $$ BEGIN RETURN NULL; END $$;
CREATE TRIGGER runs_use_artifacts_at_once AFTER INSERT ON safepoint.runs
    FOR EACH ROW WHEN (NEW.artifacts <> '[]') EXECUTE FUNCTION safepoint.use_artifacts();
CREATE TRIGGER runs_use_artifacts AFTER UPDATE OF artifacts ON safepoint.runs
    FOR EACH ROW WHEN (OLD.artifacts IS DISTINCT FROM NEW.artifacts) EXECUTE FUNCTION safepoint.use_artifacts();

INSERT INTO safepoint.compatible VALUES ('0006');

-- The ledger's tables. Applied once, by migration 0001; never edited after a release: a change is a new migration.
-- Lock order everywhere: run, steps, effects, mailbox, outbox, lane, breaker (P1).

CREATE TABLE safepoint.identity (
    singleton       boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    incarnation     uuid NOT NULL DEFAULT gen_random_uuid(),
    reason          text NOT NULL DEFAULT 'created',
    timeline        text,
    server_started  timestamptz,
    last_scan_at    timestamptz,
    last_scan_by    text,
    stalled_checked_at timestamptz NOT NULL DEFAULT '-infinity',
    takeover_after  timestamptz NOT NULL DEFAULT '-infinity',
    changed_at      timestamptz NOT NULL DEFAULT clock_timestamp()
);
INSERT INTO safepoint.identity DEFAULT VALUES;

CREATE TABLE safepoint.runs (
    run_id              uuid PRIMARY KEY,
    tenant_id           text NOT NULL,
    conversation_id     text,
    flow                text NOT NULL,
    status              text NOT NULL DEFAULT 'queued'
        CONSTRAINT runs_status CHECK (status IN
            ('queued', 'running', 'waiting', 'held', 'cancelling', 'succeeded', 'failed', 'cancelled')),
    reason              jsonb,
    holds               jsonb NOT NULL DEFAULT '{}',
    paused_at           timestamptz,
    cancel_at           timestamptz,
    ending              text CONSTRAINT runs_ending CHECK (ending IN ('succeeded', 'failed', 'cancelled')),
    current_node        text,
    completed_steps     integer NOT NULL DEFAULT 0,
    attempt             integer NOT NULL DEFAULT 1,
    priority            integer NOT NULL DEFAULT 0,
    deadline            timestamptz,
    start_at            timestamptz,
    input               bytea NOT NULL,
    input_encoding      text NOT NULL,
    input_hash          bytea NOT NULL,
    plan                jsonb NOT NULL DEFAULT '[]',
    budget              jsonb NOT NULL DEFAULT '{}',
    spent_tokens        bigint NOT NULL DEFAULT 0,
    spent_usd           numeric NOT NULL DEFAULT 0,
    spent_retries       integer NOT NULL DEFAULT 0,
    wasted_tokens       bigint NOT NULL DEFAULT 0,
    wasted_usd          numeric NOT NULL DEFAULT 0,
    workflow_version    text NOT NULL,
    prompt_version      text,
    tool_schema_version text,
    model_policy_version text,
    index_version       text,
    versions            jsonb NOT NULL DEFAULT '{}',
    state_version       integer NOT NULL DEFAULT 0,
    generation          integer NOT NULL DEFAULT 1,
    event_seq           integer NOT NULL DEFAULT 0,
    result              bytea,
    result_encoding     text,
    error               jsonb,
    artifacts           jsonb NOT NULL DEFAULT '[]',
    tags                jsonb NOT NULL DEFAULT '{}',
    parent_run_id       uuid,
    parent_key          text,
    created_at          timestamptz NOT NULL,
    updated_at          timestamptz NOT NULL,
    finished_at         timestamptz,
    CONSTRAINT runs_final_has_finished_at
        CHECK ((status IN ('succeeded', 'failed', 'cancelled')) = (finished_at IS NOT NULL))
) WITH (fillfactor = 80);
CREATE INDEX runs_listed ON safepoint.runs (tenant_id, created_at DESC);
CREATE INDEX runs_tagged ON safepoint.runs USING gin (tags jsonb_path_ops) WHERE tags <> '{}';
-- Never on a column that each commit changes: the run row is updated in place (HOT) thousands of times.
CREATE INDEX runs_live ON safepoint.runs (created_at) WHERE finished_at IS NULL;
CREATE INDEX runs_deadline ON safepoint.runs (deadline) WHERE finished_at IS NULL AND deadline IS NOT NULL;
CREATE INDEX runs_cancelling ON safepoint.runs (cancel_at) WHERE finished_at IS NULL AND cancel_at IS NOT NULL;
CREATE INDEX runs_children ON safepoint.runs (parent_run_id) WHERE parent_run_id IS NOT NULL;

CREATE TABLE safepoint.steps (
    run_id          uuid NOT NULL REFERENCES safepoint.runs ON DELETE CASCADE,
    generation      integer NOT NULL,
    path            text NOT NULL,
    step_id         text NOT NULL,
    iteration       integer NOT NULL,
    tenant_id       text NOT NULL,
    -- Of a start alone: what it is admitted by, from the run (P12); an index cannot look into another table.
    priority        integer NOT NULL DEFAULT 0,
    deadline        timestamptz,
    kind            text NOT NULL CONSTRAINT steps_kind CHECK (kind IN
        ('start', 'step', 'effect', 'timer', 'signal', 'approval', 'child', 'advance', 'cancel', 'lookup', 'compensation')),
    name            text NOT NULL,
    status          text NOT NULL CONSTRAINT steps_status CHECK (status IN
        ('ready', 'running', 'waiting', 'held', 'succeeded', 'failed', 'cancelled')),
    reason          jsonb,
    lane            text NOT NULL,
    home_lane       text NOT NULL,
    claimed_from    text,
    uses            text,
    due_at          timestamptz,
    ready_at        timestamptz NOT NULL,
    dispatched_at   timestamptz,
    dispatches      integer NOT NULL DEFAULT 0,
    claim_token     uuid,
    committed_token uuid,
    epoch           integer NOT NULL DEFAULT 0,
    owner           text,
    owner_pid       integer,
    owner_pid_start bigint,
    claimed_at      timestamptz,
    expires_at      timestamptz,
    attempt         integer NOT NULL DEFAULT 1,
    recoveries      integer NOT NULL DEFAULT 0,
    deaths          integer NOT NULL DEFAULT 0,
    shared_deaths   integer NOT NULL DEFAULT 0,
    pending_error   jsonb,
    cleanup         boolean NOT NULL DEFAULT false,
    joins           text,
    input           bytea,
    input_encoding  text,
    input_hash      bytea,
    outcome         jsonb,
    outcome_data    bytea,
    outcome_encoding text,
    result          bytea,
    result_encoding text,
    result_digest   bytea,
    error           jsonb,
    commit_seq      integer,
    at              timestamptz,
    first_claimed_at timestamptz,
    committed_at    timestamptz,
    committed_by    text,
    created_at      timestamptz NOT NULL,
    tokens          bigint NOT NULL DEFAULT 0,
    usd             numeric NOT NULL DEFAULT 0,
    wasted_tokens   bigint NOT NULL DEFAULT 0,
    wasted_usd      numeric NOT NULL DEFAULT 0,
    -- G1: one row, so one result, per step key.
    PRIMARY KEY (run_id, generation, path, step_id, iteration),
    -- P10: nothing ready can fall out of the relay's sight.
    CONSTRAINT steps_ready_is_due CHECK (status <> 'ready' OR due_at IS NOT NULL),
    CONSTRAINT steps_running_has_token CHECK (status <> 'running' OR (claim_token IS NOT NULL AND expires_at IS NOT NULL)),
    CONSTRAINT steps_final_has_seq CHECK ((status IN ('succeeded', 'failed')) = (commit_seq IS NOT NULL))
) WITH (fillfactor = 70);
CREATE UNIQUE INDEX steps_history ON safepoint.steps (run_id, commit_seq) WHERE commit_seq IS NOT NULL;
-- Steps that continue a run, and starts that wait to be admitted: twenty thousand of these must not stand before one of those.
CREATE INDEX steps_due ON safepoint.steps (lane, due_at) WHERE status = 'ready' AND (kind <> 'start' OR dispatched_at IS NOT NULL);
CREATE INDEX steps_queued ON safepoint.steps (lane, due_at) WHERE status = 'ready' AND kind = 'start' AND dispatched_at IS NULL;
CREATE INDEX steps_starts ON safepoint.steps (lane, tenant_id, priority DESC, deadline, due_at)
    WHERE status = 'ready' AND kind = 'start' AND dispatched_at IS NULL;
CREATE INDEX steps_waits_due ON safepoint.steps (due_at) WHERE status = 'waiting' AND due_at IS NOT NULL;
CREATE INDEX steps_open ON safepoint.steps (run_id) WHERE status IN ('ready', 'running', 'waiting', 'held');
CREATE INDEX steps_running ON safepoint.steps (owner, claim_token) WHERE status = 'running';
CREATE INDEX steps_expiring ON safepoint.steps (expires_at) WHERE status = 'running';
CREATE INDEX steps_dispatched ON safepoint.steps (lane, dispatched_at) WHERE status = 'ready' AND dispatched_at IS NOT NULL;
CREATE INDEX steps_in_flight ON safepoint.steps (claimed_from) WHERE status = 'running';
CREATE INDEX steps_unserved ON safepoint.steps (created_at) WHERE status = 'ready' AND reason IS NOT NULL;

CREATE TABLE safepoint.once (
    run_id      uuid NOT NULL REFERENCES safepoint.runs ON DELETE CASCADE,
    generation  integer NOT NULL,
    path        text NOT NULL,
    step_id     text NOT NULL,
    iteration   integer NOT NULL,
    name        text NOT NULL,
    tenant_id   text NOT NULL,
    data        bytea NOT NULL,
    encoding    text NOT NULL,
    tokens      bigint NOT NULL DEFAULT 0,
    usd         numeric NOT NULL DEFAULT 0,
    epoch       integer NOT NULL,
    at          timestamptz NOT NULL,
    PRIMARY KEY (run_id, generation, path, step_id, iteration, name)
);

CREATE TABLE safepoint.effects (
    idempotency_key bytea PRIMARY KEY,
    reference       text NOT NULL,
    tenant_id       text NOT NULL,
    run_id          uuid NOT NULL REFERENCES safepoint.runs ON DELETE CASCADE,
    generation      integer NOT NULL,
    path            text NOT NULL,
    step_id         text NOT NULL,
    iteration       integer NOT NULL,
    status          text NOT NULL DEFAULT 'pending' CONSTRAINT effects_status CHECK (status IN
        ('pending', 'executing', 'succeeded', 'failed', 'unknown')),
    version         integer NOT NULL DEFAULT 1,
    request         bytea NOT NULL,
    request_encoding text NOT NULL,
    request_digest  bytea NOT NULL,
    external_id     text,
    result          bytea,
    result_encoding text,
    error           jsonb,
    attempts        integer NOT NULL DEFAULT 0,
    first_sent_at   timestamptz,
    last_sent_at    timestamptz,
    decision        jsonb,
    created_at      timestamptz NOT NULL,
    settled_at      timestamptz,
    UNIQUE (run_id, generation, path, step_id, iteration),
    CONSTRAINT effects_settled CHECK ((status IN ('succeeded', 'failed')) = (settled_at IS NOT NULL))
);
CREATE INDEX effects_unsettled ON safepoint.effects (tenant_id, created_at) WHERE status IN ('executing', 'unknown');

CREATE TABLE safepoint.effect_history (
    idempotency_key bytea NOT NULL REFERENCES safepoint.effects ON DELETE CASCADE,
    n               integer NOT NULL,
    tenant_id       text NOT NULL,
    status          text NOT NULL,
    actor           text NOT NULL,
    why             text,
    evidence        jsonb,
    at              timestamptz NOT NULL,
    PRIMARY KEY (idempotency_key, n)
);

CREATE TABLE safepoint.events (
    run_id      uuid NOT NULL REFERENCES safepoint.runs ON DELETE CASCADE,
    -- G11: a number is given once; it comes from the run row, under its lock.
    seq         integer NOT NULL,
    tenant_id   text NOT NULL,
    v           smallint NOT NULL DEFAULT 1,
    type        text NOT NULL,
    key         text,
    data        jsonb NOT NULL DEFAULT '{}',
    at          timestamptz NOT NULL,
    PRIMARY KEY (run_id, seq)
);

CREATE TABLE safepoint.mailbox (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    run_id      uuid NOT NULL REFERENCES safepoint.runs ON DELETE CASCADE,
    tenant_id   text NOT NULL,
    kind        text NOT NULL CONSTRAINT mailbox_kind CHECK (kind IN ('signal', 'approval', 'child')),
    name        text NOT NULL,
    status      text NOT NULL DEFAULT 'succeeded',
    payload     bytea,
    encoding    text,
    error       jsonb,
    sender      text,
    dedupe      text,
    consumed_by text,
    consumed_at timestamptz,
    created_at  timestamptz NOT NULL,
    UNIQUE (run_id, dedupe)
);
CREATE INDEX mailbox_unread ON safepoint.mailbox (run_id, kind, name, id) WHERE consumed_at IS NULL;

-- What is to be sent and is no step: the end of a child run for its parent, a cancel for its children.
CREATE TABLE safepoint.outbox_messages (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant_id   text NOT NULL,
    run_id      uuid NOT NULL,
    kind        text NOT NULL CONSTRAINT outbox_kind CHECK (kind IN ('child_end', 'child_cancel', 'webhook')),
    target      uuid,
    payload     jsonb NOT NULL DEFAULT '{}',
    attempts    integer NOT NULL DEFAULT 0,
    due_at      timestamptz NOT NULL,
    created_at  timestamptz NOT NULL
);
CREATE INDEX outbox_messages_due ON safepoint.outbox_messages (due_at);

CREATE TABLE safepoint.nodes (
    node_id        text PRIMARY KEY,
    tenant_id      text NOT NULL DEFAULT '',
    kind           text NOT NULL DEFAULT 'worker',
    host           text NOT NULL,
    pid            integer NOT NULL,
    lanes          text[] NOT NULL DEFAULT '{}',
    flows          text[] NOT NULL DEFAULT '{}',
    steps          text[] NOT NULL DEFAULT '{}',
    concurrency    integer NOT NULL DEFAULT 0,
    lock_key       bigint,
    server_started timestamptz NOT NULL,
    started_at     timestamptz NOT NULL,
    beat_at        timestamptz NOT NULL,
    previous_beat_at timestamptz,
    lease_until    timestamptz NOT NULL,
    active         uuid[] NOT NULL DEFAULT '{}',
    previous_active uuid[] NOT NULL DEFAULT '{}',
    marks          jsonb NOT NULL DEFAULT '{}',
    draining       boolean NOT NULL DEFAULT false,
    alone          uuid,
    stopped_at     timestamptz
);
CREATE INDEX nodes_live ON safepoint.nodes (lease_until) WHERE stopped_at IS NULL;

-- What the nodes have served so far: a process without a flow's code learns its version here (P16).
CREATE TABLE safepoint.flows (
    name          text NOT NULL,
    version       text NOT NULL,
    tenant_id     text NOT NULL DEFAULT '',
    versions      jsonb NOT NULL DEFAULT '{}',
    registered_at timestamptz NOT NULL,
    PRIMARY KEY (name, version)
);

CREATE TABLE safepoint.lanes (
    name        text PRIMARY KEY,
    tenant_id   text NOT NULL DEFAULT '',
    rate        double precision,
    burst       double precision,
    in_flight   integer,
    "window"    integer NOT NULL DEFAULT 1000,
    paused      boolean NOT NULL DEFAULT false,
    tokens      double precision NOT NULL DEFAULT 0,
    refilled_at timestamptz NOT NULL DEFAULT '-infinity',
    policy      jsonb NOT NULL DEFAULT '{}',
    changed_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE TABLE safepoint.breakers (
    name        text PRIMARY KEY,
    tenant_id   text NOT NULL DEFAULT '',
    state       text NOT NULL DEFAULT 'closed' CONSTRAINT breakers_state CHECK (state IN ('closed', 'open', 'half_open')),
    opened_at   timestamptz,
    next_probe_at timestamptz,
    detail      jsonb NOT NULL DEFAULT '{}',
    changed_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE TABLE safepoint.artifacts (
    tenant_id   text NOT NULL,
    sha256      bytea NOT NULL,
    size        bigint NOT NULL,
    media_type  text NOT NULL,
    created_at  timestamptz NOT NULL,
    touched_at  timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, sha256)
);

-- P40: keys outlive runs, so no foreign key.
CREATE TABLE safepoint.idempotency_keys (
    tenant_id   text NOT NULL,
    key         text NOT NULL,
    run_id      uuid NOT NULL,
    flow        text NOT NULL,
    input_hash  bytea NOT NULL,
    created_at  timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, key)
);

-- P10: the outbox of steps is a column of the steps; this view shows it beside what is no step.
CREATE VIEW safepoint.outbox AS
    SELECT tenant_id, run_id, 'step'::text AS kind, generation, CASE path WHEN '' THEN '' ELSE path || '/' END || step_id || '#' || iteration AS key, lane, due_at, dispatched_at
      FROM safepoint.steps WHERE status = 'ready'
    UNION ALL
    SELECT tenant_id, run_id, kind, NULL, NULL, NULL, due_at, NULL FROM safepoint.outbox_messages;

-- A final run never changes again, but for a failed one that a person reopens (P36, attempt + 1).
CREATE FUNCTION safepoint.refuse_final_change() RETURNS trigger LANGUAGE plpgsql
SET search_path = safepoint, pg_temp AS $$
BEGIN
    IF OLD.status IN ('succeeded', 'cancelled')
       OR (OLD.status = 'failed' AND NEW.attempt <> OLD.attempt + 1) THEN
        RAISE EXCEPTION 'run % is % and final', OLD.run_id, OLD.status USING ERRCODE = 'check_violation', CONSTRAINT = 'runs_final';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER runs_final BEFORE UPDATE ON safepoint.runs
    FOR EACH ROW WHEN (OLD.finished_at IS NOT NULL) EXECUTE FUNCTION safepoint.refuse_final_change();

-- Which releases (by their newest revision) may work on this schema: each migration adds its own and removes those it breaks.
CREATE TABLE safepoint.compatible (revision text PRIMARY KEY);
INSERT INTO safepoint.compatible VALUES ('0001');

-- G7: what a run and its children may spend together. One row for each run that was given a budget; its children and theirs point to it.
-- Locked after everything else (P1), and last in a transaction.
CREATE TABLE safepoint.budgets (
    budget_id       uuid PRIMARY KEY REFERENCES safepoint.runs ON DELETE CASCADE,
    tenant_id       text NOT NULL,
    -- The bounds as they stand; NULL is none.
    tokens          bigint,
    usd             numeric,
    retries         integer,
    spent_tokens    bigint NOT NULL DEFAULT 0,
    spent_usd       numeric NOT NULL DEFAULT 0,
    spent_retries   integer NOT NULL DEFAULT 0,
    -- The sum of what running steps hold (steps.reserved_tokens, steps.reserved_usd), moved in their transactions.
    reserved_tokens bigint NOT NULL DEFAULT 0,
    reserved_usd    numeric NOT NULL DEFAULT 0,
    -- Whether a step waits for what others hold.
    is_short        boolean NOT NULL DEFAULT false,
    -- Who has raised it, when, why, by how much.
    changes         jsonb NOT NULL DEFAULT '[]',
    created_at      timestamptz NOT NULL,
    -- P38: a reservation is given back once.
    CONSTRAINT budgets_reserved CHECK (reserved_tokens >= 0 AND reserved_usd >= 0),
    CONSTRAINT budgets_spent CHECK (spent_tokens >= 0 AND spent_usd >= 0 AND spent_retries >= 0)
) WITH (fillfactor = 70);

ALTER TABLE safepoint.runs ADD COLUMN budget_id uuid;
CREATE INDEX runs_budget ON safepoint.runs (budget_id) WHERE budget_id IS NOT NULL;

ALTER TABLE safepoint.steps
    -- What the flow has declared that one attempt may cost: {tokens, usd}.
    ADD COLUMN reserve jsonb,
    -- What the claim that runs holds of it.
    ADD COLUMN reserved_tokens bigint NOT NULL DEFAULT 0,
    ADD COLUMN reserved_usd numeric NOT NULL DEFAULT 0,
    -- What was charged as wasted for the claim that was lost last: should that claim commit late (P35), it knows the true amount.
    ADD COLUMN lost_tokens bigint NOT NULL DEFAULT 0,
    ADD COLUMN lost_usd numeric NOT NULL DEFAULT 0,
    -- P38: whatever ends an attempt settles its reservation; who forgets it is refused.
    ADD CONSTRAINT steps_reserved_runs CHECK (status = 'running' OR reserved_tokens = 0 AND reserved_usd = 0);
CREATE INDEX steps_short ON safepoint.steps (run_id) WHERE status = 'ready' AND reason ->> 'code' = 'budget';

-- Open runs of an earlier release. Failed ones may be reopened, and are final for everything else.
ALTER TABLE safepoint.runs DISABLE TRIGGER runs_final;
WITH RECURSIVE family AS (
    SELECT run_id, run_id AS root FROM safepoint.runs
     WHERE parent_run_id IS NULL AND jsonb_strip_nulls(budget) <> '{}' AND status NOT IN ('succeeded', 'cancelled')
    UNION ALL
    SELECT r.run_id, f.root FROM safepoint.runs r JOIN family f ON r.parent_run_id = f.run_id
)
UPDATE safepoint.runs r SET budget_id = f.root FROM family f WHERE r.run_id = f.run_id;
ALTER TABLE safepoint.runs ENABLE TRIGGER runs_final;
INSERT INTO safepoint.budgets (budget_id, tenant_id, tokens, usd, retries, spent_tokens, spent_usd, spent_retries, created_at)
    SELECT root.run_id, root.tenant_id, (root.budget->>'tokens')::bigint, (root.budget->>'usd')::numeric, (root.budget->>'retries')::integer,
           s.tokens, s.usd, s.retries, root.created_at
      FROM (SELECT budget_id, sum(spent_tokens) AS tokens, sum(spent_usd) AS usd, sum(spent_retries) AS retries FROM safepoint.runs
             WHERE budget_id IS NOT NULL GROUP BY budget_id) s JOIN safepoint.runs root ON root.run_id = s.budget_id;

-- A worker of the release before reads what it knows, and reserves nothing.
INSERT INTO safepoint.compatible VALUES ('0003');

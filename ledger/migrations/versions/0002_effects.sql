-- The side-effect ledger's columns. A step of kind effect or compensation points to its newest row in `effects`.
ALTER TABLE safepoint.steps ADD COLUMN effect_key bytea;
-- Where a process number means something: the machine's boot and the namespace of its processes.
ALTER TABLE safepoint.nodes ADD COLUMN place text NOT NULL DEFAULT '';
CREATE INDEX steps_effect ON safepoint.steps (effect_key) WHERE effect_key IS NOT NULL;

ALTER TABLE safepoint.effects
    -- A rejected effect that a person has reopened is a new operation: the next ordinal, with a key of its own (P36).
    ADD COLUMN ordinal integer NOT NULL DEFAULT 1,
    ADD COLUMN name text NOT NULL DEFAULT '',
    -- What the code says of the other side: lookup, idempotent, key_retention, authoritative_after, compensate, runbook, requires_approval.
    ADD COLUMN declared jsonb NOT NULL DEFAULT '{}',
    ADD COLUMN lookups integer NOT NULL DEFAULT 0,
    ADD COLUMN last_answer jsonb,
    ADD COLUMN unknown_since timestamptz,
    -- P33: until then the last executor may have passed its check before the send.
    ADD COLUMN may_send_until timestamptz,
    -- The part of it that is the newest executor's own, and the latest of those before: what ends one must not end another.
    ADD COLUMN own_until timestamptz,
    ADD COLUMN older_until timestamptz,
    ADD COLUMN sent_token uuid,
    ADD COLUMN sent_by text,
    ADD COLUMN compensates bytea REFERENCES safepoint.effects ON DELETE CASCADE,
    ADD COLUMN commit_seq integer,
    DROP CONSTRAINT effects_run_id_generation_path_step_id_iteration_key,
    ADD CONSTRAINT effects_once UNIQUE (run_id, generation, path, step_id, iteration, ordinal),
    -- P32: what nobody knows has a since, and what may have been sent a last moment.
    ADD CONSTRAINT effects_unknown_since CHECK (status <> 'unknown' OR unknown_since IS NOT NULL),
    ADD CONSTRAINT effects_executing_is_named CHECK (status <> 'executing' OR (sent_token IS NOT NULL AND may_send_until IS NOT NULL));
CREATE INDEX effects_compensations ON safepoint.effects (compensates) WHERE compensates IS NOT NULL;

-- Open effects of an earlier release: one that was running may have been sent.
INSERT INTO safepoint.effects (idempotency_key, reference, tenant_id, run_id, generation, path, step_id, iteration, name, status, request, request_encoding,
                               request_digest, unknown_since, may_send_until, own_until, created_at)
    SELECT safepoint.effect_key_v1(safepoint.reference_v1(run_id, generation, path, step_id, iteration, 1), input_hash),
           safepoint.reference_v1(run_id, generation, path, step_id, iteration, 1), tenant_id, run_id, generation, path, step_id, iteration, name,
           CASE WHEN first_claimed_at IS NULL THEN 'pending' ELSE 'unknown' END, coalesce(input, 'null'), coalesce(input_encoding, 'json'), input_hash,
           first_claimed_at, expires_at, expires_at, created_at
      FROM safepoint.steps WHERE kind = 'effect' AND status IN ('ready', 'running', 'waiting', 'held') AND input_hash IS NOT NULL;
UPDATE safepoint.steps s SET effect_key = e.idempotency_key, input = NULL FROM safepoint.effects e
 WHERE s.kind = 'effect' AND s.status IN ('ready', 'running', 'waiting', 'held') AND (e.run_id, e.generation, e.path, e.step_id, e.iteration)
       = (s.run_id, s.generation, s.path, s.step_id, s.iteration);
INSERT INTO safepoint.effect_history (idempotency_key, n, tenant_id, status, actor, why, at)
    SELECT idempotency_key, 1, tenant_id, status, 'upgrade', 'it was open before the side-effect ledger', safepoint.now() FROM safepoint.effects
        ON CONFLICT DO NOTHING;

DELETE FROM safepoint.compatible WHERE revision = '0001';
INSERT INTO safepoint.compatible VALUES ('0002');

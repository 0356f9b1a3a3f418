-- Breakers that many processes share: their policy, the probes of half-open ones, and what has become of them and when.
ALTER TABLE safepoint.breakers
    ADD COLUMN policy jsonb NOT NULL DEFAULT '{}',
    -- An open breaker says from when on it is probed; P39 would else leave it open for ever.
    ADD CONSTRAINT breakers_open_has_probe CHECK (state <> 'open' OR next_probe_at IS NOT NULL);

-- P39: a half-open probe is a lease, named by the claim's token.
CREATE TABLE safepoint.breaker_probes (
    name        text NOT NULL REFERENCES safepoint.breakers ON DELETE CASCADE,
    token       uuid NOT NULL,
    tenant_id   text NOT NULL,
    run_id      uuid NOT NULL,
    generation  integer NOT NULL,
    path        text NOT NULL,
    step_id     text NOT NULL,
    iteration   integer NOT NULL,
    began_at    timestamptz NOT NULL,
    lease_until timestamptz NOT NULL,
    PRIMARY KEY (name, token)
);

CREATE TABLE safepoint.breaker_events (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name        text NOT NULL REFERENCES safepoint.breakers ON DELETE CASCADE,
    tenant_id   text NOT NULL DEFAULT '',
    before      text NOT NULL,
    after       text NOT NULL,
    actor       text NOT NULL,
    why         text NOT NULL,
    facts       jsonb NOT NULL DEFAULT '{}',
    at          timestamptz NOT NULL
);
CREATE INDEX breaker_events_of ON safepoint.breaker_events (name, id DESC);

-- What is due of one dependency, and what of it is set aside while its breaker is not closed.
CREATE INDEX steps_uses ON safepoint.steps (uses, due_at) WHERE status = 'ready' AND uses IS NOT NULL;
CREATE INDEX steps_set_aside ON safepoint.steps (uses, lane, tenant_id, priority DESC, deadline, ready_at)
    WHERE status = 'ready' AND reason->>'code' = 'breaker' AND due_at < 'infinity';

INSERT INTO safepoint.compatible VALUES ('0004');

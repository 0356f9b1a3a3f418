-- Lanes that are policy: what the file says, what a person has set over it and until when, and what of both holds now.
ALTER TABLE safepoint.lanes
    ALTER COLUMN "window" DROP NOT NULL,
    ALTER COLUMN "window" DROP DEFAULT,
    ADD COLUMN tenant_in_flight integer,
    ADD COLUMN weights          jsonb NOT NULL DEFAULT '{}',
    ADD COLUMN ordering         text NOT NULL DEFAULT 'priority' CONSTRAINT lanes_ordering CHECK (ordering IN ('priority', 'deadline')),
    ADD COLUMN stop_on_breaker  boolean NOT NULL DEFAULT true,
    ADD COLUMN inline_slice     double precision NOT NULL DEFAULT 0,
    -- P12: the lane's virtual time, by which tenants take turns (lane_tenants).
    ADD COLUMN virtual          double precision NOT NULL DEFAULT 0,
    ADD COLUMN overridden_until timestamptz,
    ADD COLUMN limited          boolean GENERATED ALWAYS AS (rate IS NOT NULL OR in_flight IS NOT NULL OR tenant_in_flight IS NOT NULL) STORED;
UPDATE safepoint.lanes SET policy = policy || jsonb_strip_nulls(jsonb_build_object(
    'rate', rate, 'burst', burst, 'in_flight', in_flight, 'paused', nullif(paused, false), 'window', nullif("window", 1000)));
UPDATE safepoint.lanes SET "window" = nullif("window", 1000), stop_on_breaker = coalesce((policy->>'stop_on_breaker')::boolean, true);

-- One tenant's place in the turns of one lane; no row is the same as one that is not ahead of the lane's virtual time.
CREATE TABLE safepoint.lane_tenants (
    lane        text NOT NULL REFERENCES safepoint.lanes ON DELETE CASCADE,
    tenant_id   text NOT NULL,
    pass        double precision NOT NULL,
    PRIMARY KEY (lane, tenant_id)
) WITH (fillfactor = 70);

CREATE TABLE safepoint.lane_overrides (
    lane        text NOT NULL REFERENCES safepoint.lanes ON DELETE CASCADE,
    key         text NOT NULL,
    value       jsonb NOT NULL,
    until       timestamptz,
    actor       text NOT NULL,
    why         text NOT NULL,
    at          timestamptz NOT NULL,
    PRIMARY KEY (lane, key)
);

CREATE TABLE safepoint.lane_events (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    lane        text NOT NULL,
    tenant_id   text NOT NULL DEFAULT '',
    what        text NOT NULL CONSTRAINT lane_events_what CHECK (what IN ('applied', 'overridden', 'lifted', 'over', 'removed')),
    facts       jsonb NOT NULL DEFAULT '{}',
    actor       text NOT NULL,
    why         text NOT NULL,
    at          timestamptz NOT NULL
);
CREATE INDEX lane_events_of ON safepoint.lane_events (lane, id DESC);

-- P12: whether a ready step waits to be admitted (1: it continues a run, 2: a start), or is to be sent or has been (0). A queued row is due.
ALTER TABLE safepoint.steps ADD COLUMN queued smallint NOT NULL DEFAULT 0 CONSTRAINT steps_queued_rank CHECK (queued BETWEEN 0 AND 2);
UPDATE safepoint.steps s SET queued = CASE WHEN s.kind = 'start' AND s.status = 'ready' AND s.dispatched_at IS NULL AND s.due_at <= clock_timestamp() THEN 2 ELSE 0 END,
       priority = r.priority, deadline = r.deadline
  FROM safepoint.runs r WHERE r.run_id = s.run_id AND s.status IN ('ready', 'running', 'waiting', 'held');

DROP INDEX safepoint.steps_due;
DROP INDEX safepoint.steps_queued;
DROP INDEX safepoint.steps_starts;
CREATE INDEX steps_due ON safepoint.steps (lane, due_at) WHERE status = 'ready' AND queued = 0;
CREATE INDEX steps_queue ON safepoint.steps (lane, tenant_id, queued, priority DESC, deadline, due_at)
    WHERE status = 'ready' AND queued > 0 AND due_at < 'infinity';
CREATE INDEX steps_queue_deadline ON safepoint.steps (lane, tenant_id, queued, deadline, priority DESC, due_at)
    WHERE status = 'ready' AND queued > 0 AND due_at < 'infinity' AND deadline IS NOT NULL;

INSERT INTO safepoint.compatible VALUES ('0005');

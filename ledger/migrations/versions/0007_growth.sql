-- What a ledger of ten million steps needs that a small one does not: an index for each order in which runs are listed.

-- A run's status changes a few times in its life, and never between two steps of it: what goes by status costs no step anything.
DROP INDEX safepoint.runs_listed;
CREATE INDEX runs_listed ON safepoint.runs (tenant_id, status, created_at DESC, run_id DESC);
CREATE INDEX runs_newest ON safepoint.runs (created_at DESC, run_id DESC);
CREATE INDEX runs_in_status ON safepoint.runs (status, created_at DESC, run_id DESC);
-- The version last: it is compared in the index, so that runs of others are passed over without looking at them.
CREATE INDEX runs_of_flow ON safepoint.runs (flow, created_at DESC, run_id DESC, workflow_version);

-- P10: how far the search for stalled runs has come.
ALTER TABLE safepoint.identity
    ADD COLUMN stalled_at   timestamptz NOT NULL DEFAULT '-infinity',
    ADD COLUMN stalled_run  uuid NOT NULL DEFAULT '00000000-0000-0000-0000-000000000000';

INSERT INTO safepoint.compatible VALUES ('0007');

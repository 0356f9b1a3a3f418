-- The list of one version's runs: of a version that few have, it passed over all runs of the flow.
CREATE INDEX runs_of_version ON safepoint.runs (flow, workflow_version, created_at DESC, run_id DESC);

INSERT INTO safepoint.compatible VALUES ('0008');

-- What a step is rid of: two indexes that a running step was entered into for the sake of a few rows, and a key that no statement needs.

-- Rows that run are as many as the workers execute: what is asked of them by lane or by expiry reads steps_running whole.
DROP INDEX safepoint.steps_expiring;
DROP INDEX safepoint.steps_in_flight;

-- Events are written under their run's lock and removed before it (prune.sql): each of them was compared with its run once more.
ALTER TABLE safepoint.events DROP CONSTRAINT events_run_id_fkey;

INSERT INTO safepoint.compatible VALUES ('0008');

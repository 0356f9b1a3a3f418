"""Every row that comes to a lane's queue, is admitted, or gives its place back, noted by the database itself.

A trigger on the measurement's own copy of `steps`: exact where samples are not, for about 20 µs a move.
"""

from __future__ import annotations

from figures import Move
from safepoint.ledger.connect import Connection

__all__ = ["read", "watch"]

# What counts against a lane's cap, as `lane_room_v1` counts it.
_IN_FLIGHT = """
({0}.status = 'ready' AND {0}.lane = '{1}' AND {0}.dispatched_at IS NOT NULL
 OR {0}.status = 'running' AND {0}.claimed_from IS NOT DISTINCT FROM '{1}')
"""
_WATCH = """
CREATE SCHEMA bench;
CREATE UNLOGGED TABLE bench.moves (at timestamptz NOT NULL, tenant_id text NOT NULL, what text NOT NULL);
CREATE FUNCTION bench.note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO bench.moves VALUES (clock_timestamp(), NEW.tenant_id, CASE
        -- Its claim was refused (a breaker): it waits on the lane as before.
        WHEN TG_ARGV[0] = 'left' AND OLD.status = 'ready' AND NEW.status = 'ready' AND NEW.lane = OLD.lane THEN 'back'
        ELSE TG_ARGV[0] END);
    RETURN NULL;
END $$;
CREATE TRIGGER found AFTER UPDATE ON safepoint.steps FOR EACH ROW
    WHEN (OLD.status = 'running' AND NEW.status = 'ready' AND NEW.lane = '{lane}') EXECUTE FUNCTION bench.note('found');
CREATE TRIGGER admitted AFTER UPDATE ON safepoint.steps FOR EACH ROW
    WHEN (NOT {old} AND {new}) EXECUTE FUNCTION bench.note('admitted');
CREATE TRIGGER gone AFTER UPDATE ON safepoint.steps FOR EACH ROW
    WHEN ({old} AND NOT {new}) EXECUTE FUNCTION bench.note('left');
"""


def watch(connection: Connection, lane: str) -> None:
    """Note what moves on a lane from now on."""
    old, new = _IN_FLIGHT.format("OLD", lane), _IN_FLIGHT.format("NEW", lane)
    connection.execute(_WATCH.format(lane=lane, old=old, new=new))  # type: ignore[arg-type]  # a lane's own name


def read(connection: Connection, *, since: float) -> list[Move]:
    """Return what has moved since then, in its order."""
    query = """
    SELECT extract(epoch FROM at)::double precision, tenant_id, what FROM bench.moves
     WHERE at >= to_timestamp(%s) ORDER BY at, what DESC
    """
    return [Move(*row) for row in connection.execute(query, (since,))]

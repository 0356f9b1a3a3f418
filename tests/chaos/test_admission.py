"""Relays are killed while a limited lane is drained: its limits hold at any time, and everything is done once (P12).

The ledger's own history decides: each place taken or given back, each message sent, as a trigger has written it down.
A place is free before its transaction has ended, and taken after it was counted, so that nothing is alleged.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Iterator
from uuid import UUID

import psycopg
import pytest
from crashes import has_died
from fleet import Fleet, trap
from ledger_turns import Bucket, Limits

pytestmark = [pytest.mark.chaos, pytest.mark.slow]
RUNS, TENANTS = 60, 3
HELD = Limits(rate=100.0, burst=20, in_flight=4, tenant_in_flight=3)
HISTORY = """
CREATE TABLE public.places (n bigserial, run_id uuid, tenant text, had boolean, has boolean, sent timestamptz);
CREATE FUNCTION public.has_place(s safepoint.steps) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT s.lane = 'front' AND s.status = 'ready' AND s.dispatched_at IS NOT NULL OR s.status = 'running' AND s.claimed_from = 'front'
$$;
CREATE FUNCTION public.note() RETURNS trigger LANGUAGE plpgsql SET search_path = public AS $$
BEGIN
    -- A relay that settles counts a dispatch; one that sends does not yet.
    INSERT INTO places (run_id, tenant, had, has, sent) SELECT new.run_id, new.tenant_id, coalesce(has_place(old), false), has_place(new),
        CASE WHEN new.lane = 'front' AND new.dispatched_at IS DISTINCT FROM old.dispatched_at AND new.dispatches = old.dispatches
             THEN new.dispatched_at END;
    RETURN NULL;
END $$;
CREATE TRIGGER note AFTER UPDATE ON safepoint.steps FOR EACH ROW WHEN (old.step_id = 'plan') EXECUTE FUNCTION public.note();
SELECT safepoint.override_lane_v1('front', '{"rate": 100, "burst": 20, "in_flight": 4, "tenant_in_flight": 3}', NULL, 'test', 'test');
"""  # noqa: E501  # statements


@pytest.fixture(params=["valkey", pytest.param("rabbitmq", marks=pytest.mark.rabbitmq)])
def fleet(request: pytest.FixtureRequest, new_fleet: Callable[..., Fleet]) -> Iterator[Fleet]:
    """A fleet of the test's own on either broker."""
    new_broker = {"valkey": "new_valkey", "rabbitmq": "new_vhost"}[request.param]
    made: Fleet = new_fleet(request.getfixturevalue(new_broker)())
    yield made
    made.close()


def begin_runs(fleet: Fleet) -> list[UUID]:
    rows = fleet.query(
        "SELECT safepoint.enqueue('early', '{\"n\": 1}', tenant => 't' || n %% %s) FROM generate_series(1, %s) AS n",
        TENANTS,
        RUNS,
    )
    return [UUID(str(row[0])) for row in rows]


def ended(fleet: Fleet) -> int:
    return int(
        fleet.query("SELECT count(*) FROM safepoint.steps WHERE step_id = 'plan' AND commit_seq IS NOT NULL")[0][0]
    )


def test_limits_hold_while_relays_are_killed(fleet: Fleet) -> None:
    once = fleet.folder / "sprung"
    worker = fleet.worker("online", "recovery", "front", concurrency=4, wait=False)
    surviving = fleet.relay()
    armed = fleet.relay(env=trap("relay.published@plan", target="child", once=once))
    with psycopg.connect(fleet.ledger_url, autocommit=True) as connection:
        connection.execute(HISTORY.encode())
    worker.ready()

    runs = begin_runs(fleet)
    fleet.until(lambda: ended(fleet) >= 1)
    surviving.pause()  # until the other one has had its turn, and has died of it
    fleet.until(lambda: has_died(once, armed, whole=True))
    surviving.unpause()
    killed = fleet.relay()
    fleet.until(lambda: ended(fleet) >= RUNS // 2)
    killed.kill(signal.SIGKILL)  # anywhere

    for run in runs:
        fleet.until_status(run, "succeeded")
    fleet.assert_all_sound(runs)
    assert_limits_held(fleet)


def assert_limits_held(fleet: Fleet) -> None:
    """Play the ledger's history again."""
    history = fleet.query("SELECT tenant, had, has, extract(epoch FROM sent)::float FROM public.places ORDER BY n")
    busy, most = Counter[str](), 0
    for tenant, had, has, _ in history:
        busy[tenant] += int(has) - int(had)
        most = max(most, busy.total())
        assert busy[tenant] <= (HELD.tenant_in_flight or 0)
        assert busy.total() <= (HELD.in_flight or 0)
    assert (most, busy.total()) == (HELD.in_flight, 0)
    bucket, sendings = Bucket(), [row[3] for row in history if row[3] is not None]
    assert sendings == sorted(sendings)
    bucket.limit(HELD, sendings[0])
    for at in sendings:
        bucket.send(1, at)
    assert len(sendings) >= RUNS

"""Lanes in the ledger: the file's policy, what people set over it for a while, and what of both holds."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from ledger_clock import Clock
from ledger_fixtures import Crowd
from ledger_verbs import DONE, Verbs, ask, key
from safepoint.config.errors import ConfigError
from safepoint.config.lanes import Lane
from safepoint.ledger import lanes
from safepoint.ledger.consumption import measured
from safepoint.ledger.lane_views import read_lane
from safepoint.ledger.snapshot import snapshot
from safepoint.recovery import admission

A = key("a#1")
FILE = {"recovery": Lane(name="recovery", rate=50.0, in_flight=100)}


def applied(verbs: Verbs, **policy: Any) -> list[admission.Applied]:
    """Apply a file that has the recovery lane alone."""
    file = {"recovery": Lane(name="recovery", **policy)} if policy else FILE
    return admission.apply(verbs.connection, file, window=None, by="ann", why="test")


def said(verbs: Verbs, seconds: float | None = None, by: str = "ann", lane: str = "recovery", **values: Any) -> Any:
    """Set keys as a person types them."""
    return admission.override(verbs.connection, lane, values, seconds=seconds, by=by, why="test")


def holds(verbs: Verbs, *keys: str, lane: str = "recovery") -> Any:
    """Read what holds."""
    row = verbs.rows("SELECT * FROM safepoint.lanes WHERE name = %s", (lane,))[0]
    return row[keys[0]] if len(keys) == 1 else tuple(row[one] for one in keys)


def events(verbs: Verbs, lane: str = "recovery") -> list[str]:
    """Read what has been done to a lane, in order."""
    return [
        row["what"] for row in verbs.rows("SELECT what FROM safepoint.lane_events WHERE lane = %s ORDER BY id", (lane,))
    ]


def test_an_override_ends_by_the_ledgers_clock(verbs: Verbs, clock: Clock) -> None:
    applied(verbs)
    said(verbs, 60.0, rate="5")

    clock.forward(59)
    verbs.dispatch()
    before = holds(verbs, "rate")
    clock.forward(1)
    verbs.dispatch()

    assert (before, holds(verbs, "rate", "overridden_until")) == (5.0, (50.0, None))
    assert events(verbs) == ["applied", "overridden", "over"]


def test_a_later_word_replaces_an_earlier_one_key_by_key(verbs: Verbs, clock: Clock) -> None:
    applied(verbs)
    said(verbs, 60.0, rate="5", in_flight="10")
    said(verbs, 600.0, by="bob", rate="unlimited")

    both = holds(verbs, "rate", "in_flight")
    clock.forward(61)
    verbs.dispatch()

    assert both == (None, 10)
    assert holds(verbs, "rate", "in_flight") == (None, 100)


def test_what_is_lifted_is_the_files_again(verbs: Verbs) -> None:
    applied(verbs)
    said(verbs, rate="5", in_flight="10")

    lifted = lanes.lift(verbs.connection, "recovery", ["rate", "burst"], by="ann", why="test")

    assert (lifted, holds(verbs, "rate", "in_flight")) == (("rate",), (50.0, 10))
    assert lanes.lift(verbs.connection, "recovery", None, by="ann", why="test") == ("in_flight",)
    assert lanes.lift(verbs.connection, "lost", None, by="ann", why="test") is None


def test_the_file_is_applied_under_an_override_which_stands(verbs: Verbs) -> None:
    applied(verbs)
    said(verbs, rate="5")

    (_, _, changed) = applied(verbs, rate=20.0, in_flight=30)
    under = holds(verbs, "rate", "in_flight")
    lanes.lift(verbs.connection, "recovery", None, by="ann", why="test")

    assert changed.changes == {"rate": (50.0, 20.0), "in_flight": (100, 30)}
    assert (under, holds(verbs, "rate", "in_flight")) == ((5.0, 30), (20.0, 30))


def test_applying_tells_lane_by_lane(verbs: Verbs) -> None:
    first = {one.name: one.outcome for one in applied(verbs)}
    again = {one.name: one.outcome for one in applied(verbs)}

    assert first == {"control": "kept", "online": "kept", "recovery": "changed"}
    assert again == {"control": "kept", "online": "kept", "recovery": "same"}
    assert events(verbs) == ["applied"]


def test_each_tenants_weight_is_a_value_of_its_own(verbs: Verbs) -> None:
    applied(verbs, weights={"acme": 3.0, "globex": 2.0})

    (_, _, changed) = applied(verbs, weights={"acme": 4.0})
    lane = said(verbs, weights={"initech": "5"})

    assert changed.changes == {"weights.acme": (3.0, 4.0), "weights.globex": (2.0, 1.0)}
    assert lane.weights == holds(verbs, "weights") == {"acme": 4.0, "initech": 5.0}


def test_two_people_at_once_both_have_their_word(crowd: Crowd) -> None:
    one, other, watch = crowd(), crowd(), crowd()
    with ThreadPoolExecutor(1) as pool:
        with one.connection.transaction():
            said(one, by="ann", weights={"acme": "3"})
            waiting = pool.submit(said, other, None, "bob", weights={"globex": "2"})
            while not watch.waiting_backends():
                assert not waiting.done(), "the second must wait for the first"
        waiting.result()

    assert holds(watch, "weights") == {"acme": 3.0, "globex": 2.0}


@pytest.mark.parametrize(
    ("values", "told"),
    [
        (
            {"rate": "5", "in_flight": "many"},
            "lane recovery: in_flight: 'many' is not accepted. Accepted: a whole number",
        ),
        ({"rate": "5", "tenant_in_flight": "200"}, "tenant_in_flight is 200; it must be at most in_flight (100)"),
        (
            {"rate": "5", "weights": {"acme": "0"}},
            "weights.acme: '0' is not accepted. Accepted: a number at least 0.001",
        ),
        ({"rate": "nan"}, "rate: 'nan' is not accepted"),
        ({"rate": "1e-300"}, "it must be 0, which lets nothing through, or at least"),
        ({"in_flight": "99999999999"}, "in_flight: '99999999999' is not accepted"),
        ({"rat": "5"}, "rat: unknown key; did you mean rate?"),
        ({"queue": "5"}, "it is set in the file"),
        ({"paused": "perhaps"}, "paused: 'perhaps' is not accepted. Accepted: true or false"),
        ({"order": "age"}, "order: 'age' is not accepted. Accepted: priority or deadline"),
    ],
)
def test_a_bad_value_leaves_nothing_behind(verbs: Verbs, values: dict[str, Any], told: str) -> None:
    applied(verbs)

    with pytest.raises(ConfigError) as refused:
        said(verbs, **values)

    assert told in str(refused.value)
    assert verbs.value("SELECT count(*) FROM safepoint.lane_overrides") == 0
    assert (holds(verbs, "rate"), events(verbs)) == (50.0, ["applied"])


def test_a_burst_needs_a_rate_that_is_set_or_lifted_by_name(verbs: Verbs) -> None:
    with pytest.raises(ConfigError, match="there is no rate"):
        said(verbs, lane="online", burst="5")

    said(verbs, lane="online", rate="2", burst="5")
    said(verbs, lane="online", rate="unlimited")  # the way out of an outage asks for nothing more

    assert holds(verbs, "rate", "burst", lane="online") == (None, 5)


def test_nobody_is_told_off_for_what_others_have_set(verbs: Verbs) -> None:
    applied(verbs, in_flight=100)
    said(verbs, tenant_in_flight="50")
    applied(verbs, in_flight=10)  # now a tenant may have more than all

    said(verbs, by="bob", rate="5")

    assert holds(verbs, "rate", "in_flight", "tenant_in_flight") == (5.0, 10, 50)


def test_a_lane_is_resumed_whoever_has_paused_it(verbs: Verbs) -> None:
    applied(verbs, paused=True)
    admission.resume(verbs.connection, "recovery", by="ann", why="test")
    after_the_file = holds(verbs, "paused")

    applied(verbs)
    admission.pause(verbs.connection, "online", seconds=None, by="ann", why="test")
    admission.resume(verbs.connection, "online", by="ann", why="test")

    assert (after_the_file, holds(verbs, "paused", lane="online")) == (False, False)
    assert events(verbs, "online") == ["overridden", "lifted"]


def gpu(verbs: Verbs) -> None:
    lanes.apply(verbs.connection, {"gpu": Lane(name="gpu")}, only_missing=True)


def test_a_lane_is_removed_when_nothing_is_on_it(verbs: Verbs) -> None:
    gpu(verbs)
    run = verbs.begun(ask("a#1", lane="gpu"), ask("b#1"))
    crowds = [lanes.remove(verbs.connection, "gpu", by="ann", why="old")]
    token = verbs.claimed(run, A, lane="gpu")
    crowds.append(lanes.remove(verbs.connection, "gpu", by="ann", why="old"))
    verbs.lose(token)  # waits on the recovery lane, and its home is still the old one
    crowds.append(lanes.remove(verbs.connection, "gpu", by="ann", why="old"))
    verbs.cancel(run)
    verbs.dispatch()
    verbs.node("node-2", lanes=("gpu",))
    crowds.append(lanes.remove(verbs.connection, "gpu", by="ann", why="old"))

    assert [(one.ready, one.running, one.nodes) for one in crowds if one] == [
        (1, 0, ()), (0, 1, ()), (1, 0, ()), (0, 0, ("node-2",))
    ]  # fmt: skip
    assert holds(verbs, "name", lane="gpu") == "gpu"


def test_a_removed_lane_leaves_its_history(verbs: Verbs) -> None:
    gpu(verbs)
    said(verbs, lane="gpu", rate="5")

    crowd = lanes.remove(verbs.connection, "gpu", by="ann", why="old")

    assert crowd is not None
    assert crowd.is_empty
    assert events(verbs, "gpu") == ["applied", "overridden", "removed"]
    assert lanes.remove(verbs.connection, "gpu", by="ann", why="old") is None


def test_a_step_on_a_lane_that_the_ledger_does_not_know_goes_when_a_start_adds_it(verbs: Verbs, clock: Clock) -> None:
    verbs.node("node-2", lanes=("gpu",))
    run = verbs.begun(ask("a#1", lane="gpu"))
    clock.forward(5)
    before = verbs.dispatch()

    gpu(verbs)

    assert before == []
    assert [(row.run_id, row.lane) for row in verbs.dispatch()] == [(run, "gpu")]


def test_a_lane_shows_its_tenants_by_their_queues(crowd: Crowd, crowded_ledger_url: str) -> None:
    verbs = crowd()
    said(verbs, lane="online", in_flight="2", weights={"b": "3"})
    for tenant, count in (("a", 3), ("b", 5), ("c", 1)):
        verbs.many(count, tenant=tenant)
    (first, _) = verbs.dispatch()
    verbs.claimed(first.run_id)

    with snapshot(crowded_ledger_url, name="test") as connection:
        lane = read_lane(connection, "online", tenants=2)

    assert lane is not None
    assert [(one["tenant"], one["weight"]) for one in lane["tenants"]] == [("b", 3.0), ("a", 1.0)]
    assert sum(one["queued"] + one["in_flight"] for one in lane["tenants"]) == 8
    assert (lane["queued"], lane["sent"], lane["running"], lane["room"]["slots"]) == (7, 1, 1, 0)
    assert [one["what"] for one in lane["history"]][:1] == ["overridden"]


def test_what_calls_take_is_measured_from_committed_steps(
    crowd: Crowd, crowd_clock: Clock, crowded_ledger_url: str
) -> None:
    verbs = crowd()
    for seconds, tokens in ((1.0, 100), (2.0, 500), (30.0, 900)):
        run = verbs.begun(ask("a#1", uses="llm"), ask("b#1", uses="mail"), ask("c#1"))
        claimed = verbs.claimed(run, A)
        crowd_clock.forward(seconds)
        verbs.commit(claimed, result=replace(DONE, tokens=tokens))

    with snapshot(crowded_ledger_url, name="test") as connection:
        found = measured(connection, ["llm", "mail"])
    crowd_clock.forward(86_401)
    with snapshot(crowded_ledger_url, name="test") as connection:
        later = measured(connection, ["llm", "mail"])

    assert {name: (one.seconds, one.tokens, one.calls) for name, one in found.items()} == {"llm": (2.0, 500.0, 3)}
    assert later == {}

"""What dependencies bear: the arithmetic by hand, and that it never goes the wrong way."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safepoint.config.dependencies import Dependency
from safepoint.recovery.capacity import Bears, Measured, Most, Plan, bears, compare, plan, round_down

NOTHING = Measured()


def borne(measured: Measured = NOTHING, name: str = "llm", **limits: Any) -> Bears:
    return bears(name, Dependency.model_validate(limits), measured)


def planned(concurrency: int = 4, **limits: dict[str, Any]) -> Plan:
    made = {name: Dependency.model_validate(one) for name, one in limits.items()}
    return plan(made, {}, concurrency=concurrency)


@pytest.mark.parametrize(
    ("limits", "rate", "at_once"),
    [
        ({"tokens_per_minute": 90_000, "tokens_per_call": 1500, "seconds_per_call": 2}, 1.0, 2.0),
        ({"requests_per_minute": 600, "seconds_per_call": 0.5}, 10.0, 5.0),
        ({"requests_per_second": 10, "seconds_per_call": 3}, 10.0, 30.0),
        ({"connections": 8, "seconds_per_call": 0.25}, 32.0, 8.0),  # Little: 8 at once of 0.25 s each
        ({"connections": 8}, None, 8.0),
        ({"connections": 8, "requests_per_second": 2, "seconds_per_call": 1}, 2.0, 2.0),
        ({"connections": 2, "requests_per_second": 100, "seconds_per_call": 1}, 2.0, 2.0),
        ({"tokens_per_minute": 90_000}, None, None),
        ({"tokens_per_minute": 6000, "requests_per_minute": 60, "tokens_per_call": 1}, 1.0, None),
    ],
)
def test_the_narrowest_limit_is_what_is_borne(
    limits: dict[str, Any], rate: float | None, at_once: float | None
) -> None:
    found = borne(**limits)

    assert (found.calls_per_second, found.concurrency) == (rate, at_once)


def test_what_is_not_configured_is_measured_and_says_so() -> None:
    found = borne(Measured(2.0, 3000.0, 17), tokens_per_minute=90_000, tokens_per_call=1500)

    assert found.seconds is not None
    assert found.tokens is not None
    assert (found.seconds.value, found.seconds.source) == (2.0, "measured")
    assert (found.tokens.value, found.tokens.source) == (1500, "configured")
    assert found.missing == ()


def test_what_is_missing_is_named() -> None:
    assert borne(Measured(2.0, 0.0, 17), tokens_per_minute=90_000).missing == ("tokens_per_call",)
    assert borne(requests_per_minute=60).missing == ("seconds_per_call",)
    assert borne(name="ledger", connections=60).missing == ()


def test_held_connections_bound_workers() -> None:
    ledger = borne(name="ledger", connections=21)  # 1 by a worker, 1 by each of its slots
    pool = borne(name="pool", connections=21, connections_per_slot=2)

    assert (ledger.workers(4), ledger.slots(4), ledger.workers(1), ledger.calls_per_second) == (4, 16, 10, None)
    assert (pool.workers(4), pool.slots(4)) == (2, 8)


def test_each_number_is_the_narrowest_dependencys() -> None:
    found = planned(
        llm={"requests_per_second": 12, "seconds_per_call": 2},
        mail={"requests_per_second": 20, "seconds_per_call": 0.5},
        ledger={"connections": 50},
    )

    assert found.narrowest == "llm"
    assert (found.slots, found.workers) == (Most(10, "mail"), Most(2, "mail"))
    assert (found.rate, found.in_flight) == (Most(3.0, "llm"), Most(2, "mail"))


def test_nothing_configured_bounds_nothing() -> None:
    found = planned()

    assert (found.narrowest, found.slots, found.rate) == (None, None, None)
    assert compare(found, rate=None, burst=None, in_flight=None, slots=1000) == []


def test_what_is_set_too_high_is_told_with_what_to_set() -> None:
    found = planned(llm={"requests_per_second": 12, "seconds_per_call": 2})

    wrong = {one.key: one for one in compare(found, rate=50, burst=50, in_flight=None, slots=100)}

    assert {key: (one.have, one.bears, one.may) for key, one in wrong.items()} == {
        "rate": (50, 12.0, 3.0),
        "burst": (50, 12, 3),
        "in_flight": (None, 24.0, 6),
        "slots": (100, 24.0, 24),
    }
    assert compare(found, rate=3, burst=12, in_flight=6, slots=24) == []


def test_all_that_bear_less_are_told_the_narrowest_first() -> None:
    found = planned(
        llm={"requests_per_second": 12, "seconds_per_call": 2}, mail={"requests_per_second": 40, "seconds_per_call": 1}
    )

    wrong = compare(found, rate=50, burst=50, in_flight=None, slots=30)

    assert [(one.key, one.by, one.may) for one in wrong] == [
        *(("rate", "llm", 3), ("rate", "mail", 10), ("burst", "llm", 3), ("burst", "mail", 10)),
        *(("in_flight", "llm", 6), ("in_flight", "mail", 10), ("slots", "llm", 24)),
    ]


positive = st.floats(min_value=0.01, max_value=1e6, allow_nan=False)
limit = st.none() | positive
limits = st.fixed_dictionaries(
    {
        "tokens_per_minute": limit,
        "requests_per_minute": limit,
        "requests_per_second": limit,
        "connections": st.none() | st.integers(1, 10_000),
        "seconds_per_call": limit,
        "tokens_per_call": limit,
        "share_of_recovery": st.floats(min_value=0.01, max_value=1.0),
    }
).filter(lambda one: any(one[key] is not None for key in LIMITS))
LIMITS = ("tokens_per_minute", "requests_per_minute", "requests_per_second", "connections")
more = st.floats(min_value=1.0, max_value=1000.0)


def at_most(one: float | None, other: float | None) -> bool:
    """Whether a bound is no wider than another; none is the widest."""
    return other is None or (one is not None and one <= other * (1 + 1e-9))


@settings(deadline=None)
@given(limits, more, st.sampled_from(["tokens_per_call", "seconds_per_call"]))
def test_a_call_that_takes_more_never_raises_the_rate(one: dict[str, Any], factor: float, key: str) -> None:
    if one[key] is None:
        return
    before, after = borne(**one), borne(**{**one, key: one[key] * factor})

    assert at_most(after.calls_per_second, before.calls_per_second)
    assert at_most(after.recovery_rate, before.recovery_rate)
    if key == "tokens_per_call":
        assert at_most(after.concurrency, before.concurrency)


@settings(deadline=None)
@given(limits, st.floats(min_value=1.0, max_value=100.0), st.sampled_from(LIMITS))
def test_a_wider_limit_never_lowers_anything(one: dict[str, Any], factor: float, key: str) -> None:
    if one[key] is None:
        return
    wider = int(one[key] * factor) if key == "connections" else one[key] * factor
    before, after = borne(**one), borne(**{**one, key: wider})

    assert at_most(before.calls_per_second, after.calls_per_second)
    assert at_most(before.concurrency, after.concurrency)
    assert at_most(before.slots(4), after.slots(4))
    assert at_most(before.recovery_in_flight, after.recovery_in_flight)


@settings(deadline=None)
@given(limits, limits, st.integers(1, 64))
def test_another_dependency_never_widens_the_plan(one: dict[str, Any], other: dict[str, Any], concurrency: int) -> None:
    alone, both = planned(concurrency, a=one), planned(concurrency, a=one, b=other)

    for key in ("calls_per_second", "slots", "workers", "rate", "in_flight"):
        before, after = getattr(alone, key), getattr(both, key)
        assert before is None or after.value <= before.value


@settings(deadline=None)
@given(limits)
def test_recovery_never_gets_more_than_its_share(one: dict[str, Any]) -> None:
    found = borne(**one)

    if found.calls_per_second is not None and found.recovery_rate is not None:
        assert found.recovery_rate == found.calls_per_second * one["share_of_recovery"]
        assert 0 <= round_down(found.recovery_rate) <= found.recovery_rate
    if found.concurrency is not None and found.recovery_in_flight is not None:
        assert found.recovery_in_flight <= max(1.0, found.concurrency * one["share_of_recovery"] + 1e-6)


@settings(deadline=None)
@given(positive)
def test_a_number_is_rounded_to_what_people_type(number: float) -> None:
    rounded = round_down(number)

    assert number * 0.9 <= rounded <= number
    assert rounded == float(f"{rounded:.2g}") or rounded == number

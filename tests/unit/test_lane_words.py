"""What a step that waits to be admitted says: the first of what it meets."""

from __future__ import annotations

from dataclasses import replace

import pytest
from safepoint.ledger.lane_words import LaneFacts, Override, limit_words

FREE = LaneFacts(
    "acme",
    limited=True,
    rate=5.0,
    tokens=3.0,
    in_flight=100,
    busy=4,
    sent=1,
    slots=96,
    tenant_in_flight=10,
    of_tenant=4,
)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, "it lets through 5 steps a second and 100 at once and 10 of a tenant at once; tenants take turns"),
        ({"exists": False}, "the ledger has no such lane"),
        ({"paused": True, "busy": 100}, "the lane is paused"),
        ({"busy": 100, "of_tenant": 10}, "100 of 100 are in flight"),
        ({"of_tenant": 10, "tokens": 0.0}, "10 of 10 of tenant acme are in flight"),
        ({"tokens": 0.3, "slots": 0}, "its 5 steps a second are used up"),
        ({"tokens": 0.0, "rate": 0.0}, "it lets through nothing"),
        ({"slots": 0, "sent": 64}, "64 are with the workers and not claimed yet"),
        ({"in_flight": 0, "busy": 0}, "0 of 0 are in flight"),
    ],
)
def test_the_first_limit_that_is_met_is_said(changes: dict[str, object], told: str) -> None:
    assert limit_words(replace(FREE, **changes), queued=True).startswith(told)  # type: ignore[arg-type]  # fields of it


def test_a_lane_without_limits_is_worth_a_word_only_where_it_is_crowded() -> None:
    lane = LaneFacts("acme", slots=64)

    assert limit_words(lane, queued=False) == ""
    assert limit_words(lane, queued=True) == "tenants take turns by their weights"


@pytest.mark.parametrize(("left", "told"), [(5400.0, "for 90 min more"), (None, "until it is lifted")])
def test_an_override_says_whose_it_is_and_until_when(left: float | None, told: str) -> None:
    paused = Override("paused", True, None, left, "ann", "they migrate", "")
    other = replace(paused, key="rate", by="bob")

    words = limit_words(replace(FREE, paused=True, overrides={"paused": paused, "rate": other}), queued=True)

    assert words == f"the lane is paused (set by ann {told}: they migrate)"

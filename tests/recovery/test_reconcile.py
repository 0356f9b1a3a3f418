"""What becomes of an unknown effect, each case a line (G6, P32, P33)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from safepoint.recovery.reconcile import Doubt, Way, reconcile


@pytest.mark.parametrize(
    ("doubt", "way"),
    [
        (Doubt(), Way.HOLD),
        (Doubt(has_lookup=True), Way.ASK),
        (Doubt(has_lookup=True, asked_enough=True), Way.HOLD),
        (Doubt(idempotent=True), Way.AGAIN),
        (Doubt(idempotent=True, key_retention=10, first_sent_ago=9), Way.AGAIN),
        (Doubt(idempotent=True, key_retention=10, first_sent_ago=10.1), Way.HOLD),
        (Doubt(idempotent=True, key_retention=10, first_sent_ago=9, call=2), Way.HOLD),
        (Doubt(has_lookup=True, idempotent=True), Way.ASK),
        (Doubt(has_lookup=True, asked_enough=True, idempotent=True), Way.AGAIN),
        (Doubt(has_lookup=True, asked_enough=True, idempotent=True, key_retention=1, first_sent_ago=2), Way.HOLD),
    ],
)
def test_each_case(doubt: Doubt, way: Way) -> None:
    assert reconcile(doubt) is way


@given(
    st.builds(
        Doubt,
        has_lookup=st.booleans(),
        asked_enough=st.booleans(),
        key_retention=st.none() | st.floats(0, 1e6),
        first_sent_ago=st.none() | st.floats(0, 1e6),
    )
)
def test_nothing_is_sent_again_to_who_does_not_know_keys(doubt: Doubt) -> None:
    assert reconcile(doubt) is not Way.AGAIN

"""What the storm's report computes from raw samples."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

from figures import (  # the folder is on the path only now
    Move,
    backlogged,
    crowded,
    jain,
    order_of_tenants,
    overlap,
    peak,
    percentile,
    rate_within,
    serviced,
    windows,
)


def moves(text: str) -> list[Move]:
    """Read moves as `found a, admitted a, ...`, one a second."""
    words = [one.split() for one in text.split(", ")]
    return [Move(float(at), tenant, what) for at, (what, tenant) in enumerate(words)]


def test_equal_shares_have_index_one_and_a_single_winner_one_of_n() -> None:
    assert jain([3, 3, 3, 3]) == 1.0
    assert jain([8, 0, 0, 0]) == 0.25
    assert math.isnan(jain([0, 0]))


def test_a_percentile_is_one_of_the_values() -> None:
    assert percentile([float(n) for n in range(100, 0, -1)], 0.99) == 99
    assert percentile([5.0], 0.99) == 5.0
    assert math.isnan(percentile([], 0.5))


def test_the_first_tenant_has_its_part_and_nobody_has_nothing() -> None:
    dealt = order_of_tenants(1_000, tenants=20, skew=5.0)

    assert len(dealt) == 1_000
    assert {dealt.count(f"t{n:02}") for n in range(1, 20)} == {41}
    assert dealt.count("t00") == 1_000 - 19 * 41


def test_a_window_that_is_not_whole_does_not_count() -> None:
    assert windows(0.0, 5.0, width=2.0) == [(0.0, 2.0), (2.0, 4.0)]
    assert windows(0.0, 4.0, width=2.0) == [(0.0, 2.0), (2.0, 4.0)]


def test_a_rate_is_counted_in_its_spans_only() -> None:
    instants = [0.0, 1.0, 1.5, 2.0, 9.0]

    assert rate_within(instants, [(1.0, 2.0), (8.0, 10.0)]) == 1.0
    assert math.isnan(rate_within(instants, []))


def test_who_leaves_makes_room_before_the_next_is_counted() -> None:
    at_once = [Move(1.0, "a", "admitted"), Move(2.0, "b", "admitted"), Move(2.0, "a", "left")]

    assert peak(at_once) == 1
    assert peak([Move(0.0, "a", "found"), *at_once, Move(1.5, "c", "admitted")]) == 2


def test_all_have_rows_from_the_last_that_came_to_the_first_that_is_through() -> None:
    seen = moves("found a, found a, found b, admitted a, found b, admitted b, admitted b, admitted a")

    assert backlogged(seen, ["a", "b"]) == (2.0, 6.0)
    assert serviced(seen, (2.0, 6.0), what="admitted", tenants=["a", "b"]) == [1, 1]


def test_what_is_refused_waits_again() -> None:
    seen = moves("found a, found b, admitted a, back a, admitted b, admitted a")

    assert backlogged(seen, ["a", "b"]) == (3.0, 4.0)


def test_without_a_tenant_there_is_no_time_in_which_all_have_rows() -> None:
    assert backlogged(moves("found a, admitted a"), ["a", "b"]) == (math.inf, math.inf)


@pytest.mark.parametrize(("least", "spans"), [(1, [(0.0, 3.0), (4.0, 5.0)]), (2, [(1.0, 2.0)]), (3, [])])
def test_a_queue_is_crowded_while_enough_wait(least: int, spans: list[tuple[float, float]]) -> None:
    seen = moves("found a, found a, admitted a, admitted a, found b, admitted b")

    assert crowded(seen, least) == spans


def test_spans_overlap_where_both_are() -> None:
    assert overlap([(0.0, 4.0), (6.0, 9.0)], [(3.0, 7.0)]) == [(3.0, 4.0), (6.0, 7.0)]

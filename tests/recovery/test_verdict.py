"""What becomes of a running step whose executor may be gone: every case is one line."""

from __future__ import annotations

import itertools

import pytest
from safepoint.recovery.verdict import Facts, Finding, Verdict, judge

TAKE, LEAVE, CONFIRM = Finding.TAKE, Finding.LEAVE, Finding.CONFIRM
FLAGS = ("lease_over", "lock_missing", "stopped", "expired", "unnamed")


@pytest.mark.parametrize(
    ("facts", "verdict"),
    [
        (Facts(), Verdict(LEAVE)),
        (Facts(lease_over=True), Verdict(TAKE, "lease")),
        (Facts(stopped=True), Verdict(TAKE, "node")),
        (Facts(expired=True), Verdict(TAKE, "timeout")),
        (Facts(unnamed=True), Verdict(TAKE, "unnamed")),
        (Facts(lock_missing=True), Verdict(CONFIRM)),
        (Facts(lease_over=True, lock_missing=True), Verdict(TAKE, "lease")),
        (Facts(expired=True, lease_over=True), Verdict(TAKE, "timeout")),
        (Facts(stopped=True, lease_over=True), Verdict(TAKE, "node")),
        (Facts(lock_missing=True, neighbours=3), Verdict(CONFIRM)),
    ],
)
def test_a_verdict_names_its_cause(facts: Facts, verdict: Verdict) -> None:
    assert judge(facts) == verdict


def test_p21_a_missing_lock_counts_when_it_is_still_missing() -> None:
    facts = Facts(lock_missing=True)

    assert judge(facts).finding is CONFIRM
    assert judge(facts, confirmed=True).finding is TAKE


@pytest.mark.parametrize("flags", list(itertools.product([False, True], repeat=len(FLAGS))))
@pytest.mark.parametrize("confirmed", [False, True])
def test_p20_time_without_a_ledger_is_nobodys(flags: tuple[bool, ...], confirmed: bool) -> None:
    frozen = Facts(**dict(zip(FLAGS, flags, strict=True)), frozen=True)

    assert judge(frozen, confirmed=confirmed) == Verdict(LEAVE)


@pytest.mark.parametrize(("neighbours", "deadly"), [(0, True), (1, False), (7, False)])
def test_p23_only_who_died_alone_with_its_step_may_have_died_of_it(neighbours: int, deadly: bool) -> None:
    facts = Facts(lock_missing=True, neighbours=neighbours)

    assert judge(facts, confirmed=True) == Verdict(TAKE, "node", deadly=deadly)


@pytest.mark.parametrize("flag", ["lease_over", "stopped", "expired", "unnamed"])
def test_p23_neither_a_lost_host_nor_a_goodbye_nor_a_timeout_is_a_death(flag: str) -> None:
    assert not judge(Facts(**{flag: True}), confirmed=True).deadly


def test_a_live_step_is_never_taken() -> None:
    assert judge(Facts(neighbours=5), confirmed=True) == Verdict(LEAVE)

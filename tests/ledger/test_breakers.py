"""Breakers as claims and the relay meet them: what waits, what probes, what is let out, and in whose turn (P39)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from uuid import UUID

import pytest
from breaking import LLM, Breaking
from ledger_clock import Clock
from ledger_fixtures import Crowd
from ledger_verbs import Verbs, ask, key
from safepoint.ledger import outbox
from safepoint.ledger.steps import Cause, Claimed, Settled
from safepoint.recovery.breaker import Outcome

A = key("a#1")


@pytest.fixture
def breaking(verbs: Verbs, clock: Clock) -> Breaking:
    return Breaking(verbs)


def asking(verbs: Verbs, count: int = 1, *, lane: str = "online", **options: object) -> list[UUID]:
    """Runs with a step each that uses the model."""
    return [verbs.begun(ask("a#1", uses=LLM, lane=lane), **options) for _ in range(count)]


def due(verbs: Verbs, clock: Clock) -> list[UUID]:
    """Let the committers' time pass, and take what the relay sends."""
    clock.forward(1)
    verbs.beat()
    return [row.run_id for row in verbs.dispatch()]


def plan(verbs: Verbs, query: str) -> str:
    verbs.connection.execute("SET LOCAL enable_seqscan = off")
    return "\n".join(row["QUERY PLAN"] for row in verbs.rows("EXPLAIN " + query))


def test_a_breaker_that_is_not_closed_is_looked_after_at_each_poll(verbs: Verbs, breaking: Breaking) -> None:
    at_rest = outbox.next_due(verbs.connection, tending=0.5)
    breaking.open()

    assert (at_rest, outbox.next_due(verbs.connection, tending=0.5)) == (None, 0.5)


def test_what_a_closed_breaker_has_set_aside_is_looked_after_at_each_poll(
    verbs: Verbs, clock: Clock, breaking: Breaking
) -> None:
    asking(verbs)
    breaking.open()
    due(verbs, clock)
    verbs.connection.execute("UPDATE safepoint.breakers SET state = 'closed'")

    assert outbox.next_due(verbs.connection, tending=0.5) == 0.5


# Claims.


def test_a_closed_breaker_changes_nothing(verbs: Verbs, breaking: Breaking) -> None:
    (run,) = asking(verbs)

    claimed = verbs.claimed(run, A)

    assert "probe" not in claimed.run
    assert breaking.turns() == []


def test_a_step_of_an_open_breaker_waits_in_the_ledger_and_costs_no_attempt(verbs: Verbs, breaking: Breaking) -> None:
    (run,) = asking(verbs)
    breaking.open()

    assert verbs.refusal(run, A) == "breaker"

    step = verbs.step(run, A)
    assert (step["status"], step["attempt"], step["recoveries"], step["epoch"]) == ("ready", 1, 0, 0)
    assert (step["owner"], step["claim_token"]) == (None, None)
    assert step["reason"]["code"] == "breaker"
    assert "10 of 10 calls failed" in step["reason"]["text"]
    assert verbs.run(run)["status"] == "waiting"
    assert verbs.run(run)["reason"]["code"] == "breaker"


def test_p14_a_refusal_never_moves_what_is_due_later(verbs: Verbs, breaking: Breaking) -> None:
    (run,) = asking(verbs)
    breaking.open()
    before = verbs.step(run, A)["due_at"]

    for _ in range(3):
        verbs.refusal(run, A)

    assert timedelta(0) <= before - verbs.step(run, A)["due_at"] < timedelta(seconds=0.1)


def test_p17_who_has_published_what_is_refused_does_not_settle_it_any_more(
    verbs: Verbs, clock: Clock, breaking: Breaking
) -> None:
    (run,) = asking(verbs)
    clock.forward(1)
    (sent,) = verbs.dispatch(settled=False)
    breaking.open()
    verbs.refusal(run, A)

    assert outbox.settle(verbs.connection, [Settled(run, A, sent.due, 10.0)]) == 0
    assert verbs.step(run, A)["dispatched_at"] is None


@pytest.mark.parametrize("asked", [ask("a#1"), ask("a#1", uses="tickets")], ids=["nothing", "another"])
def test_steps_of_nothing_or_of_another_dependency_go_on(verbs: Verbs, breaking: Breaking, asked: dict) -> None:
    run = verbs.begun(asked)
    breaking.open()

    assert verbs.claimed(run, A)


def test_a_claim_whose_answer_was_lost_is_answered_again_when_the_breaker_has_opened(
    verbs: Verbs, breaking: Breaking
) -> None:
    (run,) = asking(verbs)
    claimed = verbs.claimed(run, A)
    breaking.open()

    assert verbs.claimed(run, A, token=claimed.token).token == claimed.token


def test_an_attempt_that_the_scan_has_ended_is_judged_although_the_breaker_is_open(
    verbs: Verbs, clock: Clock, breaking: Breaking
) -> None:
    (run,) = asking(verbs)
    claimed = verbs.claimed(run, A, timeout=1.0)
    clock.forward(2)
    verbs.beat()
    assert verbs.lose(claimed, Cause.TIMEOUT) == "lost"
    breaking.open()

    assert verbs.claimed(run, A, lane="recovery").pending_error is not None


def test_a_lane_may_let_its_steps_through_whatever_the_breakers_say(verbs: Verbs, breaking: Breaking) -> None:
    verbs.connection.execute("UPDATE safepoint.lanes SET stop_on_breaker = false WHERE name = 'online'")
    (run,) = asking(verbs)
    breaking.open()

    assert "probe" not in verbs.claimed(run, A).run


# Probes.


def half_open(verbs: Verbs, clock: Clock, breaking: Breaking, count: int = 5) -> list[UUID]:
    runs = asking(verbs, count)
    clock.forward(breaking.open())
    verbs.beat()
    return runs


def test_p39_as_many_probes_go_as_the_policy_says_and_their_success_closes_it(
    verbs: Verbs, clock: Clock, breaking: Breaking
) -> None:
    runs = half_open(verbs, clock, breaking)

    probes = [verbs.claimed(run, A) for run in runs[:3]]

    assert [probe.run["probe"] for probe in probes] == [True] * 3
    assert breaking.state == "half_open"
    assert verbs.refusal(runs[3], A) == "breaker"
    assert [breaking.probe(probe) for probe in probes] == ["half_open", "half_open", "closed"]
    assert verbs.claimed(runs[3], A)
    assert breaking.turns() == ["open", "half_open", "closed"]


def test_p39_a_bad_probe_opens_it_for_longer(verbs: Verbs, clock: Clock, breaking: Breaking) -> None:
    runs = half_open(verbs, clock, breaking)
    probe = verbs.claimed(runs[0], A)

    assert breaking.probe(probe, Outcome.FAILED) == "open"

    assert verbs.refusal(runs[1], A) == "breaker"
    clock.forward(16)
    assert verbs.refusal(runs[1], A) == "breaker"
    clock.forward(15)
    assert verbs.claimed(runs[1], A).run["probe"]


@pytest.mark.parametrize("end", ["crash", "release", "retry", "commit"])
def test_p39_a_probe_that_ends_without_an_outcome_is_no_verdict_and_another_probes(
    verbs: Verbs, clock: Clock, breaking: Breaking, end: str
) -> None:
    runs = half_open(verbs, clock, breaking, count=6)
    probes = [verbs.claimed(run, A) for run in runs[:3]]
    assert verbs.refusal(runs[3], A) == "breaker"

    match end:
        case "crash":
            verbs.lose(probes[0], Cause.CHILD)
        case "release":
            verbs.release(probes[0])
        case "retry":
            verbs.retry(probes[0])
        case "commit":
            verbs.commit(probes[0])

    assert breaking.state == "half_open"
    assert verbs.claimed(runs[3], A).run["probe"]
    assert verbs.refusal(runs[4], A) == "breaker"


def test_p39_a_probe_that_tells_nothing_for_long_does_not_keep_others_from_probing(
    verbs: Verbs, clock: Clock, breaking: Breaking
) -> None:
    runs = half_open(verbs, clock, breaking)
    probes = [verbs.claimed(run, A, timeout=600.0) for run in runs[:3]]
    clock.forward(15)
    verbs.beat(*(probe.token for probe in probes))

    late = verbs.claimed(runs[3], A)

    assert late.run["probe"]
    assert breaking.probe(probes[0]) == "half_open"  # what it says at last counts all the same


def test_p39_what_a_probe_of_a_round_before_says_moves_nothing(verbs: Verbs, clock: Clock, breaking: Breaking) -> None:
    runs = half_open(verbs, clock, breaking)
    stale, bad = (verbs.claimed(run, A) for run in runs[:2])
    breaking.probe(bad, Outcome.FAILED)
    clock.forward(31)
    assert verbs.claimed(runs[2], A).run["probe"]

    assert breaking.probe(stale, Outcome.FAILED) is None
    assert breaking.state == "half_open"


def test_p39_a_probes_outcome_that_is_told_twice_counts_once(verbs: Verbs, clock: Clock, breaking: Breaking) -> None:
    runs = half_open(verbs, clock, breaking)
    probe = verbs.claimed(runs[0], A)

    assert [breaking.probe(probe) for _ in range(3)] == ["half_open", None, None]


def test_p4_a_probe_whose_claim_was_answered_twice_is_one_probe(verbs: Verbs, clock: Clock, breaking: Breaking) -> None:
    runs = half_open(verbs, clock, breaking)
    first = verbs.claimed(runs[0], A)

    assert verbs.claimed(runs[0], A, token=first.token).run["probe"]
    assert verbs.value("SELECT count(*) FROM safepoint.breaker_probes") == 1


def test_many_claims_at_once_make_no_more_probes_than_wanted(crowd: Crowd, crowd_clock: Clock) -> None:
    first = crowd()
    breaking = Breaking(first)
    runs = half_open(first, crowd_clock, breaking, count=12)
    claimers = [crowd() for _ in range(4)]

    def claim(place: int) -> bool:
        return isinstance(claimers[place % 4].claim(runs[place], A), Claimed)

    with ThreadPoolExecutor(4) as pool:
        chunks = pool.map(lambda start: [claim(place) for place in range(start, 12, 4)], range(4))
        granted = [answer for chunk in chunks for answer in chunk]

    assert sum(granted) == 3


# Dispatch.


def test_nothing_is_sent_for_a_step_of_an_open_breaker(verbs: Verbs, clock: Clock, breaking: Breaking) -> None:
    runs = asking(verbs, 5)
    other = verbs.begun(ask("a#1"))
    breaking.open()

    assert due(verbs, clock) == [other]
    assert breaking.aside() == set(runs)
    assert due(verbs, clock) == []


def test_p10_what_is_set_aside_is_due_by_itself_at_last(verbs: Verbs, clock: Clock, breaking: Breaking) -> None:
    (run,) = asking(verbs)
    breaking.open()
    due(verbs, clock)
    verbs.connection.execute("DELETE FROM safepoint.breakers")
    clock.forward(3600)
    verbs.node()

    assert [row.run_id for row in verbs.dispatch()] == [run]


def test_only_as_many_as_may_probe_are_let_out(verbs: Verbs, clock: Clock, breaking: Breaking) -> None:
    asking(verbs, 20)
    pause = breaking.open()
    due(verbs, clock)
    clock.forward(pause)

    sent = due(verbs, clock)

    assert len(sent) == 3
    assert due(verbs, clock) == []  # they are on their way
    for run in sent:
        assert verbs.claimed(run, A).run["probe"]
    assert due(verbs, clock) == []


def test_when_probes_have_failed_the_rest_waits_on(verbs: Verbs, clock: Clock, breaking: Breaking) -> None:
    asking(verbs, 20)
    clock.forward(breaking.open())
    sent = due(verbs, clock)
    breaking.probe(verbs.claimed(sent[0], A), Outcome.FAILED)

    assert due(verbs, clock) == []
    assert verbs.refusal(sent[1], A) == "breaker"


def test_a_dead_probe_lets_another_out(verbs: Verbs, clock: Clock, breaking: Breaking) -> None:
    asking(verbs, 20)
    clock.forward(breaking.open())
    probes = [verbs.claimed(run, A) for run in due(verbs, clock)]
    assert due(verbs, clock) == []

    verbs.lose(probes[0], Cause.CHILD)

    again = due(verbs, clock)
    assert len(again) >= 1
    assert not {probe.run_id for probe in probes[1:]} & set(again)


def test_all_are_let_out_when_it_closes(verbs: Verbs, clock: Clock, breaking: Breaking) -> None:
    runs = asking(verbs, 30)
    clock.forward(breaking.open())
    for run in due(verbs, clock):
        breaking.probe(probe := verbs.claimed(run, A))
        verbs.commit(probe)
    assert breaking.state == "closed"

    sent = [row.run_id for _ in range(5) for row in verbs.dispatch(limit=10)]

    assert len(sent) == 27
    assert {verbs.statuses(run)["a#1"] for run in runs} == {"ready", "succeeded"}
    assert all(verbs.step(run, A)["reason"] is None for run in sent)


def test_a_tenant_with_many_waiting_steps_does_not_keep_back_one_with_three(
    verbs: Verbs, clock: Clock, breaking: Breaking
) -> None:
    asking(verbs, 60, tenant="big")
    small = asking(verbs, 3, tenant="small")
    clock.forward(breaking.open())
    due(verbs, clock)
    verbs.connection.execute("UPDATE safepoint.breakers SET state = 'closed'")

    sent = [row.run_id for row in verbs.dispatch(limit=10)]

    assert set(small) <= set(sent)


def test_a_paused_run_stays_paused_when_its_breaker_closes(verbs: Verbs, clock: Clock, breaking: Breaking) -> None:
    (run,) = asking(verbs)
    breaking.open()
    due(verbs, clock)
    verbs.pause(run)
    verbs.connection.execute("UPDATE safepoint.breakers SET state = 'closed'")

    assert due(verbs, clock) == []
    verbs.resume(run)
    assert due(verbs, clock) == [run]


def test_a_deadline_passes_while_the_breaker_is_open(verbs: Verbs, clock: Clock, breaking: Breaking) -> None:
    (run,) = asking(verbs, deadline=clock.now.replace(second=5))
    breaking.open()
    verbs.refusal(run, A)
    clock.forward(6)

    verbs.chores()

    assert verbs.run(run)["status"] == "failed"
    assert verbs.run(run)["error"]["type"] == "DeadlineExceeded"
    assert verbs.statuses(run)["a#1"] == "cancelled"
    clock.forward(3600)
    verbs.connection.execute("UPDATE safepoint.breakers SET state = 'closed'")
    assert due(verbs, clock) == []


def test_a_crash_under_a_step_that_uses_a_dependency_is_no_verdict_on_it(
    verbs: Verbs, clock: Clock, breaking: Breaking
) -> None:
    (run,) = asking(verbs)
    lane = "online"
    for _ in range(6):
        verbs.lose(verbs.claimed(run, A, lane=lane), Cause.CHILD, deadly=True)
        lane = "recovery"

    assert verbs.run(run)["holds"].keys() == {"poison"}
    assert (breaking.state, breaking.row["detail"]) == ("closed", {})


# What it costs.


def test_what_is_set_aside_stands_before_nothing(verbs: Verbs, clock: Clock, breaking: Breaking) -> None:
    breaking.open()
    verbs.many(2000)
    verbs.connection.execute(
        "UPDATE safepoint.steps SET kind = 'step', uses = 'llm', due_at = safepoint.now() + interval '1 hour',"
        ' reason = \'{"code": "breaker"}\''
    )
    verbs.connection.execute("ANALYZE safepoint.steps")

    told = plan(
        verbs,
        "SELECT FROM safepoint.steps WHERE status = 'ready' AND lane = 'online' AND queued = 0"
        " AND due_at <= '2030-01-01 00:00:01Z' ORDER BY due_at LIMIT 400",
    )

    assert "steps_due" in told


@pytest.mark.parametrize(
    ("index", "query"),
    [
        (
            "steps_uses",
            "SELECT FROM safepoint.steps WHERE status = 'ready' AND uses = 'llm' AND due_at <= '2030-01-01Z'"
            " ORDER BY due_at LIMIT 400",
        ),
        (
            "steps_set_aside",
            "SELECT FROM safepoint.steps s WHERE s.status = 'ready' AND s.reason->>'code' = 'breaker' AND s.due_at <"
            " 'infinity' AND s.uses = 'llm' AND s.lane = 'online' AND s.tenant_id > 'a' ORDER BY s.tenant_id LIMIT 1",
        ),
        (
            "steps_set_aside",
            "SELECT FROM safepoint.steps s WHERE s.status = 'ready' AND s.reason->>'code' = 'breaker' AND s.due_at <"
            " 'infinity' AND s.uses = 'llm' AND s.lane = 'online' AND s.tenant_id = 'a'"
            " ORDER BY s.priority DESC, s.deadline, s.ready_at LIMIT 10",
        ),
    ],
)
def test_each_look_at_waiting_steps_is_one_of_an_index(verbs: Verbs, index: str, query: str) -> None:
    told = plan(verbs, query)

    assert index in told
    assert "Sort" not in told


def test_of_a_queue_that_is_longer_than_what_is_set_aside_at_once_nothing_goes_out(
    verbs: Verbs, clock: Clock, breaking: Breaking
) -> None:
    verbs.connection.execute("UPDATE safepoint.lanes SET in_flight = 20 WHERE name = 'recovery'")
    asking(verbs, 10, lane="recovery")
    other = verbs.begun(ask("b#1", lane="recovery"))
    clock.forward(1)
    verbs.beat()
    breaking.open()

    sent = [row.run_id for _ in range(12) for row in verbs.dispatch(limit=1)]

    assert sent == [other]

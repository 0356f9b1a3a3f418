"""What calls tell of the dependency that they use, and what comes of it: counted, flushed, opened, probed, closed."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from ledger_verbs import NODE
from outside import Outside
from play import Play
from safepoint import UNSURE, Lookup, Permanent, current, effect, flow, step
from safepoint.config.breakers import Breakers
from safepoint.errors import ArtifactStoreUnavailable, RetryAfter
from safepoint.ledger.connect import connect
from safepoint.ledger.errors import StepTimeout
from safepoint.recovery.breaker import Outcome, Tally
from safepoint.recovery.outcomes import close, force_open, introduce, record
from safepoint.tasks.attempt import Raised, Returned
from safepoint.tasks.board import Board
from safepoint.tasks.dependency import Call, call_of
from safepoint.tasks.outcomes import Outcomes
from tenacity import retry_if_exception_type, stop_after_attempt, wait_fixed

MODEL, TICKETS = "dep_model", "dep_tickets"
called: list[str] = []
raised: list[BaseException] = []
outside = Outside()


def answer(what: str) -> str:
    called.append(what)
    if raised:
        raise raised.pop(0)
    return what


@step(name="dep_ask", uses=MODEL, wait=wait_fixed(1), stop=stop_after_attempt(50), timeout=30)
def ask_model(question: str) -> str:
    return answer(question)


@step(name="dep_picky", uses=MODEL, retry=retry_if_exception_type(KeyError))
def picky() -> str:
    return answer("picky")


@step(name="dep_odd", uses=MODEL)
def odd() -> Any:
    called.append("odd")
    return float("nan")


@effect(name="dep_open", uses=TICKETS, rejected=(PermissionError,), authoritative_after=0)
def open_ticket(what: str) -> str:
    return outside.do("ticket", what, current().idempotency_key)


@open_ticket.lookup
def _(what: str) -> Lookup[str]:
    return outside.look(current().idempotency_key)


@open_ticket.compensate
def _(ticket: str) -> None:
    outside.do("close", ticket, current().idempotency_key)


@flow(name="dep_undone", version="1")
async def opens_in_vain(what: str) -> None:
    await open_ticket(what)
    raise Permanent("in vain")


@flow(name="dep_flow", version="1")
async def asks(question: str) -> str:
    return await ask_model(question)


@flow(name="dep_tickets", version="1")
async def opens(what: str) -> str:
    return await open_ticket(what)


@flow(name="dep_odd", version="1")
async def asks_oddly() -> Any:
    return await odd()


@pytest.fixture
def play(playing: Callable[[Outside], Play]) -> Play:
    for forgotten in (called, raised, kept):
        forgotten.clear()
    return playing(outside)


kept: list[Outcomes] = []


def flushed(play: Play) -> list[str]:
    """Flush what the node's calls have come to, as its beat does; which breakers have opened."""
    if not kept:
        kept.append(Outcomes(play.shop.board, play.shop.settings.breakers, by=NODE))
    return kept[0].flush(play.verbs.connection)


def breaker(play: Play, name: str = MODEL) -> dict[str, Any]:
    return play.verbs.rows("SELECT * FROM safepoint.breakers WHERE name = %s", (name,))[0]


# What a call tells.


@pytest.mark.parametrize(
    ("error", "call"),
    [
        (TimeoutError(), Call(Outcome.FAILED)),
        (ConnectionResetError(), Call(Outcome.FAILED)),
        (OSError(), Call(Outcome.FAILED)),
        (StepTimeout(seconds=5), Call(Outcome.FAILED)),
        (RetryAfter(30), Call(Outcome.THROTTLED, 30.0)),
        (ValueError(), None),
        (KeyError(), None),
        (PermissionError(), None),
        (Permanent("no"), None),
        (MemoryError(), None),
        (SystemExit(1), None),
        (ArtifactStoreUnavailable(text="away"), None),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_what_a_retry_may_mend_speaks_against_the_dependency(error: BaseException, call: Call | None) -> None:
    assert call_of(ask_model, Raised(error)) == call


def test_a_steps_own_policy_says_what_counts() -> None:
    assert call_of(picky, Raised(KeyError())) == Call(Outcome.FAILED)
    assert call_of(picky, Raised(TimeoutError())) is None


def test_a_call_that_succeeded_speaks_for_it_even_if_its_result_cannot_be_stored() -> None:
    assert call_of(ask_model, Returned("x")) == Call(Outcome.OK)
    assert call_of(ask_model, Raised(ValueError()), returned=True) == Call(Outcome.OK)


# The board.


def test_the_slots_of_a_board_are_summed_and_outlive_the_process_in_them() -> None:
    board = Board(slots=3, lanes=(), dependencies=("a", "b"))
    for slot, name, outcome in ((0, "a", "ok"), (1, "a", "failed"), (1, "b", "ok"), (2, "a", "throttled")):
        board.count(slot, name, Outcome(outcome), leave_for=9.0 if outcome == "throttled" else 0.0)
    board.clear(1, pid=0)

    calls = board.calls()

    assert (calls["a"].ok, calls["a"].failed, calls["a"].throttled) == (1, 1, 1)
    assert calls["a"].leave_for == pytest.approx(9.0, abs=0.5)
    assert calls["b"] == Tally(ok=1)
    assert board.active() == []


def test_a_bad_call_wants_to_be_told_soon_and_a_good_one_can_wait() -> None:
    board = Board(slots=1, lanes=(), dependencies=("a",))
    outcomes = Outcomes(board, Breakers(), by=NODE)
    board.count(0, "a", Outcome.OK)
    assert outcomes.wanted_in() is None

    board.count(0, "a", Outcome.FAILED)

    assert outcomes.wanted_in() == 0.0


# Steps.


def test_calls_are_counted_and_told_once(play: Play) -> None:
    raised.extend([TimeoutError(), RetryAfter(0), ValueError()])
    play.go("dep_flow", question="a").work(seconds=1.1).work(seconds=1.1)

    flushed(play)
    flushed(play)

    assert called == ["a", "a", "a"]
    (bucket,) = breaker(play)["detail"]["buckets"]
    assert bucket[1:] == [0, 1, 1]


def test_a_result_that_cannot_be_stored_is_the_callers_trouble(play: Play) -> None:
    play.go("dep_odd")

    flushed(play)

    (bucket,) = breaker(play)["detail"]["buckets"]
    assert bucket[1:] == [1, 0, 0]


def opened(play: Play, calls: int = 10) -> None:
    """Let calls fail until the breaker is open, and the step waits for it."""
    raised.extend(ConnectionResetError() for _ in range(calls))
    play.go("dep_flow", question="a")
    while len(called) < calls:
        assert flushed(play) == []
        play.work(seconds=1.1)
    assert flushed(play) == [MODEL]


def test_an_open_breaker_stops_a_steps_retries_and_takes_no_attempt(play: Play) -> None:
    opened(play)
    attempt = play.verbs.step(play.run, play.key("dep_ask#1"))["attempt"]
    calls = len(called)

    for _ in range(5):
        play.work(seconds=1)

    assert len(called) == calls
    step = play.verbs.step(play.run, play.key("dep_ask#1"))
    assert (step["attempt"], step["status"], step["reason"]["code"]) == (attempt, "ready", "breaker")


def test_probes_close_it_again_and_the_run_goes_on(play: Play) -> None:
    opened(play)
    raised.clear()
    for _ in range(3):
        play.work(seconds=20)
        play.go("dep_flow", question="more")

    play.work(seconds=20)

    assert breaker(play)["state"] == "closed"
    assert play.verbs.rows("SELECT count(*) AS n FROM safepoint.runs WHERE status <> 'succeeded'") == [{"n": 0}]


def test_a_probe_tells_at_once_and_not_with_the_beat(play: Play) -> None:
    opened(play)
    raised[:] = [ConnectionResetError()]

    play.work(seconds=20)

    assert breaker(play)["state"] == "open"
    assert breaker(play)["detail"]["opens"] == 2
    assert flushed(play) == []


def test_a_probe_that_fails_by_the_callers_own_fault_is_no_verdict(play: Play) -> None:
    opened(play)
    raised[:] = [ValueError()]

    play.work(seconds=20)

    assert breaker(play)["state"] == "half_open"
    assert play.row["status"] == "failed"


def test_the_breaker_leaves_a_throttled_dependency_alone_for_as_long_as_it_asked(play: Play) -> None:
    raised.extend(RetryAfter(0) for _ in range(9))
    raised.append(RetryAfter(60))
    play.go("dep_flow", question="a")
    while len(called) < 10:
        play.work(seconds=1.1)

    flushed(play)

    row = breaker(play)
    assert row["state"] == "open"
    assert (row["next_probe_at"] - row["opened_at"]).total_seconds() == pytest.approx(60, abs=1)


def test_retry_after_is_honoured_but_not_past_the_deadline(play: Play) -> None:
    raised.append(RetryAfter(3))
    play.go("dep_flow", question="a", deadline=10)
    play.work(seconds=2.5)
    assert called == ["a"]
    play.work(seconds=1)
    assert (play.row["status"], called) == ("succeeded", ["a", "a"])

    raised.append(RetryAfter(30))
    play.go("dep_flow", question="late", deadline=10)

    assert play.row["status"] == "failed"
    assert called[2:] == ["late"]


# Effects.


def test_an_effect_that_was_rejected_was_answered(play: Play) -> None:
    outside.fail(PermissionError("no"))
    play.go("dep_tickets", what="x")

    flushed(play)

    (bucket,) = breaker(play, TICKETS)["detail"]["buckets"]
    assert bucket[1:] == [1, 0, 0]


def opened_by_hand(play: Play) -> None:
    introduce(play.verbs.connection, Breakers(), {TICKETS})
    assert force_open(play.verbs.connection, TICKETS, by="ann", why="a migration", seconds=None)


def unknown(play: Play) -> None:
    """An effect that nobody knows about, when its dependency goes away."""
    outside.fail(TimeoutError())
    outside.before(lambda: opened_by_hand(play))
    outside.answers([UNSURE] * 3)
    play.go("dep_tickets", what="x")
    assert play.effect["status"] == "unknown"


def test_an_unknown_effect_is_not_looked_up_while_its_dependency_is_away(play: Play) -> None:
    unknown(play)

    for _ in range(10):
        play.work(seconds=30)

    assert play.effect["lookups"] == 0
    assert play.row["reason"]["code"] == "breaker"


def test_what_a_person_has_settled_is_stored_while_its_dependency_is_away(play: Play) -> None:
    unknown(play)
    assert play.resolve("succeeded", '"T-1"') == "resolved"

    play.work(seconds=1)

    assert (play.row["status"], play.row["result"]) == ("succeeded", b'"T-1"')


def test_an_effect_is_undone_only_when_its_dependency_is_back(play: Play) -> None:
    outside.before(lambda: opened_by_hand(play))
    play.go("dep_undone", what="x")

    for _ in range(3):
        play.work(seconds=30)
    assert (outside.count("ticket"), outside.count("close"), play.row["status"]) == (1, 0, "cancelling")

    assert close(play.verbs.connection, TICKETS, by="ann", why="done")
    play.work(seconds=1)
    assert (outside.count("close"), play.row["status"]) == (1, "failed")


# A flush.


def test_two_nodes_that_flush_at_once_lose_no_outcome_and_never_wait_for_each_other(
    play: Play, crowded_ledger_url: str
) -> None:
    names = [f"dep{n}" for n in range(6)]

    def flush(seed: int) -> None:
        with connect(crowded_ledger_url, name="test") as connection:
            for turn in range(10):
                order = names[turn % 6 :] + names[: turn % 6]
                order = order if seed % 2 else order[::-1]
                record(connection, {name: Tally(ok=1) for name in order}, Breakers(), by=f"node-{seed}")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(flush, range(4)))

    rows = play.verbs.rows("SELECT detail FROM safepoint.breakers WHERE name LIKE 'dep_'")
    assert [sum(bucket[1] for bucket in row["detail"]["buckets"]) for row in rows] == [40] * 6
    deadlocks = "SELECT deadlocks AS n FROM pg_stat_database WHERE datname = current_database()"
    assert play.verbs.rows(deadlocks) == [{"n": 0}]

"""Effects of a run that people stop at a bad moment: what nobody knows is settled nevertheless (P29, P32, P37)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from outside import Outside
from play import Play
from safepoint import NOT_EXECUTED, UNSURE, Lookup, current, effect, flow, sleep
from safepoint.ledger import control
from tenacity import stop_after_attempt, wait_fixed

outside = Outside()


@effect(name="stp_asked", authoritative_after=0, timeout=10, wait=wait_fixed(1), stop=stop_after_attempt(3))
def asked(what: str) -> str:
    return outside.do("asked", what, current().idempotency_key)


@asked.lookup(wait=wait_fixed(2), stop=stop_after_attempt(9))
def _(what: str) -> Lookup[str]:
    return outside.look(current().idempotency_key)


@asked.compensate(idempotent=True)
def _(result: str) -> None:
    outside.do("undo", result, current().idempotency_key)


@flow(name="stp_one", version="1")
async def one() -> str:
    got = await asked(what="a")
    await sleep(500)
    return got


@pytest.fixture
def play(playing: Callable[[Outside], Play]) -> Play:
    return playing(outside)


def test_a_cancel_of_a_paused_run_lets_its_lookup_go_on(play: Play) -> None:
    outside.fail(ConnectionResetError(), done=True)
    outside.answers([UNSURE])
    play.go("stp_one")
    control.pause(play.verbs.connection, play.run, by="ann")
    control.cancel(play.verbs.connection, play.run, by="ann")

    play.work(seconds=5).work(seconds=5).work(seconds=5)

    assert play.row["status"] == "cancelled"
    assert outside.count("undo") == 1


def test_a_paused_run_past_its_deadline_can_be_resumed_to_settle_what_nobody_knows(play: Play) -> None:
    outside.fail(ConnectionResetError(), done=True)
    outside.answers([UNSURE])
    play.go("stp_one", deadline=60)
    control.pause(play.verbs.connection, play.run, by="ann")
    play.work(seconds=100).work(seconds=5)
    control.resume(play.verbs.connection, play.run, by="ann")

    play.work(seconds=5).work(seconds=5).work(seconds=5)

    assert play.row["status"] == "failed"
    assert outside.count("undo") == 1


def test_a_paused_run_past_its_deadline_can_be_resumed_to_undo_what_it_did(play: Play) -> None:
    play.go("stp_one", deadline=60)
    control.pause(play.verbs.connection, play.run, by="ann")
    play.work(seconds=100).work(seconds=5)
    control.resume(play.verbs.connection, play.run, by="ann")

    play.work(seconds=5).work(seconds=5).work(seconds=5)

    assert play.row["status"] == "failed"
    assert outside.count("undo") == 1


@effect(name="stp_odd", authoritative_after=0, timeout=10)
def odd(what: str) -> object:
    outside.do("odd", what, current().idempotency_key)
    return lambda: what


@odd.lookup(wait=wait_fixed(1))
def _(what: str) -> Lookup[object]:
    return NOT_EXECUTED


@flow(name="stp_odd_one", version="1")
async def odd_one() -> str:
    return str(await odd(what="a"))


def test_no_lookup_overrules_an_executor_that_knows_that_it_succeeded(play: Play) -> None:
    play.go("stp_odd_one")
    for _ in range(10):
        play.work(seconds=30)

    assert len(outside.tried("odd")) == 1
    assert play.row["status"] == "held"

"""Effects, from the frozen request to what becomes of it: each outcome rule on a real ledger (P32 to P34)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from ledger_verbs import key
from outside import Outside, Refused
from play import Play
from safepoint import UNSURE, Found, Lookup, Permanent, current, effect, flow, step
from safepoint.errors import StepFailed, StepTimeout
from safepoint.ledger import control
from safepoint.ledger.effects import unsettle
from safepoint.ledger.steps import Cause, Loss, lose
from tenacity import stop_after_attempt, wait_fixed

outside = Outside()


@effect(name="eff_blind", not_sent=(ConnectionRefusedError,), rejected=(Refused,), wait=wait_fixed(1))
def blind(what: str) -> str:
    return outside.do("blind", what, current().idempotency_key)


@effect(name="eff_asked", authoritative_after=5, timeout=10, external_id=lambda result: result.upper())
def asked(what: str) -> str:
    return outside.do("asked", what, current().idempotency_key)


@asked.lookup(wait=wait_fixed(2), stop=stop_after_attempt(3))
def _(what: str) -> Lookup[str]:
    return outside.look(current().idempotency_key)


@effect(
    name="eff_keyed", idempotent=True, key_retention=10_000, timeout=10, wait=wait_fixed(3), stop=stop_after_attempt(3)
)
def keyed(what: str) -> str:
    return outside.do("keyed", what, current().idempotency_key, keyed=True)


@effect(name="eff_undone", idempotent=True)
def undone(what: str) -> str:
    return outside.do("undone", what, current().idempotency_key, keyed=True)


@undone.compensate
def _(result: str) -> None:
    outside.do("undo", result, current().idempotency_key, keyed=True)


@step(name="eff_fails", stop=stop_after_attempt(1))
def fails() -> None:
    raise Permanent("for a reason")


@effect(name="eff_tried", authoritative_after=0, wait=wait_fixed(3), stop=stop_after_attempt(3))
def tried(what: str) -> str:
    return outside.do("tried", what, current().idempotency_key)


@tried.lookup(stop=stop_after_attempt(1))
def _(what: str) -> Lookup[str]:
    return outside.look(current().idempotency_key)


@effect(name="eff_wide", not_sent=(OSError,), rejected=(TimeoutError,), stop=stop_after_attempt(3))
def wide(what: str) -> str:
    return outside.do("wide", what, current().idempotency_key)


@flow(name="eff_one", version="1")
async def one(kind: str) -> str:
    try:
        return await {"blind": blind, "asked": asked, "keyed": keyed, "tried": tried, "wide": wide}[kind](what="a")
    except StepFailed as error:
        return f"failed: {error.type}"


@flow(name="eff_must", version="1")
async def must() -> str:
    return await blind(what="a")


@flow(name="eff_undo", version="1")
async def undo() -> None:
    await undone("first")
    await undone("second")
    await fails()


@pytest.fixture
def play(playing: Callable[[Outside], Play]) -> Play:
    return playing(outside)


def test_an_effect_is_pending_then_executing_then_succeeded(play: Play) -> None:
    play.go("eff_one", kind="asked")

    assert play.row["status"] == "succeeded"
    assert play.history() == ["pending", "executing", "succeeded"]
    assert play.effect["external_id"] == "DID A"
    assert outside.keys("asked") == [play.effect["idempotency_key"].hex()]


def test_what_was_executing_is_durable_before_the_call(play: Play) -> None:
    seen: list[str] = []
    outside.before(lambda: seen.append(play.effect["status"]))

    play.go("eff_one", kind="blind")

    assert seen == ["executing"]


def test_an_error_that_shows_nothing_left_is_tried_again_like_any_step(play: Play) -> None:
    outside.fail(ConnectionRefusedError())

    play.go("eff_one", kind="blind")
    assert play.effect["status"] == "pending"
    play.work(seconds=2)

    assert play.row["status"] == "succeeded"
    assert play.history() == ["pending", "executing", "pending", "executing", "succeeded"]
    assert outside.count("blind") == 1


def test_a_rejected_effect_fails_and_the_flow_sees_it(play: Play) -> None:
    outside.fail(Refused("no such queue"))

    play.go("eff_one", kind="blind")

    assert play.row["result"] == b'"failed: Refused"'
    assert play.effect["status"] == "failed"


@pytest.mark.parametrize(
    "error", [TimeoutError(), ValueError(), Permanent("no"), ConnectionResetError(), SystemExit(1)]
)
def test_any_other_error_leaves_it_unknown_and_holds_the_run(play: Play, error: BaseException) -> None:
    outside.fail(error, done=True)

    play.go("eff_one", kind="blind").work(seconds=1000)

    assert play.row["status"] == "held"
    assert play.row["reason"]["code"] == "unknown_effect"
    assert play.effect["status"] == "unknown"
    assert outside.count("blind") == 1


def test_a_person_says_that_it_succeeded(play: Play) -> None:
    outside.fail(TimeoutError(), done=True)
    play.go("eff_one", kind="blind")

    assert play.resolve("succeeded", '"seen"') == "resolved"
    play.work()

    assert (play.row["status"], play.row["result"]) == ("succeeded", b'"seen"')
    assert outside.count("blind") == 1
    assert play.resolve("failed") == "settled"


def test_a_person_says_that_it_was_not_executed_and_it_is_sent_under_the_same_key(play: Play) -> None:
    outside.fail(TimeoutError())
    play.go("eff_one", kind="blind")

    assert play.resolve("not_executed", version=1) == "stale"
    assert play.resolve("not_executed") == "early"
    play.clock.forward(6)
    assert play.resolve("not_executed", version=play.effect["version"]) == "resolved"
    play.work()

    assert play.row["status"] == "succeeded"
    assert len(set(outside.tried("blind"))) == 1


def test_a_person_says_that_it_has_failed(play: Play) -> None:
    outside.fail(TimeoutError())
    play.go("eff_one", kind="blind")

    play.clock.forward(6)
    assert play.resolve("failed") == "resolved"
    play.work()

    assert play.row["status"] == "succeeded"  # this flow catches it
    assert play.row["result"].startswith(b'"failed:')


def test_a_lookup_that_finds_it_commits_what_it_found(play: Play) -> None:
    outside.fail(TimeoutError(), done=True)

    play.go("eff_one", kind="asked").work()

    assert (play.row["status"], play.row["result"]) == ("succeeded", b'"did a"')
    assert play.history() == ["pending", "executing", "unknown", "succeeded"]
    assert outside.count("asked") == 1


def test_not_executed_is_believed_only_when_no_request_can_be_on_its_way(play: Play) -> None:
    outside.fail(TimeoutError())

    play.go("eff_one", kind="asked").work(seconds=4)
    assert play.effect["status"] == "unknown"
    assert outside.count("asked") == 0
    play.work(seconds=2)

    assert play.row["status"] == "succeeded"
    assert outside.count("asked") == 1
    assert len(set(outside.tried("asked"))) == 1


def test_a_lookup_that_cannot_tell_is_asked_again_and_then_holds(play: Play) -> None:
    outside.fail(TimeoutError(), done=True)
    outside.answers([UNSURE, OSError("away"), "nonsense", Found("did a")])

    play.go("eff_one", kind="asked")
    for _ in range(2):
        assert play.row["status"] in {"waiting", "running"}
        play.work(seconds=2.1)

    assert play.row["status"] == "held"
    assert play.effect["lookups"] == 3
    assert play.effect["last_answer"]["answer"] == "error"
    control.resume(play.verbs.connection, play.run, by="ann")
    play.work()
    assert play.row["status"] == "succeeded"
    assert outside.count("asked") == 1


def test_the_same_key_is_sent_again_within_its_retention(play: Play) -> None:
    outside.fail(TimeoutError(), done=True)

    play.go("eff_one", kind="keyed")
    assert play.effect["status"] == "unknown"
    play.work(seconds=3.1)

    assert play.row["status"] == "succeeded"
    assert outside.count("keyed") == 1
    assert len(outside.tried("keyed")) == 2


def test_the_same_key_is_not_sent_when_the_other_side_may_have_forgotten_it(play: Play) -> None:
    outside.fail(TimeoutError(), done=True)

    play.go("eff_one", kind="keyed").work(seconds=10_001)

    assert play.row["status"] == "held"
    assert len(outside.tried("keyed")) == 1


def test_the_same_key_is_sent_as_often_as_the_policy_says_and_then_holds(play: Play) -> None:
    for _ in range(3):
        outside.fail(TimeoutError())

    play.go("eff_one", kind="keyed")
    for _ in range(4):
        play.work(seconds=3.1)

    assert play.row["status"] == "held"
    assert len(outside.tried("keyed")) == 3


def test_what_a_failed_run_has_done_is_undone_newest_first(play: Play) -> None:
    play.go("eff_undo")

    assert play.row["status"] == "failed"
    assert outside.did("undo") == ["did second", "did first"]
    assert {row["status"] for row in play.effects()} == {"succeeded"}
    assert len(play.effects()) == 4


def test_a_compensation_that_cannot_finish_holds_the_run_and_a_person_lets_it_go_on(play: Play) -> None:
    outside.fail(ValueError("broken"), on="undo")

    play.go("eff_undo")

    assert play.row["status"] == "held"
    assert play.row["reason"]["code"] == "compensation"
    assert play.row["reason"]["detail"] == {"undone": [], "not_undone": ["eff_undone#2", "eff_undone#1"]}
    control.resume(play.verbs.connection, play.run, by="ann")
    play.work()
    assert play.row["status"] == "failed"
    assert outside.did("undo") == ["did second", "did first"]


def test_a_cancelled_run_waits_for_what_nobody_knows(play: Play) -> None:
    outside.fail(TimeoutError(), done=True)
    play.go("eff_one", kind="blind")

    control.cancel(play.verbs.connection, play.run, by="ann")
    play.work(seconds=1000)
    assert (play.row["status"], play.row["reason"]["code"]) == ("cancelling", "unknown_effect")
    assert play.resolve("not_executed") == "resolved"
    play.work()

    assert play.row["status"] == "cancelled"
    assert play.effect["status"] == "failed"
    assert outside.count("blind") == 1


def test_a_lookup_is_asked_for_a_cancelled_run_and_nothing_is_sent(play: Play) -> None:
    outside.fail(TimeoutError())
    play.go("eff_one", kind="asked")

    control.cancel(play.verbs.connection, play.run, by="ann")
    for _ in range(3):
        play.work(seconds=6)

    assert play.row["status"] == "cancelled"
    assert play.effect["status"] == "failed"
    assert len(outside.tried("asked")) == 1


def test_an_executor_that_lost_its_lease_settles_what_nobody_knew(play: Play) -> None:
    def taken_over() -> None:
        play.verbs.value(
            "UPDATE safepoint.steps SET expires_at = safepoint.now() - interval '1 s' WHERE kind = 'effect' RETURNING 1"
        )
        token = play.verbs.value("SELECT claim_token FROM safepoint.steps WHERE kind = 'effect'")
        loss = Loss(play.run, key("eff_blind#1"), token, Cause.TIMEOUT)
        assert lose(play.verbs.connection, loss, lane="recovery", max_deaths=5) == "lost"
        # Somebody has claimed it meanwhile, and could not tell either.
        again = play.verbs.claimed(play.run, key("eff_blind#1"), lane="recovery")
        unsettle(play.verbs.connection, play.run, again.key, token=again.token, node="node-2", hold="who knows")

    outside.before(taken_over)

    play.go("eff_one", kind="blind")

    assert play.effect["status"] == "succeeded"
    assert play.row["status"] in {"running", "succeeded"}
    play.work()
    assert (play.row["status"], play.row["result"]) == ("succeeded", b'"did a"')
    assert outside.count("blind") == 1


def test_a_restored_ledger_trusts_no_pending_effect(play: Play) -> None:
    outside.fail(ConnectionRefusedError())
    play.go("eff_one", kind="blind")
    assert play.effect["status"] == "pending"

    control.restored(play.verbs.connection, reason="a test")
    play.shop.board.identify(play.verbs.value("SELECT incarnation FROM safepoint.identity"))
    play.work(seconds=2)

    assert play.row["status"] == "held"
    assert outside.count("blind") == 0


def test_a_request_that_is_not_the_frozen_one_is_never_sent(play: Play) -> None:
    outside.fail(ConnectionRefusedError())
    play.go("eff_one", kind="blind")

    play.verbs.value("UPDATE safepoint.effects SET request = %s RETURNING 1", (b'{"what": "b"}',))
    play.work(seconds=2)

    assert play.row["status"] == "held"
    assert "EffectRequestChanged" in play.row["reason"]["text"]
    assert outside.count("blind") == 0


def test_a_rejected_effect_that_a_person_retries_is_a_new_operation(play: Play) -> None:
    outside.fail(Refused("no such queue"))
    play.go("eff_must")
    assert play.row["status"] == "failed"

    assert control.reopen(play.verbs.connection, play.run, by="ann") == "running"
    play.work()

    assert (play.row["status"], play.row["result"]) == ("succeeded", b'"did a"')
    assert len(set(outside.tried("blind"))) == 2
    assert [row["status"] for row in play.effects()] == ["failed", "succeeded"]


def test_an_effect_that_was_never_sent_keeps_its_key_when_a_person_retries(play: Play) -> None:
    play.go("eff_must", deadline=10, stop="eff_blind#1")
    key = play.effect["idempotency_key"]
    play.work(seconds=11)
    assert (play.row["status"], play.effect["status"]) == ("failed", "failed")
    play.verbs.connection.execute("UPDATE safepoint.runs SET deadline = NULL, attempt = attempt + 1")

    control.reopen(play.verbs.connection, play.run, by="ann")
    play.work()

    assert play.row["status"] == "succeeded"
    assert outside.keys("blind") == [key.hex()]


def test_what_is_not_executed_each_time_is_sent_as_often_as_the_policy_says(play: Play) -> None:
    for _ in range(9):
        outside.fail(RuntimeError("500"))

    play.go("eff_one", kind="tried")
    waits = 0
    while play.row["status"] not in {"succeeded", "held"}:
        assert play.row["status"] in {"waiting", "running"}
        waits += 1
        play.work(seconds=1)

    assert play.row["result"] == b'"failed: RuntimeError"'
    assert play.effect["status"] == "failed"
    assert len(outside.tried("tried")) == 3
    assert waits >= 6  # three seconds before each of the two repetitions


def test_a_sending_that_runs_into_its_timeout_counts_for_the_policy(play: Play) -> None:
    play.go("eff_one", stop="eff_keyed#1", kind="keyed")
    for _ in range(3):
        claimed = play.verbs.claimed(play.run, play.key("eff_keyed#1"), lane=play.lane("eff_keyed#1"))
        play.begin(claimed, how="again" if play.effect["attempts"] else "send")
        play.clock.forward(1000)
        play.verbs.beat()
        loss = Loss(play.run, claimed.key, claimed.token, Cause.TIMEOUT)
        assert lose(play.verbs.connection, loss, lane="recovery", max_deaths=5) == "lost"
        play.work()
        play.clock.forward(3.1)

    assert play.row["status"] == "held"
    assert play.effect["error"]["type"] == "StepTimeout"


@pytest.mark.parametrize("end", ["cancel", "deadline"])
def test_what_a_pause_has_put_aside_is_settled_when_the_run_stops(play: Play, end: str) -> None:
    outside.fail(TimeoutError(), done=True)
    outside.answers([UNSURE])
    play.go("eff_one", kind="asked", deadline=100)
    control.pause(play.verbs.connection, play.run, by="ann")
    play.work(seconds=10)
    assert play.effect["lookups"] == 1

    if end == "cancel":
        control.cancel(play.verbs.connection, play.run, by="ann")
    play.work(seconds=100 if end == "deadline" else 1)

    assert play.row["status"] == ("failed" if end == "deadline" else "cancelled")
    assert play.effect["status"] == "succeeded"


def test_our_own_timeout_is_no_error_that_a_declaration_means(play: Play) -> None:
    outside.fail(StepTimeout(seconds=1), done=True)

    play.go("eff_one", kind="wide").work(seconds=1000)

    assert play.row["status"] == "held"
    assert outside.count("wide") == 1


def test_an_undoing_that_the_code_no_longer_has_holds_the_run_and_keeps_no_worker_busy(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    play.go("eff_undo", stop="eff_fails#1")
    with monkeypatch.context() as patch:
        patch.setattr(undone, "compensate_fn", None)
        play.work()

    assert (play.row["status"], play.row["reason"]["code"]) == ("held", "compensation")
    control.resume(play.verbs.connection, play.run, by="ann")
    play.work()
    assert (play.row["status"], outside.did("undo")) == ("failed", ["did second", "did first"])

"""P28: a person's decision is bound to the run, the step key, what was shown and the expiry; nobody decides twice."""

from __future__ import annotations

import json
from collections.abc import Callable
from hashlib import sha256
from typing import Any
from uuid import UUID, uuid4

import pytest
from ledger_clock import Clock
from ledger_verbs import PARKED, Verbs, ask, key
from safepoint.ledger import people

OK = key("approval:ok#1")
SHOWN, OTHER = "aa" * 32, "bb" * 32


def question(text: str = "approval:ok#1", *, name: str = "ok", shown: str = SHOWN, **more: Any) -> dict[str, Any]:
    return ask(text, "approval", name=name, hash=shown, **more)


def guarded(text: str = "pay#1", *, shown: str = SHOWN, **more: Any) -> dict[str, Any]:
    """An effect that waits for its approval."""
    effect = {"requires_approval": "role:oncall"}
    return ask(text, "effect", hash=shown, request="eyJhIjoxfQ==", encoding="json", effect=effect,
               reason={"code": "approval"}, **more)  # fmt: skip


def decided(verbs: Verbs, run: UUID) -> list[dict[str, Any]]:
    query = "SELECT key, data FROM safepoint.events WHERE run_id = %s AND type = 'approval.decided' ORDER BY seq"
    return [{"key": row["key"], **row["data"]} for row in verbs.rows(query, (run,))]


# What a decision holds.


@pytest.mark.parametrize(("approved", "outcome"), [(True, "approved"), (False, "denied")])
def test_p28_a_decision_is_stored_with_its_author_and_what_was_shown(
    verbs: Verbs, approved: bool, outcome: str
) -> None:
    run = verbs.begun(question())

    answer = verbs.decide(run, approved=approved, by="ann", note="seen", value=b'{"n":1}')

    assert (answer.answer, answer.key) == ("decided", "approval:ok#1")
    claimed = verbs.claimed(run, OK).outcome
    assert claimed is not None
    assert claimed.data is not None
    whole = json.loads(claimed.data)
    assert whole == {"outcome": outcome, "by": "ann", "note": "seen", "value": {"n": 1}, "shown": SHOWN}
    assert claimed.sender == "ann"
    assert decided(verbs, run) == [
        {"key": "approval:ok#1", "name": "ok", "outcome": outcome, "by": "ann", "note": "seen", "digest": SHOWN}
    ]


def test_p28_the_stored_digest_covers_the_edited_payload_and_what_was_shown(verbs: Verbs) -> None:
    run = verbs.begun(question())
    verbs.decide(run, value=b'{"n":1}')

    row = verbs.step(run, OK)

    assert row["outcome"]["covers"] == sha256(row["outcome_data"]).hexdigest()
    one, other = (people.decision_document("approved", by="a", value=value, shown=SHOWN) for value in (b"1", b"2"))
    third = people.decision_document("approved", by="a", value=b"1", shown=OTHER)
    assert len({one.digest, other.digest, third.digest}) == 3


def test_p28_an_effect_gets_its_decision_beside_the_frozen_request(verbs: Verbs) -> None:
    run = verbs.begun(guarded())
    assert verbs.statuses(run)["pay#1"] == "waiting"

    answer = verbs.decide(run, "pay", by="ann", note="fine")

    effect = verbs.rows("SELECT * FROM safepoint.effects WHERE run_id = %s", (run,))[0]
    decision = effect["decision"]
    assert (answer.answer, effect["status"]) == ("decided", "pending")
    assert (decision["outcome"], decision["by"], decision["note"]) == ("approved", "ann", "fine")
    assert decision["digest"] == effect["request_digest"].hex() == SHOWN
    assert verbs.step(run, key("pay#1"))["status"] == "ready"
    past = verbs.rows("SELECT actor, why FROM safepoint.effect_history ORDER BY n")
    assert past[-1] == {"actor": "person:ann", "why": "approved: fine"}
    assert [(one["key"], one["outcome"], one["by"]) for one in decided(verbs, run)] == [("pay#1", "approved", "ann")]


def test_p28_a_denied_effect_is_ready_too_for_the_claim_that_says_so(verbs: Verbs) -> None:
    run = verbs.begun(guarded())

    verbs.decide(run, "pay#1", approved=False, note="too much")

    assert verbs.value("SELECT decision->>'outcome' FROM safepoint.effects") == "denied"
    assert verbs.step(run, key("pay#1"))["status"] == "ready"


@pytest.mark.parametrize("stop", [Verbs.pause, lambda verbs, run: verbs.hold(run, "diverged")])
@pytest.mark.parametrize("asked", [question(), guarded()])
def test_p28_a_decision_on_a_stopped_run_is_taken_and_waits_with_it(
    verbs: Verbs, stop: Callable[..., object], asked: dict[str, Any]
) -> None:
    run, of = verbs.begun(asked), key(f"{asked['step']}#1")
    stop(verbs, run)

    assert verbs.decide(run, asked["name"]).answer == "decided"
    assert verbs.step(run, of)["due_at"] == PARKED
    verbs.resume(run)
    assert verbs.claimed(run, of)


def test_p28_a_decision_whose_answer_was_lost_is_made_once(verbs: Verbs) -> None:
    run, id_ = verbs.begun(question(), guarded()), uuid4()

    answers = [verbs.decide(run, id_=id_).answer, verbs.decide(run, id_=id_).answer]
    answers += [verbs.decide(run, "pay", id_=(other := uuid4())).answer, verbs.decide(run, "pay", id_=other).answer]

    assert answers == ["decided"] * 4
    assert len(decided(verbs, run)) == 2


# What is refused, and with which words.


def refused(verbs: Verbs, run: UUID, name: str = "ok", **more: Any) -> tuple[str, str]:
    before = verbs.run(run), verbs.rows("SELECT * FROM safepoint.steps WHERE run_id = %s", (run,))
    answer = verbs.decide(run, name, **more)
    after = verbs.run(run), verbs.rows("SELECT * FROM safepoint.steps WHERE run_id = %s", (run,))
    assert before == after  # a refusal changes nothing
    return answer.answer, answer.text or ""


def test_p28_what_is_not_asked_is_refused_and_what_is_asked_is_named(verbs: Verbs) -> None:
    run = verbs.begun(question(delay=60.0), guarded())

    answer, text = refused(verbs, run, "may")

    assert answer == "not_asked"
    assert "may is not asked" in text
    assert "approval:ok#1 (ok, digest aaaaaaaaaaaa, until " in text
    assert "pay#1 (pay, digest aaaaaaaaaaaa)" in text


def test_p28_a_decision_before_its_question_could_not_have_been_shown(verbs: Verbs) -> None:
    run = verbs.enqueue()

    answer, text = refused(verbs, run)
    verbs.done(run, asked=[question()])

    assert answer == "not_asked"
    assert "nothing is asked now" in text
    assert verbs.statuses(run)["approval:ok#1"] == "waiting"


@pytest.mark.parametrize("claimed", [False, True])
@pytest.mark.parametrize("asked", [question(), guarded()])
def test_p28_who_comes_second_decides_nothing_and_hears_who_was_first(
    verbs: Verbs, claimed: bool, asked: dict[str, Any]
) -> None:
    run = verbs.begun(asked)
    verbs.decide(run, asked["name"], approved=False, by="bob")
    if claimed:
        verbs.claimed(run, key(f"{asked['step']}#1"))

    answer, text = refused(verbs, run, asked["name"], by="ann")

    assert answer == "already"
    assert f"{asked['step']}#1 was denied by bob at 20" in text


def test_p28_after_its_expiry_nothing_is_decided_whether_the_scan_has_come_by_or_not(
    verbs: Verbs, clock: Clock
) -> None:
    run = verbs.begun(question(delay=10.0))
    clock.forward(10)

    before = refused(verbs, run)
    verbs.chores()
    after = refused(verbs, run)

    assert [answer for answer, _ in (before, after)] == ["expired", "expired"]
    assert "expired at 2030-01-01 00:00:10 UTC, which approves nothing" in before[1]
    assert "approval:ok#1 expired at 2030-01-01 00:00:10 UTC" in after[1]
    assert [one["outcome"] for one in decided(verbs, run)] == ["expired"]


def test_p28_what_expires_beside_a_decided_question_leaves_it_alone(verbs: Verbs, clock: Clock) -> None:
    run = verbs.begun(question(delay=10.0), question("approval:may#1", name="may", delay=10.0))
    verbs.decide(run, by="ann")
    clock.forward(10)

    assert verbs.chores().fired == 1
    assert verbs.step(run, OK)["outcome"]["sender"] == "ann"
    assert [(one["name"], one["outcome"]) for one in decided(verbs, run)] == [("ok", "approved"), ("may", "expired")]


def test_p28_past_the_deadline_of_the_run_nothing_is_approved(verbs: Verbs, clock: Clock) -> None:
    run = verbs.begun(guarded(), deadline=clock.now.replace(minute=1).isoformat())
    clock.forward(60)

    answer, text = refused(verbs, run, "pay")

    assert answer == "expired"
    assert "the deadline of the run passed at 2030-01-01 00:01:00 UTC" in text


def test_p28_another_digest_is_refused_and_the_one_that_is_asked_is_named(verbs: Verbs) -> None:
    run = verbs.begun(question(shown=OTHER))

    answer, text = refused(verbs, run, digest=SHOWN[:12])

    assert answer == "changed"
    assert (
        "nothing of the digest aaaaaaaaaaaa is asked as ok; asked now: approval:ok#1 (ok, digest bbbbbbbbbbbb)" in text
    )
    assert verbs.decide(run, digest=OTHER[:8]).answer == "decided"


def test_p28_what_has_changed_since_it_was_read_is_refused(verbs: Verbs) -> None:
    run = verbs.begun(question())
    read = people.asked(verbs.connection, run)[0]
    verbs.decide(run)
    verbs.done(run, OK, asked=[question("approval:ok#2")])

    assert refused(verbs, run, seen=read)[0] == "changed"
    assert refused(verbs, run, seen=None)[0] == "changed"


def test_p28_the_same_command_typed_twice_does_not_decide_the_next_round(verbs: Verbs) -> None:
    run = verbs.begun(question())
    verbs.decide(run, digest=SHOWN[:12])
    verbs.done(run, OK, asked=[question("approval:ok#2")])

    answer, text = refused(verbs, run, digest=SHOWN[:12])

    assert answer == "already"
    assert "the same is asked again: name it by its step key, approval:ok#2" in text
    assert verbs.decide(run, "approval:ok#2", digest=SHOWN[:12]).answer == "decided"


def test_p28_a_name_that_is_asked_twice_at_once_wants_the_step_key(verbs: Verbs) -> None:
    places = [f"gather#1.{n}/approval:ok#1" for n in (1, 2)]
    run = verbs.begun(question(places[0]), question(places[1], shown=OTHER))

    answer, text = refused(verbs, run)

    assert answer == "ambiguous"
    assert "ok is asked 2 times: name one by its step key" in text
    assert all(place in text for place in places)
    assert verbs.decide(run, digest=OTHER).key == places[1]  # what was shown tells which
    assert verbs.decide(run, places[0]).key == places[0]


def test_p28_an_effects_request_is_not_edited(verbs: Verbs) -> None:
    run = verbs.begun(guarded())

    answer, text = refused(verbs, run, "pay", value=b"{}")

    assert answer == "edited"
    assert "the request of pay is frozen: deny it, and let the flow ask again" in text


@pytest.mark.parametrize("asked", [question(), guarded()])
def test_p28_a_run_that_is_cancelling_takes_no_decision(verbs: Verbs, asked: dict[str, Any]) -> None:
    run = verbs.begun(asked)
    verbs.cancel(run)

    answer, text = refused(verbs, run, asked["name"])

    assert answer == "cancelling"
    assert "the run is cancelling" in text


def test_p28_what_its_clean_up_asks_is_decided(verbs: Verbs) -> None:
    run = verbs.begun(question())
    verbs.cancel(run)
    verbs.commit(verbs.claimed(run, key("@cancel#1")), asked=[question("approval:undo#1", name="undo")])

    assert verbs.decide(run, "undo").answer == "decided"


def test_p28_a_final_run_takes_no_decision(verbs: Verbs) -> None:
    run = verbs.begun(question())
    verbs.decide(run, by="bob")
    verbs.done(run, OK, ending="succeeded")

    answer, text = refused(verbs, run)

    assert answer == "final"
    assert "the run is succeeded; approval:ok#1 was approved by bob at" in text


def test_p28_a_run_that_has_gone_on_takes_no_decision_on_what_it_left(verbs: Verbs) -> None:
    run = verbs.begun(question(), ask("a#1"))
    verbs.commit(verbs.claimed(run, key("a#1")), ending=continued())
    verbs.done(run, key("g2:@start#1"), asked=[ask("b#1")])

    answer, text = refused(verbs, run)

    assert answer == "moved"
    assert "the run has gone on without approval:ok#1; nothing is asked now" in text


def continued() -> Any:
    from safepoint.ledger.commit import Ending

    return Ending("continued", b"{}", "json", b"h")


def test_p28_a_run_that_does_not_exist_is_unknown(verbs: Verbs) -> None:
    assert verbs.decide(uuid4(), seen=None).answer == "unknown"


def test_p28_a_step_or_a_signal_is_no_question(verbs: Verbs) -> None:
    run = verbs.begun(ask("ok#1", "signal", name="ok"), ask("pay#1"), ask("nap#1", "timer", delay=9.0, name="nap"))

    assert {refused(verbs, run, name)[0] for name in ("ok", "pay", "nap", "ok#1")} == {"not_asked"}


@pytest.mark.parametrize("beside", [[], [ask("nap#1", "timer", delay=10.0)]])
def test_g10_no_clock_decides_an_effect(verbs: Verbs, clock: Clock, beside: list[dict[str, Any]]) -> None:
    run = verbs.begun(guarded(delay=10.0), *beside)
    clock.forward(1000)

    assert verbs.chores().fired == len(beside)
    assert verbs.statuses(run)["pay#1"] == "waiting"

"""P32 to P37: what may be sent, what is believed of what was sent, and when a run may end."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest
from ledger_clock import Clock
from ledger_verbs import Verbs, ask, key
from safepoint.ledger import commit as commits
from safepoint.ledger import control, effects
from safepoint.ledger.commit import Result
from safepoint.ledger.steps import Cause, Claimed

A = key("a#1")
AFTER = 5.0  # authoritative_after
CALL = 60.0  # how long a call may last


class Sent:
    """A run with one effect, and the verbs that move it."""

    def __init__(self, verbs: Verbs, clock: Clock, **declared: Any) -> None:
        self.verbs, self.clock = verbs, clock
        facts = {"authoritative_after": AFTER, **declared}
        self.run = verbs.begun(ask("a#1", "effect", request="e30=", encoding="json", effect=facts))

    def claim(self, **more: Any) -> Claimed:
        return self.verbs.claimed(self.run, A, **more)

    def begin(self, claimed: Claimed, how: Any = "send", *, asked_at: datetime | None = None, **more: Any) -> str:
        assert claimed.effect is not None
        facts: dict[str, Any] = {"digest": claimed.effect.digest, "key_retention": None, **more}
        return effects.begin(
            self.verbs.connection, self.run, claimed.key, token=claimed.token, how=how, timeout=CALL,
            authoritative_after=AFTER, asked_at=asked_at or claimed.db_now, **facts,
        ).answer  # fmt: skip

    def unsettle(self, claimed: Claimed, **facts: Any) -> str:
        return effects.unsettle(
            self.verbs.connection, self.run, claimed.key, token=claimed.token, node="node-1", **facts
        )

    def lose(self, claimed: Claimed, cause: Cause = Cause.CHILD, **more: Any) -> None:
        assert self.verbs.lose(claimed, cause, **more) == "lost"

    def resolve(self, verdict: str, version: int | None = None) -> str:
        return str(
            self.verbs.value(
                "SELECT answer FROM safepoint.resolve_effect_v1(%s, %s, %s, '1', 'json', NULL, 'person:ann', 'seen')",
                (self.row["idempotency_key"], version, verdict),
            )
        )

    @property
    def row(self) -> dict[str, Any]:
        query = "SELECT * FROM safepoint.effects WHERE run_id = %s ORDER BY created_at, ordinal"
        return self.verbs.rows(query, (self.run,))[0]

    @property
    def status(self) -> str:
        return str(self.row["status"])


@pytest.fixture
def sent(verbs: Verbs, clock: Clock) -> Sent:
    return Sent(verbs, clock)


def unknown_since_a_death(sent: Sent) -> None:
    claimed = sent.claim()
    assert sent.begin(claimed) == "begun"
    sent.lose(claimed)
    assert sent.status == "unknown"


def test_p32_a_claim_alone_sends_nothing_and_a_second_one_begins_anew(sent: Sent) -> None:
    sent.lose(sent.claim())

    assert sent.status == "pending"
    assert sent.begin(sent.claim(lane="recovery")) == "begun"


def test_p03_a_begin_whose_answer_was_lost_is_repeated_and_counted_once(sent: Sent) -> None:
    claimed = sent.claim()

    assert [sent.begin(claimed), sent.begin(claimed)] == ["begun", "begun"]
    assert sent.row["attempts"] == 1


def test_g06_a_request_that_is_not_the_frozen_one_is_not_begun(sent: Sent) -> None:
    assert sent.begin(sent.claim(), digest=b"another") == "changed"
    assert sent.status == "pending"


def test_p05_who_has_lost_the_claim_does_not_begin(sent: Sent) -> None:
    claimed = sent.claim()
    sent.lose(claimed)

    assert sent.begin(claimed) == "lost"


@pytest.mark.parametrize("stop", ["cancel", "deadline"])
def test_p32_a_stopping_run_begins_nothing(verbs: Verbs, clock: Clock, stop: str) -> None:
    sent = Sent(verbs, clock)
    claimed = sent.claim()
    if stop == "cancel":
        verbs.cancel(sent.run)
    else:
        verbs.connection.execute("UPDATE safepoint.runs SET deadline = safepoint.now()")

    assert sent.begin(claimed) == "stopping"
    verbs.release(claimed)
    assert verbs.statuses(sent.run)["a#1"] == "cancelled"


def test_p32_what_nobody_knows_keeps_a_cancelled_run_from_ending(sent: Sent) -> None:
    unknown_since_a_death(sent)

    sent.verbs.cancel(sent.run)
    sent.verbs.done(sent.run, key("@cancel#1"), ending="cancelled")

    run = sent.verbs.run(sent.run)
    assert (run["status"], run["reason"]["code"]) == ("cancelling", "unknown_effect")
    claimed = sent.claim(lane="recovery")
    sent.verbs.commit(claimed, advanced_from=None)
    assert sent.verbs.run(sent.run)["status"] == "cancelled"
    assert sent.status == "succeeded"


def test_p32_a_held_run_is_asked_about_and_nothing_is_sent_for_it(sent: Sent) -> None:
    unknown_since_a_death(sent)
    sent.verbs.hold(sent.run, "diverged")
    sent.clock.forward(AFTER + 1)

    claimed = sent.claim(lane="recovery")

    assert sent.begin(claimed) == "held"
    assert sent.status == "pending"  # the lookup's word stands: not executed


def test_p33_not_executed_counts_from_when_it_was_asked(sent: Sent) -> None:
    unknown_since_a_death(sent)
    sent.clock.forward(AFTER - 1)
    claimed = sent.claim(lane="recovery")
    sent.clock.forward(100)  # the answer was on its way for long

    assert sent.begin(claimed) == "early"
    assert sent.begin(claimed, asked_at=sent.clock.now) == "begun"


@pytest.mark.parametrize(("cause", "dead"), [(Cause.LEASE, False), (Cause.LEASE, True)])
def test_p33_only_a_dead_executor_sends_nothing_more(verbs: Verbs, clock: Clock, cause: Cause, dead: bool) -> None:
    sent = Sent(verbs, clock)
    claimed = sent.claim()
    sent.begin(claimed)
    clock.forward(20)  # its lease is over, its call may still be under way
    sent.lose(claimed, cause, evidence={"dead": True} if dead else None)
    verbs.beat()

    clock.forward(AFTER + 1)
    assert sent.begin(sent.claim(lane="recovery")) == ("begun" if dead else "early")


def test_p33_the_end_of_one_executor_is_not_the_end_of_another(sent: Sent) -> None:
    first = sent.claim()
    sent.begin(first)
    sent.clock.forward(20)
    sent.lose(first, Cause.LEASE)  # it may send until its call would have ended
    sent.verbs.beat()
    second = sent.claim(lane="recovery")
    assert sent.begin(second, "again") == "begun"
    sent.lose(second)  # certainly dead

    assert sent.row["may_send_until"] == sent.clock.now + timedelta(seconds=CALL - 20)


def test_p33_the_same_key_is_sent_again_only_if_it_will_arrive_while_it_is_remembered(sent: Sent) -> None:
    unknown_since_a_death(sent)
    sent.clock.forward(40)
    claimed = sent.claim(lane="recovery")

    assert sent.begin(claimed, "again", key_retention=40 + CALL + AFTER - 1) == "expired"
    assert sent.begin(claimed, "again", key_retention=40 + CALL + AFTER + 1) == "begun"


def test_p34_a_person_who_found_nothing_waits_until_nothing_can_arrive(sent: Sent) -> None:
    unknown_since_a_death(sent)

    assert [sent.resolve("not_executed"), sent.resolve("failed")] == ["early", "early"]
    sent.clock.forward(AFTER + 0.1)
    assert sent.resolve("not_executed") == "resolved"
    assert sent.status == "pending"


def test_p34_what_was_seen_done_is_said_at_once(sent: Sent) -> None:
    unknown_since_a_death(sent)

    assert sent.resolve("succeeded") == "resolved"
    assert sent.resolve("succeeded") == "settled"


def test_p34_a_verdict_on_an_older_version_is_refused(sent: Sent) -> None:
    unknown_since_a_death(sent)
    seen = sent.row["version"]
    claimed = sent.claim(lane="recovery")
    sent.begin(claimed, "again")
    sent.unsettle(claimed, error={"type": "T", "message": "m"})
    sent.clock.forward(AFTER + 1)

    assert sent.resolve("not_executed", seen) == "stale"
    assert sent.resolve("not_executed", sent.row["version"]) == "resolved"


def test_p34_evidence_of_success_settles_it_and_stands_against_people(sent: Sent) -> None:
    unknown_since_a_death(sent)
    told = effects.evidence(
        sent.verbs.connection, sent.run, key=sent.row["idempotency_key"].hex(), node="node-1", epoch=1, data=b"7",
        encoding="json", external_id="T-7",
    )  # fmt: skip

    assert told == "settled"
    assert (sent.status, sent.row["result"], sent.row["external_id"]) == ("succeeded", b"7", "T-7")
    assert sent.verbs.step(sent.run, A)["status"] == "ready"


def test_p34_evidence_on_what_is_being_sent_again_is_kept(sent: Sent) -> None:
    unknown_since_a_death(sent)
    claimed = sent.claim(lane="recovery")
    sent.begin(claimed, "again")
    told = effects.evidence(
        sent.verbs.connection, sent.run, key=sent.row["idempotency_key"].hex(), node="node-1", epoch=1, data=b"7",
        encoding="json", external_id=None,
    )  # fmt: skip
    assert told == "noted"

    sent.unsettle(claimed, error={"type": "T", "message": "m"}, hold="who knows")
    sent.clock.forward(AFTER + 1)
    assert sent.resolve("not_executed") == "evidence"


def test_p35_a_late_commit_settles_what_became_unknown(sent: Sent) -> None:
    claimed = sent.claim()
    sent.begin(claimed)
    sent.lose(claimed)

    assert sent.verbs.commit(claimed).late
    assert sent.status == "succeeded"


def test_g06_no_failure_hides_what_nobody_knows(sent: Sent) -> None:
    claimed = sent.claim()
    sent.begin(claimed)

    with pytest.raises(psycopg.errors.CheckViolation, match="must say that it was not executed"):
        failed(sent, claimed)


def failed(sent: Sent, claimed: Claimed, **more: Any) -> None:
    result = Result("failed", sent.clock.now, error={"type": "T", "message": "m"})
    commits.commit(
        sent.verbs.connection,
        sent.run,
        A,
        token=claimed.token,
        node="node-1",
        result=result,
        advanced_from=None,
        **more,
    )


def compensated(sent: Sent) -> UUID:
    """End the run as failed after its effect has succeeded."""
    claimed = sent.claim()
    sent.begin(claimed)
    sent.verbs.commit(claimed, ending="failed")
    return sent.run


def test_p37_a_failed_run_undoes_what_it_has_done_before_it_is_final(verbs: Verbs, clock: Clock) -> None:
    sent = Sent(verbs, clock, compensate=True)
    run = compensated(sent)

    found = verbs.run(run)
    assert (found["status"], found["reason"]["code"]) == ("cancelling", "compensation")
    undo = verbs.claimed(run, key("compensate:a#1"))
    assert undo.effect is not None
    assert undo.effect.compensates == sent.row["idempotency_key"].hex()
    assert sent.begin(undo) == "begun"
    verbs.commit(undo, advanced_from=None)
    assert verbs.run(run)["status"] == "failed"


def test_p37_a_compensation_that_cannot_finish_holds_the_run(verbs: Verbs, clock: Clock) -> None:
    sent = Sent(verbs, clock, compensate=True)
    run = compensated(sent)
    undo = verbs.claimed(run, key("compensate:a#1"))
    sent.begin(undo)

    assert sent.unsettle(undo, error={"type": "T", "message": "m", "not_executed": True}, hold="no way") == "held"

    found = verbs.run(run)
    assert (found["status"], found["reason"]["code"]) == ("held", "compensation")
    assert found["reason"]["detail"] == {"undone": [], "not_undone": ["a#1"]}
    assert control.resume(verbs.connection, run, by="ann") == "cancelling"
    assert verbs.statuses(run)["compensate:a#1"] == "ready"


def test_p37_what_was_undone_by_hand_is_said_so(verbs: Verbs, clock: Clock) -> None:
    sent = Sent(verbs, clock, compensate=True)
    run = compensated(sent)
    undo = verbs.claimed(run, key("compensate:a#1"))
    sent.begin(undo)
    sent.unsettle(undo, error={"type": "T", "message": "m", "not_executed": True}, hold="no way")

    own = verbs.value("SELECT idempotency_key FROM safepoint.effects WHERE compensates IS NOT NULL")
    query = (
        "SELECT answer FROM safepoint.resolve_effect_v1(%s, NULL, 'succeeded', 'null', 'json', NULL, 'person:ann', 'x')"
    )
    assert verbs.value(query, (own,)) == "resolved"

    verbs.commit(verbs.claimed(run, key("compensate:a#1")), advanced_from=None)
    assert verbs.run(run)["status"] == "failed"


def test_p36_a_run_whose_compensation_has_begun_is_not_reopened(verbs: Verbs, clock: Clock) -> None:
    sent = Sent(verbs, clock, compensate=True)
    run = compensated(sent)
    undo = verbs.claimed(run, key("compensate:a#1"))
    sent.begin(undo)
    verbs.commit(undo, advanced_from=None)

    assert control.reopen(verbs.connection, run, by="ann").startswith("refused")


def test_p08_a_restored_ledger_believes_no_pending_effect(sent: Sent) -> None:
    control.restored(sent.verbs.connection, reason="test")

    assert sent.status == "unknown"
    sent.clock.forward(AFTER + 1)
    assert sent.begin(sent.claim()) == "early"  # a begin that was lost may be executing


def test_p34_a_lookup_that_has_not_heard_of_it_does_not_overrule_who_knows(sent: Sent) -> None:
    claimed = sent.claim()
    sent.begin(claimed)
    sent.unsettle(claimed, error={"type": "ValueNotEncodable", "message": "m", "outcome": "succeeded"})
    sent.clock.forward(AFTER + 1)

    assert sent.begin(sent.claim()) == "evidence"

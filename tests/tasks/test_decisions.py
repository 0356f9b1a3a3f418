"""Approvals from the question to what the flow hears, and effects that need one: a real ledger, a real executor."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from ledger_clock import Clock
from ledger_verbs import Verbs, key
from outside import Outside
from safepoint import Client, Decision, Permanent, approval, current, effect, flow, step
from safepoint.errors import Refused, StepFailed, UnknownRun, ValueTooLarge
from safepoint.ledger.seal import Seal
from safepoint.ledger.steps import Cause
from safepoint.tasks.ruling import Ruling, rule
from tenacity import stop_after_attempt
from workshop import Workshop, settings_of

outside = Outside()
OK = key("approval:refund#1")
PAY = key("dec_pay#1")


@dataclass
class Offer:
    amount: int


@effect(name="dec_pay", requires_approval="role:oncall", idempotent=True)
def pay(amount: int) -> str:
    return outside.do("pay", str(amount), current().idempotency_key, keyed=True)


@step(name="dec_fails", stop=stop_after_attempt(1))
def fails() -> None:
    raise Permanent("for a reason")


@flow(name="dec_asks", version="1")
async def asks(amount: int) -> dict[str, Any]:
    said = await approval("refund", show={"amount": amount}, expires_in=3600)
    return {"outcome": said.outcome, "approved": said.approved, "by": said.by, "note": said.note, "value": said.value}


@flow(name="dec_pays", version="1")
async def pays(amount: int) -> str:
    return await pay(amount)


@flow(name="dec_tells", version="1")
async def tells(amount: int) -> str:
    try:
        return await pay(amount)
    except StepFailed as error:
        return f"{error.type}: {error.message}"


@flow(name="dec_rounds", version="1")
async def rounds(times: int) -> list[str | None]:
    return [(await approval("again", show="the same")).by for _ in range(times)]


@pytest.fixture
def verbs(crowd: Callable[[], Verbs]) -> Verbs:
    return crowd()


class Play:
    """A run of one of these flows, played with the ledger's clock in hand."""

    def __init__(self, shop: Workshop, verbs: Verbs, clock: Clock, url: str, client: Client) -> None:
        self.shop, self.verbs, self.clock, self.url, self.client = shop, verbs, clock, url, client

    def go(self, flow: str, **given: Any) -> Any:
        made = self.client.enqueue(flow, given)
        self.work()
        return made

    def work(self, seconds: float = 0.0) -> None:
        self.clock.forward(seconds)
        self.verbs.beat()
        self.shop.board.beaten(time.monotonic())
        self.shop.work(self.url)


@pytest.fixture
def folder_settings(tmp_path: Path, request: pytest.FixtureRequest) -> Any:
    codec = getattr(request, "param", None)
    return settings_of(tmp_path, relay={"grace": 0.0}, values={"codec": codec})


@pytest.fixture
def play(verbs: Verbs, crowd_clock: Clock, crowded_ledger_url: str, folder_settings: Any) -> Iterator[Play]:
    outside.reset()
    shop = Workshop(crowded_ledger_url, folder_settings)
    shop.register(crowded_ledger_url)
    with Client(crowded_ledger_url, settings=folder_settings) as client:
        yield Play(shop, verbs, crowd_clock, crowded_ledger_url, client)


SEALING = pytest.mark.parametrize("folder_settings", [None, "toy_codec:xor"], indirect=True, ids=["open", "sealed"])


# An approval of the flow's.


@SEALING
def test_what_a_person_decides_is_what_the_flow_hears(play: Play) -> None:
    run = play.go("dec_asks", amount=7)

    said = run.approve("refund", by="ann", note="less", value={"amount": 5})
    play.work()

    assert said == Decision("approved", True, "ann", "less", {"amount": 5})
    assert run.result(timeout=0) == {
        "outcome": "approved", "approved": True, "by": "ann", "note": "less", "value": {"amount": 5}
    }  # fmt: skip


@SEALING
def test_a_denial_is_heard_too(play: Play) -> None:
    run = play.go("dec_asks", amount=7)

    assert run.deny("refund", by="bob").outcome == "denied"
    play.work()

    assert (run.result(timeout=0)["outcome"], run.result(timeout=0)["approved"]) == ("denied", False)


@pytest.mark.parametrize("folder_settings", ["toy_codec:xor"], indirect=True)
def test_the_edited_payload_is_sealed(play: Play) -> None:
    run = play.go("dec_asks", amount=7)

    run.approve("refund", by="ann", value="plainly")

    row = play.verbs.step(UUID(run.id), OK)
    assert (row["outcome_encoding"], b"plainly" in row["outcome_data"]) == ("sealed", False)


def test_what_an_app_edits_may_be_a_value_of_its_own(play: Play) -> None:
    run = play.go("dec_asks", amount=7)

    assert run.approve("refund", by="ann", value=Offer(5)).value == {"amount": 5}


def test_the_stored_digest_is_the_decisions_and_is_compared_before_the_flow_hears_it(play: Play) -> None:
    good, bad = play.go("dec_asks", amount=7), play.go("dec_asks", amount=7)
    for run in (good, bad):
        run.deny("refund", by="ann")
    forged = json.dumps({"outcome": "approved", "by": "ann", "note": None, "value": None})
    play.verbs.connection.execute(
        "UPDATE safepoint.steps SET outcome_data = %s WHERE run_id = %s AND kind = 'approval'",
        (forged.encode(), bad.id),
    )

    play.work()

    row = play.verbs.step(UUID(good.id), OK)
    assert row["result_digest"].hex() == row["outcome"]["covers"]
    assert bad.status == "failed"
    assert "DecisionChanged" in str(play.verbs.step(UUID(bad.id), OK)["error"])


def test_nobody_in_time_is_an_outcome_of_its_own(play: Play) -> None:
    run = play.go("dec_asks", amount=7)

    play.work(3600)
    play.verbs.chores()
    play.work()

    assert run.result(timeout=0)["outcome"] == "expired"
    told = [event.data for event in run.events() if event.type == "approval.decided"]
    assert told == [{"outcome": "expired", "name": "refund"}]


def test_a_wait_costs_neither_worker_nor_message(play: Play) -> None:
    run = play.go("dec_asks", amount=7)
    sent = list(play.shop.belt.steps())

    for _ in range(5):
        play.work(60)
        play.verbs.look()
        play.verbs.chores()

    assert play.shop.belt.steps() == sent
    assert play.verbs.value("SELECT count(*) FROM safepoint.steps WHERE status IN ('ready', 'running')") == 0
    assert (run.status, run.reason["code"]) == ("waiting", "approval")


def test_a_worker_that_dies_at_the_claim_of_a_decided_wait_changes_nothing(play: Play) -> None:
    run = play.go("dec_asks", amount=7)
    run.approve("refund", by="ann")
    dead = play.verbs.claimed(UUID(run.id), OK)

    assert play.verbs.lose(dead, Cause.CHILD) == "lost"
    play.work(1)

    assert run.result(timeout=0)["by"] == "ann"
    with pytest.raises(Refused, match=r"approve refund is not possible: the run is succeeded; .* by ann"):
        run.approve("refund", by="bob")


def test_a_restarted_worker_replays_the_decision_and_asks_nobody_again(play: Play) -> None:
    run = play.go("dec_rounds", times=3)

    for by in ("ann", "bob", "eve"):
        run.approve("again", by=by)
        play.shop = Workshop(play.url, play.shop.settings)
        play.shop.register(play.url)
        play.work()

    assert run.result(timeout=0) == ["ann", "bob", "eve"]


def test_the_events_tell_what_was_asked_and_who_decided(play: Play) -> None:
    run = play.go("dec_asks", amount=7)
    run.approve("refund", by="ann", note="fine")

    told = [event for event in run.events() if event.type.startswith("approval.")]

    digest = play.verbs.step(UUID(run.id), OK)["input_hash"].hex()
    assert [(event.type, event.key) for event in told] == [
        ("approval.asked", str(OK)), ("approval.decided", str(OK))
    ]  # fmt: skip
    assert told[0].data == {"kind": "approval", "lane": "online", "name": "refund", "digest": digest}
    assert told[1].data == {"outcome": "approved", "by": "ann", "note": "fine", "name": "refund", "digest": digest}


def test_the_reason_of_a_waiting_run_is_the_command_that_decides(play: Play) -> None:
    run = play.go("dec_asks", amount=7)
    *_, digest = run.reason["next"].split()

    assert run.reason["next"] == f"safepoint approve {run.id} refund --by NAME --digest {digest}"
    assert run.approve("refund", by="ann", digest=digest).approved


# What is refused.


def test_what_cannot_be_decided_is_refused_with_what_stands(play: Play) -> None:
    run = play.go("dec_asks", amount=7)

    with pytest.raises(Refused, match=r"deny other is not possible: other is not asked.*asked now: approval:refund#1"):
        run.deny("other", by="ann")
    with pytest.raises(Refused, match="nothing of the digest 00000000 is asked as refund"):
        run.approve("refund", by="ann", digest="00000000")
    run.deny("refund", by="bob")
    with pytest.raises(Refused, match=r"approval:refund#1 was denied by bob at 2030-01-01 00:00:00 UTC"):
        run.approve("refund", by="ann")


@pytest.mark.parametrize(
    ("given", "text"),
    [({"by": ""}, "by: '' says nothing"), ({"by": "a\0"}, "without NUL"), ({"by": "ann", "note": "\ud800"}, "note: "),
     ({"by": "ann", "digest": "XYZ"}, "digest: 'XYZ' is none. Accepted: 8 to 64 hexadecimal digits")],
)  # fmt: skip
def test_what_cannot_be_written_down_is_refused_by_field(play: Play, given: dict[str, str], text: str) -> None:
    run = play.client.run(UUID(int=1))

    with pytest.raises(ValueError, match=text.replace("\0", "")):
        run.approve("refund", **given)


def test_an_edited_payload_has_the_size_of_any_value(play: Play) -> None:
    run = play.go("dec_asks", amount=7)

    with pytest.raises(ValueTooLarge, match="value has"):
        run.approve("refund", by="ann", value="x" * (play.shop.settings.values.max_size + 1))


def test_a_run_that_does_not_exist_is_said_so(play: Play) -> None:
    with pytest.raises(UnknownRun):
        play.client.run(UUID(int=1)).approve("refund", by="ann")


def test_a_decision_whose_answer_was_lost_is_not_refused_as_a_second_one(play: Play) -> None:
    run = play.go("dec_asks", amount=7)

    def twice(question: Callable[..., Any]) -> Any:
        question(play.verbs.connection)
        return question(play.verbs.connection)

    ruled = rule(twice, UUID(run.id), "refund", Ruling(approved=True, by="ann"), seal=Seal())

    assert (ruled.key, ruled.decision.approved) == (str(OK), True)


# An effect that requires one.


def test_an_effect_is_sent_after_its_approval_and_not_before(play: Play) -> None:
    run = play.go("dec_pays", amount=7)
    play.work(3600)
    play.verbs.chores()
    before = outside.count("pay")

    run.approve("dec_pay", by="ann")
    play.work()

    assert (before, outside.did("pay")) == (0, ["7"])
    assert run.status == "succeeded"
    (found,) = run.effects()
    assert (found["status"], found["decision"]["by"], found["decision"]["outcome"]) == ("succeeded", "ann", "approved")
    assert [(one["status"], one["actor"]) for one in found["history"]][:2] == [
        ("pending", "flow"), ("pending", "person:ann")
    ]  # fmt: skip


def test_a_denied_effect_is_a_failure_that_the_flow_may_catch_and_nothing_is_sent(play: Play) -> None:
    run = play.go("dec_tells", amount=7)

    run.deny("dec_pay", by="bob", note="too much")
    play.work()

    assert run.result(timeout=0) == "ApprovalDenied: dec_pay#1 was not approved: bob said no: too much."
    assert outside.count("pay") == 0


def test_the_request_of_an_effect_is_not_edited(play: Play) -> None:
    run = play.go("dec_pays", amount=7)

    with pytest.raises(Refused, match="the request of dec_pay is frozen: deny it, and let the flow ask again"):
        run.approve("dec_pay", by="ann", value={"amount": 5})


def test_a_worker_that_dies_before_the_send_needs_no_second_approval(play: Play) -> None:
    run = play.go("dec_pays", amount=7)
    run.approve("dec_pay", by="ann")
    dead = play.verbs.claimed(UUID(run.id), PAY)

    assert play.verbs.lose(dead, Cause.CHILD) == "lost"
    play.work(1)

    assert (run.status, outside.count("pay")) == ("succeeded", 1)


def test_g10_a_reopened_run_asks_for_the_approval_that_was_denied_anew(play: Play) -> None:
    run = play.go("dec_pays", amount=7)
    run.deny("dec_pay", by="bob")
    play.work()
    assert run.status == "failed"

    run.retry(by="ann")
    play.work(60)
    waited = (run.status, outside.count("pay"))
    run.approve("dec_pay", by="ann")
    play.work()

    assert waited == ("waiting", 0)
    assert (run.status, outside.count("pay")) == ("succeeded", 1)
    asked = [event.type for event in run.events() if event.type.startswith("approval.")]
    assert asked == ["approval.asked", "approval.decided"] * 2

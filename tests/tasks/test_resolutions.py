"""P34: what a person says became of an effect, by name and reason: checked, refused with what stands, committed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pytest
from outside import Outside
from play import Play
from safepoint import Client, current, effect, flow
from safepoint.errors import BadArguments, Refused, StepFailed, UnknownEffect, UnknownRun
from safepoint.ledger import people
from safepoint.ledger.codec import Encoded
from safepoint.ledger.people import Verdict
from safepoint.ledger.seal import Seal
from safepoint.tasks.resolution import Resolution, resolve

outside = Outside()


@dataclass
class Ticket:
    number: int


@effect(name="res_open", runbook="https://runbooks/tickets")
def open_ticket(title: str) -> Ticket:
    outside.do("open", title, current().idempotency_key)
    return Ticket(1)


@flow(name="res_one", version="1")
async def one(title: str) -> str:
    try:
        return f"ticket {(await open_ticket(title)).number}"
    except StepFailed as error:
        return f"{error.type}: {error.message}"


@pytest.fixture
def play(playing: Callable[[Outside], Play]) -> Play:
    return playing(outside)


@pytest.fixture
def client(play: Play) -> Iterator[Client]:
    with Client(play.url, settings=play.shop.settings) as opened:
        yield opened


@pytest.fixture
def key(play: Play) -> str:
    """The key of an effect that was sent, and of which nobody knows what became."""
    outside.fail(TimeoutError("no answer"))
    play.go("res_one", title="slow")
    assert (play.row["status"], play.effect["status"]) == ("held", "unknown")
    play.work(10)  # by now nothing of it can arrive any more
    return str(play.effect["idempotency_key"].hex())


@pytest.mark.parametrize("value", [Ticket(7), {"number": 7}])
def test_what_the_other_side_answered_is_the_effects_result(
    play: Play, client: Client, key: str, value: object
) -> None:
    found = client.resolve_effect(key[:12], succeeded=value, by="ada", why="it is in their list")
    play.work()

    assert client.run(play.run).result(timeout=0) == "ticket 7"
    assert (found["status"], found["result"]) == ("succeeded", {"number": 7})
    assert found["history"][-1]["actor"] == "person:ada"
    assert len(outside.tried("open")) == 1


def test_what_was_not_executed_is_sent_under_the_same_key(play: Play, client: Client, key: str) -> None:
    client.resolve_effect(key, not_executed=True, by="ada", why="their log has no such call")
    play.work()

    assert client.run(play.run).result(timeout=0) == "ticket 1"
    assert outside.tried("open") == [key, key]


def test_what_was_refused_fails_in_the_flow_with_the_words(play: Play, client: Client, key: str) -> None:
    client.resolve_effect(key, failed="no such project", by="ada", why="their mail of today")
    play.work()

    assert client.run(play.run).result(timeout=0) == "Rejected: no such project"


def test_a_result_that_does_not_fit_is_refused_and_changes_nothing(play: Play, client: Client, key: str) -> None:
    with pytest.raises(BadArguments, match=r"what res_open returns: result\.number: Input should be a valid integer"):
        client.resolve_effect(key, succeeded={"number": "seven"}, by="ada", why="seen")

    assert play.effect["status"] == "unknown"


def test_a_result_that_nobody_could_check_is_checked_at_the_claim_and_never_a_false_success(
    play: Play, client: Client, key: str
) -> None:
    """As from a machine without the flow's code: the effect is unknown again, and the next word settles it."""
    unchecked = Verdict("succeeded", "person:ada", "seen", result=Encoded.of(b'{"number": "seven"}'))
    assert people.resolve(play.verbs.connection, bytes.fromhex(key), unchecked).answer == "resolved"
    play.work()
    held = play.row["status"], play.effect["status"], client.run(play.run).reason
    again = play.work(60).effect["status"]

    client.resolve_effect(key, succeeded={"number": 7}, by="bob", why="read it again")
    play.work()

    assert held[:2] == ("held", "unknown")
    assert (held[2] or {})["code"] == "unknown_effect"
    assert again == "unknown"
    assert client.run(play.run).result(timeout=0) == "ticket 7"
    assert len(outside.tried("open")) == 1
    (found,) = client.run(play.run).effects()
    assert [one["status"] for one in found["history"]] == [
        "pending", "executing", "unknown", "succeeded", "unknown", "succeeded"
    ]  # fmt: skip
    assert "the result does not fit: result.number" in found["history"][4]["why"]


def test_a_verdict_whose_answer_was_lost_is_not_refused_as_a_second_one(play: Play, key: str) -> None:
    def twice(question: Callable[..., Any]) -> Any:
        question(play.verbs.connection)
        return question(play.verbs.connection)

    said = Resolution.of(succeeded={"number": 7}, by="ada", why="seen")

    assert resolve(twice, key, said, seal=Seal(), limit=1000)["status"] == "succeeded"


def test_a_second_verdict_hears_who_gave_the_first(play: Play, client: Client, key: str) -> None:
    client.resolve_effect(key, failed="no", by="bob", why="their mail")

    with pytest.raises(Refused, match=r"it has been settled; it is failed since .* by person:bob: their mail"):
        client.resolve_effect(key, not_executed=True, by="ada", why="asked")


def test_who_has_looked_before_the_request_could_arrive_is_told_until_when(play: Play, client: Client) -> None:
    outside.fail(TimeoutError("no answer"))
    play.go("res_one", title="slow")
    (found,) = client.effects(run=play.run)

    with pytest.raises(Refused, match=r"a request may be on its way until 2030-01-01 00:00:05 UTC: look at the other"):
        client.resolve_effect(found["idempotency_key"], not_executed=True, by="ada", why="asked")

    assert found["may_arrive_until"] == "2030-01-01T00:00:05+00:00"


def test_a_stale_verdict_is_refused(play: Play, client: Client, key: str) -> None:
    version = play.effect["version"]

    with pytest.raises(Refused, match=f"the verdict is on version {version - 1}, and it is at version {version}"):
        client.resolve_effect(key, not_executed=True, by="ada", why="asked", version=version - 1)


@pytest.mark.parametrize(
    ("given", "text"),
    [({}, "exactly one of"), ({"failed": "x", "not_executed": True}, "exactly one of"),
     ({"not_executed": True, "why": " "}, "why: ' ' says nothing"), ({"not_executed": True, "by": ""}, "by: ''"),
     ({"failed": ""}, "failed: ''")],
)  # fmt: skip
def test_a_verdict_that_says_nothing_is_refused_by_field(client: Client, given: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        client.resolve_effect("0123456789", **{"by": "ada", "why": "seen", **given})


def test_what_does_not_exist_is_said_so(client: Client) -> None:
    with pytest.raises(UnknownEffect, match="There is no effect 0123456789"):
        client.resolve_effect("0123456789", not_executed=True, by="ada", why="seen")
    with pytest.raises(UnknownRun):
        client.run(UUID(int=1)).effects()
    with pytest.raises(ValueError, match=r"status: 'lost'\. Accepted: pending, executing"):
        client.effects(status="lost")


def test_an_app_finds_what_nobody_knows(play: Play, client: Client, key: str) -> None:
    (found,) = client.effects(status="unknown", tenant="default", run=play.run)

    assert (found["idempotency_key"], found["runbook"]) == (key, "https://runbooks/tickets")
    assert found["request"] == {"title": "slow"}
    assert client.effects(status=["succeeded", "failed"]) == []

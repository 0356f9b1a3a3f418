"""An effect that needs approval: a flow cannot skip it, and only what was approved is sent (R23)."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from outside import Outside
from play import Play
from safepoint import current, effect, flow
from safepoint.ledger import people
from safepoint.ledger.codec import Encoded
from safepoint.ledger.steps import Claimed
from safepoint.tasks.registry import registry
from safepoint.tasks.turn import Turn

outside = Outside()
MUTATIONS = 10_000


@effect(name="appr_pay", requires_approval="role:treasurer", idempotent=True)
def pay(to: str, amount: int, note: str = "") -> str:
    return outside.do("pay", f"{to} {amount}", current().idempotency_key, keyed=True)


@flow(name="appr_pay", version="1")
async def pays() -> str:
    return await pay(to="ann", amount=100)


@pytest.fixture
def play(playing: Callable[[Outside], Play]) -> Play:
    return playing(outside)


def decide(play: Play, *, approved: bool, digest: str | None = None) -> str:
    seen = next(iter(people.asked(play.verbs.connection, play.run)), None)
    return people.decide(
        play.verbs.connection, play.run, "appr_pay", approved=approved, by="bob", note=None, document=None,
        edited=False, digest=digest, seen=seen, id_=uuid4(),
    ).answer  # fmt: skip


def test_nothing_is_sent_before_the_decision(play: Play) -> None:
    play.go("appr_pay").work(seconds=10_000)

    assert (play.row["status"], play.row["reason"]["code"]) == ("waiting", "approval")
    assert outside.tried("pay") == []
    assert play.verbs.value("SELECT count(*) FROM safepoint.steps WHERE status IN ('ready', 'running')") == 0


def test_what_was_approved_is_sent_once(play: Play) -> None:
    play.go("appr_pay")

    assert decide(play, approved=True) == "decided"
    play.work()

    assert play.row["status"] == "succeeded"
    assert outside.did("pay") == ["ann 100"]
    assert decide(play, approved=True) != "decided"


def test_what_was_denied_is_never_sent_and_the_flow_hears_who_said_no(play: Play) -> None:
    play.go("appr_pay")

    assert decide(play, approved=False) == "decided"
    play.work()

    assert play.row["status"] == "failed"
    assert play.row["error"]["type"] == "ApprovalDenied"
    assert "bob" in play.row["error"]["message"]
    assert outside.tried("pay") == []
    assert play.effect["status"] == "failed"


def test_a_decision_that_names_another_request_is_refused(play: Play) -> None:
    play.go("appr_pay")

    assert decide(play, approved=True, digest="ab" * 32) == "changed"
    assert play.row["status"] == "waiting"


def test_of_ten_thousand_changed_requests_none_is_sent(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever changes what would be sent, after the approval and right before the send, is seen by the ledger."""
    play.go("appr_pay")
    decide(play, approved=True)
    frozen = bytes(play.effect["request"])
    settler = play.shop.executor._settler  # what it would send is changed under it
    plain = settler._performance.plain
    chance, seen = random.Random(1), set[bytes]()

    def changed(claimed: Any) -> bytes:
        data = mutated(plain(claimed), chance)
        seen.add(data)
        return data

    monkeypatch.setattr(settler._performance, "plain", changed)
    turn = Turns(play)
    requests = [settler._request(turn.turn) for _ in range(MUTATIONS)]
    digests = [request.digest for request in requests if request is not None]
    answers = turn.begin(digests)

    assert len(digests) == MUTATIONS
    assert answers == {"changed"}
    assert frozen not in seen
    assert outside.tried("pay") == []
    play.verbs.release(turn.claimed)
    play.work()
    assert outside.tried("pay") == []
    assert play.row["status"] == "held"
    assert "EffectRequestChanged" in play.row["reason"]["text"]


def mutated(data: bytes, chance: random.Random) -> bytes:
    """Change a request so that it is still one: another value, another field, another name."""
    request: dict[str, Any] = json.loads(data)
    match chance.randrange(4):
        case 0:
            request["amount"] += chance.choice([-1, 1]) * chance.randrange(1, 10**9)
        case 1:
            request["to"] = "".join(chance.choices("abcdefghijklmnop ", k=chance.randrange(1, 12))) + "!"
        case 2:
            request["note"] = str(chance.random())
        case _:
            request["to"] = request["to"].swapcase() + chr(chance.randrange(0x20, 0x2FFF))
    return Encoded.of(json.dumps(request, sort_keys=True).encode()).data


class Turns:
    """A claim of the approved effect, and the ledger's word on what would be sent under it."""

    def __init__(self, play: Play) -> None:
        key = play.key("appr_pay#1")
        claimed = play.verbs.claimed(play.run, key)
        assert isinstance(claimed, Claimed)
        self.play, self.claimed = play, claimed
        self.turn = Turn(claimed, None, 0.0, step=registry.steps["appr_pay"])

    def begin(self, digests: list[bytes]) -> set[str]:
        """Ask whether requests of these digests may be sent."""
        claimed = self.claimed
        rows = self.play.verbs.rows(
            "SELECT DISTINCT answer FROM unnest(%s::bytea[]) AS d,"
            " safepoint.begin_effect_v1(%s, 1, '', 'appr_pay', 1, %s, d, 'send', 60, 0, NULL, now())",
            (digests, claimed.run_id, claimed.token),
        )
        return {row["answer"] for row in rows}

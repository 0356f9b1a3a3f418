"""The support agent: played without servers, and on a real stack whose worker dies before it has the receipt."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "tool_loop"
sys.path.insert(0, str(EXAMPLE))

import shop  # noqa: E402  # the example's folder is on the path only now
import shop_service  # noqa: E402
import support_agent as agent  # noqa: E402
import support_model  # noqa: E402
from safepoint import NOT_EXECUTED, Budget, Decision, Found  # noqa: E402
from safepoint.testing import run_flow, step_context  # noqa: E402
from safepoint.testing.plugin import CrashAt  # noqa: E402
from safepoint.testing.stack import Stack  # noqa: E402

MESSAGE = json.loads((EXAMPLE / "input" / "message.json").read_text())
ADA = "ada@example.com"


@pytest.fixture
def books(monkeypatch: pytest.MonkeyPatch) -> Iterator[shop_service.Books]:
    """The books of a running shop."""
    service = shop_service.Service(0)
    thread = threading.Thread(target=service.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    monkeypatch.setenv("SHOP_URL", f"http://127.0.0.1:{service.server_address[1]}")
    monkeypatch.setenv("SUPPORT_MODEL_SECONDS", "0")
    yield service.books
    service.shutdown()
    thread.join()
    service.server_close()


def play(call: Any = None, **options: Any) -> Any:
    real = {agent.refund: agent.refund.fn, agent.send_reply: agent.send_reply.fn}
    return run_flow(
        call or agent.support.from_json(MESSAGE), **{"steps": real, "approvals": {"refund": True}} | options
    )


# --- played ---------------------------------------------------------------------------------------------------------


def test_an_approved_refund_is_paid_and_told(books: shop_service.Books) -> None:
    played = play()

    assert [(one["order"], one["cents"], one["requests"]) for one in books.refunds] == [("A-1001", 4990, 1)]
    assert [(one["to"], "49.90 EUR" in one["body"]) for one in books.mails] == [(ADA, True)]
    assert (played.result.by, played.result.rounds) == ("agent", 5)


def test_the_model_is_told_that_its_arguments_do_not_fit_and_mends_them(books: shop_service.Books) -> None:
    asked: list[list[support_model.Turn]] = []

    def think(talk: list[support_model.Turn]) -> support_model.Answer:
        asked.append(talk)
        return agent.think.fn(talk)

    played = play(steps={agent.think: think, agent.refund: agent.refund.fn, agent.send_reply: shop.Sent(1, ADA)})

    told = [turn.text for turn in asked[-1] if turn.role == "tool"]
    assert told[1].startswith("Failed: The arguments do not fit refund: ")
    assert [call.key for call in played.effects] == ["gather#3.1/refund#1", "gather#4.1/send_reply#1"]


def test_a_person_sees_what_would_be_paid_and_may_refuse(books: shop_service.Books) -> None:
    shown: list[Any] = []

    def refuse(show: Any) -> Decision:
        shown.append(show)
        return Decision("denied", approved=False, by="grace", note="ask for a photo first")

    played = play(approvals={"refund": refuse})

    assert shown[0]["arguments"] == {"order": "A-1001", "cents": 4990, "reason": "teapot arrived broken"}
    assert books.refunds == []
    assert "A colleague looks into it" in played.result.summary


def test_a_person_may_edit_what_is_paid(books: shop_service.Books) -> None:
    half = {"order": "A-1001", "cents": 2_495, "reason": "the lid is whole"}

    play(approvals={"refund": Decision("approved", approved=True, by="grace", value=half)})

    assert [one["cents"] for one in books.refunds] == [2_495]
    assert "24.95 EUR" in books.mails[0]["body"]


def test_an_approval_that_expires_pays_nothing(books: shop_service.Books) -> None:
    play(approvals={})

    assert books.refunds == []
    assert len(books.mails) == 1


def test_a_budget_that_is_used_up_hands_over_to_a_person(books: shop_service.Books) -> None:
    played = play(budget=Budget(tokens=1_500))

    assert (played.result.by, played.tokens <= 1_500) == ("budget", True)
    assert books.refunds == []


def test_a_tool_that_fails_or_is_not_there_is_told_to_the_model(books: shop_service.Books) -> None:
    def wish(talk: list[support_model.Turn]) -> support_model.Answer:
        calls = [
            support_model.ToolCall("1", "fly", "{}"),
            support_model.ToolCall("2", "find_order", '{"number": "B-1"}'),
        ]
        told = [turn.text for turn in talk if turn.role == "tool"]
        return support_model.Answer(" / ".join(told), [] if told else calls, 1, 0.0)

    failing = {agent.think: wish, agent.find_order: PermissionError("not yours")}

    played = play(steps=failing)

    assert "There is no tool fly. There are find_order, refund, send_reply." in played.result.summary
    assert "Failed: find_order failed after 1 attempt(s): PermissionError: not yours" in played.result.summary


def test_the_versions_of_prompt_and_tools_are_frozen_in_the_run() -> None:
    versions = agent.support.frozen_versions()

    assert versions["prompt"] == "support-3"
    assert versions["tool_schema"] == agent.tool_schema()


# --- the other side -------------------------------------------------------------------------------------------------


def test_the_lookup_finds_the_mail_that_was_sent(books: shop_service.Books) -> None:
    with step_context(idempotency_key="k"):
        before = agent.find_reply(ADA, "s", "b")
        sent = agent.send_reply.fn(ADA, "s", "b")
        after = agent.find_reply(ADA, "s", "b")

    assert before is NOT_EXECUTED
    assert after == Found(sent)


def test_a_key_pays_once_and_a_mail_is_sent_twice(books: shop_service.Books) -> None:
    with step_context(idempotency_key="k"):
        for _ in range(2):
            agent.refund.fn("A-1001", 100, "r")
            agent.send_reply.fn(ADA, "s", "b")

    assert [one["requests"] for one in books.refunds] == [2]
    assert len(books.mails) == 2


def refused(call: Callable[[], object]) -> BaseException:
    with step_context(idempotency_key="k"), pytest.raises(Exception) as caught:  # noqa: PT011  # it is judged below
        call()
    return caught.value


def test_what_the_shop_refuses_is_rejected_and_a_shop_that_is_away_was_sent_nothing(
    books: shop_service.Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    too_much = refused(lambda: agent.refund.fn("A-1001", 1_000_000, "r"))
    monkeypatch.setenv("SHOP_URL", "http://127.0.0.1:1")
    away = refused(lambda: agent.refund.fn("A-1001", 1, "r"))

    safety = agent.refund.safety
    assert (safety.is_rejected(too_much), safety.is_not_sent(too_much)) == (True, False)
    assert (safety.is_rejected(away), safety.is_not_sent(away)) == (False, True)


# --- on a real stack ------------------------------------------------------------------------------------------------


def handle(stack: Stack, eventually: Callable[..., None]) -> tuple[agent.Handled, dict[str, Any]]:
    """Give what the run came to, and its effects by name."""
    stack.flows = ("support_agent",)
    stack.relay()
    stack.worker(concurrency=2)
    call = agent.support.from_json(MESSAGE)
    run = call.enqueue(tenant="shop", deadline=3600, budget=Budget(tokens=20_000, usd=0.5))

    def waits() -> None:
        assert (run.reason or {}).get("code") == "approval"

    eventually(waits, timeout=30)
    run.approve("refund", by="grace", note="poor teapot")
    handled = run.result(timeout=60)
    return handled, {one["name"]: one for one in run.effects()}


def told(effect: dict[str, Any]) -> list[str]:
    return [one["status"] for one in effect["history"]]


@pytest.mark.postgres
@pytest.mark.slow
def test_a_worker_dies_after_the_refund_and_it_is_paid_once(
    books: shop_service.Books, safepoint_stack: Stack, crash_at: CrashAt, eventually: Callable[..., None]
) -> None:
    crash = crash_at("effect.after@refund")

    handled, effects = handle(safepoint_stack, eventually)

    assert crash.has_happened
    assert [(one["cents"], one["requests"]) for one in books.refunds] == [(4_990, 2)]
    assert (handled.by, len(books.mails)) == ("agent", 1)
    assert told(effects["refund"]) == ["pending", "executing", "unknown", "executing", "succeeded"]


@pytest.mark.postgres
@pytest.mark.slow
def test_a_worker_dies_after_the_mail_and_it_is_found_and_not_sent_again(
    books: shop_service.Books, safepoint_stack: Stack, crash_at: CrashAt, eventually: Callable[..., None]
) -> None:
    crash = crash_at("effect.after@send_reply")

    handled, effects = handle(safepoint_stack, eventually)

    assert crash.has_happened
    assert [one["requests"] for one in books.refunds] == [1]
    assert (handled.by, len(books.mails)) == ("agent", 1)
    assert told(effects["send_reply"]) == ["pending", "executing", "unknown", "succeeded"]
    assert effects["send_reply"]["last_answer"]["answer"] == "found"

"""Stands in for a language model that uses tools: it reads the talk so far and answers with text or with calls.

No network, no randomness. As real ones do, it gets an argument wrong at first, and mends it when it is told.
SUPPORT_MODEL_SECONDS is how long an answer takes.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

USD_PER_TOKEN = 3 / 1_000_000
CHARACTERS_PER_TOKEN = 4


@dataclass(frozen=True)
class ToolCall:
    """A tool that the model wants used, with arguments as it wrote them."""

    id: str
    name: str
    arguments: str

    def told(self, text: str) -> Turn:
        """Give the turn that tells the model what came of it."""
        return Turn("tool", text, call=self.id)


@dataclass(frozen=True)
class Turn:
    """One turn of the talk; `call` is the call that a tool's turn answers."""

    role: Literal["system", "user", "assistant", "tool"]
    text: str
    calls: list[ToolCall] = field(default_factory=list)
    call: str | None = None


@dataclass(frozen=True)
class Answer:
    """What the model says or wants, and what it costs."""

    text: str
    calls: list[ToolCall]
    tokens: int
    usd: float


def chat(talk: Sequence[Turn], tools: Sequence[dict[str, object]]) -> Answer:
    """Answer the talk."""
    time.sleep(float(os.environ.get("SUPPORT_MODEL_SECONDS", "1")))
    text, wanted = _reply(talk, {str(tool["title"]) for tool in tools})
    calls = [ToolCall(f"call-{len(talk)}-{n}", name, json.dumps(given)) for n, (name, given) in enumerate(wanted, 1)]
    written = json.dumps(tools) + "".join(turn.text for turn in talk) + text + "".join(call.arguments for call in calls)
    tokens = len(written) // CHARACTERS_PER_TOKEN
    return Answer(text, calls, tokens, round(tokens * USD_PER_TOKEN, 6))


_Reply = tuple[str, list[tuple[str, dict[str, Any]]]]


def _reply(talk: Sequence[Turn], tools: set[str]) -> _Reply:
    message = next(turn.text for turn in talk if turn.role == "user")
    names = {call.id: call.name for turn in talk for call in turn.calls}
    heard = {name: [turn.text for turn in talk if turn.call and names[turn.call] == name] for name in tools}
    number = re.search(r"\b[A-Z]-\d{4}\b", message)
    if number is None:
        return _write(heard, message, "Which order is it about? Please send us its number.")
    if not heard["find_order"]:
        return "I look the order up.", [("find_order", {"number": number[0]})]
    order = _value(heard["find_order"][-1])
    if order is None:
        return _write(heard, message, f"We cannot find an order {number[0]}. Is the number right?")
    if not heard["refund"]:
        return "It arrived broken: I pay it back.", [
            ("refund", {"order": number[0], "amount": f"{order['cents'] / 100:.2f} EUR"})
        ]
    if "do not fit refund" in heard["refund"][-1] and len(heard["refund"]) < 3:
        reason = f"{order['item']} arrived broken"
        return "In cents, then.", [("refund", {"order": number[0], "cents": order["cents"], "reason": reason})]
    paid = _value(heard["refund"][-1])
    if paid is None:
        return _write(heard, message, "We are sorry about that. A colleague looks into it and will write to you.")
    return _write(heard, message, f"We are sorry about that, and have paid {paid['cents'] / 100:.2f} EUR back to you.")


def _write(heard: dict[str, list[str]], message: str, body: str) -> _Reply:
    """Send one reply, then say what was done."""
    if heard["send_reply"]:
        sent = _value(heard["send_reply"][-1]) is not None
        return f"The customer {'was told' if sent else 'could not be told'}: {body}", []
    to = re.search(r"^From: (.+)$", message, re.MULTILINE)
    return "I answer.", [("send_reply", {"to": to[1] if to else "", "subject": "Your order", "body": body})]


def _value(text: str) -> dict[str, Any] | None:
    """Read what a tool has given; None where it failed or found nothing."""
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None

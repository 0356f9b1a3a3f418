"""A support agent: a loop in which a model reads a customer's message, uses tools, and answers.

    SAFEPOINT_FLOWS=support_agent PYTHONPATH=examples/tool_loop safepoint up
    safepoint enqueue support --input @examples/tool_loop/input/message.json --tokens 20000 --usd 0.50

Three tools, one of each kind: `find_order` only reads; `refund` is an effect whose other side knows idempotency keys;
`send_reply` is an effect whose other side knows none, but can be asked what it has sent. A person approves refunds.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

import shop
import support_model as model
from safepoint import (
    NOT_EXECUTED,
    Budget,
    Found,
    Lookup,
    Step,
    approval,
    current,
    effect,
    flow,
    gather,
    http,
    step,
)
from safepoint.errors import BadArguments, BudgetExceeded, StepFailed
from shop import Order, Refund, Sent
from support_model import Answer, ToolCall, Turn
from tenacity import stop_after_attempt, wait_random_exponential

ROUNDS = 12
APPROVAL_EXPIRES = timedelta(hours=4)
PROMPT = """You answer customers of a shop. Look the order up before you promise anything.
Refund what arrived broken, never more than was paid. Write one reply, then say in a sentence what you have done."""


@dataclass(frozen=True)
class Message:
    """What a customer has written."""

    sender: str
    text: str


@dataclass(frozen=True)
class Handled:
    """What the run comes to; `by` is who had the last word."""

    summary: str
    rounds: int
    by: str = "agent"


# --- tools ----------------------------------------------------------------------------------------------------------


@step(uses="shop", timeout=30)
def find_order(number: str) -> Order | None:
    """Find an order by its number, as in A-1001; null if there is none."""
    return shop.find_order(number)


@effect(
    uses="shop",
    timeout=30,
    not_sent=http.not_sent,
    rejected=http.rejected,
    idempotent=True,  # the same key again gives the refund that it has made ...
    key_retention=timedelta(hours=24),  # ... for a day
    external_id=lambda refund: refund.id,  # what people at the shop know it by
)
def refund(order: str, cents: int, reason: str) -> Refund:
    """Pay money back to the customer: an amount in cents, at most what the order has cost."""
    return shop.refund(order, cents, reason, key=current().idempotency_key)


@effect(
    uses="mail",
    timeout=30,
    not_sent=http.not_sent,
    rejected=http.rejected,
    runbook="https://runbooks.example/mail-not-found",  # shown to whoever has to settle what no lookup can tell
)
def send_reply(to: str, subject: str, body: str) -> Sent:
    """Send an e-mail to the customer."""
    # The mail service would send twice what it is given twice; our key is a reference by which it can be found.
    return shop.send(to, subject, body, reference=current().idempotency_key)


@send_reply.lookup
def find_reply(to: str, subject: str, body: str) -> Lookup[Sent]:  # noqa: ARG001  # a lookup takes the effect's parameters
    """Ask whether the e-mail was sent, when nobody knows."""
    found = shop.find_sent(reference=current().idempotency_key)
    return NOT_EXECUTED if found is None else Found(found)


TOOLS: Mapping[str, Step[..., object]] = {tool.name: tool for tool in (find_order, refund, send_reply)}
NEEDS_APPROVAL = {"refund"}


def tool_schema() -> str:
    """Name the version of the tools: it is frozen in each run, and shown with it."""
    schemas = json.dumps([tool.schema() for tool in TOOLS.values()], sort_keys=True)
    return hashlib.sha256(schemas.encode()).hexdigest()[:12]


# --- the loop -------------------------------------------------------------------------------------------------------


@step(
    uses="llm",
    timeout=120,
    reserve=Budget(tokens=1_000),
    wait=wait_random_exponential(max=30),
    stop=stop_after_attempt(6),
)
def think(talk: list[Turn]) -> Answer:
    """Ask the model what to do next."""
    answer = model.chat(talk, [tool.schema() for tool in TOOLS.values()])
    current().spend(tokens=answer.tokens, usd=answer.usd)
    return answer


async def use(call: ToolCall) -> Turn:
    """Use a tool as the model wants it; what goes wrong is told to the model, which may do better."""
    if call.name not in TOOLS:
        return call.told(f"There is no tool {call.name}. There are {', '.join(TOOLS)}.")
    tool, arguments = TOOLS[call.name], call.arguments
    try:
        tool.from_json(arguments).close()  # nobody is asked to approve what cannot be done
        if call.name in NEEDS_APPROVAL:
            show = {"tool": call.name, "arguments": json.loads(arguments)}
            decision = await approval(call.name, show=show, expires_in=APPROVAL_EXPIRES)
            if not decision.approved:
                return call.told(f"Not approved: {decision.note or decision.outcome}.")
            if decision.value is not None:  # approved as a person has edited it
                arguments = json.dumps(decision.value)
        return call.told(as_json(await tool.from_json(arguments)))
    except (BadArguments, StepFailed) as error:
        return call.told(f"Failed: {error}")


def as_json(result: object) -> str:
    """Write a tool's result for the model."""

    def plain(value: Any) -> object:
        return asdict(value)

    return json.dumps(result, default=plain)


@flow(version="1", uses_versions={"prompt": "support-3", "tool_schema": tool_schema})
async def support(message: Message) -> Handled:
    """Handle one message of a customer."""
    talk = [Turn("system", PROMPT), Turn("user", f"From: {message.sender}\n\n{message.text}")]
    for n in range(1, ROUNDS + 1):
        try:
            answer = await think(talk)
        except BudgetExceeded as error:
            return Handled(f"A colleague takes over: {error}", n, by="budget")
        if not answer.calls:
            return Handled(answer.text, n)
        current().note(f"round {n}: {', '.join(call.name for call in answer.calls)}")
        talk.append(Turn("assistant", answer.text, answer.calls))
        talk += await gather(*[use(call) for call in answer.calls])
    return Handled("A colleague takes over: the agent went round in circles.", ROUNDS, by="rounds")

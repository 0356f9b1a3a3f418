"""Four more programs: a tool loop, deep research, a document pipeline, a nightly batch."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, assert_type

from safepoint import (
    Artifact,
    Flow,
    Permanent,
    Step,
    continue_as,
    current,
    flow,
    gather,
    now,
    on_start,
    random,
    sleep,
    step,
    uuid4,
    wait_for,
)
from safepoint.errors import BadArguments, RetryAfter, StepFailed
from safepoint.testing import run_flow, step_context

# --- a tool loop ----------------------------------------------------------------------------------------------------


@dataclass
class ToolCall:
    name: str
    arguments: str


@dataclass
class Answer:
    text: str
    calls: list[ToolCall]


@step(uses="llm")
async def think(messages: list[dict[str, Any]], tools: list[dict[str, object]]) -> Answer:
    if not messages:
        raise RetryAfter(30)
    return Answer("", [])


@step
def search(query: str, limit: int = 5) -> list[str]:
    return [query] * limit


@step
def read_page(url: str) -> str:
    return url


TOOLS: Mapping[str, Step[..., object]] = {"search": search, "read_page": read_page}


@flow
async def agent(question: str, messages: list[dict[str, Any]] | None = None) -> str:
    talk = [*(messages or []), {"role": "user", "content": question}]
    for _ in range(20):
        answer = await think(talk, [tool.schema() for tool in TOOLS.values()])
        if not answer.calls:
            return answer.text
        for call in answer.calls:
            try:
                result = await TOOLS[call.name].from_json(call.arguments)
            except (BadArguments, StepFailed) as error:
                result = str(error)
            talk.append({"role": "tool", "content": str(result)})
    return await continue_as("go on", messages=talk[-10:])


# --- deep research --------------------------------------------------------------------------------------------------


async def study(url: str) -> str:
    page = await read_page(url)
    return await read_page(page)


@flow
async def research(topics: list[str]) -> dict[str, list[str]]:
    found = await gather(*[search(topic) for topic in topics], limit=4)
    assert_type(found, list[list[str]])
    studied = await gather(*(study(url) for urls in found for url in urls))
    assert_type(studied, list[str])
    both = await gather(search("a"), study("b"), agent("c"))
    assert_type(both, tuple[list[str], str, str])
    some = await gather(search("a"), study("b"), return_exceptions=True)
    assert_type(some, tuple[list[str] | Exception, str | Exception])
    many = await gather(*[search(topic) for topic in topics], return_exceptions=True)
    assert_type(many, list[list[str] | Exception])
    nested = await gather(gather(search("a"), read_page("b")), sleep(1))
    assert_type(nested, tuple[tuple[list[str], str], None])
    return dict(zip(topics, found, strict=True))


# --- a document pipeline --------------------------------------------------------------------------------------------


@step(timeout=timedelta(minutes=10))
async def extract(document: Artifact) -> list[str]:
    async def page(n: int) -> str:
        return document.read().decode()[n]

    here = current()
    pages = await asyncio.gather(*[here.once(f"page-{n}", partial(page, n)) for n in range(3)])
    assert_type(pages, list[str])
    return pages


@step
def store(pages: list[str]) -> Artifact:
    return current().artifact("\n".join(pages), name="text.txt")


@flow
async def pipeline(document: Artifact) -> Artifact:
    return await store(await extract(document))


# --- a nightly batch ------------------------------------------------------------------------------------------------


@on_start
def warm_up() -> None:
    pass


@flow(name="nightly", version="3")
async def nightly(customers: list[int]) -> int:
    await sleep(datetime(2030, 1, 1, tzinfo=UTC))
    assert_type(now(), datetime)
    customers = random().sample(customers, 3)
    done = await gather(*[agent(str(customer)) for customer in customers], limit=10)
    assert_type(done, list[str])
    reply = await wait_for("go", type=ToolCall, timeout=timedelta(hours=1))
    assert_type(reply, ToolCall)
    if not done:
        raise Permanent(f"nobody, {uuid4()}")
    return len(done)


def play() -> None:
    played = run_flow(nightly([1, 2]), steps={think: Answer("a", []), search: lambda query: [query]}, order="shuffle")
    assert_type(played.result, int)
    with step_context(attempt=2) as context:
        search.fn("a")
        assert_type(context.spent_tokens, int)


flows: list[Flow[..., object]] = [agent, research, pipeline, nightly]

"""P36: a failed run that a person reopens does anew what ended it, and only that."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ledger_verbs import Verbs
from safepoint import Flow, Permanent, flow, gather, step
from safepoint.errors import StepFailed
from safepoint.ledger import control
from tenacity import stop_after_attempt
from workshop import Workshop, settings_of

calls: list[str] = []
broken: set[str] = set()


@step(name="reo_do", stop=stop_after_attempt(1))
def do(what: str) -> str:
    calls.append(what)
    if what in broken:
        raise Permanent(f"{what} is broken")
    return what


@step(name="reo_tidy")
def tidy() -> None:
    calls.append("tidy")


@flow(name="reo_plain", version="1")
async def plain() -> list[str]:
    return [await do("a"), await do("b")]


@flow(name="reo_gathered", version="1")
async def gathered() -> list[str]:
    return list(await gather(do("a"), do("b"), do("c")))


@flow(name="reo_swallowed", version="1")
async def swallowed() -> list[str]:
    """What it has caught, and after which it has gone on, stays as it was."""
    try:
        await do("a")
    except StepFailed:
        await tidy()
    return [await do("b")]


async def caught(what: str) -> str:
    try:
        return await do(what)
    except StepFailed:
        await tidy()
        return "tidied"


@flow(name="reo_branches", version="1")
async def branches() -> list[str]:
    return list(await gather(caught("a"), do("b")))


async def branch(what: str) -> str:
    return await do(what) + await do(f"{what}2")


@flow(name="reo_nested", version="1")
async def nested() -> list[str]:
    return list(await gather(branch("a"), branch("b")))


CASES: list[tuple[Flow[[], list[str]], set[str], list[str]]] = [
    (plain, {"b"}, ["b"]),
    (gathered, {"a"}, ["a"]),
    (gathered, {"a", "c"}, ["a", "c"]),
    (swallowed, {"a", "b"}, ["b"]),
    (branches, {"a", "b"}, ["b"]),
    (nested, {"a"}, ["a", "a2"]),
    (nested, {"b2"}, ["b2"]),
]


@pytest.mark.parametrize(("asked", "fails", "again"), CASES, ids=lambda case: getattr(case, "name", str(case)))
def test_p36_what_ended_the_run_is_done_again_and_nothing_else(
    crowd: Callable[[], Verbs], crowded_ledger_url: str, tmp_path: Path, asked: Any, fails: set[str], again: list[str]
) -> None:
    verbs, shop = crowd(), Workshop(crowded_ledger_url, settings_of(tmp_path, relay={"grace": 0.0}))
    shop.register(crowded_ledger_url)
    broken.clear()
    broken.update(fails)
    run = verbs.enqueue(flow=asked.name)
    shop.work(crowded_ledger_url)
    assert verbs.run(run)["status"] == "failed"
    broken.clear()
    calls.clear()

    assert control.reopen(verbs.connection, run, by="test") == "running"
    shop.work(crowded_ledger_url)

    assert verbs.run(run)["status"] == "succeeded"
    assert sorted(calls) == again

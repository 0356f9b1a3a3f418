"""Small flows of two steps, which write down that they were called; a test may do something while the first runs."""

from __future__ import annotations

from collections.abc import Callable

from safepoint import flow, gather, step
from tenacity import stop_after_attempt, wait_none

__all__ = ["between", "calls"]

calls: list[str] = []
between: list[Callable[[], object]] = []  # what happens while the step runs: after its claim, before its commit


class OnceError(Exception):
    pass


@step(name="lost_one")
def one() -> int:
    calls.append("one")
    while between:
        between.pop()()
    return 1


@step(name="lost_two")
def two(before: int) -> int:
    calls.append("two")
    return before + 1


@step(name="lost_flaky", wait=wait_none(), stop=stop_after_attempt(3))
def flaky() -> int:
    calls.append("flaky")
    if calls.count("flaky") == 1:
        raise OnceError
    return 1


@flow(name="lost_line", version="1")
async def line() -> int:
    return await two(await one())


@flow(name="lost_pair", version="1")
async def pair() -> int:
    first, second = await gather(both(1), both(2))
    return first + second


async def both(n: int) -> int:
    return n + await two(await one())


@flow(name="lost_retried", version="1")
async def retried() -> int:
    return await flaky()

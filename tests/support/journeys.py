"""Flows for processes that are killed: every step writes down when it begins and ends, one line each, into RECORD.

`front` is a lane that only a test's victim consumes, so that it is certain who gets the step that kills.
A step that has to last waits for a file in GATES: the test decides how long, not a clock.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from safepoint import Budget, Permanent, continue_as, current, flow, gather, on_start, step
from tenacity import retry_if_exception_type, stop_after_attempt, wait_fixed, wait_none

POLL = 0.005


def write(*words: object) -> None:
    """Append a line; one write to a file opened for appending, so that lines of several processes do not mix."""
    with Path(os.environ["RECORD"]).open("ab", buffering=0) as record:
        record.write((" ".join(str(word) for word in words) + "\n").encode())


def begin() -> None:
    """Write down that this step begins, who executes it, under which epoch and attempt."""
    at = current()
    write("begin", at.run_id, at.key, at.epoch, at.attempt, os.getpid(), time.time())  # type: ignore[attr-defined]  # a step's


def end() -> None:
    """Write down that the step's code is through."""
    at = current()
    write("end", at.run_id, at.key, at.epoch, at.attempt, os.getpid(), time.time())  # type: ignore[attr-defined]  # as above


def gate(name: str) -> Path:
    """Return the file that opens a gate."""
    return Path(os.environ["GATES"]) / name


def wait_at(name: str) -> None:
    """Last until the test opens the gate of that name, or of that name for this epoch alone."""
    mine = gate(f"{name}@{current().epoch}")  # type: ignore[attr-defined]  # a step's
    while not gate(name).exists() and not mine.exists():
        time.sleep(POLL)


@on_start
def hook() -> None:
    """Write down that this process has been prepared."""
    write("hook", os.getpid(), time.time())


# --- short runs -----------------------------------------------------------------------------------------------------


@step(lane="front")
def plan(n: int) -> list[int]:
    begin()
    return list(range(1, n + 1))


@step
def prepare(n: int) -> list[int]:
    begin()
    return list(range(1, n + 1))


@step
def fetch(x: int) -> int:
    begin()
    return x * 10


@step(lane="front")
def probe(x: int) -> int:
    begin()
    return x * 10


@step
def conclude(found: list[int]) -> int:
    begin()
    return sum(found)


@flow
async def early(n: int) -> int:
    """The victim gets the first step, whose outcome asks for several others."""
    parts = await plan(n)
    found = await gather(*[fetch(part) for part in parts])
    return await conclude(found)


@flow
async def forked(n: int) -> int:
    """The victim gets one member of a gather."""
    parts = await prepare(n)
    found = await gather(probe(parts[0]), *[fetch(part) for part in parts[1:]])
    return await conclude(found)


@step(lane="front")
def link(x: int) -> int:
    begin()
    return x + 1


@flow
async def strung(n: int) -> int:
    """A string of steps in the victim's lane, which may go on with them in place."""
    x = 0
    for _ in range(n):
        x = await link(x)
    return x


@flow
async def brief(n: int) -> int:
    """Two steps of the ordinary lane."""
    return await fetch(await fetch(n))


@flow
async def chain(n: int) -> int:
    """Five steps of the ordinary lane, two of them at once."""
    parts = await prepare(n)
    found = await gather(*[fetch(part) for part in parts])
    return await fetch(await conclude(found))


# --- steps that last ------------------------------------------------------------------------------------------------


@step(timeout=60)
def linger(name: str) -> int:
    begin()
    wait_at(name)
    end()
    return 7


@step(lane="front", timeout=60)
def dwell(name: str) -> int:
    begin()
    wait_at(name)
    end()
    return 7


@flow
async def lodging(name: str) -> int:
    """A step that lasts as long as the test wants, in the victim's lane."""
    return await fetch(await dwell(name))


@flow
async def patient(name: str) -> int:
    """A step that lasts as long as the test wants, then a short one."""
    return await fetch(await linger(name))


@flow
async def guarded(name: str) -> int:
    """The victim gets its step at a moment that the test chooses."""
    parts = await plan(await linger(name))
    return await conclude(await gather(*[fetch(part) for part in parts]))


@flow
async def mixed(name: str, n: int) -> int:
    """A step that lasts, and short ones beside it."""
    found = await gather(linger(name), *[fetch(x) for x in range(n)])
    return await conclude(found)


# --- bad code -------------------------------------------------------------------------------------------------------


@step(stop=stop_after_attempt(2), wait=wait_none(), retry=retry_if_exception_type(BaseException))
def leave() -> int:
    begin()
    raise SystemExit(3)


@step(stop=stop_after_attempt(2), wait=wait_none(), retry=retry_if_exception_type(BaseException))
def exhaust() -> int:
    begin()
    raise MemoryError


@step
def vanish(name: str) -> int:
    """End the process without a word, until the gate is open."""
    begin()
    if not gate(name).exists():
        os._exit(3)
    return 1


@step(timeout=1, stop=stop_after_attempt(3), wait=wait_none())
def slow_once(name: str) -> int:
    """Run past the timeout at the first attempt."""
    begin()
    if current().attempt == 1:  # type: ignore[attr-defined]  # a step's
        wait_at(name)
    end()
    return current().attempt  # type: ignore[attr-defined]  # as above


@step(timeout=0.5, stop=stop_after_attempt(3), wait=wait_none())
async def dream_once() -> int:
    """Run past the timeout at the first attempt, on the event loop."""
    begin()
    if current().attempt == 1:  # type: ignore[attr-defined]  # as above
        await asyncio.sleep(3600)
    return current().attempt  # type: ignore[attr-defined]  # as above


@step
def inflate(size: int) -> str:
    begin()
    return "x" * size


@flow
async def leaving() -> int:
    return await leave()


@flow
async def exhausting() -> int:
    return await exhaust()


@flow
async def vanishing(name: str) -> int:
    return await vanish(name)


@flow
async def timing_out(name: str) -> int:
    return await slow_once(name)


@flow
async def dreaming() -> int:
    return await dream_once()


@flow
async def inflating(size: int) -> int:
    return len(await inflate(size))


@flow
async def looping(name: str) -> int:
    """Never reach the next await, until the gate is open."""
    found = await fetch(1)
    while not gate(name).exists():
        pass
    return found


@flow
async def straying() -> int:
    """Await what no flow may await."""
    found = await fetch(1)
    await asyncio.sleep(0)
    return found


@flow
async def raising(name: str) -> int:
    """A bug in the flow's own code, until the gate is open."""
    found = await fetch(1)
    if not gate(name).exists():
        raise ZeroDivisionError("a bug")
    return found


@flow
async def refusing() -> int:
    """Fail on purpose."""
    await fetch(1)
    raise Permanent("not today")


# --- what a model is paid for ---------------------------------------------------------------------------------------

PRICE, RESERVE = 40, 100  # tokens


@step(lane="front", reserve=Budget(tokens=RESERVE), stop=stop_after_attempt(3), wait=wait_none())
def ask_model(n: int) -> int:
    """Call a model, which counts; at the first attempt its answer does not come."""
    begin()
    write("model", current().run_id, PRICE)
    current().spend(tokens=PRICE)
    if n == 1 and current().attempt == 1:
        raise ConnectionResetError("no answer")
    return n


@flow
async def asking(n: int) -> int:
    """A child of `spending`."""
    return await ask_model(n)


@flow
async def spending(n: int) -> int:
    """A call of its own and one of a child's in each of n generations."""
    found = await gather(ask_model(n), asking(n))
    if n > 1:
        await continue_as(n - 1)
    return sum(found)


# --- a dependency that goes away ------------------------------------------------------------------------------------


@step(uses="oracle", wait=wait_fixed(0.2), stop=stop_after_attempt(8))
def consult(x: int) -> int:
    begin()
    if not gate("oracle").exists():
        raise ConnectionRefusedError("the oracle is away")
    return x


@flow(version="1")
async def counsel(x: int) -> int:
    return await consult(x)

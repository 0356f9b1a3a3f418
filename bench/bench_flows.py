"""The flows that are measured."""

from __future__ import annotations

import time

from peers.step_body import Value, touch
from safepoint import flow, step


@step(timeout=120)
def hold(seconds: float) -> float:
    """Take a while, as a model call does."""
    time.sleep(seconds)
    return seconds


@step
def count(so_far: int) -> int:
    """Take no time at all."""
    return so_far + 1


@flow
async def held(seconds: float) -> float:
    """Run one step that takes a while."""
    return await hold(seconds)


@flow
async def counted(steps: int) -> int:
    """Run many steps, one after the other."""
    so_far = 0
    for _ in range(steps):
        so_far = await count(so_far)
    return so_far


@step
def burn(seconds: float) -> float:
    """Take a while of this thread's processor, as parsing and computing do."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass
    return seconds


@flow
async def waited(steps: int, seconds: float) -> int:
    """Run steps that wait, one after the other."""
    for _ in range(steps):
        await hold(seconds)
    return steps


@flow
async def burnt(steps: int, seconds: float) -> int:
    """Run steps that compute, one after the other."""
    for _ in range(steps):
        await burn(seconds)
    return steps


@step
def hand_on(value: Value) -> Value:
    """Do nothing with two hundred bytes of JSON."""
    return touch(value)


@flow
async def handed_on(value: Value, steps: int) -> Value:
    """Hand a value through many steps, one after the other."""
    for _ in range(steps):
        value = await hand_on(value)
    return value

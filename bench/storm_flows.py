"""The flows of the storm: one whose step calls the dependency, and the live traffic beside it."""

from __future__ import annotations

import os
import time
from http.client import HTTPConnection

from safepoint import current, flow, step
from tenacity import stop_after_attempt, wait_random_exponential

PATIENCE = 30.0  # seconds that a call waits for its answer


class TroubleError(Exception):
    """The dependency has answered with an error of its own."""


@step(uses="downstream", wait=wait_random_exponential(multiplier=1, max=8), stop=stop_after_attempt(50))
def call() -> int:
    """Call the dependency, as an agent calls a model."""
    connection = HTTPConnection("127.0.0.1", int(os.environ["STORM_PORT"]), timeout=PATIENCE)
    try:
        connection.request("POST", "/call", headers={"X-Run": str(current().run_id)})
        answer = connection.getresponse()
        answer.read()
    finally:
        connection.close()
    if answer.status != 200:
        raise TroubleError(answer.status)
    return answer.status


@step
def answer(seconds: float) -> float:
    """Take as long as a short call does."""
    time.sleep(seconds)
    return seconds


@flow
async def orphan() -> int:
    """Call the dependency once."""
    return await call()


@flow
async def live(seconds: float) -> float:
    """Answer somebody who waits."""
    return await answer(seconds)

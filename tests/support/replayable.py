"""A flow whose code a test changes between the run and its replay."""

from __future__ import annotations

import time

from safepoint import flow, step

MODE = {"now": "as it was"}


@step(name="replay_look")
def look(alert: int) -> str:
    """Look at an alert."""
    return f"seen {alert}"


@step(name="replay_peek")
def peek(alert: int) -> str:
    """Look at it in another way."""
    return f"peeked {alert}"


@flow(name="replayed", version="2", accepts=("1",))
async def replayed(alert: int) -> str:
    """Look twice, as the mode says."""
    match MODE["now"]:
        case "another step":
            await peek(alert)
        case "another input":
            await look(alert + 1)
        case "a bug":
            raise RuntimeError("a bug")
        case "endless":
            while time.monotonic() > 0:
                pass
        case "shorter":
            return await look(alert)
        case _:
            await look(alert)
    return await look(alert + 10)

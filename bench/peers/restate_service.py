"""The service in Restate, for Hypercorn."""

from __future__ import annotations

from typing import Any

import restate
from step_body import hold, touch

service = restate.Service("Bench")


async def hand_on(value: dict[str, Any]) -> dict[str, Any]:
    """Do nothing."""
    return touch(value)


@service.handler("handed_on")
async def handed_on(ctx: restate.Context, given: dict[str, Any]) -> dict[str, Any]:
    """Hand a value through many steps, each result in Restate's log before the next one begins."""
    value = given["value"]
    for _ in range(given["steps"]):
        value = await ctx.run_typed("hand_on", hand_on, value=value)
    return value


@service.handler("held")
async def held(ctx: restate.Context, given: dict[str, Any]) -> dict[str, Any]:
    """Run one step that takes a minute."""
    return await ctx.run_typed("keep", hold, value=given)


app = restate.app([service])

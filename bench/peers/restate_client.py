"""A client of Restate: eight calls at once over HTTP, or messages that nobody waits for."""

from __future__ import annotations

import os
import time
from typing import Any

import httpx
from conversation import Wait, converse
from step_body import new_value

INGRESS, ADMIN, SERVICE = (os.environ[f"BENCH_{name}"] for name in ("INGRESS", "ADMIN", "SERVICE"))
client = httpx.Client(base_url=INGRESS, timeout=120)


def register() -> None:
    """Tell the server where the service is, as soon as both answer."""
    for _ in range(600):
        try:
            answer = httpx.post(f"{ADMIN}/deployments", json={"uri": SERVICE, "force": True}, timeout=10)
            if answer.is_success:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.1)
    raise SystemExit("Restate has not taken the service within a minute")


def start(value: dict[str, Any], steps: int) -> Wait:
    """Return a call that waits for its result."""
    return lambda: client.post("/Bench/handed_on", json={"value": value, "steps": steps}).raise_for_status().json()


def enqueue(*, runs: int) -> dict[str, float]:
    """Send messages one after the other and return the seconds."""
    began = time.perf_counter()
    for _ in range(runs):
        client.post("/Bench/handed_on/send", json={"value": new_value(), "steps": 1}).raise_for_status()
    return {"seconds": time.perf_counter() - began}


def begin_hold(*, marks: str) -> None:
    """Send the message whose step takes a minute."""
    client.post("/Bench/held/send", json={"marks": marks}).raise_for_status()


if __name__ == "__main__":
    register()
    converse(start, threads=8, enqueue=enqueue, hold=begin_hold)

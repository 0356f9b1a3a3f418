"""The incident agent's poor relation: it pages whoever is on call, by a pager that knows no key and cannot be asked.

    SAFEPOINT_FLOWS=incident_agent,paging_agent PYTHONPATH=examples/incident safepoint up
    safepoint enqueue escalate --input '{"service": "checkout", "text": "p95 latency above 1500 ms"}'

When a worker dies between the ringing and the answer, nobody knows whether the phone has rung. The run is then held,
and `safepoint effects` says what a person can do; the phone does not ring a second time by itself.
"""

from __future__ import annotations

import tickets
from safepoint import effect, flow


@effect(
    uses="pager",
    timeout=30,
    not_sent=(ConnectionRefusedError,),
    runbook="Ask whoever is on call whether the phone has rung.",
)
def page_oncall(service: str, text: str) -> str:
    """Let the phone ring."""
    return tickets.page(f"{service}: {text}")


@flow(version="1")
async def escalate(service: str, text: str) -> str:
    """Page somebody, and say what came of it."""
    answer = await page_oncall(service=service, text=text)
    return f"the pager has {answer} it"

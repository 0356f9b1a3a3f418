"""The demo's judgement: it must fail when any of its three witnesses says something else."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from safepoint.cli.proof import Evidence, prove

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
RAN = {"plan": 1, "fetch_metrics": 1, "fetch_logs": 1, "diagnose": 2, "open_ticket": 1, "summarize": 1}
CLAIMED = {**RAN, "open_ticket": 2}  # the second claim only asked
TOKENS = {"plan": 10, "diagnose": 1000, "summarize": 20}


def at(seconds: float) -> str:
    return (BEGIN + timedelta(seconds=seconds)).isoformat()


def events() -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = []
    for second, (step, epoch) in enumerate(CLAIMED.items()):
        data = {"epoch": epoch, "at": at(second + 0.5)}
        told += [
            {"type": "step.started", "key": f"{step}#1", "data": data, "at": at(second + 0.9)},
            {"type": "step.committed", "key": f"{step}#1", "data": {"epoch": epoch}, "at": at(second + 0.9)},
        ]
    return [{**event, "seq": number} for number, event in enumerate(told, 1)]


def evidence() -> Evidence:
    steps = [
        {"key": f"{step}#1", "step": step, "kind": "step", "epoch": epoch, "spent": {"tokens": TOKENS.get(step, 0)}}
        for step, epoch in CLAIMED.items()
    ]
    history = [{"status": "executing", "why": None}, {"status": "succeeded", "why": "the lookup says: found"}]
    effects = [{"key": "open_ticket#1", "attempts": 1, "history": history}]
    said = [{"status": "succeeded", "actor": "person:demo", "why": "seen"}]
    held = {"status": "held", "reason": {"code": "unknown_effect"}, "effects": []}
    paged = {"status": "succeeded", "reason": None, "effects": [{"key": "page_oncall#1", "history": said}]}
    bill = [{"task": task, "tokens": TOKENS[task]} for task in ("plan", "diagnose", "diagnose", "summarize")]
    run = {"status": "succeeded", "steps": steps, "effects": effects, "events": 12, "result": {"ticket": 1}}
    tickets = [{"number": 1, "requests": 1, "title": "t", "created_at": at(4)}]
    return Evidence(
        run,
        events(),
        bill,
        tickets,
        killed_at=BEGIN + timedelta(seconds=2),
        deaths=[-9, -9, -9],
        held=held,
        paged=paged,
        pages=[{"number": 1}],
    )


def test_the_numbers_are_those_of_the_bill_and_the_events() -> None:
    proof = prove(evidence())

    assert proof.holds, [check.text for check in proof.checks if not check.holds]
    # From scratch: plan and diagnosis three times each, the summary once; and a second ticket.
    assert (proof.billed, proof.lost, proof.from_scratch, proof.saved) == (2030, 1000, 3050, 1020)
    assert proof.recoveries == pytest.approx([1.5, 0.5])
    assert [(line.step, line.ran, line.committed) for line in proof.lines] == [(step, n, 1) for step, n in RAN.items()]
    assert {line.step: line.looked_up for line in proof.lines if line.looked_up} == {"open_ticket": 1}
    assert next(line.from_scratch for line in proof.lines if line.step == "open_ticket") == 2


WRONG: dict[str, dict[str, Any]] = {
    "only two deaths": {"deaths": [-9, -9]},
    "a death by another signal": {"deaths": [-9, -9, -15]},
    "a failed run": {"run": dict(evidence().run) | {"status": "failed"}},
    "two tickets": {"tickets": [{"number": 1, "requests": 1, "created_at": at(4)}, {"number": 2, "requests": 1}]},
    "no ticket": {"tickets": []},
    "a ticket asked for twice": {"tickets": [{"number": 1, "requests": 2, "created_at": at(4)}]},
    "another ticket": {"tickets": [{"number": 7, "requests": 1, "created_at": at(4)}]},
    "a lost event": {"events": events()[:-1]},
    "a gap": {"events": events()[:3] + events()[4:]},
    "a second commit": {"events": [*events(), {**events()[1], "seq": 13}]},
    "a third diagnosis": {"bill": [*evidence().bill, {"task": "diagnose", "tokens": 1000}]},
    "a phone that rang twice": {"pages": [{"number": 1}, {"number": 2}]},
    "a second scene that was not held": {"held": {"status": "succeeded", "reason": None}},
    "a second scene that nobody settled": {"paged": dict(evidence().paged) | {"effects": []}},
    "a number from elsewhere": {"run": dict(evidence().run) | {"effects": []}},
    "no result": {"run": dict(evidence().run) | {"result": None}},
}


@pytest.mark.parametrize("what", WRONG)
def test_it_does_not_hold_with(what: str) -> None:
    assert not prove(replace(evidence(), **WRONG[what])).holds


def test_a_committed_step_that_ran_again_is_found() -> None:
    found = evidence()
    found.run["steps"][0]["epoch"] = 2

    assert not prove(found).holds

"""What the demo proves, from three witnesses that know nothing of each other: ledger, model's bill, ticket service.

Pure: it takes what they say and judges it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

__all__ = ["Check", "Evidence", "Line", "Proof", "prove"]

Document = Mapping[str, Any]

EXPENSIVE = "diagnose"
TICKET = "open_ticket"
PAGE = "page_oncall"
EXPECTED_RUNS = {"plan": 1, "fetch_metrics": 1, "fetch_logs": 1, "diagnose": 2, "open_ticket": 1, "summarize": 1}
RESTARTS = 2  # after each kill, had the run begun anew


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the three witnesses say, when the first worker was killed, and how the killed ones ended."""

    run: Document
    events: Sequence[Document]
    bill: Sequence[Document]
    tickets: Sequence[Document]
    killed_at: datetime
    deaths: Sequence[int]  # exit codes
    paged: Document  # the run of the second scene
    held: Document  # the same, before a person settled its effect
    pages: Sequence[Document]


@dataclass(frozen=True, slots=True)
class Line:
    """One step: how often it ran, was looked up and committed, and how often it would have run from scratch."""

    step: str
    ran: int
    looked_up: int
    committed: int
    tokens: int
    from_scratch: int


@dataclass(frozen=True, slots=True)
class Check:
    """Something that must hold, and whether it does."""

    text: str
    holds: bool


@dataclass(frozen=True, slots=True)
class Proof:
    """The demo's outcome."""

    lines: Sequence[Line]
    recoveries: Sequence[float]  # seconds, from each kill to the next step under way
    billed: int
    lost: int
    from_scratch: int
    checks: Sequence[Check]

    @property
    def saved(self) -> int:
        """Tokens that a run from scratch would have paid on top."""
        return self.from_scratch - self.billed

    @property
    def holds(self) -> bool:
        """Whether everything is as it must be."""
        return all(check.holds for check in self.checks)


def prove(found: Evidence) -> Proof:
    """Judge the evidence."""
    committed = Counter(event["key"] for event in found.events if event["type"] == "step.committed")
    steps = [step for step in found.run["steps"] if step["kind"] in {"step", "effect"}]
    paid = Counter[str]()
    for call in found.bill:
        paid[call["task"]] += call["tokens"]
    calls = Counter(call["task"] for call in found.bill)
    sent = {effect["key"]: effect for effect in found.run["effects"]}
    lines = [_line(step, committed[step["key"]], sent.get(step["key"])) for step in steps]
    lost = sum(paid[name] - paid[name] // number for name, number in calls.items())
    again = sum(paid[line.step] // calls[line.step] * line.from_scratch for line in lines if calls[line.step])
    return Proof(
        lines=lines,
        recoveries=_recoveries(found),
        billed=sum(paid.values()),
        lost=lost,
        from_scratch=again,
        checks=_checks(found, lines=lines, calls=calls),
    )


def _line(step: Document, committed: int, effect: Document | None) -> Line:
    # What comes before the kills would have run again after each of them; the ticket after the second one.
    again = RESTARTS if step["step"] in {"plan", "fetch_metrics", "fetch_logs", EXPENSIVE} else step["step"] == TICKET
    tokens = int(step["spent"]["tokens"])
    # Of an effect a claim may only have asked for what an earlier one had done.
    ran = int(step["epoch"]) if effect is None else int(effect["attempts"])
    looked_up = 0 if effect is None else sum("lookup" in (entry["why"] or "") for entry in effect["history"])
    return Line(step["step"], ran, looked_up, committed, tokens, 1 + again)


def _recoveries(found: Evidence) -> list[float]:
    """Measure from each kill to the claim of the step that goes on: both by clocks of this machine."""
    started = {(_name(event), event["data"].get("epoch")): event for event in found.events if _is(event, "started")}
    again, after = started.get((EXPENSIVE, 2)), started.get((TICKET, 2))
    seconds = []
    if again is not None:
        seconds.append((_instant(again["data"]["at"]) - found.killed_at).total_seconds())
    if after is not None and found.tickets:
        # The second worker killed itself as soon as the ticket service had answered.
        made = _instant(str(found.tickets[0]["created_at"]))
        seconds.append((_instant(after["data"]["at"]) - made).total_seconds())
    return seconds


def _is(event: Document, what: str) -> bool:
    return bool(event["type"] == f"step.{what}")


def _name(event: Document) -> str:
    return str(event["key"]).rpartition("/")[2].partition("#")[0]


def _instant(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _checks(found: Evidence, *, lines: Sequence[Line], calls: Counter[str]) -> list[Check]:
    run, numbers = found.run, [event["seq"] for event in found.events]
    ran = {line.step: line.ran for line in lines}
    ticket = found.tickets[0] if found.tickets else {}
    return [
        Check("three workers were killed with SIGKILL", list(found.deaths) == [-9, -9, -9]),
        Check("the run succeeded", run["status"] == "succeeded"),
        Check("every step was committed exactly once", all(line.committed == 1 for line in lines) and bool(lines)),
        Check("no committed step ran again; only the interrupted one did", ran == EXPECTED_RUNS),
        Check("the model was asked once for each answer, and again for the lost one", calls == _ASKED),
        Check("the events have no gap and agree with the run", numbers == list(range(1, run["events"] + 1))),
        Check("the ticket service has one ticket, asked for once", len(found.tickets) == 1 == ticket.get("requests")),
        Check("it is the run's ticket", (run["result"] or {}).get("ticket") == ticket.get("number")),
        Check(
            "the ticket's number came from the lookup",
            [(line.step, line.looked_up) for line in lines if line.looked_up] == [(TICKET, 1)],
        ),
        *_second_scene(found),
    ]


def _second_scene(found: Evidence) -> list[Check]:
    """A pager that knows no key and cannot be asked: a person decides, and the phone rings once."""
    held, paged = found.held, found.paged
    reason = held["reason"] or {}
    by = [
        entry["actor"] for effect in paged["effects"] for entry in effect["history"] if entry["status"] == "succeeded"
    ]
    return [
        Check(
            "the run that paged was held: nobody knew",
            (held["status"], reason.get("code")) == ("held", "unknown_effect"),
        ),
        Check("a person's word finished it", paged["status"] == "succeeded" and by == ["person:demo"]),
        Check("the phone has rung once", len(found.pages) == 1),
    ]


_ASKED = Counter({"plan": 1, EXPENSIVE: 2, "summarize": 1})

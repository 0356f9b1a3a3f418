"""Why a run does not move: one reason a cause, each with a sentence and the command to type next.

Pure: it takes what `ledger.views` has read, in seconds by the ledger's clock, and reads nothing itself.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from . import deaths
from .lane_words import LaneFacts, limit_words
from .span import span

__all__ = ["OpenStep", "Question", "RunFacts", "breaker_words", "complete", "reasons"]

Reason = dict[str, Any]

_NEXT: Final[Mapping[str, str]] = {
    "unknown_effect": "safepoint effects",
    "diverged": "safepoint replay {run}",
    "missing_version": "safepoint versions",
    "poison": "safepoint resume {run}",
    "flow_error": "mend the flow, start the workers again, then: safepoint resume {run}",
    "compensation": "safepoint effects",
    "budget": "safepoint budget {run}",
    "paused": "safepoint resume {run}",
    "signal": "safepoint signal {run} {name} JSON",
    "approval": "safepoint approve {run} {name} --by NAME",
    "child": "safepoint why {child}",
    "lane": "safepoint lanes",
    "breaker": "safepoint breakers",
    "no_worker": "safepoint versions",
}
_TEXT: Final[Mapping[str, str]] = {
    "timer": "{key} sleeps{until}",
    "signal": "{key} waits for the signal {name!r}{until}",
    "approval": "{key} waits for a decision on {name!r}{until}",
    "child": "{key} waits for the child run {child}",
    "paused": "paused by a person",
}


@dataclass(frozen=True, slots=True)
class Question:
    """What a person is shown whose decision a step waits for; the digest is the hexadecimal one of that.

    `role` is who has to approve an effect; an approval of the flow's names nobody.
    """

    digest: str | None
    shown: Any = None
    role: str | None = None


@dataclass(frozen=True, slots=True)
class OpenStep:
    """A step that is not final; times are seconds from now, None where there is none (or it is parked)."""

    key: str
    kind: str
    name: str
    status: str
    lane: str
    reason: Any = None
    since: str | None = None
    ready_in: float = 0.0
    due_in: float | None = None
    sent_ago: float | None = None
    claimed_ago: float | None = None
    owner: str | None = None
    owner_lives: bool = True
    attempt: int = 1
    served: bool = True
    queued: bool = False  # waits to be admitted to its lane
    child: str | None = None
    question: Question | None = None
    breaker: str | None = None  # of the dependency that it uses, in words; none when that one is closed


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What is known of a run: its status, its own reasons, its open steps, and what lies before it on its lanes."""

    run_id: str
    status: str
    flow: str
    version: str
    reason: Any = None
    holds: Mapping[str, Any] = field(default_factory=dict)
    open: Sequence[OpenStep] = ()
    ahead: Mapping[str, int] = field(default_factory=dict)  # lane -> ready steps
    lanes: Mapping[str, LaneFacts] = field(default_factory=dict)  # those that ready steps are on


def reasons(run: RunFacts) -> list[Reason]:
    """Give every reason that stands, the most pressing first; none for a run that is final."""
    if run.status in {"succeeded", "failed", "cancelled"}:
        return []
    if run.holds:
        return [complete(reason, run.run_id, code=code) for code, reason in sorted(run.holds.items())]
    if _code(run.reason) in {"paused", "cancelling"}:
        return [complete(run.reason, run.run_id)]
    found = [reason for step in run.open if (reason := _of_step(run, step)) is not None]
    if not found and isinstance(run.reason, Mapping):
        return [complete(run.reason, run.run_id)]
    return found


def _of_step(run: RunFacts, step: OpenStep) -> Reason | None:
    match step.status:
        case "running":
            return None if step.owner_lives else _orphan(run, step)
        case "waiting":
            return _waiting(run, step)
        case "held" | "ready" if step.status == "held" or _code(step.reason) == "budget":
            return complete(step.reason, run.run_id, code="poison", step=step)
        case "ready" if step.ready_in > 0:
            return _later(run, step)
        case "ready" if step.breaker is not None or not step.served:
            return _stopped(run, step)
        case "ready" if step.sent_ago is None and (words := _limit(run, step)):
            text = f"{step.key} is one of {run.ahead.get(step.lane, 1)} on lane {step.lane}: {words}"
            next_ = f"safepoint lanes show {step.lane}"
            return complete({"code": "lane", **_own(step), "text": text, "next": next_}, run.run_id, step=step)
        case "ready":
            return _queued(run, step)
    return None


def _limit(run: RunFacts, step: OpenStep) -> str:
    lane = run.lanes.get(step.lane)
    return "" if lane is None else limit_words(lane, queued=step.queued)


def _waiting(run: RunFacts, step: OpenStep) -> Reason:
    own = step.reason if isinstance(step.reason, Mapping) else {}
    until = "" if step.due_in is None else f" for {span(step.due_in)} more" if step.due_in > 0 else ", which is over"
    facts = {"key": step.key, "name": step.name, "until": until, "child": step.child or "?"}
    code = _code(own) or ("approval" if step.question else step.kind)
    text = _TEXT[code].format(**facts) if code in _TEXT else own.get("text")
    if step.question is not None:
        own = {**own, **_asked(run, step, step.question)}
        text = own.pop("text", text)
    return complete({**own, "code": code, "text": text}, run.run_id, step=step)


def _asked(run: RunFacts, step: OpenStep, question: Question) -> dict[str, Any]:
    """Say what is asked, and give the command that approves this and nothing else."""
    is_first = step.key == f"approval:{step.name}#1"
    digest = f" --digest {question.digest[:12]}" if question.digest else ""
    named = shlex.quote(step.name if is_first else step.key)
    told: dict[str, Any] = {
        "next": f"safepoint approve {run.run_id} {named} --by NAME{digest}",
        "detail": {"shown": question.shown, "digest": question.digest},
    }
    if step.kind == "effect":
        told["text"] = f"{step.key} waits for {question.role or 'a person'} to approve its request"
    return told


def _later(run: RunFacts, step: OpenStep) -> Reason:
    code = "retry" if step.attempt > 1 or _code(step.reason) == "retry" else "timer"
    cause = step.reason.get("text") if isinstance(step.reason, Mapping) else None
    what = cause or (f"attempt {step.attempt}" if code == "retry" else "it was enqueued for later")
    text = f"{step.key} is due in {span(step.ready_in)}: {what}"
    return complete({"code": code, **_own(step), "text": text}, run.run_id, step=step)


def _stopped(run: RunFacts, step: OpenStep) -> Reason:
    """Explain a step that is not sent: its dependency is let alone, or nobody serves it."""
    if step.breaker is not None:
        told = _own(step) if _code(step.reason) == "breaker" else {"since": step.since}
        text = f"{step.key} waits for its dependency: {step.breaker}"
        return complete({**told, "code": "breaker", "text": text}, run.run_id, step=step)
    text = f"no live worker serves {run.flow}@{run.version} on lane {step.lane}"
    next_ = f"start a worker that has the flow for lane {step.lane}; safepoint versions shows who serves what"
    return complete({"code": "no_worker", **_own(step), "text": text, "next": next_}, run.run_id, step=step)


def _queued(run: RunFacts, step: OpenStep) -> Reason | None:
    """Explain a step that is on its way: worth a word only when it takes longer than a claim does."""
    if step.queued and step.lane not in run.lanes and step.due_in is not None and step.due_in < -2:
        # Lists do not ask what of its lane it meets.
        text, next_ = f"{step.key} waits to be admitted to lane {step.lane}", f"safepoint lanes show {step.lane}"
        return complete({"code": "lane", **_own(step), "text": text, "next": next_}, run.run_id, step=step)
    if step.sent_ago is None or step.sent_ago < 2:
        return None
    crowd = run.ahead.get(step.lane, 1)
    text = f"{step.key} was sent to lane {step.lane} {span(step.sent_ago)} ago; {crowd} in that lane"
    return complete({"code": "lane", **_own(step), "text": text, "next": "safepoint nodes"}, run.run_id, step=step)


def _orphan(run: RunFacts, step: OpenStep) -> Reason:
    text = f"{step.key} was claimed by {step.owner}, which gives no sign of life; the orphan scan takes it over"
    facts = {"code": "no_worker", "since": step.since, "text": text, "next": "safepoint nodes"}
    return complete(facts, run.run_id, step=step)


def _own(step: OpenStep) -> dict[str, Any]:
    return dict(step.reason) if isinstance(step.reason, Mapping) else {}


def complete(reason: Any, run_id: str, *, code: str | None = None, step: OpenStep | None = None) -> Reason:
    """Give a stored reason with all of {code, since, text, next}, whatever it was stored with."""
    told = _with_deaths(reason, run_id) if isinstance(reason, Mapping) else {}
    code = str(told.get("code") or code or (step.kind if step else "unknown"))
    name, child = (step.name, step.child or "CHILD") if step else (told.get("name", "NAME"), "CHILD")
    next_ = told.get("next") or _NEXT.get(code, "safepoint watch {run}").format(run=run_id, name=name, child=child)
    full = {
        "code": code,
        "since": told.get("since") or (step.since if step else None),
        "text": told.get("text") or code.replace("_", " "),
        "next": next_,
    }
    if step is not None:
        full["step"] = step.key
    if told.get("detail"):
        full["detail"] = told["detail"]
    return full


def _with_deaths(reason: Mapping[str, Any], run_id: str) -> Mapping[str, Any]:
    """Put the evidence of a poison step into words: the ledger has it as it was seen."""
    detail = reason.get("detail")
    told = deaths.sentence(detail) if reason.get("code") == "poison" and isinstance(detail, Mapping) else None
    return {**reason, "text": told, "next": deaths.next_step(detail, run_id)} if detail and told else reason


def _code(reason: Any) -> str | None:
    code = reason.get("code") if isinstance(reason, Mapping) else None
    return str(code) if code else None


def breaker_words(name: str, *, state: str, why: str | None, probe_in: float | None) -> str:
    """Say how a breaker that is not closed stands."""
    if state == "half_open":
        return f"{name} is being probed"
    told = f" ({why})" if why else ""
    if probe_in is None:
        return f"the breaker of {name} is open until somebody resets it{told}"
    return f"the breaker of {name} is open{told}; it is probed {f'in {span(probe_in)}' if probe_in > 0 else 'next'}"

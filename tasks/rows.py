"""What a flow asks for, as rows that the commit inserts; and what became of a run's flow, as the ledger stores it.
Pure.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid5

from ..ledger.codec import Encoded
from ..ledger.commit import Ending
from ..ledger.effect_errors import EffectRequestChanged
from ..ledger.key import Key
from .awaited import Asked
from .effect import Effect
from .flow import ChildRun
from .outcome import Continued, Diverged, Failed, FlowError, Outcome, Returned, WasCancelled
from .step import StepCall

__all__ = ["child_id", "ending_of", "hold_of", "request_changed", "row_of", "sealed"]


def child_id(run_id: UUID, key: Key) -> UUID:
    """Return the run id of a child: derived from its parent and the step key, so that a repeated commit makes one
    child (P30).
    """
    return uuid5(run_id, key.wire)


def row_of(asked: Asked, *, run_id: UUID) -> dict[str, Any]:
    """Return a row for `insert_steps_v1`."""
    key = asked.key
    row: dict[str, Any] = {
        "path": key.path,
        "step": key.step_id,
        "iteration": key.iteration,
        "kind": asked.kind,
        "name": asked.name,
        "lane": asked.lane,
        "hash": asked.input_hash.hex(),
    }
    if asked.uses is not None:
        row["uses"] = asked.uses
    if asked.joins is not None:
        row["joins"] = asked.joins
    if reserve := _reserve(asked):
        row["reserve"] = reserve
    if asked.delay is not None:
        row["delay"] = asked.delay
    if asked.until is not None:
        row["until"] = asked.until.isoformat()
    match asked.kind:
        case "effect" if asked.input is not None:  # frozen: what is sent later is what was asked now
            row |= {"request": _text(asked.input.data), "encoding": asked.input.encoding}
            row["effect"] = _effect_of(asked).declared()
        case "approval" if asked.show is not None:
            row |= {"request": _text(asked.show.data), "encoding": asked.show.encoding}
        case "child":
            row["child"] = _child(asked, run_id=run_id)
    if reason := _reason(asked, run_id=run_id):
        row["reason"] = reason
    return row


def sealed(row: dict[str, Any], *, close: Callable[[Encoded], Encoded]) -> dict[str, Any]:
    """Return the row with the value that it carries closed."""
    if "request" in row:
        return row | _closed(row, "request", close=close)
    if "child" in row:
        return row | {"child": row["child"] | _closed(row["child"], "input", close=close)}
    return row


def _closed(facts: dict[str, Any], name: str, *, close: Callable[[Encoded], Encoded]) -> dict[str, str]:
    closed = close(Encoded.of(base64.b64decode(facts[name]), encoding=facts["encoding"]))
    return {name: _text(closed.data), "encoding": closed.encoding}


def _child(asked: Asked, *, run_id: UUID) -> dict[str, Any]:
    assert isinstance(asked.awaited, ChildRun)
    call = asked.awaited.call
    return {
        "run_id": str(child_id(run_id, asked.key)),
        "flow": call.flow.name,
        "version": call.flow.version,
        "input": _text(call.input.data),
        "encoding": call.input.encoding,
        "hash": call.input_hash.hex(),
        "versions": call.flow.frozen_versions(),
    }


def _reserve(asked: Asked) -> dict[str, float]:
    declared = asked.awaited.step.reserve if isinstance(asked.awaited, StepCall) else None
    if declared is None:
        return {}
    return {name: amount for name in ("tokens", "usd") if (amount := getattr(declared, name))}


def _effect_of(asked: Asked) -> Effect[..., Any]:
    step = asked.awaited.step if isinstance(asked.awaited, StepCall) else None
    assert isinstance(step, Effect)
    return step


def _reason(asked: Asked, *, run_id: UUID) -> dict[str, str] | None:
    match asked.kind:
        case "timer":
            return {"code": "timer", "text": "sleeping"}
        case "signal":
            return {
                "code": "signal",
                "text": f"waiting for the signal {asked.name!r}",
                "next": f"safepoint signal {run_id} {asked.name} JSON",
            }
        case "approval":
            return {
                "code": "approval",
                "text": f"waiting for a decision on {asked.name!r}",
                "next": f"safepoint approve {run_id} {asked.name} --by NAME --digest {asked.input_hash.hex()[:12]}",
            }
        case "effect" if role := _effect_of(asked).safety.requires_approval:
            return {
                "code": "approval",
                "text": f"waiting for a decision ({role}) on the request of {asked.key}",
                "next": f"safepoint approve {run_id} {asked.name} --by NAME --digest {asked.input_hash.hex()[:12]}",
            }
        case "child":
            child = child_id(run_id, asked.key)
            return {"code": "child", "text": f"waiting for the child run {child}", "next": f"safepoint show {child}"}
    return None


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def ending_of(outcome: Outcome | None, *, last: Key) -> Ending | None:
    """Return how the run ends, or None while it goes on or is held; `last` is the step whose outcome brought it
    about.
    """
    match outcome:
        case Returned(encoded=encoded):
            return Ending("succeeded", encoded.data, encoded.encoding, encoded.digest)
        case Failed(error=error):
            return Ending("failed", error={**error, "key": str(last)})
        case WasCancelled():
            return Ending("cancelled")
        case Continued(input=encoded, input_hash=digest):
            return Ending("continued", encoded.data, encoded.encoding, digest)
    return None


def hold_of(outcome: Outcome | None, *, run_id: UUID) -> dict[str, Any] | None:
    """Return why the run stops for a person, if it does."""
    match outcome:
        case FlowError(text=text):
            return {
                "code": "flow_error",
                "text": text,
                "next": f"correct the flow's code, restart its workers, then: safepoint resume {run_id}",
            }
        case Diverged(text=text, committed=committed, asked=asked):
            return {
                "code": "diverged",
                "text": text,
                "detail": {"committed": committed, "asked": asked},
                "next": "bring back the code the run started with (or give the new code a new version),"
                f" then: safepoint resume {run_id}",
            }
    return None


def request_changed(run_id: UUID, key: Key, *, frozen: bytes | None, asked: bytes) -> dict[str, Any]:
    """Return the hold of a run whose flow asks for another request under the key of a frozen one (R14)."""
    error = EffectRequestChanged(key=str(key), frozen=(frozen or b"").hex()[:12] or "nothing", asked=asked.hex()[:12])
    return {
        "code": "diverged",
        "text": f"{type(error).__name__}: {error}",
        "detail": {
            "error": type(error).__name__,
            "key": str(key),
            "frozen": (frozen or b"").hex(),
            "asked": asked.hex(),
        },
        "next": "bring back the code the run started with; a wanted change is a new call of the effect,"
        f" then: safepoint resume {run_id}",
    }

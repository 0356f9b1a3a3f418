"""Asks the other side of an effect whether it has done it: the effect's own lookup, bounded, with an answer of ours."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any

from ..ledger.errors import StepTimeout, describe
from .attempt import Job, Raised, Returned
from .lookup import NOT_EXECUTED, UNSURE, Found

if TYPE_CHECKING:
    from .performance import Performance, Performed
    from .turn import Turn

__all__ = ["Answer", "ask"]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a lookup has said: `found` (with a value), `not_executed`, `unsure`, or an `error` that tells nothing."""

    says: str
    done: Performed
    value: object = None
    text: str | None = None
    error: BaseException | None = field(default=None, repr=False)

    def told(self) -> dict[str, Any]:
        """Give it as the ledger keeps it."""
        return {"answer": self.says} if self.text is None else {"answer": self.says, "text": self.text}


def ask(turn: Turn, performance: Performance) -> Answer:
    """Call the lookup of a claimed effect with its frozen request; what it raises is an answer that tells nothing."""
    step = turn.declared
    fn, limit = step.lookup_fn, step.asking.timeout
    assert fn is not None
    plain = performance.plain(turn.claimed)
    is_async = iscoroutinefunction(fn)
    done = performance.perform(
        Job(fn if is_async else _bounded(fn, limit), is_async, limit),
        turn.claimed,
        arguments=lambda: step.decode_input(plain),
        encode=lambda answer: step.encode_result(answer.value) if isinstance(answer, Found) else None,
    )
    turn.spend(done)
    match done.came:
        case Returned(value=Found(value=value)):
            return Answer("found", done, value)
        case Returned(value=value) if value is NOT_EXECUTED:
            return Answer("not_executed", done)
        case Returned(value=value) if value is UNSURE:
            return Answer("unsure", done)
        case Returned(value=value):
            text = f"it gave {type(value).__name__}. Accepted: Found(result), NOT_EXECUTED, UNSURE"
            return Answer("error", done, text=text, error=TypeError(text))
        case Raised(error=error):
            said = describe(error)  # its text is not ours: it may raise, or be nothing that can be stored
            return Answer("error", done, text=f"{said['type']}: {said['message']}"[:500], error=error)


def _bounded(fn: Callable[..., object], limit: float) -> Callable[..., object]:
    """Give a function that waits for `fn` at most `limit` seconds; a question may be left behind, a request may not."""

    def bounded(*args: object, **kwargs: object) -> object:
        given: list[object] = []
        raised: list[BaseException] = []

        def run() -> None:
            try:
                given.append(fn(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001  # raised again below, in the thread that has asked
                raised.append(error)

        asker = threading.Thread(
            target=contextvars.copy_context().run, args=(run,), name="safepoint-lookup", daemon=True
        )
        asker.start()
        asker.join(limit)
        if raised:
            raise raised[0]
        if not given:
            raise StepTimeout(seconds=limit)
        return given[0]

    return bounded

"""What stands in for the world in a played run: steps, decisions and signals."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import orjson

from ..ledger.errors import SafepointError
from ..tasks.decision import Decision

if TYPE_CHECKING:
    from ..tasks.awaited import Asked
    from ..tasks.step import Step

__all__ = ["NoStandIn", "Script", "resolved"]


class NoStandIn(SafepointError):  # noqa: N818  # named after what is missing
    """The effect {name} was called, and a test must not change the world: pass steps={{{name}: a function}}."""

    name: str


class Script:
    """The stand-ins of one played run and of its children."""

    def __init__(
        self,
        *,
        steps: Mapping[Step[..., Any], object],
        approvals: Mapping[str, object],
        signals: Mapping[str, object],
    ) -> None:
        self._steps = {step.name: standin for step, standin in steps.items()}
        self._approvals = {name: _answers(answer) for name, answer in approvals.items()}
        self._signals = {name: _answers(answer) for name, answer in signals.items()}

    def call(self, step: Step[..., Any], args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        """Call what stands in for a step: a function, an exception to raise, or a value; else the step itself."""
        if step.name not in self._steps:
            if step.kind == "effect":
                raise NoStandIn(name=step.name)
            return resolved(step.fn(*args, **kwargs))
        standin = self._steps[step.name]
        if isinstance(standin, BaseException) or (isinstance(standin, type) and issubclass(standin, BaseException)):
            raise standin
        return resolved(standin(*args, **kwargs)) if callable(standin) else standin

    def decision(self, asked: Asked) -> Decision | None:
        """Give the next decision for an approval, or for an effect that needs one, if there is one."""
        answer = next(self._approvals.get(asked.name, iter(())), None)
        shown = asked.show or asked.input
        if callable(answer):
            answer = answer(None if shown is None else orjson.loads(shown.data))
        match answer:
            case None | Decision():
                return answer
            case bool():
                return Decision("approved" if answer else "denied", answer, by="test")
            case _:
                msg = f"approvals[{asked.name!r}]: {answer!r}: accepted are True, False, a Decision, or a list of them"
                raise TypeError(msg)

    def signal(self, asked: Asked) -> tuple[object] | None:
        """Give the next payload for a signal, if there is one."""
        for payload in self._signals.get(asked.name, iter(())):
            return (payload,)
        return None


def resolved(value: object) -> object:
    """Give a value, or what a coroutine returns; inside a program with an event loop too."""
    if not inspect.iscoroutine(value):
        return value
    box: list[object] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            box.append(asyncio.run(value))
        except BaseException as error:  # noqa: BLE001  # raised again below, in the caller's thread
            failed.append(error)

    thread = threading.Thread(target=contextvars.copy_context().run, args=(run,))
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return box[0]


def _answers(answer: object) -> Iterator[object]:
    """A list answers one wait after the other; anything else answers every one."""
    if isinstance(answer, list):
        return iter(answer)
    return _again(answer)


def _again(answer: object) -> Iterator[object]:
    while True:
        yield answer

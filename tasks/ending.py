"""What becomes of a run when its flow's code ends: pure decisions about what it returned or raised."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from ..ledger.errors import (
    ArgumentsMismatch,
    BadArguments,
    BudgetExceeded,
    Cancelled,
    DeadlineExceeded,
    NotInFlow,
    Permanent,
    StepFailed,
    ValueNotDecodable,
    ValueNotEncodable,
    WaitTimedOut,
    describe,
)
from .branch import branch
from .outcome import Continued, Diverged, Failed, FlowError, Outcome, Returned, WasCancelled
from .signature import refuse_awaitable

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable

    from ..ledger.codec import Encoded
    from .awaited import Asked
    from .flow import Flow
    from .record import Record

__all__ = ["continue_as", "diverged", "ending_of", "returned", "wrong_input"]

# What a flow lets through on purpose; everything else that leaves it is a bug in its code.
FAILURES = (Permanent, StepFailed, BudgetExceeded, DeadlineExceeded, WaitTimedOut, ArgumentsMismatch)


class _ContinueAs(BaseException):
    """Leaves the flow; no `except Exception` of its code stops it."""

    def __init__(self, encoded: Encoded, input_hash: bytes) -> None:
        super().__init__()
        self.encoded = encoded
        self.input_hash = input_hash


def continue_as(*args: object, **kwargs: object) -> Coroutine[object, object, NoReturn]:
    """End this generation of the run and go on from the flow's beginning with new arguments and an empty history.

    `await continue_as(...)`: to a type checker nothing comes after it, and a forgotten await is an error. Here the call
    itself leaves the flow already.
    """
    here = branch(what="continue_as()")
    if here.group is not None:
        raise NotInFlow("continue_as() works only in the flow's own body, not inside a gather")
    signature = here.situation.signature
    encoded = signature.encode(signature.bind(args, kwargs))
    raise _ContinueAs(encoded, signature.hash(encoded))


def returned(flow: Flow[..., object], value: object) -> Outcome:
    """Give the outcome of a flow that has returned."""
    try:
        refuse_awaitable(value, what=f"what {flow.name} returns")
        return Returned(value, flow.result.encode(value))
    except ValueNotEncodable as error:
        return Failed(describe(error), error)
    except Exception as error:  # noqa: BLE001  # an annotation that cannot be resolved, say: the run is held with it
        return flow_error(flow, error)


def ending_of(flow: Flow[..., object], error: BaseException) -> Outcome:
    """Give the outcome of a flow that has raised."""
    match error:
        case _ContinueAs():
            return Continued(error.encoded, error.input_hash)
        case Cancelled():
            return WasCancelled(error)
        case _ if isinstance(error, FAILURES):
            return Failed(describe(error), error)
        case _:
            return flow_error(flow, error)


def wrong_input(flow: Flow[..., object], error: ValueNotDecodable) -> Outcome:
    """Give the outcome of a run whose input does not fit its flow."""
    refused = BadArguments(name=flow.name, text=str(error))
    refused.__cause__ = error
    return Failed(describe(refused) | {"path": error.path}, refused)


def flow_error(flow: Flow[..., object], error: BaseException) -> FlowError:
    """Give the outcome of a flow with a bug: what was raised, and in which line of the user's code."""
    return FlowError(error, f"{flow.name}: {type(error).__name__}: {error}{_place(error)}")


def _place(error: BaseException) -> str:
    ours = __name__.rpartition(".")[0].rpartition(".")[0]
    place = ""
    step = error.__traceback__
    while step is not None:
        frame = step.tb_frame
        if not str(frame.f_globals.get("__name__", "")).startswith(f"{ours}."):
            place = f" ({frame.f_code.co_filename}:{step.tb_lineno} in {frame.f_code.co_name})"
        step = step.tb_next
    return place


def diverged(record: Record, asked: Asked | None, *, others: Iterable[Asked], ended: Outcome | None) -> Diverged:
    """Say what the ledger holds and what the flow asks for instead."""
    committed = f"{record.key} ({record.kind}{_input(record.input_hash)})"
    if asked is not None:
        now = f"{asked.key} ({asked.kind}{_input(asked.input_hash)})"
    elif ended is not None:
        now = f"nothing more, it has {type(ended).__name__.lower()}"
    else:
        now = ", ".join(f"{one.key} ({one.kind})" for one in others) or "nothing"
    return Diverged(f"committed is {committed}, but the flow asks for {now}", committed, now)


def _input(hashed: bytes | None) -> str:
    return f" with input {hashed.hex()[:12]}" if hashed else ""

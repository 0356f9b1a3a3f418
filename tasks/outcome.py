"""How a generation of a flow can end, as the pure driver reports it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..ledger.codec import Encoded

__all__ = ["Continued", "Diverged", "Failed", "FlowError", "Outcome", "Returned", "WasCancelled"]


@dataclass(frozen=True, slots=True)
class Returned:
    """The flow returned; the run has succeeded."""

    value: object
    encoded: Encoded


@dataclass(frozen=True, slots=True)
class Failed:
    """The flow failed on purpose, or let a failure through; the run has failed."""

    error: dict[str, object]
    exc: BaseException


@dataclass(frozen=True, slots=True)
class WasCancelled:
    """The flow let the cancellation through; the run is cancelled."""

    exc: BaseException


@dataclass(frozen=True, slots=True)
class Continued:
    """The flow goes on as a new generation with this input."""

    input: Encoded
    input_hash: bytes


@dataclass(frozen=True, slots=True)
class FlowError:
    """The flow's code has a bug; the run is held, and corrected code goes on from the last step."""

    exc: BaseException
    text: str


@dataclass(frozen=True, slots=True)
class Diverged:
    """The flow no longer asks for what was committed; the run is held."""

    text: str
    committed: str
    asked: str


Outcome = Returned | Failed | WasCancelled | Continued | FlowError | Diverged

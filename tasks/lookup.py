"""What a lookup answers when nobody knows whether an effect was executed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final, Generic, TypeAlias, TypeVar, Union

__all__ = ["NOT_EXECUTED", "UNSURE", "Found", "Lookup", "NotExecuted", "Unsure"]

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Found(Generic[R_co]):
    """The other side has done it, and this is its result."""

    value: R_co


class NotExecuted(Enum):
    """The type of `NOT_EXECUTED`: the other side has not done it."""

    NOT_EXECUTED = "not executed"


class Unsure(Enum):
    """The type of `UNSURE`: the other side cannot tell yet; it is asked again, then a person decides."""

    UNSURE = "unsure"


NOT_EXECUTED: Final = NotExecuted.NOT_EXECUTED
UNSURE: Final = Unsure.UNSURE

Lookup: TypeAlias = Union[Found[R], NotExecuted, Unsure]  # noqa: UP007  # `|` gives no alias that takes a parameter

"""What a person, or the lack of one, has decided about an approval."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import orjson

from ..ledger.codec import Encoded
from ..ledger.errors import ValueNotDecodable

__all__ = ["Decision"]

OUTCOMES = ("approved", "denied", "expired")


@dataclass(frozen=True, slots=True)
class Decision:
    """A decision; `value` is the payload as the person has edited it."""

    outcome: Literal["approved", "denied", "expired"]
    approved: bool
    by: str | None = None
    note: str | None = None
    value: object = None

    def __post_init__(self) -> None:
        """Refuse what contradicts itself."""
        if self.outcome not in OUTCOMES or self.approved is not (self.outcome == "approved"):
            msg = f"Decision({self.outcome!r}, approved={self.approved!r}): accepted outcomes are {', '.join(OUTCOMES)}"
            raise ValueError(msg)

    def encode(self) -> Encoded:
        """Give the decision as the ledger stores it."""
        whole = {"outcome": self.outcome, "by": self.by, "note": self.note, "value": self.value}
        return Encoded.of(orjson.dumps(whole))

    @classmethod
    def decode(cls, data: bytes) -> Decision:
        """Read what `encode` wrote."""
        try:
            told = orjson.loads(data)
            outcome = told["outcome"]
            return cls(outcome, outcome == "approved", told.get("by"), told.get("note"), told.get("value"))
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise ValueNotDecodable(path="decision", text=str(error)) from error

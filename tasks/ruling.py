"""A person's ruling on what a run asks: checked and encoded here, made under the run's lock in the ledger.

It is bound to what was read just before, so nobody approves what they could not have seen (P28).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, is_dataclass
from typing import Any, Final, Protocol, TypeVar
from uuid import UUID, uuid4

from ..ledger import people, progress, tombstones
from ..ledger.codec import Codec, Encoded
from ..ledger.connect import Connection
from ..ledger.errors import Refused, ValueTooLarge
from ..ledger.people import Question
from ..ledger.seal import Seal
from .decision import Decision

__all__ = ["Asker", "Ruled", "Ruling", "checked_text", "edited", "rule"]

T = TypeVar("T")

LONGEST: Final = 10_000  # characters of a note or a reason: they are shown whole
_DIGEST: Final = re.compile(r"[0-9a-f]{8,64}")


class Asker(Protocol):
    """Asks the ledger a question that may be repeated."""

    def __call__(self, question: Callable[[Connection], T], /) -> T:
        """Ask it."""
        ...


@dataclass(frozen=True, slots=True)
class Ruling:
    """What a person says to a question; `value` is the payload as they have edited it, if they have."""

    approved: bool
    by: str
    note: str | None = None
    value: Encoded | None = None
    digest: str | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be written down, naming the field."""
        checked_text("by", self.by)
        if self.note is not None:
            checked_text("note", self.note, may_be_empty=True)
        if self.digest is not None and not _DIGEST.fullmatch(self.digest):
            raise ValueError(f"digest: {self.digest!r} is none. Accepted: 8 to 64 hexadecimal digits, small letters")

    @property
    def verb(self) -> str:
        """The verb, as it is typed."""
        return "approve" if self.approved else "deny"


@dataclass(frozen=True, slots=True)
class Ruled:
    """A decision that has been made: on which question, with which content."""

    key: str
    digest: str | None
    decision: Decision


def rule(ask: Asker, run_id: UUID, name: str, ruling: Ruling, *, seal: Seal) -> Ruled:
    """Decide what a run asks under a name or a step key.

    Raises:
        UnknownRun: there is no such run (`RunPruned`: any more).
        Refused: it is not asked, or decided, or expired, or something else is asked; the text says what.
    """
    outcome = "approved" if ruling.approved else "denied"
    id_ = uuid4()  # of this call: a repeat after a lost answer is found by it (P3)
    value = ruling.value.data if ruling.value is not None else None

    def decide(connection: Connection) -> tuple[people.Decided, Question | None]:
        run = progress.read(connection, run_id, whole=False)
        if run is None:
            raise tombstones.missing(connection, run_id)
        fitting = [one for one in people.asked(connection, run_id) if one.answers_to(name, digest=ruling.digest)]
        seen = fitting[0] if len(fitting) == 1 else None
        document = None
        if seen is not None and not seen.is_effect:
            plain = people.decision_document(outcome, by=ruling.by, note=ruling.note, value=value, shown=seen.digest)
            document = seal.close(plain, run.tenant)
        told = people.decide(
            connection, run_id, name, approved=ruling.approved, by=ruling.by, note=ruling.note, document=document,
            edited=value is not None, digest=ruling.digest, seen=seen, id_=id_,
        )  # fmt: skip
        return told, seen

    told, seen = ask(decide)
    if told.answer != "decided":
        raise Refused(run_id=str(run_id), verb=f"{ruling.verb} {name}", text=told.text or told.answer)
    back = None if ruling.value is None else Codec[object](Any, root="value").decode(ruling.value.data)
    decision = Decision("approved" if ruling.approved else "denied", ruling.approved, ruling.by, ruling.note, back)
    return Ruled(told.key or name, seen.digest if seen else None, decision)


def edited(value: object, *, limit: int) -> Encoded | None:
    """Encode the payload as an approver has edited it; None is none."""
    if value is None:
        return None
    # A model or dataclass is encoded as what it is; for everything else JSON's own types are the declared ones.
    own = is_dataclass(value) or hasattr(type(value), "model_fields")
    encoded = Codec[object](type(value) if own else Any, root="value").encode(value)
    if len(encoded.data) > limit:
        raise ValueTooLarge(path="value", size=len(encoded.data), limit=limit)
    return encoded


def checked_text(name: str, value: object, *, may_be_empty: bool = False) -> str:
    """Give a text back, or refuse one that cannot be written down, naming its field."""
    if not isinstance(value, str) or not (may_be_empty or value.strip()):
        raise ValueError(f"{name}: {value!r} says nothing. Accepted: a text, as in {name}='...'")
    # PostgreSQL's text and jsonb hold neither a NUL nor half of a surrogate pair.
    if "\x00" in value or any("\ud800" <= letter <= "\udfff" for letter in value):
        raise ValueError(
            f"{name}: {value[:80]!r} cannot be written down. Accepted: a text without NUL and half letters"
        )
    if len(value) > LONGEST:
        raise ValueError(f"{name} has {len(value)} characters. Accepted: at most {LONGEST}")
    return value

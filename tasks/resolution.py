"""A person's word on what became of an effect that nobody knows (P34): one verdict, with a name and a reason.

The result is checked against the effect's declared type where its code is here, else by the worker that commits it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal
from uuid import UUID

from ..ledger import people, tombstones
from ..ledger.codec import Codec, Encoded
from ..ledger.connect import Connection
from ..ledger.effect_views import SHORTEST, find_effects, read_effect
from ..ledger.errors import BadArguments, Refused, UnknownEffect, ValueNotDecodable, ValueNotEncodable, ValueTooLarge
from ..ledger.people import Verdict
from ..ledger.seal import Seal
from .registry import registry
from .ruling import Asker, checked_text

__all__ = ["MISSING", "Resolution", "find_key", "resolve"]

MISSING: Final[Any] = object()
Document = dict[str, Any]
_DIGITS: Final = frozenset("0123456789abcdef")


@dataclass(frozen=True, slots=True)
class Resolution:
    """What became of an effect, who says so and how they know; `value` is what the other side answered."""

    outcome: Literal["succeeded", "not_executed", "failed"]
    by: str
    why: str
    value: object = None
    text: str | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be written down, naming the field."""
        checked_text("by", self.by)
        checked_text("why", self.why)
        if self.outcome == "failed":
            checked_text("failed", self.text)

    @classmethod
    def of(
        cls, *, succeeded: object = MISSING, not_executed: bool = False, failed: str | None = None, by: str, why: str
    ) -> Resolution:
        """Read the verdict from the three ways to say one."""
        if sum((succeeded is not MISSING, not_executed, failed is not None)) != 1:
            raise ValueError("accepted is exactly one of succeeded=VALUE, not_executed=True and failed=TEXT")
        if failed is not None:
            return cls("failed", by, why, text=failed)
        return cls("not_executed", by, why) if not_executed else cls("succeeded", by, why, value=succeeded)


def find_key(connection: Connection, key: str) -> bytes:
    """Find the effect that is meant: by its whole key, or by a beginning that only one has.

    Raises:
        UnknownEffect: none has it.
        RunPruned: its run was pruned, with what the effect came to.
        ValueError: it is no key, too short, or several have it.
    """
    digits = key.strip().removesuffix("…").lower()
    if not set(digits) <= _DIGITS or not SHORTEST <= len(digits) <= 64:
        raise ValueError(f"{key!r} is no effect's key. Accepted: {SHORTEST} to 64 hexadecimal digits of its beginning")
    found = find_effects(connection, digits, limit=3)
    if not found:
        raise tombstones.of_effect(connection, digits) or UnknownEffect(key=key)
    if len(found) > 1:
        listed = ", ".join(one.hex()[: len(digits) + 8] for one in found)
        raise ValueError(f"{key} is the beginning of several keys ({listed}, ...): give more of it")
    return found[0]


def resolve(
    ask: Asker, key: str, resolution: Resolution, *, version: int | None = None, seal: Seal, limit: int
) -> Document:
    """Settle an effect, and give it as it stands then.

    Raises:
        UnknownEffect: there is none with this key.
        BadArguments: the result does not fit what the effect returns.
        Refused: it is settled, under way, newer than `version`, or something speaks against it; the text says what.
    """
    repeated = False

    def put(connection: Connection) -> tuple[people.Resolved, Document]:
        nonlocal repeated
        found = find_key(connection, key)
        before = read_effect(connection, found)
        if before is None:
            raise UnknownEffect(key=key)
        if repeated and _is_ours(before, resolution):  # P3: the answer to this very call was lost
            told = people.Resolved("resolved", before["status"], before["version"], UUID(before["run_id"]), None)
            return told, before
        repeated = True
        verdict = _verdict(before, resolution, seal=seal, limit=limit)
        told = people.resolve(connection, found, verdict, version=version)
        return told, read_effect(connection, found) or before

    told, after = ask(put)
    if told.answer != "resolved":
        raise Refused(run_id=after["run_id"], verb=_verb(after), text=_refusal(told, after, version=version))
    return after


def _verb(effect: Document) -> str:
    return f"resolving {effect['idempotency_key'][:16]} ({effect['key']})"


def _is_ours(effect: Document, resolution: Resolution) -> bool:
    last = effect["history"][-1] if effect["history"] else {}
    return last.get("actor") == f"person:{resolution.by}" and last.get("why") == resolution.why


def _verdict(effect: Document, resolution: Resolution, *, seal: Seal, limit: int) -> Verdict:
    by = f"person:{resolution.by}"
    match resolution.outcome:
        case "failed":
            error = {"type": "Rejected", "message": resolution.text}
            return Verdict("failed", by, resolution.why, error=error)
        case "not_executed":
            return Verdict("not_executed", by, resolution.why)
        case _:
            encoded = _result(effect, resolution.value)
            if len(encoded.data) > limit:
                raise ValueTooLarge(path="result", size=len(encoded.data), limit=limit)
            return Verdict("succeeded", by, resolution.why, result=seal.close(encoded, effect["tenant"]))


def _result(effect: Document, value: object) -> Encoded:
    """Encode what the other side answered: JSON values by the effect's declared type, or the very value."""
    step = registry.steps.get(effect["name"])
    if step is None or effect["compensates"] is not None:
        return Codec[object](Any, root="result").encode(value)  # checked by the worker that commits it
    try:
        plain = Codec[object](Any, root="result").encode(value)
    except ValueNotEncodable:
        plain = None
    try:
        return step.encode_result(value if plain is None else step.result.decode(plain.data))
    except (ValueNotEncodable, ValueNotDecodable) as error:
        text = str(error).removesuffix(".").replace("the stored value does not fit the declared type: ", "")
        raise BadArguments(name=f"what {effect['name']} returns", text=text) from error


def _refusal(told: people.Resolved, effect: Document, *, version: int | None) -> str:
    """Say what stands, and since when and by whom."""
    last = effect["history"][-1] if effect["history"] else None
    stands = f"it is {effect['status']}"
    if last is not None:
        why = f": {last['why']}" if last["why"] else ""
        stands += f" since {last['at']} by {last['actor']}{why}"
    match told.answer:
        case "stale":
            own = f"the verdict is on version {version}, and it is at version {effect['version']}: look at it again"
        case "settled":
            own = "it has been settled"
        case "executing":
            own = f"{effect['sent_by'] or 'a node'} is executing it: nothing is unknown yet"
        case "pending":
            own = "it has not been sent: nothing is to be settled"
        case "early":
            own = f"a request may be on its way until {told.text}: look at the other side after that, and say it then"
        case "evidence":
            own = f"something speaks against it ({told.text})"
        case other:
            own = other
    return f"{own}; {stands}"

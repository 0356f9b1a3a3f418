"""What people decide: approvals of flows and of effects, and what became of an effect that nobody knows.

Each is one guarded call under the run's lock; a refusal comes back as an answer with the words for the person.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import orjson
from psycopg.types.json import Jsonb

from .codec import JSON, Encoded
from .connect import Connection
from .key import Key

__all__ = ["Decided", "Question", "Resolved", "Verdict", "asked", "decide", "decision_document", "resolve"]


@dataclass(frozen=True, slots=True)
class Question:
    """Something that waits for a person's decision, with what they are shown; `digest` is the hex one of that."""

    key: str
    name: str
    kind: str
    digest: str
    shown: bytes | None
    encoding: str | None

    @property
    def is_effect(self) -> bool:
        """Whether it is about an effect's frozen request, which nobody edits."""
        return self.kind != "approval"

    @property
    def seen(self) -> str:
        """What `decide_v1` compares with what it finds under the lock."""
        return f"{self.key} {self.digest}"

    def answers_to(self, name: str, *, digest: str | None) -> bool:
        """Whether a person may mean this by a name or a step key, and the beginning of a digest."""
        # A key within the run's own generation needs no generation.
        names = (self.name, self.key, str(Key.from_wire(self.key)))
        return name in names and (digest is None or self.digest.startswith(digest))


@dataclass(frozen=True, slots=True)
class Decided:
    """What came of a decision: `decided`, or why not, with the words for it; and the question's key."""

    answer: str
    key: str | None
    text: str | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a person or a webhook says became of an effect: `succeeded`, `failed` or `not_executed`."""

    outcome: str
    by: str
    why: str
    result: Encoded | None = None
    error: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Resolved:
    """What came of a verdict: `resolved`, or why not; and where the effect stands."""

    answer: str
    status: str | None
    version: int | None
    run_id: UUID | None
    text: str | None


# By steps_open; the effect of a step by its key.
_ASKED: Final = (
    "SELECT safepoint.wire_v1(s), s.name, s.kind, safepoint.shown_v1(s), coalesce(e.request, s.input),"
    " coalesce(e.request_encoding, s.input_encoding)"
    " FROM safepoint.steps s JOIN safepoint.runs r USING (run_id)"
    " LEFT JOIN safepoint.effects e ON e.idempotency_key = s.effect_key"
    " WHERE s.run_id = %s AND s.status = 'waiting' AND s.kind IN ('approval', 'effect')"
    " AND s.generation = r.generation ORDER BY s.created_at, s.path, s.step_id, s.iteration"
)
_DECIDE: Final = "SELECT * FROM safepoint.decide_v1(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"
_RESOLVE: Final = "SELECT * FROM safepoint.resolve_effect_v1(%s, %s, %s, %s, %s, %s, %s, %s)"


def asked(connection: Connection, run_id: UUID) -> list[Question]:
    """Read what waits for a decision in a run, in the order in which it was asked."""
    return [Question(*row) for row in connection.execute(_ASKED, (run_id,)).fetchall()]


def decision_document(
    outcome: str,
    *,
    by: str | None = None,
    note: str | None = None,
    value: bytes | None = None,
    shown: str | None = None,
) -> Encoded:
    """Write a decision as the flow reads it; its digest covers what was shown, and the payload as it was edited.

    Args:
        outcome: `approved`, `denied` or `expired`.
        by: who decided.
        note: what they said.
        value: the edited payload, as JSON.
        shown: the digest of what was shown.
    """
    whole = {"outcome": outcome, "by": by, "note": note, "value": orjson.Fragment(value or b"null"), "shown": shown}
    return Encoded.of(orjson.dumps(whole), encoding=JSON)


def decide(  # noqa: PLR0913  # one decision's parts, each by name
    connection: Connection,
    run_id: UUID,
    name: str,
    *,
    approved: bool,
    by: str,
    note: str | None,
    document: Encoded | None,
    edited: bool,
    digest: str | None,
    seen: Question | None,
    id_: UUID,
) -> Decided:  # fmt: skip
    """Decide what a run asks under a name or a step key, exactly as it was seen.

    Args:
        connection: any connection; the decision is part of its transaction.
        run_id: the run.
        name: the approval's name, the effect's, or a step key.
        approved: whether it may go on.
        by: who decides.
        note: what they say about it.
        document: the decision as the flow reads it, sealed or not.
        edited: whether it carries an edited payload.
        digest: the beginning of the digest that the person names.
        seen: what was read before; a decision on anything else is refused.
        id_: the same for a repeat after a lost answer (P3).
    """
    told = document or Encoded(b"", JSON, b"")
    data, encoding = (told.data, told.encoding) if document else (None, None)
    values = (run_id, name, approved, by, note, data, encoding, told.digest.hex(), edited, digest,
              seen and seen.seen, id_)  # fmt: skip
    row = connection.execute(_DECIDE, values).fetchone()
    assert row is not None  # the function answers always
    return Decided(*row)


def resolve(connection: Connection, key: bytes, verdict: Verdict, *, version: int | None = None) -> Resolved:
    """Settle an effect that nobody knows (P34).

    Args:
        connection: any connection; the verdict is part of its transaction.
        key: the effect's idempotency key.
        verdict: what became of it.
        version: the effect's version that the verdict is about; None takes the one that stands.
    """
    found = verdict.result
    values = (
        key, version, verdict.outcome, found and found.data, found and found.encoding,
        None if verdict.error is None else Jsonb(verdict.error), verdict.by, verdict.why,
    )  # fmt: skip
    row = connection.execute(_RESOLVE, values).fetchone()
    assert row is not None  # as above
    return Resolved(*row)

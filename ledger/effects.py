"""The side-effect ledger: what a claimer knows of its effect, and the verbs that move one (P32 to P34).

Each verb is one call of a versioned SQL function, which locks the run first, then looks, then writes (P1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, Literal
from uuid import UUID

import orjson
from psycopg.types.json import Jsonb

from .connect import Connection
from .key import Key

__all__ = ["Begun", "Effect", "begin", "evidence", "unfit", "unsettle"]


@dataclass(frozen=True, slots=True)
class Effect:
    """An effect as its claim found it; ages and times left are seconds by the ledger's clock."""

    key: str
    reference: str
    status: str
    version: int
    attempts: int
    lookups: int
    digest: bytes
    decision: dict[str, Any] | None
    error: dict[str, Any] | None
    compensates: str | None
    unknown_for: float
    first_sent_ago: float | None
    may_send_for: float
    is_done: bool
    data: bytes | None = None
    encoding: str | None = None

    @classmethod
    def of(cls, facts: dict[str, Any], data: bytes | None, encoding: str | None) -> Effect:
        """Read what `effect_facts_v1` says."""
        return cls(
            facts["key"],
            facts["reference"],
            facts["status"],
            facts["version"],
            facts["attempts"],
            facts["lookups"],
            bytes.fromhex(facts["digest"]),
            facts["decision"],
            facts["error"],
            facts["compensates"],
            float(facts["unknown_for"] or 0.0),
            None if facts["first_sent_ago"] is None else float(facts["first_sent_ago"]),
            float(facts["may_send_for"] or 0.0),
            facts["is_done"],
            data,
            encoding,
        )


@dataclass(frozen=True, slots=True)
class Begun:
    """Whether an effect may be sent now.

    `begun`: it is `executing`, durably. Else nothing may leave: `lost` (the claim fell), `changed` (not the frozen
    request), `unapproved`, `settled`, `evidence` (it is known to have succeeded), `early` (a "not executed" counts only
    in `wait` seconds), `held`, `stopping`, `expired` (the other side may have forgotten the key).
    """

    answer: str
    wait: float = 0.0
    attempt: int = 0


def begin(  # noqa: PLR0913  # one statement's parts, each by name
    connection: Connection,
    run_id: UUID,
    key: Key,
    *,
    token: UUID,
    digest: bytes,
    how: Literal["send", "again"],
    timeout: float,
    authoritative_after: float,
    key_retention: float | None,
    asked_at: datetime,
) -> Begun:
    """Make an effect `executing` before anything leaves; repeated with the same token it answers the same (P3).

    Args:
        connection: an autocommit connection.
        run_id: the run.
        key: the step.
        token: the claim's token.
        digest: of the request as it would be sent; another than the frozen one is refused.
        how: `send` for the first time or after "not executed"; `again` under the same key, though it may be done.
        timeout: seconds after which the claim is lost.
        authoritative_after: seconds after the old executor's last chance to send until "not executed" counts (P33).
        key_retention: seconds that the other side remembers a key; None for ever.
        asked_at: an instant of the ledger's clock before the lookup began that said "not executed".
    """
    row = connection.execute(
        "SELECT * FROM safepoint.begin_effect_v1(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)",
        (
            *(run_id, key.generation, key.path, key.step_id, key.iteration, token, digest, how, timeout),
            *(authoritative_after, key_retention, asked_at),
        ),
    ).fetchone()
    return Begun("lost") if row is None else Begun(row[0], float(row[1] or 0.0), row[2] or 0)


def unsettle(  # noqa: PLR0913  # as above
    connection: Connection,
    run_id: UUID,
    key: Key,
    *,
    token: UUID,
    node: str,
    error: dict[str, Any] | None = None,
    answer: dict[str, Any] | None = None,
    delay: float = 0.0,
    counts: bool = False,
    hold: str | None = None,
    tokens: int = 0,
    usd: Decimal = Decimal(0),
    notes: Sequence[dict[str, Any]] = (),
) -> str:
    """End a claim that leaves the effect unknown: asked or sent again in `delay` seconds, or held for the reason given.

    Returns `unsettled`, `held`, `already` (an earlier answer was lost) or `lost`.
    """
    row = connection.execute(
        "SELECT safepoint.unsettle_effect_v1(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)",
        (
            *(run_id, key.generation, key.path, key.step_id, key.iteration, token, _json(error), _json(answer), delay),
            *(counts, hold, tokens, usd, _json(list(notes) or None), node),
        ),
    ).fetchone()
    return "lost" if row is None else str(row[0])


def unfit(connection: Connection, run_id: UUID, key: Key, *, token: UUID, node: str, error: dict[str, Any]) -> str:
    """End a claim whose effect was settled with a result that does not fit: it is unknown again, and held.

    Returns `held`, `already` (an earlier answer was lost) or `lost`.
    """
    row = connection.execute(
        "SELECT safepoint.unfit_effect_v1(%s, %s, %s, %s, %s, %s, %s, %s)",
        (run_id, key.generation, key.path, key.step_id, key.iteration, token, _json(error), node),
    ).fetchone()
    return "lost" if row is None else str(row[0])


def evidence(  # noqa: PLR0913  # as above
    connection: Connection,
    run_id: UUID,
    *,
    key: str,
    node: str,
    epoch: int,
    data: bytes,
    encoding: str,
    external_id: str | None,
) -> str:
    """Say that a call succeeded whose executor has lost its lease (P34).

    Returns `settled` (it was unknown), `noted` (kept as evidence), `already` or `unknown`.
    """
    row = connection.execute(
        "SELECT safepoint.evidence_effect_v1(%s, %s, %s, %s, %s, %s, %s)",
        (run_id, bytes.fromhex(key), node, epoch, data, encoding, external_id),
    ).fetchone()
    return "unknown" if row is None else str(row[0])


def _json(value: object) -> Jsonb | None:
    return None if value is None else Jsonb(value, dumps=orjson.dumps)

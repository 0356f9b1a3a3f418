"""Claims of steps, and how a claim ends without a commit: released by its owner, or lost.

Each verb is one call of a versioned SQL function, which locks the run first, then looks, then writes (P1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any
from uuid import UUID

import orjson
from psycopg.types.json import Jsonb

from .connect import Connection, forget, repeat
from .effects import Effect
from .key import Key

__all__ = [
    "Cause",
    "Claimed",
    "Claimer",
    "Loss",
    "NotYours",
    "Outcome",
    "Record",
    "Settled",
    "claim",
    "claimed_of",
    "lose",
    "release",
]


class Cause(StrEnum):
    """Why an executor is believed to be gone; each is confirmed again under the locks."""

    LEASE = "lease"  # its node's lease is over
    NODE = "node"  # its node's session lock is gone, twice
    TIMEOUT = "timeout"  # the step ran past its own timeout
    UNNAMED = "unnamed"  # two beats of its node did not name the claim
    CHILD = "child"  # the node reports the death of the child that held it
    RELEASED = "released"  # the node drains and the child has been ended


@dataclass(frozen=True, slots=True)
class Claimer:
    """Who claims: the node, and the process with its start time, so that a reused pid is nobody's (P25)."""

    node: str
    pid: int
    pid_start: int


@dataclass(frozen=True, slots=True)
class Settled:
    """A published row, to be settled by the next statement that is made anyway; `due` is the ticket that names the
    row (P17).
    """

    run_id: UUID
    key: Key
    due: datetime | str
    after: float

    def facts(self) -> dict[str, Any]:
        """Return the row as `settle_v1` reads it."""
        return {
            "run": str(self.run_id),
            "generation": self.key.generation,
            "path": self.key.path,
            "step": self.key.step_id,
            "iteration": self.key.iteration,
            "due": self.due if isinstance(self.due, str) else self.due.isoformat(),
            "after": self.after,
        }


@dataclass(frozen=True, slots=True)
class Record:
    """One committed outcome of a run's history, in commit order."""

    seq: int
    key: Key
    kind: str
    status: str
    input_hash: bytes | None
    data: bytes | None
    encoding: str | None
    error: dict[str, Any] | None
    at: datetime
    tokens: int = 0
    usd: Decimal = Decimal(0)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What decided a wait: its status, who sent it, the payload or the error; `covers` is the digest of a decision."""

    status: str
    error: dict[str, Any] | None
    sender: str | None
    data: bytes | None
    encoding: str | None
    covers: str | None = None


@dataclass(frozen=True, slots=True)
class Claimed:
    """The right to execute a step: its epoch, what the step needs, and the history that the claimer has not seen."""

    run_id: UUID
    key: Key
    token: UUID
    kind: str
    epoch: int
    attempt: int
    recoveries: int
    input: bytes | None
    input_encoding: str | None
    input_hash: bytes | None
    pending_error: dict[str, Any] | None
    outcome: Outcome | None
    first_claimed_at: datetime
    dispatched_at: datetime | None
    db_now: datetime
    state_version: int
    era: str
    seen: int
    run: dict[str, Any]
    run_input: bytes | None
    run_input_encoding: str | None
    history: tuple[Record, ...]
    effect: Effect | None = None
    tokens_so_far: int = 0


@dataclass(frozen=True, slots=True)
class NotYours:
    """A refused claim, with its reason: `stale: …` is dropped, the others are asked for again by the ledger itself
    (P14).
    """

    reason: str


MANY = 32  # records, of at most `artifact_threshold` bytes each: more of them are not kept in memory
_CLAIM = "SELECT * FROM safepoint.claim_v1(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"


def claim(  # noqa: PLR0913  # one claim's parts, each by name
    connection: Connection,
    run_id: UUID,
    key: Key,
    *,
    lane: str,
    claimer: Claimer,
    token: UUID,
    timeout: float,
    seen: int = -1,
    era: str = "",
    settle: Sequence[Settled] = (),
) -> Claimed | NotYours:
    """Claim a step for `timeout` seconds; repeated with the same token after a lost answer, it answers the same (P4).

    Args:
        connection: an autocommit connection.
        run_id: the run.
        key: the step.
        lane: the queue from which the message came (P9).
        claimer: the node and process that will execute.
        token: made by the caller before it sends; the fence of everything that follows.
        timeout: seconds after which the claim is lost even while its process lives.
        seen: the last history number this process has of the run, -1 for nothing.
        era: the era that number belongs to (`Claimed.era`).
        settle: rows published before, settled in the same round trip.
    """
    row = repeat(
        connection,
        _CLAIM,
        (
            *(run_id, key.generation, key.path, key.step_id, key.iteration, lane, claimer.node, token, claimer.pid),
            *(claimer.pid_start, timeout, seen, era, _settle(settle)),
        ),
    )
    if row is None or row[0] != "claimed":
        return NotYours(reason="stale: no answer" if row is None else row[1])
    claimed = claimed_of(run_id, key, token, row)
    if len(claimed.history) > MANY:
        forget(connection, _CLAIM)
    return claimed


def claimed_of(run_id: UUID, key: Key, token: UUID, row: tuple[Any, ...]) -> Claimed:
    """Return the claim that a row of `claim_v1` tells of."""
    (
        _,
        _,
        kind,
        epoch,
        attempt,
        recoveries,
        tokens,
        data,
        encoding,
        digest,
        pending,
        outcome,
        o_data,
        o_encoding,
        *rest,
    ) = row
    first, dispatched, db_now, version, generation, era, seen, run, run_input, run_encoding, *rest = rest
    effect, e_data, e_encoding, *history = rest
    return Claimed(
        run_id=run_id,
        key=key,
        token=token,
        kind=kind,
        epoch=epoch,
        attempt=attempt,
        recoveries=recoveries,
        input=data,
        input_encoding=encoding,
        input_hash=digest,
        pending_error=pending,
        outcome=None
        if outcome is None
        else Outcome(
            outcome.get("status", "succeeded"),
            outcome.get("error"),
            outcome.get("sender"),
            o_data,
            o_encoding,
            outcome.get("covers"),
        ),
        first_claimed_at=first,
        dispatched_at=dispatched,
        db_now=db_now,
        state_version=version,
        era=era,
        seen=seen,
        run=run,
        run_input=run_input,
        run_input_encoding=run_encoding,
        history=_records(generation, *history),
        effect=None if effect is None else Effect.of(effect, e_data, e_encoding),
        tokens_so_far=tokens,
    )


def _records(generation: int, seqs: list[int] | None, *columns: Any) -> tuple[Record, ...]:
    if seqs is None:
        return ()
    return tuple(
        Record(
            seq, Key(generation, path, step, iteration), kind, status, digest, data, encoding, error, at, tokens, usd
        )
        for seq, path, step, iteration, kind, status, digest, data, encoding, error, at, tokens, usd in zip(
            seqs, *columns, strict=True
        )
    )


def _settle(rows: Sequence[Settled]) -> Jsonb | None:
    return Jsonb([row.facts() for row in rows], dumps=orjson.dumps) if rows else None


def release(  # noqa: PLR0913  # as above
    connection: Connection,
    run_id: UUID,
    key: Key,
    *,
    token: UUID,
    why: str,
    hold: dict[str, Any] | None = None,
    delay: float = 0.0,
    tokens: int = 0,
    usd: Decimal = Decimal(0),
) -> bool:
    """Give a claim back without an outcome, holding the run when `hold` says why; what it has spent is wasted. False
    when the claim was no longer ours.
    """
    row = connection.execute(
        "SELECT safepoint.release_v1(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)",
        (
            run_id,
            key.generation,
            key.path,
            key.step_id,
            key.iteration,
            token,
            why,
            None if hold is None else Jsonb(hold),
            delay,
            tokens,
            usd,
        ),
    ).fetchone()
    return row is not None and row[0] == "released"


@dataclass(frozen=True, slots=True)
class Loss:
    """A claim that is believed lost: which, why, and whether the step may have killed its process (P23)."""

    run_id: UUID
    key: Key
    token: UUID
    cause: Cause
    deadly: bool = False
    pid: int | None = None
    pid_start: int | None = None
    evidence: dict[str, Any] | None = None


def lose(connection: Connection, loss: Loss, *, lane: str, max_deaths: int) -> str:
    """Take a step from its owner if the cause still holds under the locks.

    Returns `lost` (it is ready on `lane`), `poison` (held), `alive` (the cause does not hold) or `moved`
    (another state or owner).
    """
    key = loss.key
    row = connection.execute(
        "SELECT safepoint.lose_v1(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)",
        (
            *(
                loss.run_id,
                key.generation,
                key.path,
                key.step_id,
                key.iteration,
                loss.token,
                loss.cause.value,
                loss.deadly,
            ),
            *(max_deaths, lane, loss.pid, loss.pid_start, None if loss.evidence is None else Jsonb(loss.evidence)),
        ),
    ).fetchone()
    return "moved" if row is None else str(row[0])

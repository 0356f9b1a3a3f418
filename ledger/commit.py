"""Ends a step: the one transaction of result, snapshot, next steps, events and outbox (G5), or the retry that the
policy asks for.

Any exception from here means *outcome unknown* (P3): the caller sends the identical call again until the ledger
answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import orjson
from psycopg.types.json import Jsonb

from .connect import Connection, forget, repeat
from .key import Key
from .steps import MANY, Claimed, Claimer, NotYours, Settled, claimed_of

__all__ = ["Answer", "Ending", "GoOn", "Next", "Result", "commit", "retry"]


@dataclass(frozen=True, slots=True)
class Result:
    """What a step came to: `succeeded` with encoded data, or `failed` with an error; `at` is the instant the flow's
    clock will show.
    """

    status: str
    at: datetime
    data: bytes | None = None
    encoding: str | None = None
    digest: bytes | None = None
    error: dict[str, Any] | None = None
    tokens: int = 0
    usd: Decimal = Decimal(0)


@dataclass(frozen=True, slots=True)
class Ending:
    """How the flow ended: `succeeded`, `failed`, `cancelled`, or `continued` with the input of the next generation."""

    status: str
    data: bytes | None = None
    encoding: str | None = None
    digest: bytes | None = None
    error: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Next:
    """A row that the commit inserted, as it stands now."""

    key: Key
    kind: str
    name: str
    lane: str
    status: str
    due: str | None
    attempt: int
    epoch: int
    queued: bool = False  # the relay admits it; nobody else publishes it


@dataclass(frozen=True, slots=True)
class GoOn:
    """The claim of the step that follows, asked for in the commit (P31): the fields of `steps.claim`, and the age of
    the Celery task in seconds, by which the lane judges whether it may go on.
    """

    key: Key
    lane: str
    claimer: Claimer
    token: UUID
    timeout: float
    era: str
    age: float

    def facts(self) -> dict[str, Any]:
        """Return it as `go_on_v1` reads it."""
        return {
            "path": self.key.path, "step": self.key.step_id, "iteration": self.key.iteration, "lane": self.lane,
            "token": str(self.token), "pid": self.claimer.pid, "pid_start": self.claimer.pid_start,
            "timeout": self.timeout, "era": self.era, "age": self.age,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Answer:
    """What the ledger says: `committed`, `already` (an earlier answer was lost), `stale` (advance again), `lost`
    (the fence has fallen).
    """

    verdict: str
    state_version: int = 0
    late: bool = False
    run_status: str = ""
    rows: tuple[Next, ...] = field(default=())
    claimed: Claimed | NotYours | None = None  # what became of `GoOn`


_COMMIT = (
    "SELECT * FROM safepoint.commit_v1(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s,"
    " %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"
)
_GO_ON = _COMMIT.replace("commit_v1(", "go_on_v1(%s, ")


def commit(  # noqa: PLR0913  # one transaction's parts, each by name
    connection: Connection,
    run_id: UUID,
    key: Key,
    *,
    token: UUID,
    node: str,
    result: Result,
    advanced_from: int | None,
    joins: str | None = None,
    asked: Sequence[dict[str, Any]] = (),
    ending: Ending | None = None,
    hold: dict[str, Any] | None = None,
    notes: Sequence[dict[str, Any]] = (),
    artifacts: Sequence[dict[str, Any]] = (),
    grace: float = 1.0,
    settle: Sequence[Settled] = (),
    effect: dict[str, Any] | None = None,
    go_on: GoOn | None = None,
) -> Answer:
    """Store a step's outcome and what follows from it, and claim the step that follows if that is asked for.

    Args:
        connection: an autocommit connection.
        run_id: the run.
        key: the step.
        token: the claim's token.
        node: who commits.
        result: the outcome.
        advanced_from: the state version the flow was advanced from; None when it was not advanced.
        joins: the gather of which another member is believed open, so that nothing was advanced.
        asked: what the flow waits for next, as `insert_steps_v1` reads it.
        ending: how the flow ended, if it did.
        hold: why the run stops here for a person: code, text, next.
        notes: events of the flow's and the step's own.
        artifacts: what the results refer to.
        grace: seconds that the committer has to publish the new rows itself (P17).
        settle: rows published before.
        effect: what is known of it besides: why, external_id, the lookup's answer.
        go_on: the claim of the step that follows (P31).
    """
    row = repeat(
        connection,
        _COMMIT if go_on is None else _GO_ON,
        (
            *(run_id, key.generation, key.path, key.step_id, key.iteration, token, advanced_from, joins),
            *(result.status, result.data, result.encoding),
            *(result.digest, _json(result.error), result.at, result.tokens, result.usd, _json(list(asked) or None)),
            *_ending(ending),
            *(_json(hold), _json(list(notes) or None), _json(list(artifacts) or None), grace, node),
            _json([row.facts() for row in settle] or None),
            _json(effect),
            *(() if go_on is None else (_json(go_on.facts()),)),
        ),
    )
    if row is None:
        return Answer("lost")
    return _answer(row[:5], key) if go_on is None else _both(connection, row, run_id, key, go_on)


def _both(connection: Connection, row: tuple[Any, ...], run_id: UUID, key: Key, go_on: GoOn) -> Answer:
    committed, *claim = row
    facts = (committed[name] for name in ("answer", "state_version", "late", "rows", "status"))
    claimed = claimed_of(run_id, go_on.key, go_on.token, tuple(claim)) if claim[0] == "claimed" else NotYours(claim[1])
    if isinstance(claimed, Claimed) and len(claimed.history) > MANY:
        forget(connection, _GO_ON)
    return _answer(tuple(facts), key, claimed)


def _answer(row: tuple[Any, ...], key: Key, claimed: Claimed | NotYours | None = None) -> Answer:
    verdict, version, late, rows, status = row
    following = tuple(_next(item, key.generation) for item in rows or ())
    return Answer(verdict, version or 0, bool(late), status or "", following, claimed)


def _ending(ending: Ending | None) -> tuple[Any, ...]:
    if ending is None:
        return (None, None, None)
    facts = {"status": ending.status, "error": ending.error, "hash": ending.digest.hex() if ending.digest else None}
    return (_json(facts), ending.data, ending.encoding)


def _next(item: dict[str, Any], generation: int) -> Next:
    key = Key(item.get("generation", generation), item["path"], item["step"], item["iteration"])
    return Next(
        key, item["kind"], item["name"], item["lane"], item["status"], item["due"], item["attempt"], item["epoch"],
        queued=item.get("queued", False),
    )  # fmt: skip


def _json(value: object) -> Jsonb | None:
    return None if value is None else Jsonb(value, dumps=orjson.dumps)


def retry(  # noqa: PLR0913  # as above
    connection: Connection,
    run_id: UUID,
    key: Key,
    *,
    token: UUID,
    node: str,
    error: dict[str, Any],
    delay: float,
    tokens: int = 0,
    usd: Decimal = Decimal(0),
    notes: Sequence[dict[str, Any]] = (),
    counts: bool = True,
    hold: dict[str, Any] | None = None,
) -> Answer:
    """End an attempt that the policy repeats after `delay` seconds; the delay is a row, the spending is kept apart
    as wasted. Of an effect: one that was certainly not sent. `counts` says whether the attempt counts for the policy.
    Where the run's budget of retries is used up the run is held with `hold`; without one it answers `budget`, and
    nothing is written.
    """
    row = connection.execute(
        "SELECT * FROM safepoint.retry_v1(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)",
        (
            *(run_id, key.generation, key.path, key.step_id, key.iteration, token, _json(error), delay, tokens, usd),
            *(_json(list(notes) or None), node, counts, _json(hold)),
        ),
    ).fetchone()
    return Answer("lost" if row is None else row[0])

"""Accepting runs: the one SQL function behind every way to enqueue, its requests and its answers (P18).

The same statement runs on a connection of ours and on an app's own, whatever driver that has: both its parameters are
texts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, NamedTuple

import orjson

from .artifacts import named
from .codec import JSON, Encoded, input_hash
from .connect import Connection
from .diagnosis import Diagnosis
from .document import hashed
from .errors import IdempotencyConflict, SafepointError, UnknownFlow
from .seal import Seal

__all__ = [
    "STATEMENT", "Answer", "Request", "Verdict", "answers", "batches", "enqueue", "parameters", "place",
    "raised_refusal", "refusal",
]  # fmt: skip

# Lock order: idempotency keys in byte order, then new rows; nothing else is locked. Keys: their primary key.
STATEMENT: Final = (
    "SELECT n, CAST(run_id AS text), verdict, detail"
    " FROM safepoint.enqueue_v1(CAST({requests} AS json), CAST({ledger} AS text)) ORDER BY n"
)
_POSITIONAL: Final = STATEMENT.format(requests="%s", ledger="%s")

BATCH: Final = 1000  # requests a statement; more gain nothing
BATCH_BYTES: Final = 8 << 20

# A NUL, escaped: JSON may hold one, PostgreSQL's jsonb may not. An even number of backslashes before it is no escape.
_NUL: Final = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")


class Verdict(StrEnum):
    """What became of a request."""

    ACCEPTED = "accepted"  # a run stands: a new one, or the one that its key or its id was accepted for before
    CONFLICT = "conflict"  # its key belongs to a run with another input
    UNKNOWN = "unknown"  # no version was named, and no worker has served the flow yet
    BAD = "bad"  # `detail` begins with the field that is wrong
    TAKEN = "taken"  # its id is another run's
    ELSEWHERE = "elsewhere"  # the database holds another ledger than the caller means


_VERDICTS: Final = {verdict.value: verdict for verdict in Verdict}  # a call of the enumeration costs more


@dataclass(frozen=True, slots=True)
class Request:
    """A run to be: the caller makes its id, and may send the request again with it.

    `terms` are what `safepoint.enqueue` calls them: tenant, key, deadline or deadline_in, start_at or start_in, budget,
    priority, tags, conversation.
    """

    run_id: str
    flow: str
    input: Encoded
    version: str | None = None
    versions: Mapping[str, str] | None = None
    terms: Mapping[str, object] = field(default_factory=dict)
    hash: bytes | None = None  # None: the ledger makes it of the document
    artifacts: Sequence[str] = ()  # what a sealed input refers to: the ledger reads only open ones

    def sealed(self, seal: Seal) -> Request:
        """Return the request with its input closed, under the hash that the ledger would have made of it."""
        if not seal.is_configured:
            return self
        own = input_hash(self.input.data) if self._has_nul else hashed(self.input.data)
        closed = seal.close(self.input, str(self.terms["tenant"]))
        return replace(self, input=closed, hash=own, artifacts=named(self.input.data))

    @property
    def _has_nul(self) -> bool:
        return b"\\u0000" in self.input.data and _NUL.search(self.input.data) is not None

    def facts(self, n: int) -> dict[str, object]:
        """Return the request as `enqueue_v1` reads it."""
        facts: dict[str, object] = {"n": n, "run_id": self.run_id, "flow": self.flow, **self.terms}
        # What is not said is left out: the ledger parses the rest the sooner.
        if self.version is not None:
            facts["version"] = self.version
        if self.versions is not None:
            facts["versions"] = self.versions
        if self.artifacts:
            facts["artifacts"] = list(self.artifacts)
        if self.input.encoding == JSON and not self._has_nul:
            # No hash: the ledger makes it of the document, so that SQL and Python mean the same input.
            facts["input"] = orjson.Fragment(self.input.data)
            return facts
        raw = self.input.data
        own = self.hash or (input_hash(raw) if self.input.encoding == JSON else self.input.digest)
        return {**facts, "input_base64": _base64(raw), "encoding": self.input.encoding, "hash": own.hex()}


def _base64(data: bytes) -> str:
    from base64 import b64encode  # noqa: PLC0415  # for the rare input that cannot travel as JSON

    return b64encode(data).decode()


class Answer(NamedTuple):
    """What the ledger says to one request: the id of the run that stands, or why there is none."""

    n: int
    run_id: str | None
    verdict: Verdict
    detail: str | None


def parameters(requests: Sequence[Request], *, ledger: str | None = None) -> dict[str, str | None]:
    """Return the statement's two parameters; `ledger` is the place that the caller means, if it means one."""
    facts = [request.facts(n) for n, request in enumerate(requests)]
    return {"requests": orjson.dumps(facts).decode(), "ledger": ledger}


def place(connection: Connection) -> str:
    """Return which ledger a connection leads to, and on which server."""
    row = connection.execute("SELECT safepoint.place_v1()").fetchone()
    if row is None or row[0] is None:
        raise SafepointError("the ledger has no identity: its schema is not complete")
    return str(row[0])


def answers(rows: Iterable[Sequence[object]]) -> list[Answer]:
    """Read the statement's rows."""
    return [
        Answer(int(str(n)), None if run_id is None else str(run_id), _VERDICTS[str(verdict)], _text(detail))
        for n, run_id, verdict, detail in rows
    ]


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def enqueue(connection: Connection, requests: Sequence[Request]) -> list[Answer]:
    """Accept runs in one statement, and answer for each.

    A single request that is refused is an answer, and the transaction goes on; of several requests a refusal is raised.
    """
    return answers(connection.execute(_POSITIONAL, tuple(parameters(requests).values())).fetchall())


def refusal(answer: Answer) -> SafepointError | ValueError | None:
    """Return the error that an answer means, or None when there is a run."""
    match answer.verdict:
        case Verdict.CONFLICT:
            return IdempotencyConflict(key=answer.detail, run_id=answer.run_id)
        case Verdict.UNKNOWN:
            return UnknownFlow(name=answer.detail, known="none")
        case Verdict.BAD:
            return ValueError(answer.detail)
        case Verdict.TAKEN:
            return SafepointError(f"run_id {answer.run_id}: another run has this id")
        case _:
            return None


def raised_refusal(error: BaseException) -> SafepointError | ValueError | None:
    """Return the error that a refusal raised in SQL means, or None when it is something else."""
    found = Diagnosis.of(error)
    match found.state:
        case "SP001":
            return IdempotencyConflict(key=found.hint, run_id=found.detail)
        case "SP002":
            return ValueError(found.detail)
        case "SP003":
            return UnknownFlow(name=found.detail, known="none")
        case "SP004":
            return SafepointError(f"run_id {found.detail}: another run has this id")
        case _:
            return None


def batches(requests: Sequence[Request]) -> Iterator[Sequence[Request]]:
    """Split requests into statements of a good size, none of them a single request among many."""
    whole = len(requests)
    if whole == 1:
        yield requests
        return
    size = sum(len(request.input.data) for request in requests)
    count = max(-(-whole // BATCH), min(-(-size // BATCH_BYTES), whole // 2), 1)
    for n in range(count):
        yield requests[n * whole // count : (n + 1) * whole // count]

"""Performs a step: its context, its code, its value as the ledger stores it. No transaction is open while user code
runs.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal
from functools import partial
from typing import Any, BinaryIO, TypeVar

import orjson

from ..config.settings import Settings
from ..ledger import artifacts, once
from ..ledger.codec import Encoded
from ..ledger.commit import Ending
from ..ledger.errors import ArtifactStoreUnavailable, BudgetExceeded, ValueTooLarge
from ..ledger.seal import Seal
from ..ledger.steps import Claimed
from .artifact import Artifact, reading_from
from .attempt import EventLoop, Job, Raised, Returned, attempt
from .context import StepContext, running
from .decision import Decision
from .loan import Loan
from .purse import Purse
from .record import Load
from .signature import Arguments

__all__ = ["Performance", "Performed"]


T = TypeVar("T")
PAUSES = (
    0.2,
    0.5,
    1.0,
    2.0,
    4.0,
    8.0,
)  # seconds: an object store that is briefly away must not cost a finished model call


def _patiently(ask: Callable[[], T]) -> T:
    """Ask the artifact store, again while it does not answer, and at last with its error."""
    for pause in PAUSES:
        try:
            return ask()
        except ArtifactStoreUnavailable:
            time.sleep(pause * random.uniform(0.5, 1.0))
    return ask()


@dataclass(slots=True)
class Performed:
    """What one attempt came to, and what it has to be charged for."""

    came: Returned | Raised
    encoded: Encoded | None = None
    tokens: int = 0
    usd: Decimal = Decimal(0)
    parts_tokens: int = 0  # charged already, with the rows of `once`
    parts_usd: Decimal = Decimal(0)
    notes: list[dict[str, Any]] = field(default_factory=list)
    artifacts: list[dict[str, Any]] = field(default_factory=list)
    returned: bool = False  # it did return, and what it returned cannot be stored


class _StepLedger:
    """What a running step writes besides its result, each in a short transaction fenced by its claim (P38)."""

    def __init__(self, performance: Performance, claimed: Claimed) -> None:
        self._performance = performance
        self._claimed = claimed
        self.artifacts: list[dict[str, Any]] = []
        self.tokens = 0
        self.usd = Decimal(0)
        self._lock = threading.Lock()  # several parts may be written at a time

    def once_get(self, name: str, /) -> Encoded | None:
        """Give the row of that name, if there is one."""
        claimed = self._claimed
        return self._opened(
            self._performance.loan.ask(
                lambda connection: once.get(connection, claimed.run_id, claimed.key, name=name), starting=False
            )
        )

    def once_put(self, name: str, value: Encoded, /, *, tokens: int, usd: float) -> Encoded | None:
        """Write the row with what it has cost; None if it stands, else the row of whoever was first."""
        claimed = self._claimed
        sealed = self._performance.seal.close(value, claimed.run["tenant"])  # once: a repeat sends the same bytes
        cost = Decimal(str(usd))
        stands = self._performance.loan.ask(
            lambda connection: once.put(
                connection,
                claimed.run_id,
                claimed.key,
                token=claimed.token,
                name=name,
                value=sealed,
                tokens=tokens,
                usd=cost,
            ),
            starting=False,
        )
        if stands is None:
            with self._lock:
                self.tokens += tokens
                self.usd += cost
        return self._opened(stands)

    def _opened(self, found: Encoded | None) -> Encoded | None:
        if found is None:
            return None
        return Encoded.of(self._performance.seal.open(found.data, found.encoding, self._claimed.run["tenant"]))

    def artifact_put(self, stream: BinaryIO, /, *, name: str | None, media_type: str) -> Artifact:
        """Store the stream."""
        tenant = self._claimed.run["tenant"]
        sha256, size = self._performance.store.put(tenant, stream, media_type=media_type)
        self.artifacts.append({"sha256": sha256, "size": size, "media_type": media_type, "name": name})
        return Artifact(sha256, size, media_type, name)


class Performance:
    """What a process needs to perform steps: the artifact store, the event loop, the bounds of values."""

    def __init__(self, settings: Settings, loan: Loan) -> None:
        self.settings = settings
        self.loan = loan
        self.store = artifacts.Store(settings.artifacts_url)
        self.seal = Seal.load(settings.values.codec)
        self._loop = EventLoop()

    def loader(self, tenant: str) -> Load:
        """Return what reads values that are not in their row."""

        def load(data: bytes, encoding: str, /) -> bytes:
            return _patiently(
                lambda: artifacts.internalize(data, encoding, tenant=tenant, store=self.store, seal=self.seal)
            )

        return load

    def refusal(self, claimed: Claimed) -> BudgetExceeded | None:
        """Say why a step is not started: the run's budget is used up (G7)."""
        return Purse.of(claimed).lacks

    def expired(self) -> Encoded:
        """Return the decision that nobody has taken in time."""
        return Decision("expired", approved=False).encode()

    def plain(self, claimed: Claimed) -> bytes:
        """Return the JSON of what the claim's row holds as its input."""
        data, encoding = claimed.input or b"null", claimed.input_encoding or "json"
        return self.loader(claimed.run["tenant"])(data, encoding)

    def perform(
        self,
        job: Job,
        claimed: Claimed,
        *,
        arguments: Callable[[], Arguments],
        encode: Callable[[Any], Encoded | None],
    ) -> Performed:
        """Run the code once and encode what it returns; nothing is stored where `encode` gives None."""
        ledger = _StepLedger(self, claimed)
        context = self._context(claimed, ledger)
        source = _Source(self.store, context.tenant)
        came = self._call(job, arguments, partial(_Entered, context, source), source)
        done = Performed(
            came,
            tokens=context.spent_tokens,
            usd=Decimal(str(context.spent_usd)),
            parts_tokens=ledger.tokens,
            parts_usd=ledger.usd,
            artifacts=ledger.artifacts,
        )
        if isinstance(came, Returned):
            try:
                encoded = encode(came.value)
                if encoded is not None:
                    done.encoded = self._encode(encoded, tenant=context.tenant, refs=done.artifacts)
            # a value that cannot be stored: a failed attempt, with the path of what is wrong
            except Exception as error:  # noqa: BLE001
                done.came = Raised(error)
                done.returned = True
        done.notes = [{"type": "note", "key": str(claimed.key), "data": note} for note in context.notes]
        return done

    def _call(
        self,
        job: Job,
        arguments: Callable[[], Arguments],
        entered: Callable[[], AbstractContextManager[object]],
        source: _Source,
    ) -> Returned | Raised:
        try:
            with reading_from(source):
                args, kwargs = arguments()
        # arguments that no longer fit their types: a failed attempt that says so
        except Exception as error:  # noqa: BLE001
            return Raised(error)
        return attempt(job, args, kwargs, entered=entered, loop=self._loop)

    def _context(self, claimed: Claimed, ledger: _StepLedger) -> StepContext:
        run, key = claimed.run, claimed.key
        effect = claimed.effect
        return StepContext(
            str(claimed.run_id),
            run["tenant"],
            str(key),
            ledger=ledger,
            generation=key.generation,
            conversation=run["conversation"],
            tags=run["tags"],
            attempt=claimed.attempt,
            recoveries=claimed.recoveries,
            epoch=claimed.epoch,
            reference=effect.reference if effect else f"{claimed.run_id}/{key.generation}/{key}",
            effect_key=effect.key if effect else None,
            deadline=datetime.fromisoformat(run["deadline"]) if run["deadline"] else None,
            budget_before=Purse.of(claimed).left,
            versions=run["versions"],
        )

    def _encode(self, encoded: Encoded, *, tenant: str, refs: list[dict[str, Any]]) -> Encoded:
        limit = self.settings.values.max_size
        if len(encoded.data) > limit:
            raise ValueTooLarge(path="result", size=len(encoded.data), limit=limit)
        threshold = self.settings.values.artifact_threshold
        sealed = self.seal.close(encoded, tenant)
        stored = _patiently(lambda: artifacts.externalize(sealed, tenant=tenant, store=self.store, threshold=threshold))
        if stored is not sealed:
            reference = orjson.loads(stored.data)
            refs.append({name: reference[name] for name in ("sha256", "size", "media_type")})
        return stored

    # the vocabulary's word
    def stored(self, ending: Ending | None, *, tenant: str, artifacts: list[dict[str, Any]]) -> Ending | None:
        """Return an ending whose value is where its size belongs."""
        if ending is None or ending.data is None or ending.encoding is None:
            return ending
        whole = Encoded.of(ending.data, encoding=ending.encoding)
        try:
            kept = self._encode(whole, tenant=tenant, refs=artifacts)
        except ValueTooLarge as error:
            return Ending("failed", error={"type": "ValueTooLarge", "message": str(error), "path": error.path})
        return ending if kept is whole else replace(ending, data=kept.data, encoding=kept.encoding)


class _Source:
    """Where a tenant's artifacts are read."""

    def __init__(self, store: artifacts.Store, tenant: str) -> None:
        self._store = store
        self._tenant = tenant

    def open(self, sha256: str, /) -> BinaryIO:
        """Open the bytes with that digest."""
        return self._store.open(self._tenant, sha256)


class _Entered:
    """What a step's code finds around it; written out because every step pays for it."""

    __slots__ = ("_reading", "_running")

    def __init__(self, context: StepContext, source: _Source) -> None:
        self._running, self._reading = running(context), reading_from(source)

    def __enter__(self) -> None:
        self._running.__enter__()
        self._reading.__enter__()

    def __exit__(self, *_: object) -> None:
        self._reading.__exit__()
        self._running.__exit__()

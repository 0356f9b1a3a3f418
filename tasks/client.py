"""An app's way in: enqueues runs, finds them, sends them signals; with the flow's code or by its name alone.

It needs the ledger only: the broker may be away, a relay publishes what was accepted.
"""

from __future__ import annotations

import atexit
import mimetypes
import threading
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, Unpack, overload
from uuid import UUID

from psycopg.types.json import Jsonb

from ..config.settings import Settings
from ..ledger import progress
from ..ledger.artifacts import TenantStore
from ..ledger.effect_views import list_effects
from ..ledger.enqueue import Request
from ..ledger.errors import UnknownRun
from ..ledger.states import EffectStatus
from .artifact import Artifact, reading_from
from .enqueue import EnqueueOptions, set_enqueuer
from .flow import Call, Flow
from .intake import Intake
from .link import Link
from .request import Arguments, Item, Options, options_of, refuse_in_flow, request, requests
from .resolution import MISSING, Resolution, resolve
from .run import Run

__all__ = ["Client", "Run", "close_default_client", "default_client"]

R = TypeVar("R")


class Client:
    """A ledger's client, to be kept and shared by all threads of a process; nothing is opened before it is needed."""

    def __init__(
        self, ledger_url: str | None = None, *, settings: Settings | None = None, connections: int = 10
    ) -> None:
        """Make a client.

        Args:
            ledger_url: the ledger; None takes the configured one, or the embedded stack where nothing is configured.
            settings: instead of this process's own.
            connections: how many it may hold at most.
        """
        self._link = Link(ledger_url, settings=settings, size=connections)
        self._intake = Intake(self._link)

    def __repr__(self) -> str:
        """Name the place, never the password."""
        return f"<Client of {self._link.place}>"

    def __enter__(self) -> Client:
        """Use it in a with block, which closes it."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def close(self) -> None:
        """Close its connections, and give back the embedded stack."""
        self._link.close()

    # --- enqueue ----------------------------------------------------------------------------------------------------

    @overload
    def enqueue(self, flow: Call[R], **options: Unpack[Options]) -> Run[R]: ...
    @overload
    def enqueue(
        self, flow: str, arguments: Arguments | None = None, *, version: str | None = None, **options: Unpack[Options]
    ) -> Run[Any]: ...
    def enqueue(
        self,
        flow: Call[Any] | str,
        arguments: Arguments | None = None,
        *,
        version: str | None = None,
        **options: Unpack[Options],
    ) -> Run[Any]:
        """Enqueue a run; a repeat after a lost answer makes no second one (P18).

        Args:
            flow: a call, or a flow's name; its code need not be here.
            arguments: by parameter; checked against the signature where the code is here.
            version: None takes the newest here, or else the one that workers serve.
            options: tenant, key, deadline, budget, priority, tags, conversation, start_at; connection, an app's own
                connection, in whose transaction the run is made.

        Raises:
            UnknownFlow: no code and no worker knows the flow.
            BadArguments: they do not fit its signature.
            IdempotencyConflict: the key was used with another input.
            WrongDatabase: the connection leads elsewhere.
            LedgerUnavailable: the ledger does not answer.
        """
        terms = options_of(options)
        made = self._request(flow, arguments, version, terms)
        return self._runs(self._intake.accept([made], terms.connection))[0]

    @overload
    async def aenqueue(self, flow: Call[R], **options: Unpack[Options]) -> Run[R]: ...
    @overload
    async def aenqueue(
        self, flow: str, arguments: Arguments | None = None, *, version: str | None = None, **options: Unpack[Options]
    ) -> Run[Any]: ...
    async def aenqueue(
        self,
        flow: Call[Any] | str,
        arguments: Arguments | None = None,
        *,
        version: str | None = None,
        **options: Unpack[Options],
    ) -> Run[Any]:
        """Do what `enqueue` does without blocking the event loop; `connection` may be an asynchronous one."""
        terms = options_of(options)
        made = self._request(flow, arguments, version, terms)
        return self._runs(await self._intake.aaccept([made], terms.connection))[0]

    def enqueue_many(
        self,
        items: Iterable[Item] | str | Flow[..., Any],
        arguments: Iterable[Arguments] | None = None,
        *,
        keys: Iterable[str | None] | None = None,
        version: str | None = None,
        **options: Unpack[Options],
    ) -> list[Run[Any]]:
        """Enqueue many runs in one transaction: all of them or none.

        Args:
            items: a flow, by name or itself, with `arguments` for each run; or calls and (name, arguments[, options]).
            arguments: one mapping for each run.
            keys: one for each run, or None.
            version: as in `enqueue`.
            options: as in `enqueue`, for all of them. With `connection`, a refusal ends the app's transaction.
        """
        made = self._requests(items, arguments, keys, version, options)
        return self._runs(self._intake.accept(made, options.get("connection")))

    async def aenqueue_many(
        self,
        items: Iterable[Item] | str | Flow[..., Any],
        arguments: Iterable[Arguments] | None = None,
        *,
        keys: Iterable[str | None] | None = None,
        version: str | None = None,
        **options: Unpack[Options],
    ) -> list[Run[Any]]:
        """Do what `enqueue_many` does without blocking the event loop."""
        made = self._requests(items, arguments, keys, version, options)
        return self._runs(await self._intake.aaccept(made, options.get("connection")))

    def enqueue_call(self, call: Call[R], options: EnqueueOptions) -> Run[R]:
        """Enqueue a call with options that are checked already: what `Call.enqueue` uses."""
        return self._runs(self._intake.accept([self._request(call, None, None, options)], options.connection))[0]

    async def aenqueue_call(self, call: Call[R], options: EnqueueOptions) -> Run[R]:
        """Do what `enqueue_call` does without blocking the event loop."""
        made = self._request(call, None, None, options)
        return self._runs(await self._intake.aaccept([made], options.connection))[0]

    def _request(
        self, flow: Call[Any] | str, arguments: Arguments | None, version: str | None, options: EnqueueOptions
    ) -> Request:
        refuse_in_flow()
        limit = self._link.settings.values.max_size
        return request(flow, arguments, version=version, terms=options.terms(), limit=limit)

    def _requests(
        self,
        items: Iterable[Item] | str | Flow[..., Any],
        arguments: Iterable[Arguments] | None,
        keys: Iterable[str | None] | None,
        version: str | None,
        options: Options,
    ) -> list[Request]:
        refuse_in_flow()
        limit = self._link.settings.values.max_size
        return requests(items, arguments, keys=keys, version=version, options=options, limit=limit)

    def _runs(self, run_ids: Iterable[str]) -> list[Run[Any]]:
        return [Run(run_id, link=self._link) for run_id in run_ids]

    # --- what there is ----------------------------------------------------------------------------------------------

    def run(self, run_id: str | UUID) -> Run[Any]:
        """Give a handle on a run; whether there is one shows when it is used."""
        try:
            return Run(UUID(str(run_id)), link=self._link)
        except ValueError:
            raise UnknownRun(run_id=str(run_id)) from None

    def runs(
        self,
        *,
        tags: Mapping[str, str] | None = None,
        status: str | Sequence[str] = (),
        flow: str | None = None,
        tenant: str | None = None,
        limit: int = 100,
    ) -> list[Run[Any]]:
        """Find runs that have all the tags, one of the statuses, the flow and the tenant; the newest first."""
        wanted = (status,) if isinstance(status, str) else status
        found = self._link.ask(partial(progress.find, tags=tags, status=wanted, flow=flow, tenant=tenant, limit=limit))
        return self._runs(found)

    def count(
        self, *, tags: Mapping[str, str] | None = None, flow: str | None = None, tenant: str | None = None
    ) -> dict[str, int]:
        """Count runs by status; a status without runs is not named."""
        return self._link.ask(partial(progress.count, tags=tags, flow=flow, tenant=tenant))

    def signal(
        self,
        run_id: str | UUID,
        name: str,
        value: object = None,
        *,
        sender: str | None = None,
        dedupe: str | None = None,
    ) -> str:
        """Send a message to a run: `Run.signal`."""
        return self.run(run_id).signal(name, value, sender=sender, dedupe=dedupe)

    def effects(
        self,
        *,
        status: str | Sequence[str] = (),
        tenant: str | None = None,
        run: str | UUID | None = None,
        limit: int = 100,
    ) -> list[dict[str, Any]]:
        """Find effects: unknown ones first, then what is under way or not sent, then the newest settled ones."""
        wanted = (status,) if isinstance(status, str) else tuple(status)
        unknown = [one for one in wanted if one not in tuple(EffectStatus)]
        if unknown:
            raise ValueError(f"status: {unknown[0]!r}. Accepted: {', '.join(EffectStatus)}")
        of_run = None if run is None else UUID(self.run(run).id)
        return self._link.ask(partial(list_effects, status=wanted, run=of_run, tenant=tenant, limit=limit))

    def resolve_effect(
        self,
        key: str,
        *,
        succeeded: object = MISSING,
        not_executed: bool = False,
        failed: str | None = None,
        by: str,
        why: str,
        version: int | None = None,
    ) -> dict[str, Any]:
        """Say what became of an effect that nobody knows, and give it as it stands then (P34).

        Args:
            key: its idempotency key, or enough of its beginning.
            succeeded: it was executed; what the other side answered, as JSON values or as what the effect returns.
            not_executed: it was not, and will not be: it may be sent.
            failed: the other side has refused it, with these words.
            by: who says so.
            why: how they know.
            version: only if the effect is still at this version.

        Raises:
            UnknownEffect: there is none with this key.
            BadArguments: the result does not fit what the effect returns.
            Refused: it is settled, under way, newer than `version`, or something speaks against it.
        """
        said = Resolution.of(succeeded=succeeded, not_executed=not_executed, failed=failed, by=by, why=why)
        limit = self._link.settings.values.max_size
        return resolve(self._link.ask, key, said, version=version, seal=self._link.seal, limit=limit)

    def artifact(
        self,
        data: bytes | str | Path,
        *,
        tenant: str = "default",
        name: str | None = None,
        media_type: str | None = None,
    ) -> Artifact:
        """Store bytes or a file before a run that takes it as an argument."""
        path = None if isinstance(data, bytes | bytearray | memoryview) else Path(data)
        label = name or (path.name if path else None)
        kind = media_type or (mimetypes.guess_type(label)[0] if label else None) or "application/octet-stream"
        store = self._link.store
        stream: BinaryIO = path.open("rb") if path else BytesIO(data)  # type: ignore[arg-type]  # bytes, then
        with stream:
            sha256, size = store.put(tenant, stream, media_type=kind)
        row = Jsonb([{"sha256": sha256, "size": size, "media_type": kind}])
        self._link.ask(lambda own: own.execute("SELECT safepoint.touch_artifacts_v1(%s, %s)", (tenant, row)))
        with reading_from(TenantStore(store, tenant)):
            return Artifact(sha256, size, kind, label)


_shared: list[Client] = []
_sharing = threading.Lock()


def default_client() -> Client:
    """Give the client behind `call.enqueue(...)`: the configured ledger's, one for the process."""
    with _sharing:
        if not _shared:
            _shared.append(Client())
            atexit.register(close_default_client)
        return _shared[0]


def close_default_client() -> None:
    """Close it; the next call makes another one, by the settings of that moment."""
    with _sharing:
        clients, _shared[:] = _shared[:], []
    for client in clients:
        client.close()


class _Enqueuer:
    """Fills the port of `Call.enqueue` with the default client."""

    def enqueue(self, call: Call[Any], options: EnqueueOptions) -> Run[Any]:
        return default_client().enqueue_call(call, options)

    async def aenqueue(self, call: Call[Any], options: EnqueueOptions) -> Run[Any]:
        return await default_client().aenqueue_call(call, options)


set_enqueuer(_Enqueuer())

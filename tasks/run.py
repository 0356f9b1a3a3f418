"""A run as an app sees it that knows its id: how far it is, what it came to, what may be done to it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from dataclasses import is_dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast
from uuid import UUID, uuid4

from ..ledger import control, events, progress, tombstones
from ..ledger.artifacts import TenantStore, internalize, named
from ..ledger.codec import JSON, Codec, Encoded
from ..ledger.effect_views import list_effects
from ..ledger.errors import (
    LedgerUnavailable,
    Refused,
    RunCancelled,
    RunFailed,
    RunHeld,
)
from ..ledger.events import Event
from ..ledger.progress import Progress
from ..ledger.states import RunStatus
from .artifact import reading_from
from .decision import Decision
from .declared import declared
from .ruling import Ruling, edited, rule

if TYPE_CHECKING:
    from ..ledger.connect import Connection
    from ..ledger.errors import UnknownRun
    from .link import Link

__all__ = ["Run"]

R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")

FIRST_LOOK: Final = 0.05  # seconds between two looks at a run; grows while nothing happens
LONGEST_LOOK: Final = 2.0
LIVELY: Final = 0.5  # the longest pause of who follows events, of which nobody is notified
PATIENCE: Final = 60.0  # seconds that a wait outlasts a ledger that does not answer
BATCH: Final = 500  # events a read
EFFECTS: Final = 10_000  # of one run, at most


class _Looks:
    """When a waiting caller looks again: soon at first, and not past its time-out. Pure, but for the clock."""

    def __init__(self, timeout: float | None, *, longest: float = LONGEST_LOOK) -> None:
        self._longest = longest
        self._ends = None if timeout is None else time.monotonic() + timeout
        self._pause = FIRST_LOOK
        self._answered = time.monotonic()

    def answered(self, *, moved: bool = False) -> None:
        """Note that the ledger has answered, and whether something had happened."""
        self._answered = time.monotonic()
        if moved:
            self._pause = FIRST_LOOK

    def outlasts(self, error: LedgerUnavailable) -> None:
        """Go on over a short outage; let the error out when it has lasted too long."""
        if time.monotonic() - self._answered > PATIENCE:
            raise error

    def next(self) -> float | None:
        """Return the next pause in seconds, or None when the time is up."""
        left = None if self._ends is None else self._ends - time.monotonic()
        if left is not None and left <= 0:
            return None
        pause, self._pause = self._pause, min(self._pause * 1.5, self._longest)
        return pause if left is None else min(pause, left)


class Run(Generic[R_co]):
    """A handle on a run; making one asks nothing of the ledger."""

    __slots__ = ("_link", "id")

    def __init__(self, run_id: str | UUID, *, link: Link) -> None:
        self.id = str(run_id)
        self._link = link

    def __repr__(self) -> str:
        """Name the run."""
        return f"<run {self.id}>"

    def __eq__(self, other: object) -> bool:
        """Two handles on one run are equal."""
        return isinstance(other, Run) and other.id == self.id

    def __hash__(self) -> int:
        """Hash by the id."""
        return hash(self.id)

    @property
    def status(self) -> RunStatus:
        """Where it stands now; every look asks the ledger."""
        return self._progress(whole=False).status

    @property
    def reason(self) -> dict[str, Any] | None:
        """Why it does not move: {code, since, text, next}, or None."""
        return self._progress(whole=False).reason

    # --- what it came to --------------------------------------------------------------------------------------------

    def result(self, timeout: float | None = None) -> R_co:
        """Wait for the run's end and return its result, decoded by the flow's type where its code is here.

        Args:
            timeout: seconds to wait; None waits for ever, 0 only looks.

        Raises:
            RunFailed: it has failed.
            RunCancelled: it was cancelled.
            RunHeld: it waits for a person.
            TimeoutError: it has done neither in time.
        """
        rung = threading.Event()
        looks = _Looks(timeout)
        with self._link.listener.watch(self.id, rung.set):
            while True:
                rung.clear()
                found = self._look(looks)
                if found is not None and found.is_settled:
                    return self._settle(found)
                pause = looks.next()
                if pause is None:
                    raise self._timed_out(found, timeout)
                rung.wait(pause)

    async def aresult(self, timeout: float | None = None) -> R_co:  # noqa: ASYNC109  # the same words as `result`
        """Do what `result` does without blocking the event loop; no thread waits meanwhile."""
        rung, loop = asyncio.Event(), asyncio.get_running_loop()
        looks = _Looks(timeout)

        def ring() -> None:
            with suppress(RuntimeError):  # the loop was closed under the wait: nobody is left to be woken
                loop.call_soon_threadsafe(rung.set)

        listener = await asyncio.to_thread(lambda: self._link.listener)
        with listener.watch(self.id, ring):
            while True:
                rung.clear()
                found = await asyncio.to_thread(self._look, looks)
                if found is not None and found.is_settled:
                    return await asyncio.to_thread(self._settle, found)
                pause = looks.next()
                if pause is None:
                    raise self._timed_out(found, timeout)
                await _within(rung, pause)

    def _progress(self, *, whole: bool = True) -> Progress:
        found = self._link.ask(lambda connection: progress.read(connection, self.id, whole=whole))
        if found is None:
            raise self._missing()
        return found

    def _look(self, looks: _Looks) -> Progress | None:
        try:
            found = self._progress()
        except LedgerUnavailable as error:
            looks.outlasts(error)
            return None
        looks.answered()
        return found

    def _settle(self, found: Progress) -> R_co:
        match found.status:
            case RunStatus.FAILED:
                raise RunFailed(self.id, found.error or {})
            case RunStatus.CANCELLED:
                raise RunCancelled(run_id=self.id)
            case RunStatus.HELD:
                raise RunHeld(self.id, found.reason or {})
            case _:
                return self._decoded(found)

    def _decoded(self, found: Progress) -> R_co:
        store, seal, tenant = self._link.store, self._link.seal, found.tenant
        data = internalize(
            found.result or b"null", found.result_encoding or JSON, tenant=tenant, store=store, seal=seal
        )
        flow = declared.find_flow(found.flow, found.version)
        codec: Codec[Any] = flow.result if flow is not None else Codec(Any, root="result")
        with reading_from(TenantStore(store, tenant)):
            return cast("R_co", codec.decode(data))

    def _timed_out(self, found: Progress | None, timeout: float | None) -> TimeoutError:
        stands = "the ledger does not answer" if found is None else f"it is {found.status}"
        why = (found.reason or {}).get("text") if found is not None else None
        return TimeoutError(f"run {self.id} has not ended within {timeout} s: {stands}{f' ({why})' if why else ''}")

    # --- what happened ----------------------------------------------------------------------------------------------

    def events(self, *, after: int | str = 0, follow: bool = False) -> Iterator[Event]:
        """Give its events in order, each once.

        Args:
            after: the number or the id of the last event seen.
            follow: wait for more, until the run's final event.
        """
        rung, looks = threading.Event(), _Looks(None, longest=LIVELY)
        seen = self._start_after(after)
        with self._link.listener.watch(self.id, rung.set):
            while True:
                rung.clear()
                found, ended = self._read(seen, looks, follow=follow)
                yield from found
                seen = found[-1].seq if found else seen
                if ended or (not follow and len(found) < BATCH):
                    return
                if len(found) < BATCH:
                    rung.wait(looks.next())

    async def aevents(self, *, after: int | str = 0, follow: bool = False) -> AsyncIterator[Event]:
        """Do what `events` does without blocking the event loop."""
        looks = _Looks(None, longest=LIVELY)
        seen = await asyncio.to_thread(self._start_after, after)
        while True:
            found, ended = await asyncio.to_thread(partial(self._read, seen, looks, follow=follow))
            for event in found:
                yield event
            seen = found[-1].seq if found else seen
            if ended or (not follow and len(found) < BATCH):
                return
            if len(found) < BATCH:
                await asyncio.sleep(looks.next() or 0)

    def _start_after(self, after: int | str) -> int:
        return self._link.ask(lambda connection: events.start_after(connection, after))

    def _read(self, seen: int, looks: _Looks, *, follow: bool) -> tuple[list[Event], bool]:
        """Read the next events, and tell whether there will be no more."""
        try:
            found = self._link.ask(lambda connection: self._next_events(connection, seen))
        except LedgerUnavailable as error:
            if not follow:
                raise
            looks.outlasts(error)
            return [], False
        looks.answered(moved=bool(found))
        # A reopened run goes on after a final event, so only the last one ends it.
        if found:
            return found, found[-1].is_final and len(found) < BATCH
        if not self._progress(whole=False).status.is_final:
            return [], False
        # It ended after the events were read; a final run gets no more of them, so this is the rest.
        return self._link.ask(lambda connection: self._next_events(connection, seen)), True

    def _next_events(self, connection: Connection, seen: int) -> list[Event]:
        return events.read(connection, self.id, after=seen, limit=BATCH)

    # --- what may be done -------------------------------------------------------------------------------------------

    def cancel(self, *, by: str = "app") -> RunStatus:
        """Ask it to stop, and return its status after that: clean-up steps may follow."""
        return self._verb(lambda connection, run_id: control.cancel(connection, run_id, by=by))

    def pause(self, *, by: str = "app") -> RunStatus:
        """Start nothing more of it until it is resumed; what is running commits."""
        return self._verb(lambda connection, run_id: control.pause(connection, run_id, by=by))

    def resume(self, *, by: str = "app", code: str | None = None) -> RunStatus:
        """Lift the pause and the holds, or only the one named `code`."""
        return self._verb(lambda connection, run_id: control.resume(connection, run_id, by=by, code=code))

    def retry(self, *, by: str = "app") -> RunStatus:
        """Let a failed run go on in place: committed steps stay, failed ones get fresh attempts (P36).

        Raises:
            Refused: it has not failed, or something forbids it; the error says what.
        """
        asked = 0

        def ask(connection: Connection) -> str:
            nonlocal asked
            asked += 1
            return control.reopen(connection, self._uuid, by=by)

        answer = self._link.ask(ask)
        if answer == "unknown":
            raise self._missing()
        # The first answer may have been lost: then it has been reopened by this very call.
        if answer == "running" or (asked > 1 and answer.startswith("not failed")):
            return self.status
        kind, _, text = answer.partition(": ")
        raise Refused(run_id=self.id, verb="retry", text=text if kind == "refused" else f"it is {text}, not failed")

    def signal(self, name: str, value: object = None, *, sender: str | None = None, dedupe: str | None = None) -> str:
        """Send it a message: `delivered` to a wait, `stored` for one to come, or `duplicate`.

        Args:
            name: what the flow waits for.
            value: the payload.
            sender: who sends it.
            dedupe: a key under which the run takes the same message once.

        Raises:
            Refused: the run has ended.
        """
        payload = _encoded(value)
        refers = named(payload.data)
        if self._link.seal.is_configured:
            payload = self._link.seal.close(payload, self._progress(whole=False).tenant)
        own = dedupe or f"client:{uuid4()}"

        def ask(connection: Connection) -> str:
            return control.mail(
                connection,
                self._uuid,
                kind="signal",
                name=name,
                data=payload.data,
                encoding=payload.encoding,
                sender=sender,
                dedupe=own,
                artifacts=refers,
            )

        answer = self._link.ask(ask)
        if answer == "unknown":
            raise self._missing()
        if answer == "final":
            raise Refused(run_id=self.id, verb="signal", text="the run has ended")
        # A key of our own is found only by a repeat of this very call, whose first answer was lost.
        return "stored" if answer == "duplicate" and dedupe is None else answer

    def approve(
        self, name: str, *, by: str, note: str | None = None, value: object = None, digest: str | None = None
    ) -> Decision:
        """Approve what its flow asks under a name, or one effect that requires it; bound to what is asked now.

        Args:
            name: the approval's name, the effect's, or a step key.
            by: who decides.
            note: what they say about it; the flow reads it.
            value: the payload as they have edited it; of an effect there is none, its request is frozen.
            digest: only what has this digest, or this beginning of it: what they have been shown.

        Raises:
            Refused: it is not asked, or decided, or expired, or something else is asked; the text says what stands.
        """
        limit = self._link.settings.values.max_size
        return self._rule(
            name, Ruling(approved=True, by=by, note=note, value=edited(value, limit=limit), digest=digest)
        )

    def deny(self, name: str, *, by: str, note: str | None = None, digest: str | None = None) -> Decision:
        """Deny what its flow asks under a name, or one effect that requires an approval; see `approve`."""
        return self._rule(name, Ruling(approved=False, by=by, note=note, digest=digest))

    def _rule(self, name: str, ruling: Ruling) -> Decision:
        return rule(self._link.ask, self._uuid, name, ruling, seal=self._link.seal).decision

    def effects(self) -> list[dict[str, Any]]:
        """Give what it has done to the outside world, or may have: unknown effects first, each with its history."""
        self._progress(whole=False)  # whether there is such a run at all
        return self._link.ask(lambda connection: list_effects(connection, run=self._uuid, limit=EFFECTS))

    @property
    def _uuid(self) -> UUID:
        return UUID(self.id)

    def _missing(self) -> UnknownRun:
        return self._link.ask(lambda connection: tombstones.missing(connection, self._uuid))

    def _verb(self, verb: Callable[[Connection, UUID], str]) -> RunStatus:
        if self._link.ask(lambda connection: verb(connection, self._uuid)) == "unknown":
            raise self._missing()
        return self.status


def _encoded(value: object) -> Encoded:
    # A model or dataclass is encoded as what it is; for everything else JSON's own types are the declared ones.
    own = is_dataclass(value) or hasattr(type(value), "model_fields")
    return Codec[object](type(value) if own else Any, root="signal").encode(value)


async def _within(rung: asyncio.Event, pause: float) -> None:
    try:
        async with asyncio.timeout(pause):
            await rung.wait()
    except TimeoutError:
        pass

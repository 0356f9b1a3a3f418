"""The relay: takes what is due from the ledger, publishes it, settles it. The safety net of the fast path, and
the only publisher of limited lanes.

Every publish error means *outcome unknown*: the row stays and is due again; duplicates are harmless, the claim
decides. Two relays at once
are correct: a row is dispatched under its lock.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

import psycopg
import structlog

from ..config.crash import crash_point
from ..config.settings import Settings
from ..ledger import outbox
from ..ledger.connect import Connection, connect, is_outage
from ..ledger.errors import LedgerUnavailable
from ..ledger.outbox import Dispatched
from ..ledger.steps import Settled
from ..recovery.scan import scan
from .wire import CONTROL, SCAN, Chore, Message, Publisher, kind_name

__all__ = ["Pass", "Relay", "message", "redispatch_after"]

log = structlog.get_logger("safepoint.relay")
GRACE = 5.0  # seconds: a relay that dies between dispatch and settle costs this
LONGEST_WAIT = 3600.0
FEW = 50  # orphans that a relay looks at between two rounds
SOON, CROWDED = 0.02, 0.1  # seconds before the next round: after one that sent something, and after one that could not
WATCH, CALM = 0.125, 5.0  # seconds between looks for workers that died: while steps run, and when none has for so long
FIRST, SELDOM = 4, 8  # looks that find a dead worker: the first ones bring a scan each, then one of so many
WHOLE = 10  # looks that find nothing due, after which a round is made all the same
NAMED = frozenset({"step", "effect", "compensation"})  # a compensation goes by its effect, whose time limit it has


def message(run_id: object, row: object) -> Message:
    """Return the message of a row that was dispatched or has just been committed."""
    key, kind, name = row.key, row.kind, row.name  # type: ignore[attr-defined]  # Dispatched or Next
    shown = name if kind in NAMED else kind_name(kind)
    # as above
    return Message(run=str(run_id), step=key.wire, lane=row.lane, name=shown, attempt=row.attempt, epoch=row.epoch + 1)  # type: ignore[attr-defined]


def redispatch_after(settings: Settings, dispatches: int) -> float:
    """Return after how many seconds an unclaimed message is asked about again: the wait doubles each time (P11)."""
    return float(min(settings.relay.redispatch_after * 2**dispatches, LONGEST_WAIT))


@dataclass(slots=True)
class Pass:
    """What one round did."""

    published: int = 0
    failed: int = 0
    settled: int = 0
    scanned: bool = False


class Relay:
    """One relay: `once` is one round, `run` goes on until `stop`."""

    def __init__(
        self, settings: Settings, ledger_url: str, direct_url: str, publisher: Publisher, *, name: str = "relay"
    ) -> None:
        self.settings = settings
        self.name = name
        self._ledger_url = ledger_url
        self._direct_url = direct_url
        self._publisher = publisher
        self._connection: Connection | None = None
        self._listener: Connection | None = None
        self._stop = threading.Event()
        self._scanned = 0.0
        self._watched, self._ran = 0.0, time.monotonic()
        self._suspicions = 0  # looks in a row that have found a dead worker
        self._goes_on = False  # its last scan has left orphans for the next one

    def once(self) -> Pass:
        """Decide the waits that are due, then publish, batch by batch, until nothing is left that the lanes admit."""
        done = Pass()
        connection = self._connected()
        outbox.fire_due(connection, limit=self.settings.relay.batch)
        outbox.deliver(connection, limit=self.settings.relay.batch)
        patience = self.settings.relay.redispatch_after
        while not self._stop.is_set():
            # Shorter than any wait of a settled row: the ledger tells by it which rows were never settled.
            rows = outbox.dispatch(
                connection,
                limit=self.settings.relay.batch,
                grace=min(GRACE, patience / 2),
                redispatch_after=patience,
            )
            if not rows:
                break
            self._send(connection, rows, done)
            self._ran = time.monotonic()
            if done.failed:
                break
        return done

    def _send(self, connection: Connection, rows: Sequence[Dispatched], done: Pass) -> None:
        outcomes = self._publisher.publish([message(row.run_id, row) for row in rows])
        crash_point("relay.published", rows[0].key.wire)
        sent = [row for row, error in zip(rows, outcomes, strict=True) if error is None]
        for row, error in zip(rows, outcomes, strict=True):
            if error is not None:
                # A lane that another process has brought, and this one does not know: no reason to let others wait.
                done.failed += not isinstance(error, LookupError)
                log.warning(
                    "publish.failed", run=str(row.run_id), step=row.key.wire, lane=row.lane, error=str(error)[:200]
                )
        done.published += len(sent)
        # One the broker may not have is left as it is: due again after the grace.
        settled = [
            Settled(row.run_id, row.key, row.due, redispatch_after(self.settings, row.dispatches)) for row in sent
        ]
        done.settled += outbox.settle(connection, settled)

    # The loop.

    def run(self) -> None:
        """Work until `stop`: woken by NOTIFY and by the next due row, for which it looks at the latest each poll
        interval.
        """
        while not self._stop.is_set():
            try:
                done = self.once()
                self._scan_if_late()
                self._wait(done)
            except (psycopg.Error, LedgerUnavailable, OSError) as error:
                if not is_outage(error) and not isinstance(error, OSError):
                    log.exception("relay.error")
                else:
                    log.warning("relay.ledger_away", error=" ".join(str(error).split())[:200])
                self._disconnect()
                self._stop.wait(min(1.0, self.settings.relay.poll))
        self._disconnect()
        self._publisher.close()

    def stop(self) -> None:
        """End the loop after the round at hand."""
        self._stop.set()

    def _wait(self, done: Pass) -> None:
        """Wait until there is something to do. An idle ledger is asked one question each poll interval: what is due
        without a word (its committer died before it published) is found as soon as by whole rounds.
        """
        if done.failed:
            self._stop.wait(min(1.0, self.settings.relay.poll))  # the broker is away: its rows come due by themselves
            return
        listener = self._listening()
        soonest, poll = SOON if done.published else CROWDED, self.settings.relay.poll
        for _ in range(WHOLE):
            if self._goes_on:
                return
            due = outbox.next_due(self._connected(), tending=poll)
            # Rows that are due and were not sent wait for their lane's room, which claims and the clock make.
            seconds = poll if due is None else min(max(due, soonest), poll)
            if self._is_told_watching(listener, seconds) or (due is not None and due <= seconds):
                return
            self._scan_if_late()
            soonest = 0.0

    def _is_told_watching(self, listener: Connection, seconds: float) -> bool:
        """Wait so long; while steps run look meanwhile whether the worker of one has died, and have that scanned."""
        until = time.monotonic() + seconds
        while True:
            if time.monotonic() >= self._watched + self._pause():
                self._watch()
            now = time.monotonic()
            next_look = max(now, self._watched + self._pause())
            if self._is_told(listener, min(until, next_look) - now):
                return True
            if until <= next_look:
                return False

    def _pause(self) -> float:
        """Say how long after a look for dead workers the next one is due."""
        return WATCH if time.monotonic() - self._ran < CALM else CALM

    def _watch(self) -> None:
        """Ask for a scan before its time when a worker seems to have died (P21); it looks twice, as always."""
        runs, died = outbox.dead_nodes(self._connected())
        self._watched = time.monotonic()
        self._ran = self._watched if runs else self._ran
        self._suspicions = self._suspicions + 1 if died else 0
        control = self.settings.lanes.get(CONTROL)
        # The first scan may come too soon after another; what a few have not taken is frozen (P20), or is a lot.
        if control is not None and (0 < self._suspicions <= FIRST or self._suspicions % SELDOM == 1):
            error = self._publisher.send_chore(
                Chore(SCAN, queue=control.queue, expires=10 * self.settings.scan.interval)
            )
            log.info("relay.suspects", error=None if error is None else str(error)[:200])

    def _is_told(self, listener: Connection, seconds: float) -> bool:
        """Wait so long, or until somebody says that there is something to do, or that it is over."""
        until = time.monotonic() + seconds
        while not self._stop.is_set() and (left := until - time.monotonic()) > 0:
            for _ in listener.notifies(timeout=min(left, 0.5), stop_after=1):
                return True
        return self._stop.is_set()

    def _scan_if_late(self) -> None:
        """Scan when the beat's scan has not come: any relay is good for that."""
        interval = self.settings.scan.interval
        if not self._goes_on and time.monotonic() - self._scanned < interval * 3:
            return
        self._scanned = time.monotonic()
        # `orphans_v1` refuses a scan that follows another within its interval, so this costs a statement
        # when beat is alive. A few orphans at a time: what is due must not wait until thousands are found.
        settings = self.settings if self._goes_on else self._late()
        found = scan(self._connected(), settings, by=self.name, wait=self._stop, force=self._goes_on, limit=FEW)
        # Of takeovers that are frozen (P20) another look would find as little.
        self._goes_on = found.ran and found.is_full and found.expired > 0
        if found.ran:
            log.info("relay.scanned", **found.as_json())

    def _late(self) -> Settings:
        scan_settings = self.settings.scan.model_copy(update={"interval": self.settings.scan.interval * 3})
        return self.settings.model_copy(update={"scan": scan_settings})

    def _connected(self) -> Connection:
        if self._connection is None or self._connection.closed:
            self._connection = self._connect(self._ledger_url)
        return self._connection

    def _listening(self) -> Connection:
        if self._listener is None or self._listener.closed:
            self._listener = self._connect(self._direct_url)
            self._listener.execute("LISTEN safepoint_relay")
        return self._listener

    def _connect(self, url: str) -> Connection:
        limits = self.settings.ledger
        return connect(
            url,
            name=f"safepoint {self.name}",
            connect_timeout=limits.connect_timeout,
            statement_timeout=limits.statement_timeout,
        )

    def _disconnect(self) -> None:
        for connection in (self._connection, self._listener):
            if connection is not None:
                with contextlib.suppress(psycopg.Error):
                    connection.close()
        self._connection = self._listener = None

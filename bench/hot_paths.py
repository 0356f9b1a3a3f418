"""What workers, relays, scans and people ask of a ledger all the time, each as a call that can be timed."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

from safepoint.ledger import commit, enqueue, history, nodes, orphans, outbox, prune, steps, views
from safepoint.ledger.codec import JSON, Encoded
from safepoint.ledger.connect import connect
from safepoint.ledger.key import Key
from safepoint.ledger.snapshot import snapshot
from sqlalchemy import text
from uuid_utils.compat import uuid7

__all__ = ["LISTS", "Ledger"]

WORKER, FLOW, VERSION, TENANT = "bench", "bench", "1", "tenant-live"
START, STEP = Key(1, "", "@start", 1), Key(1, "", "s1", 1)
ASKED = {"path": "", "step": "s1", "iteration": 1, "kind": "step", "name": "s1", "lane": "online", "hash": "00" * 32}
VALUE = b'{"text": "' + 180 * b"x" + b'"}'
TURNS = 5  # runs of one round
_NOTHING = text("SELECT 1")  # so that what is timed does not include opening the connection
# The filters of `safepoint runs`. What is rare is as rare in every ledger.
LISTS: dict[str, dict[str, Any]] = {
    "all": {},
    "--status succeeded": {"status": ("succeeded",)},
    "--status failed": {"status": ("failed",)},
    "--status running": {"status": ("running",)},
    "--status held": {"status": ("held",)},
    "--status held --status cancelling": {"status": ("held", "cancelling")},
    "--tenant, a large one": {"tenant": "tenant-0"},
    "--tenant, a small one": {"tenant": "rare"},
    "--tenant --status failed": {"tenant": "tenant-0", "status": ("failed",)},
    "--tenant, a small one, --status failed": {"tenant": "rare", "status": ("failed",)},
    "--flow, a common one": {"flow": "flow-0"},
    "--flow, a rare one": {"flow": "rare_flow"},
    "--flow NAME@VERSION, a rare one": {"flow": "flow-0@0"},
    "--tag, a common one": {"tags": {"team": "t1"}},
    "--tag, a rare one": {"tags": {"case": "rare"}},
}


class Ledger:
    """One ledger, and how long each call to it took."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.took: dict[str, list[float]] = defaultdict(list)
        self.connection = connect(url, name="bench", statement_timeout=600)
        # A flush takes as long on both ledgers, and would hide what grows.
        self.connection.execute("SET synchronous_commit = off")
        self.connection.execute("INSERT INTO safepoint.lanes (name) VALUES ('online') ON CONFLICT DO NOTHING")
        served = nodes.Node(WORKER, "gone", 2**22, ("online",), (f"{FLOW}@{VERSION}",), concurrency=64)
        nodes.register(self.connection, served, lease=86_400, with_lock=False)
        self._lent = steps.Claimer(WORKER, 2**22, 1)
        self.recent: list[UUID] = []
        self.old: list[UUID] = []

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Note how long the block takes; the name shows in the server's log."""
        began = time.perf_counter()
        yield
        self.took[name].append(time.perf_counter() - began)

    def calls(self) -> list[Callable[[], None]]:
        """Return all that one pass measures, in its order."""
        lists = [lambda name=name, terms=terms: self._list(name, terms) for name, terms in LISTS.items()]
        return [
            self._runs,
            self._idle_round,
            self._scan,
            self._stalled,
            self._prune,
            *lists,
            self._next_page,
            self._show,
        ]

    def name(self, name: str) -> None:
        """Let the server's log say what it is that runs."""
        self.connection.execute("SELECT set_config('application_name', %s, false)", (name,))

    def close(self) -> None:
        """Leave the ledger."""
        self.connection.close()

    # What workers and the relay do.

    def _runs(self) -> None:
        runs = [self._enqueue(keyed=n == 0) for n in range(TURNS)]
        with self.timed("relay: dispatch of 5"):
            sent = outbox.dispatch(self.connection, limit=100, grace=5.0, redispatch_after=10.0)
        with self.timed("relay: settle of 5"):
            outbox.settle(self.connection, [steps.Settled(row.run_id, row.key, row.due, 10.0) for row in sent])
        if {row.run_id for row in sent} != set(runs):
            raise RuntimeError(f"{len(sent)} rows went out, not those of the {TURNS} runs")
        for run in runs:
            self._step(run, START, 0, follows=True)
            self._step(run, STEP, 1, follows=False)
        self.recent = [*self.recent, *runs][-50:]

    def _enqueue(self, *, keyed: bool) -> UUID:
        terms = {"tenant": TENANT, "key": str(uuid4()) if keyed else None, "tags": {"team": "t1"}}
        asked = enqueue.Request(str(uuid7()), FLOW, Encoded(VALUE, JSON, b""), VERSION, terms=terms)
        with self.timed("enqueue, with a key" if keyed else "enqueue"):
            answer = enqueue.enqueue(self.connection, [asked])[0]
        return UUID(answer.run_id)

    def _step(self, run: UUID, key: Key, version: int, *, follows: bool) -> None:
        token = uuid4()
        with self.timed("claim"):
            got = steps.claim(self.connection, run, key, lane="online", claimer=self._lent, token=token, timeout=60)
        if not isinstance(got, steps.Claimed):
            raise RuntimeError(f"the claim was refused: {got.reason}")
        result = commit.Result("succeeded", datetime.now(UTC), VALUE, "json", b"d" * 32)
        then: dict[str, Any] = {"asked": [ASKED]} if follows else {"ending": commit.Ending("succeeded", data=VALUE)}
        with self.timed("commit, a step follows" if follows else "commit, the run ends"):
            commit.commit(
                self.connection, run, key, token=token, node=WORKER, result=result, advanced_from=version, **then
            )

    def _idle_round(self) -> None:
        with self.timed("relay: a round with nothing to do"):
            outbox.fire_due(self.connection, limit=100)
            outbox.deliver(self.connection, limit=100)
            outbox.dispatch(self.connection, limit=100, grace=5.0, redispatch_after=10.0)
            outbox.next_due(self.connection)

    # What the scan does.

    def _scan(self) -> None:
        self.connection.execute("UPDATE safepoint.identity SET stalled_checked_at = safepoint.now()")
        with self.timed("orphan scan, 200 steps run"):
            orphans.look(self.connection, by="bench", interval=0.0, lease=15.0)
        with self.timed("the scan's chores"):
            orphans.chores(self.connection, limit=100, cancel_grace=30.0)

    def _stalled(self) -> None:
        with self.timed("search for stalled runs, every 30 s"):
            self.connection.execute("SELECT safepoint.revive_stalled_v1(100)")

    def _prune(self) -> None:
        with self.timed("prune: nothing is old enough"):
            cut = prune.cutoffs(self.connection, older=800 * 86_400, failed=800 * 86_400)
            list(prune.runs(self.connection, cut))

    # What people do.

    def _list(self, name: str, terms: dict[str, Any]) -> None:
        with snapshot(self.url, name=f"runs {name}") as connection:
            connection.scalar(_NOTHING)
            with self.timed(f"runs {name}"):
                views.list_runs(connection, **terms)

    def _next_page(self) -> None:
        with snapshot(self.url, name="runs --before") as connection:
            connection.scalar(_NOTHING)
            with self.timed("runs --before RUN, far back"):
                views.list_runs(connection, before=self.old[len(self.took["claim"]) % len(self.old)])

    def _show(self) -> None:
        for name, among in (("a recent run", self.recent), ("a run of some time", self.old)):
            run = among[(7 * len(self.took["claim"])) % len(among)]
            with snapshot(self.url, name=f"show {name}") as connection:
                connection.scalar(_NOTHING)
                with self.timed(f"show {name}"):
                    views.read_run(connection, run)
                with self.timed(f"events {name}"):
                    views.list_events(connection, run)
            with self.timed(f"history {name}"):
                history.read(self.connection, run)

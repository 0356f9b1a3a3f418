"""What the ledger should answer: the protocol's verbs over plain Python values, for one run of one small flow.

The flow: `@start`, then `gather(a, b)`, then a wait for the signal `go`, then `c`, then the end. A cancel ends it by
the step `@cancel`. Each verb answers as the ledger must, and changes the model as the ledger must change its rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field

START, A, B, GO, C, CANCEL = "@start#1", "gather#1.0/a#1", "gather#1.1/b#1", "go#1", "c#1", "@cancel#1"
GATHER = (A, B)
OPEN = ("ready", "running", "waiting", "held")
FINAL = ("succeeded", "failed", "cancelled")
LEASE, TIMEOUT, GRACE, REDISPATCH, CANCEL_GRACE = 15.0, 60.0, 1.0, 10.0, 30.0
NO_WORKER = (5.0, 60.0)


@dataclass
class Row:
    """A step as the ledger should hold it; times are seconds of the test's clock."""

    status: str
    lane: str = "online"
    cleanup: bool = False
    token: object = None
    committed_token: object = None
    owner: str | None = None
    epoch: int = 0
    attempt: int = 1
    recoveries: int = 0
    ready_at: float = 0.0
    due_at: float = 0.0
    dispatched: bool = False
    unserved_since: float | None = None
    claimed_at: float = 0.0
    expires_at: float = 0.0
    seq: int | None = None


@dataclass
class Node:
    """A worker's main process as the ledger should know it."""

    beat_at: float
    lease_until: float
    previous_beat_at: float | None = None
    active: frozenset[object] = frozenset()
    previous: frozenset[object] = frozenset()
    draining: bool = False


@dataclass(frozen=True)
class Advance:
    """What a worker commits: the version it advanced from, or the gather whose last member it is not; what follows."""

    advanced_from: int | None = None
    joins: str | None = None
    asked: tuple[str, ...] = ()
    ending: str | None = None


def advance(key: str, history: tuple[str, ...], *, is_bare: bool) -> Advance:
    """The flow as a pure function: what `key` leads to after the history that its worker has read.

    The members of the gather are bare steps, or coroutines of one step each, which have to advance (P26).
    """
    follows: dict[str, tuple[str, ...]] = {START: GATHER, A: (GO,), B: (GO,), GO: (C,)}
    if key in GATHER and not set(GATHER) - {key} <= set(history):
        if is_bare:
            return Advance(joins="gather#1")
        follows[key] = ()
    ending = {C: "succeeded", CANCEL: "cancelled"}.get(key)
    return Advance(advanced_from=len(history), asked=follows.get(key, ()), ending=ending)


@dataclass
class Oracle:
    """The run, its steps and its mail, the nodes and the clock."""

    now: float = 0.0
    status: str = "queued"
    ending: str | None = None
    cancelled_at: float | None = None
    is_paused: bool = False
    version: int = 0
    rows: dict[str, Row] = field(default_factory=lambda: {START: Row("ready")})
    mail: list[str] = field(default_factory=list)
    consumed: int = 0
    nodes: dict[str, Node] = field(default_factory=dict)

    @property
    def is_cancelled(self) -> bool:
        """Whether somebody asked the run to stop."""
        return self.cancelled_at is not None

    @property
    def is_final(self) -> bool:
        """Whether the run has ended."""
        return self.status in FINAL

    @property
    def history(self) -> tuple[str, ...]:
        """The committed steps in the order of their commits."""
        done = [(row.seq, key) for key, row in self.rows.items() if row.seq is not None]
        return tuple(key for _, key in sorted(done))

    def owned(self) -> list[str]:
        """The running steps."""
        return [key for key, row in self.rows.items() if row.status == "running"]

    # Dispatch.

    def must_send(self) -> set[tuple[str, str]]:
        """What the relay has to publish now: ready, due, and never sent since it became ready."""
        due = [(key, row) for key, row in self.may_send() if row.due_at <= self.now]
        if any(self.is_serving(node) for node in self.nodes.values()):
            return {(key, row.lane) for key, row in due if not row.dispatched}
        for _, row in due:
            # P15: nothing is sent that nobody serves, and it is asked about ever more seldom.
            row.unserved_since = self.now if row.unserved_since is None else row.unserved_since
            shortest, longest = NO_WORKER
            row.due_at = self.now + min(longest, max(shortest, (self.now - row.unserved_since) / 2))
        return set()

    def may_send(self) -> list[tuple[str, Row]]:
        """What the relay may publish at all."""
        ready = [(key, row) for key, row in self.rows.items() if row.status == "ready"]
        return [] if self.is_paused else ready

    def is_serving(self, node: Node) -> bool:
        """Whether the relay sends anything for that node."""
        return node.lease_until > self.now and not node.draining

    # Claims.

    def claim(self, key: str, lane: str, node: str, token: object) -> str:
        """Answer `claimed`, or the reason of the refusal."""
        row = self.rows.get(key)
        if row is not None and row.status == "running" and row.token == token:
            return "claimed"
        refusal = "stale: no such step" if row is None else self._refusal(row, lane, node, token)
        if row is None or refusal is not None:
            if row is not None and refusal == "draining":
                row.due_at, row.dispatched = min(row.due_at, self.now), False
            return refusal or ""
        row.status, row.token, row.owner, row.lane = "running", token, node, "online"
        row.epoch += 1
        row.unserved_since = None
        row.claimed_at, row.expires_at = self.now, self.now + TIMEOUT
        return "claimed"

    def _refusal(self, row: Row, lane: str, node: str, token: object) -> str | None:
        checks = (
            (row.status != "ready", f"stale: {row.status}"),
            (row.committed_token == token, "stale: that claim has ended"),
            (row.lane != lane, f"stale: lane {row.lane}"),
            (self.is_final, "stale: run is final"),
            (row.ready_at > self.now, "later"),
            (self.is_paused, "paused"),
            (self.ending is not None, "stale: run is ending"),
            (self.is_cancelled and not row.cleanup, "stale: run is cancelling"),
            (self.nodes[node].draining, "draining"),
        )
        return next((reason for holds, reason in checks if holds), None)

    def is_stopping(self, row: Row) -> bool:
        """Whether the run takes no next step from this one (P29)."""
        return self.ending is not None or (self.is_cancelled and not row.cleanup)

    # Ends of a claim.

    def commit(self, key: str, token: object, step: Advance) -> str:
        """Answer `committed`, `already`, `stale` or `lost`."""
        row = self.rows[key]
        if row.committed_token == token:
            return "already"
        if self._fence(row, token):
            return "lost"
        stopping = self.is_stopping(row)
        if not stopping and step.advanced_from not in (None, self.version):
            return "stale"
        others_open = any(self.rows[other].status in OPEN for other in GATHER if other != key and other in self.rows)
        if not stopping and step.joins and not others_open:
            return "stale"
        self.version += 1
        self._close(row, "succeeded", token)
        row.seq = self.version
        if not stopping:
            self._follow(step)
        self._finish()
        return "committed"

    def _fence(self, row: Row, token: object) -> bool:
        return self.is_final or row.token != token or row.status not in ("running", "ready", "held")

    def _close(self, row: Row, status: str, token: object) -> None:
        row.status, row.token, row.committed_token, row.owner = status, None, token, None

    def _follow(self, step: Advance) -> None:
        for key in step.asked:
            if key == GO:
                self.rows[key] = Row("waiting")
                self._read_mail(GRACE)  # P17: who commits publishes, so that the relay waits a while
            else:
                self.rows[key] = Row("ready", ready_at=self.now, due_at=self.now + GRACE)
        self.ending = step.ending or self.ending

    def retry(self, key: str, token: object, delay: float) -> str:
        """Answer `retried`, `already` or `lost`."""
        row = self.rows[key]
        if row.committed_token == token:
            return "already"
        if self._fence(row, token):
            return "lost"
        self._close(row, "ready", token)
        self._send_back(row, "online", delay)
        row.attempt += 1
        return "retried"

    def release(self, key: str, token: object) -> bool:
        """Answer whether the claim was still there to be given back."""
        row = self.rows[key]
        if row.status != "running" or row.token != token:
            return False
        self._close(row, "ready", token)
        self._send_back(row, "online", 0.0)
        return True

    def lose(self, key: str, token: object, cause: str) -> str:
        """Answer `lost`, `alive` or `moved`."""
        row = self.rows.get(key)
        if row is None or row.status != "running" or row.token != token:
            return "moved"
        if not self.is_lost(row, cause):
            return "alive"
        row.status, row.owner = "ready", None
        # P24: a process that dies past its step's time was ended for that
        row.recoveries += cause != "timeout" and not (cause == "child" and row.expires_at <= self.now)
        self._send_back(row, "recovery", 0.0)
        return "lost"

    def is_lost(self, row: Row, cause: str) -> bool:
        """Whether the cause holds now: the clock decides, not the moment somebody looked."""
        assert row.owner is not None
        node = self.nodes[row.owner]
        if cause == "lease":
            return node.lease_until <= self.now
        if cause == "timeout":
            return row.expires_at <= self.now
        if cause == "unnamed":
            before = node.previous_beat_at is not None and row.claimed_at < node.previous_beat_at
            return node.lease_until > self.now and before and row.token not in node.active | node.previous
        return cause == "child"

    def _send_back(self, row: Row, lane: str, delay: float) -> None:
        """A step that is ready again: on that lane, after that delay; or dropped, when the run is stopping."""
        row.lane, row.ready_at, row.due_at, row.dispatched = lane, self.now + delay, self.now + delay, False
        row.unserved_since = None
        if self.is_stopping(row):
            row.status, row.token = "cancelled", None
        self._finish()

    # The run.

    def _finish(self) -> None:
        """P32: a run that is ending is final once nothing of it runs."""
        if self.ending is None or self.owned():
            return
        for row in self.rows.values():
            if row.status in OPEN:
                row.status, row.token = "cancelled", None
        self.status = self.ending

    def cancel(self) -> str:
        """Answer the status after it."""
        if self.is_final or self.is_cancelled or self.ending:
            return self.status if self.is_final else "cancelling"
        for row in self.rows.values():
            if row.status in ("ready", "waiting", "held"):
                row.status, row.token = "cancelled", None
        self.cancelled_at, self.is_paused, self.status = self.now, False, "cancelling"
        if self.version == 0 and not self.owned():
            self.ending = "cancelled"
            self._finish()
            return self.status
        self.rows[CANCEL] = Row("ready", cleanup=True, ready_at=self.now, due_at=self.now)
        return "cancelling"

    def do_chores(self) -> None:
        """What the scan does without a verdict: a clean-up that outlasts its grace ends the run."""
        if self.is_final or self.ending or self.cancelled_at is None or self.cancelled_at + CANCEL_GRACE > self.now:
            return
        self.ending = "cancelled"
        for row in self.rows.values():
            if row.status in ("ready", "waiting", "held"):
                row.status, row.token = "cancelled", None
        self._finish()

    def pause(self) -> str:
        """Answer `paused`, or the status that a pause does not change."""
        if self.is_final or self.is_cancelled:
            return self.status
        self.is_paused = True
        return "paused"

    def resume(self) -> None:
        """Lift the pause; ready steps are due again when they may be claimed."""
        if self.is_final or self.is_cancelled or not self.is_paused:
            return
        self.is_paused = False
        for row in self.rows.values():
            if row.status == "ready":
                row.due_at, row.dispatched = max(row.ready_at, self.now), False

    def signal(self, dedupe: str) -> str:
        """Answer `delivered`, `stored`, `duplicate` or `final`."""
        if self.is_final:
            return "final"
        if dedupe in self.mail:
            return "duplicate"
        self.mail.append(dedupe)
        return "delivered" if self._read_mail(0.0) else "stored"

    def _read_mail(self, grace: float) -> bool:
        row = self.rows.get(GO)
        if row is None or row.status != "waiting" or self.consumed == len(self.mail):
            return False
        row.status, row.ready_at, row.due_at = "ready", self.now, self.now + grace
        self.consumed += 1
        return True

    # Nodes.

    def beat(self, node: str, active: frozenset[object]) -> set[object]:
        """Answer the named claims that have fallen."""
        it = self.nodes[node]
        it.previous_beat_at, it.previous = it.beat_at, it.active
        it.beat_at, it.active, it.lease_until = self.now, active, self.now + LEASE
        mine = {row.token for row in self.rows.values() if row.status == "running" and row.owner == node}
        return set(active) - mine

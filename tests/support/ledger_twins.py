"""Each verb of the protocol asked twice, of the real ledger and of the oracle; the answers have to be equal."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID, uuid4

from ledger_clock import EPOCH, Clock
from ledger_oracle import (
    CANCEL_GRACE,
    GATHER,
    GO,
    GRACE,
    LEASE,
    OPEN,
    REDISPATCH,
    TIMEOUT,
    Node,
    Oracle,
    advance,
)
from safepoint.ledger import control, nodes, orphans, outbox
from safepoint.ledger.commit import Answer, Ending, Result, commit, retry
from safepoint.ledger.connect import Connection
from safepoint.ledger.key import Key
from safepoint.ledger.steps import Cause, Claimed, Claimer, Loss, Settled, claim, lose, release

# Each schedule begins at the clock's beginning: what scans of the one before have noted lies in its future.
FORGET_SCANS = (
    "UPDATE safepoint.identity SET last_scan_at = NULL, takeover_after = '-infinity', stalled_checked_at = '-infinity'"
)
ROWS = (
    "SELECT safepoint.key_v1(path, step_id, iteration), status, CASE status WHEN 'ready' THEN lane END, epoch, attempt,"
    " recoveries, claim_token, committed_token, commit_seq FROM safepoint.steps WHERE run_id = %s"
)
RUN = (
    "SELECT status, state_version, event_seq, numbered, newest, consumed FROM safepoint.runs r, LATERAL"
    " (SELECT count(*) AS numbered, max(seq) AS newest FROM safepoint.events e WHERE e.run_id = r.run_id) e, LATERAL"
    " (SELECT count(consumed_at) AS consumed FROM safepoint.mailbox m WHERE m.run_id = r.run_id) m WHERE run_id = %s"
)
COMMITTED = "SELECT key FROM safepoint.events WHERE run_id = %s AND type = 'step.committed' ORDER BY seq"


@dataclass
class Held:
    """A claim as its executor knows it; one that is gone may still have a request on its way."""

    key: str
    token: UUID
    node: str
    lane: str
    history: tuple[str, ...]
    is_gone: bool = False


@dataclass(frozen=True)
class Message:
    """A hint in the broker."""

    key: str
    lane: str


class Twins:
    """One run in the ledger and its twin in the oracle, with two nodes that serve it."""

    def __init__(self, connection: Connection, clock: Clock) -> None:
        self.connection, self.clock, self.oracle = connection, clock, Oracle()
        self.is_bare = True
        self.pass_time(-clock.seconds)
        self.names = [f"node-{uuid4().hex[:8]}" for _ in range(2)]
        for name in self.names:
            node = nodes.Node(name, "host", 1, ("online", "recovery"), ("machine@1",), concurrency=100)
            nodes.register(connection, node, lease=LEASE, with_lock=False)
            self.oracle.nodes[name] = Node(beat_at=0.0, lease_until=LEASE)
        row = connection.execute("SELECT safepoint.enqueue('machine', '{}', version => '1')").fetchone()
        assert row
        self.run: UUID = row[0]

    def forget(self) -> None:
        """Leave nothing to the next pair."""
        self.connection.execute("DELETE FROM safepoint.runs")
        self.connection.execute("DELETE FROM safepoint.nodes")
        self.connection.execute(FORGET_SCANS)

    def pass_time(self, seconds: float) -> None:
        """Let both clocks go on."""
        self.clock.forward(seconds)
        self.oracle.now = self.clock.seconds

    # Dispatch.

    def publish(self, *, is_settled: bool) -> list[Message]:
        """The relay: what is due goes out, and is settled unless the relay dies."""
        must = self.oracle.must_send()
        may = {(key, row.lane) for key, row in self.oracle.may_send()}

        sent = outbox.dispatch(self.connection, limit=100, grace=GRACE, redispatch_after=REDISPATCH)

        assert must <= {(str(row.key), row.lane) for row in sent} <= may
        if is_settled:
            tickets = [Settled(row.run_id, row.key, row.due, REDISPATCH) for row in sent]
            assert outbox.settle(self.connection, tickets) == len(sent)
        return [self._sent(str(row.key), row.lane) for row in sent]

    def publish_fast(self, answer: Answer) -> list[Message]:
        """The committer sends what its commit has made ready."""
        ready = [row for row in answer.rows if row.status == "ready" and row.due]
        tickets = [Settled(self.run, row.key, row.due or "", REDISPATCH) for row in ready]
        assert outbox.settle(self.connection, tickets) == len(tickets)
        return [self._sent(str(row.key), row.lane) for row in ready]

    def _sent(self, key: str, lane: str) -> Message:
        row = self.oracle.rows[key]
        row.dispatched, row.due_at, row.unserved_since = True, self.oracle.now + GRACE, None
        return Message(key, lane)

    # Claims, and how they end.

    def claim(self, held: Held) -> bool:
        """Claim, for the first time or again."""
        expected = self.oracle.claim(held.key, held.lane, held.node, held.token)
        key, who = Key.parse(held.key), Claimer(held.node, 1, 1)

        answer = claim(self.connection, self.run, key, lane=held.lane, claimer=who, token=held.token, timeout=TIMEOUT)

        if not isinstance(answer, Claimed):
            assert answer.reason.partition(":")[0] == expected.partition(":")[0]
            return False
        assert expected == "claimed"
        assert answer.epoch == self.oracle.rows[held.key].epoch
        assert tuple(str(record.key) for record in answer.history) == self.oracle.history
        return True

    def commit(self, held: Held) -> Answer:
        """Commit what the flow came to, from the history that the executor has read."""
        step = advance(held.key, held.history, is_bare=self.is_bare)
        expected = self.oracle.commit(held.key, held.token, step)

        answer = commit(
            self.connection,
            self.run,
            Key.parse(held.key),
            token=held.token,
            node=held.node,
            result=Result("succeeded", EPOCH, b"1", "json"),
            advanced_from=step.advanced_from,
            joins=step.joins,
            asked=[asked(key, is_bare=self.is_bare) for key in step.asked],
            ending=None if step.ending is None else Ending(step.ending),
            grace=GRACE,
        )

        assert answer.verdict == expected
        return answer

    def retry(self, held: Held, delay: float) -> None:
        """End the attempt, to be repeated."""
        expected = self.oracle.retry(held.key, held.token, delay)
        key, error = Key.parse(held.key), {"type": "Boom", "message": "boom"}

        answer = retry(self.connection, self.run, key, token=held.token, node=held.node, error=error, delay=delay)

        assert answer.verdict == expected

    def release(self, held: Held) -> None:
        """Give the claim back."""
        expected = self.oracle.release(held.key, held.token)

        assert release(self.connection, self.run, Key.parse(held.key), token=held.token, why="drain") == expected

    def lose(self, key: str, token: UUID, cause: Cause) -> None:
        """Take a step over, if the cause still holds."""
        expected = self.oracle.lose(key, token, cause.value)
        loss = Loss(self.run, Key.parse(key), token, cause, pid=1, pid_start=1)

        assert lose(self.connection, loss, lane="recovery", max_deaths=5) == expected

    # Nodes and the scan.

    def beat(self, name: str, active: list[UUID], *, drains: bool) -> set[object]:
        """Renew a node's lease, and hear which of its claims have fallen."""
        lost = self.oracle.beat(name, frozenset(active))
        self.oracle.nodes[name].draining |= drains

        answer = nodes.beat(self.connection, name, active=active, marks={}, lease=LEASE, draining=drains)

        assert set(answer.lost) == lost
        return lost

    def scan(self) -> None:
        """Look, take over what has lost its executor, and do the chores."""
        found = orphans.look(self.connection, by="test", interval=0.0, lease=LEASE)

        assert {str(orphan.key) for orphan in found.orphans} == self._orphans()
        for orphan in found.orphans:
            if not found.frozen:  # P20
                cause = Cause.LEASE if orphan.lease_over else Cause.TIMEOUT if orphan.expired else Cause.UNNAMED
                self.lose(str(orphan.key), orphan.token, cause)
        self.oracle.do_chores()
        chores = orphans.chores(self.connection, limit=100, cancel_grace=CANCEL_GRACE)
        assert chores.revived == 0  # no run ever stalls: the advance for stalled runs has nothing to do

    def _orphans(self) -> set[str]:
        causes, rows = ("lease", "timeout", "unnamed"), self.oracle.rows
        return {key for key in self.oracle.owned() if any(self.oracle.is_lost(rows[key], cause) for cause in causes)}

    # People.

    def cancel(self) -> None:
        """Ask the run to stop."""
        expected = self.oracle.cancel()

        assert control.cancel(self.connection, self.run, by="test") == expected

    def pause(self) -> None:
        """Let nothing more of it start."""
        expected = self.oracle.pause()

        assert control.pause(self.connection, self.run, by="test") == expected

    def resume(self) -> None:
        """Lift the pause."""
        self.oracle.resume()
        control.resume(self.connection, self.run, by="test")

    def signal(self, dedupe: str) -> None:
        """Send the signal that the flow waits for, or will wait for."""
        expected = self.oracle.signal(dedupe)

        answer = control.mail(
            self.connection, self.run, kind="signal", name="go", data=b"1", encoding="json", dedupe=dedupe
        )

        assert answer == expected

    # What must hold at any time.

    def compare(self) -> None:
        """Rows, run, mail and events are the oracle's; events have no gap and tell of each commit once, in order."""
        rows = self.connection.execute(ROWS, (self.run,)).fetchall()
        assert {row[0]: row[1:] for row in rows} == {
            key: (
                *(row.status, row.lane if row.status == "ready" else None, row.epoch, row.attempt, row.recoveries),
                *(row.token, row.committed_token, row.seq),
            )
            for key, row in self.oracle.rows.items()
        }
        row = self.connection.execute(RUN, (self.run,)).fetchone()
        assert row
        status, version, events, numbered, newest, consumed = row
        assert version == self.oracle.version
        assert events == numbered == newest
        assert consumed == self.oracle.consumed
        if self.oracle.is_final or self.oracle.is_cancelled:
            assert status == self.oracle.status
        else:
            assert status in ("queued", "running", "waiting")
            assert any(row.status in OPEN for row in self.oracle.rows.values())
        told = [row[0] for row in self.connection.execute(COMMITTED, (self.run,)).fetchall()]
        assert told == [key for key in self.oracle.history if not key.startswith("@")]


def asked(key: str, *, is_bare: bool) -> dict[str, object]:
    """A row as a commit asks for it."""
    parts = Key.parse(key)
    row: dict[str, object] = {"path": parts.path, "step": parts.step_id, "iteration": 1, "lane": "online"}
    if key == GO:
        return {**row, "kind": "signal", "name": "go", "reason": {"code": "signal"}}
    joins = "gather#1" if key in GATHER and is_bare else None
    return {**row, "kind": "step", "name": parts.step_id, "hash": "00" * 32, "joins": joins}

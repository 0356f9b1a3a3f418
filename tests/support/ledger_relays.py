"""Two relays at the real tables, and beside them what admission must do (`ledger_turns`): every look is checked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from math import inf
from typing import Any
from uuid import UUID

from ledger_clock import EPOCH, Clock
from ledger_lanes import backlog, crew
from ledger_turns import Bucket, Limits, Place, Round, Row, Turns
from ledger_verbs import PARKED, Verbs
from psycopg.types.json import Jsonb
from safepoint.ledger import lanes, outbox
from safepoint.ledger.commit import Next
from safepoint.ledger.outbox import Dispatched
from safepoint.ledger.steps import Settled

__all__ = ["LANES", "Relays"]

LANES = ("online", "recovery", "tools")
WINDOW = 30
_ROWS = """
    SELECT s.run_id, s.generation, s.path, s.step_id, s.iteration, s.tenant_id AS tenant, s.lane, s.status, s.kind, s.uses, s.queued,
           r.priority, r.deadline, s.due_at, s.dispatched_at IS NOT NULL AS is_sent, s.reason->>'code' AS reason, s.claimed_from,
           s.kind = 'start' AND s.generation = 1 AND s.epoch = 0 AND r.parent_run_id IS NULL AS is_new_run,
           r.flow || '@' || r.workflow_version AS flow, r.paused_at IS NOT NULL OR r.holds <> '{}' AS is_parked
      FROM safepoint.steps s JOIN safepoint.runs r USING (run_id) WHERE s.status IN ('ready', 'running')
"""  # noqa: E501  # a statement


def _seconds(instant: datetime | None) -> float | None:
    if instant is None:
        return None
    return inf if instant == PARKED else (instant - EPOCH).total_seconds()


class _Killed(Exception):  # noqa: N818  # no error: a way to leave a transaction
    """A relay dies inside its transaction."""


class Relays:
    """The relays of one ledger, its lanes' limits as people have set them, and its nodes."""

    def __init__(self, verbs: Verbs, other: Verbs, clock: Clock) -> None:
        self.verbs, self.other, self.clock = verbs, other, clock
        self.serving: dict[str, str] = {}
        self.policies: dict[str, dict[str, Any]] = {lane: {} for lane in LANES}
        self.overrides: dict[str, dict[str, tuple[Any, float]]] = {lane: {} for lane in LANES}
        self.held = {lane: Limits(window=WINDOW) for lane in LANES}
        self.buckets = {lane: Bucket() for lane in LANES}
        self.turns = {lane: Turns() for lane in LANES}
        self.is_breaker_open = False
        self.tickets: list[Settled] = []
        self.runs = 0
        for lane in LANES:
            self.apply(lane)

    # Nodes and lanes.

    def register(self, node: str, flow: str) -> None:
        """Let a node of all lanes serve a flow."""
        crew(self.verbs, node, lanes=LANES, flows=(flow,))
        self.serving[node] = flow

    def leave(self, node: str) -> None:
        """Let a node say goodbye."""
        self.verbs.connection.execute("SELECT safepoint.stop_node_v1(%s)", (node,))
        self.serving.pop(node, None)

    def apply(self, lane: str, **policy: Any) -> None:
        """Let the file say something else."""
        self.policies[lane] = {"window": WINDOW, **policy}
        self.verbs.connection.execute(
            "SELECT safepoint.apply_lane_v1(%s, %s, false, 'test', 'test')", (lane, Jsonb(self.policies[lane]))
        )
        self._refresh(lane)

    def override(self, lane: str, seconds: float | None, **values: Any) -> None:
        """Set something over what the file says."""
        lanes.override(self.verbs.connection, lane, values, seconds=seconds, by="test", why="test")
        until = inf if seconds is None else self.clock.seconds + seconds
        self.overrides[lane].update({key: (value, until) for key, value in values.items()})
        self._refresh(lane)

    def lift(self, lane: str) -> None:
        """Take back what was set over the file."""
        lanes.lift(self.verbs.connection, lane, None, by="test", why="test")
        self.overrides[lane].clear()
        self._refresh(lane)

    def turn_breaker(self, *, is_open: bool) -> None:
        """Open or close the breaker, which nothing probes."""
        self.is_breaker_open = is_open
        self.verbs.connection.execute(
            "SELECT safepoint.turn_breaker_v1('llm', %s, NULL, %s, '{}', 'test', 'test', NULL)",
            ("open" if is_open else "closed", PARKED if is_open else None),
        )

    def _refresh(self, lane: str) -> None:
        over = {key: value for key, (value, _) in self.overrides[lane].items()}
        now_held = Limits.of({**self.policies[lane], **over})
        if now_held != self.held[lane]:
            self.held[lane] = now_held
            self.buckets[lane].limit(now_held, self.clock.seconds)

    def _end_overrides(self) -> None:
        for lane in LANES:
            over = self.overrides[lane]
            self.overrides[lane] = {key: one for key, one in over.items() if one[1] > self.clock.seconds}
            self._refresh(lane)

    def make_free(self) -> None:
        """Lift all limits, close the breaker and resume every run."""
        for lane in LANES:
            self.lift(lane)
            self.apply(lane)
        self.turn_breaker(is_open=False)
        for row in self.verbs.rows("SELECT run_id FROM safepoint.runs WHERE paused_at IS NOT NULL"):
            self.verbs.resume(row["run_id"])

    # Work.

    def next_run(self) -> UUID:
        """Give an id that is the same whenever the schedule is played again."""
        self.runs += 1
        return UUID(int=self.runs)

    def pile(self, tenant: str, lane: str, count: int, priority: int, *, version: str) -> None:
        """Let steps of a new run become ready that nobody has published."""
        run = backlog(self.verbs, count, lane=lane, tenant=tenant, queued=0, priority=priority, run=self.next_run())
        self.verbs.connection.execute(
            "UPDATE safepoint.runs SET workflow_version = %s, priority = %s WHERE run_id = %s", (version, priority, run)
        )

    @staticmethod
    def message(run: UUID, row: Next) -> Dispatched:
        """Give the message that a committer sends."""
        return Dispatched(run, row.key, row.kind, row.name, row.lane, row.attempt, row.epoch, EPOCH, 0)

    # Looks.

    def rows(self) -> dict[Place, Row]:
        """Read what is ready or running."""
        found = {}
        for facts in self.verbs.rows(_ROWS):
            place = tuple(facts.pop(name) for name in ("run_id", "generation", "path", "step_id", "iteration"))
            deadline, due = _seconds(facts.pop("deadline")), _seconds(facts.pop("due_at"))
            found[place] = Row(place=place, deadline=deadline, due=inf if due is None else due, **facts)
        return found

    def look(self, *, limit: int) -> list[Dispatched]:
        """Let one relay look."""
        with self._checked(limit) as (_, sent):
            rows = self.verbs.dispatch(limit=limit, settled=False)
            sent.extend(rows)
        return self._published(rows)

    def look_both(self, *, limit: int, dies: bool, lane: str) -> list[Dispatched]:
        """Let one relay look while another one is looking, which perhaps dies before its transaction ends.

        In between something comes that is more urgent than all that the other one has taken.
        """
        with self._checked(limit, is_whole=False) as (before, sent):
            mine, theirs = list[Dispatched](), list[Dispatched]()
            try:
                with self.other.connection.transaction():
                    theirs = self.other.dispatch(limit=limit, settled=False)
                    self.pile("a", lane, 2, 9, version="1")
                    before.update({place: row for place, row in self.rows().items() if place not in before})
                    mine = self.verbs.dispatch(limit=limit, settled=False)
                    if dies:
                        raise _Killed
            except _Killed:
                theirs = []
            sent.extend(mine + theirs)
        return self._published(mine + theirs)

    def settle(self, which: int) -> None:
        """Settle a row that was published some time ago; its ticket may be stale."""
        outbox.settle(self.verbs.connection, [self.tickets.pop(which % len(self.tickets))])

    def _published(self, rows: list[Dispatched]) -> list[Dispatched]:
        self.tickets = (self.tickets + [Settled(row.run_id, row.key, row.due, 10.0) for row in rows])[-20:]
        return sorted(rows, key=lambda row: (row.run_id, row.key.wire))

    @contextmanager
    def _checked(self, limit: int, *, is_whole: bool = True) -> Iterator[tuple[dict[Place, Row], list[Dispatched]]]:
        before, sent = self.rows(), list[Dispatched]()
        began = dict(before)
        yield before, sent
        self._end_overrides()
        after = self.rows()
        for lane in LANES:
            places = Counter(
                (row.run_id, row.key.generation, row.key.path, row.key.step_id, row.key.iteration)
                for row in sent
                if row.lane == lane
            )
            flows = frozenset(self.serving.values())
            round_ = Round(
                lane, self.held[lane], self.clock.seconds, flows, self.is_breaker_open, before, after, places, began
            )
            round_.assert_fits(self.buckets[lane], limit, is_whole=is_whole)
            self.turns[lane].add(round_)

    # What must hold at any time.

    def assert_sound(self, before: dict[Place, Row]) -> dict[Place, Row]:
        """No row is lost, and nobody has more places than are allowed; what was lowered only goes down."""
        rows = self.rows()
        for row in rows.values():
            row.assert_somewhere(self.clock.seconds)
        for lane, limits in self.held.items():
            was, are = (
                Counter(row.tenant for row in some if row.is_in_flight_on(lane))
                for some in (before.values(), rows.values())
            )  # one pair
            if limits.in_flight is not None:
                assert are.total() <= max(limits.in_flight, was.total()), lane
            if limits.tenant_in_flight is not None:
                assert all(count <= max(limits.tenant_in_flight, was[tenant]) for tenant, count in are.items()), lane
        return rows

    def forget(self) -> None:
        """Leave the ledger as it was found."""
        for statement in ("DELETE FROM safepoint.runs", "DELETE FROM safepoint.nodes", "DELETE FROM safepoint.lanes"):
            self.verbs.connection.execute(statement.encode())

    def open_steps(self) -> list[tuple[UUID, str]]:
        """Give what is not over."""
        query = "SELECT run_id, status FROM safepoint.steps WHERE status IN ('ready', 'running', 'waiting', 'held')"
        return [(row["run_id"], row["status"]) for row in self.verbs.rows(query)]

"""The admission of lanes as a state machine: work, limits, relays and deaths as rules, checked after each look."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from ledger_clock import Clock
from ledger_lanes import backlog
from ledger_relays import LANES, Relays
from ledger_verbs import Verbs, ask
from safepoint.ledger import outbox
from safepoint.ledger.connect import Connection
from safepoint.ledger.key import Key
from safepoint.ledger.outbox import Dispatched
from safepoint.ledger.steps import Claimed, Settled

__all__ = ["Admission"]

ANY = st.integers(0, 1000)  # which of several, modulo how many there are
RARELY = st.sampled_from([False] * 5 + [True])
LANE = st.sampled_from(LANES)
TENANT = st.sampled_from(["a", "b", "c"])
NODES = {"one": "f@1", "two": "f@2"}
LIMITS = st.fixed_dictionaries(
    {},
    optional={
        "rate": st.sampled_from([None, 0.0, 0.5, 2.0, 5.0]),
        "burst": st.sampled_from([None, 1, 3, 10]),
        "in_flight": st.sampled_from([None, 0, 1, 2, 4]),
        "tenant_in_flight": st.sampled_from([None, 0, 1, 2]),
        "window": st.sampled_from([30, 5, 2]),
        "weights": st.sampled_from([{}, {"a": 3.0}, {"a": 0.25, "b": 2.0}]),
        "order": st.sampled_from(["priority", "deadline"]),
        "stop_on_breaker": st.booleans(),
        "paused": RARELY,
    },
)
TIGHT = st.sampled_from(
    [
        {"in_flight": 2},
        {"in_flight": 4, "tenant_in_flight": 1},
        {"rate": 2.0, "burst": 3},
        {"rate": 5.0, "in_flight": 4, "weights": {"a": 3.0}},
        {"tenant_in_flight": 2, "order": "deadline"},
        {},
    ]
)


class Admission(RuleBasedStateMachine):
    """Three lanes, three tenants, two versions of a flow, each served by one node."""

    connection: Connection
    second: Connection
    clock: Clock

    def __init__(self) -> None:
        super().__init__()
        self.clock.set(0)
        self.verbs = Verbs(self.connection)
        self.relays = Relays(self.verbs, Verbs(self.second), self.clock)
        for node, flow in NODES.items():
            self.relays.register(node, flow)
        self.messages: list[Dispatched] = []
        self.held: list[Claimed] = []
        self.seen = self.relays.rows()
        self.asked = 0

    def teardown(self) -> None:
        try:
            self._end_by_fair_progress()
        finally:
            self.relays.forget()

    @initialize(limits=st.lists(TIGHT, min_size=3, max_size=3), width=st.integers(1, 25))
    def begin(self, limits: list[dict[str, Any]], width: int) -> None:
        """A schedule begins with a backlog of two tenants, on a limited lane or not."""
        for lane, tight in zip(LANES, limits, strict=True):
            self.relays.apply(lane, **tight)
        for tenant in ("a", "b"):
            backlog(self.verbs, width, lane="tools", tenant=tenant, run=self.relays.next_run())

    # Work.

    @rule(
        tenant=TENANT, priority=st.integers(0, 2), deadline=st.sampled_from([None, 600, 900]), later=RARELY, old=RARELY
    )
    def enqueue(self, tenant: str, priority: int, deadline: int | None, later: bool, old: bool) -> None:
        self.verbs.enqueue(
            run_id=self.relays.next_run(),
            tenant=tenant,
            priority=priority,
            version="2" if old else "1",
            deadline=None if deadline is None else self.clock.now + timedelta(seconds=deadline),
            start_at=self.clock.now + timedelta(seconds=4) if later else None,
        )

    @rule(tenant=TENANT, lane=LANE, count=st.integers(1, 6), priority=st.integers(0, 2), old=RARELY)
    def pile_up(self, tenant: str, lane: str, count: int, priority: int, old: bool) -> None:
        """Steps become ready that nobody has published: timers, signals, decisions."""
        self.relays.pile(tenant, lane, count, priority, version="2" if old else "1")

    # Relays.

    @rule(limit=st.sampled_from([1, 3, 100]), arrives=st.booleans())
    def look(self, limit: int, arrives: bool) -> None:
        rows = self.relays.look(limit=limit)
        self.messages += rows if arrives else []

    @rule(dies=st.booleans(), lane=LANE)
    def look_both(self, dies: bool, lane: str) -> None:
        self.messages += self.relays.look_both(limit=100, dies=dies, lane=lane)

    @rule(
        rounds=st.integers(1, 8),
        limit=st.integers(1, 4),
        ends=st.sampled_from([1, 1, 2, 9]),
        seconds=st.sampled_from([0.0, 0.25, 1.0]),
    )
    def work(self, rounds: int, limit: int, ends: int, seconds: float) -> None:
        """The usual way: a relay looks, workers take what comes and end it, or every so many of them."""
        for _ in range(rounds):
            self.clock.forward(seconds)
            for row in self.relays.look(limit=limit):
                self._claim(row, "one" if self._flow(row) == "f@1" else "two")
            self.seen = self.relays.assert_sound(self.seen)
            ending, self.held = self.held[::ends], [] if ends == 1 else [h for n, h in enumerate(self.held) if n % ends]
            for held in ending:
                self.verbs.commit(held)

    @precondition(lambda self: self.relays.tickets)
    @rule(which=ANY)
    def settle(self, which: int) -> None:
        self.relays.settle(which)

    @precondition(lambda self: self.messages)
    @rule(which=ANY)
    def duplicate(self, which: int) -> None:
        self.messages.append(self.messages[which % len(self.messages)])

    # Workers.

    @precondition(lambda self: self.messages)
    @rule(which=ANY, node=st.sampled_from(sorted(NODES)))
    def claim(self, which: int, node: str) -> None:
        self._claim(self.messages.pop(which % len(self.messages)), node)

    def _claim(self, row: Dispatched, node: str) -> None:
        answer = self.verbs.claim(row.run_id, row.key, lane=row.lane, node=node)
        if isinstance(answer, Claimed):
            self.held.append(answer)

    @precondition(lambda self: self.seen)
    @rule(which=ANY)
    def claim_unasked(self, which: int) -> None:
        """A message of long ago comes, whatever the row has come to."""
        row = sorted(self.seen.values(), key=lambda row: str(row.place))[which % len(self.seen)]
        of = Key(*row.place[1:])
        answer = self.verbs.claim(row.place[0], of, lane=row.lane, node="one" if row.flow == "f@1" else "two")
        if isinstance(answer, Claimed):
            self.held.append(answer)

    @precondition(lambda self: self.held)
    @rule(
        which=ANY,
        width=st.sampled_from([0, 0, 1, 2, 20]),
        lane=LANE,
        uses=st.sampled_from([None, "llm"]),
        settles=st.booleans(),
    )
    def commit(self, which: int, width: int, lane: str, uses: str | None, settles: bool) -> None:
        """Of whoever has it, or has had it; what it asks for is published by the committer where it may be."""
        held = self.held.pop(which % len(self.held))
        self.asked += 1
        asked = [ask(f"s{self.asked}#{n}", lane=lane, uses=uses) for n in range(1, width + 1)]
        answer = self.verbs.commit(held, asked=asked)
        fast = [row for row in answer.rows if row.status == "ready" and row.due and not row.queued]
        self.messages += [self.relays.message(held.run_id, row) for row in fast]
        tickets = [Settled(held.run_id, row.key, row.due or "", 10.0) for row in fast]
        if settles:
            outbox.settle(self.connection, tickets)
        else:
            self.relays.tickets += tickets

    @precondition(lambda self: self.held)
    @rule(which=ANY, delay=st.sampled_from([0.0, 3.0]))
    def retry(self, which: int, delay: float) -> None:
        self.verbs.retry(self.held.pop(which % len(self.held)), delay=delay)

    @precondition(lambda self: self.held)
    @rule(which=ANY)
    def release(self, which: int) -> None:
        self.verbs.release(self.held.pop(which % len(self.held)))

    @precondition(lambda self: self.held)
    @rule(which=ANY, speaks=st.booleans())
    def lose(self, which: int, speaks: bool) -> None:
        """Its executor is taken for dead, and perhaps comes back with an outcome."""
        held = self.held.pop(which % len(self.held))
        self.verbs.lose(held, max_deaths=1000)
        if speaks:
            self.held.append(held)

    # Nodes, people and time.

    @rule(node=st.sampled_from(sorted(NODES)), is_there=st.booleans())
    def node(self, node: str, is_there: bool) -> None:
        self.relays.register(node, NODES[node]) if is_there else self.relays.leave(node)

    @precondition(lambda self: self.seen)
    @rule(which=ANY, is_paused=st.booleans())
    def pause_a_run(self, which: int, is_paused: bool) -> None:
        run = sorted(self.seen, key=str)[which % len(self.seen)][0]
        self.verbs.pause(run) if is_paused else self.verbs.resume(run)

    @rule(is_open=st.booleans())
    def breaker(self, is_open: bool) -> None:
        self.relays.turn_breaker(is_open=is_open)

    @rule(lane=LANE, seconds=st.sampled_from([None, 3.0, 8.0]), values=LIMITS)
    def override(self, lane: str, seconds: float | None, values: dict[str, Any]) -> None:
        if values:
            self.relays.override(lane, seconds, **values)

    @rule(lane=LANE, values=TIGHT)
    def apply(self, lane: str, values: dict[str, Any]) -> None:
        self.relays.apply(lane, **values)

    @rule(lane=LANE)
    def lift(self, lane: str) -> None:
        self.relays.lift(lane)

    @rule(seconds=st.sampled_from([0.5, 1.0, 3.0, 5.0, 11.0]))
    def time_goes_on(self, seconds: float) -> None:
        self.clock.forward(seconds)

    @invariant()
    def everything_is_somewhere(self) -> None:
        self.seen = self.relays.assert_sound(self.seen)

    def _end_by_fair_progress(self) -> None:
        """Everybody has died, every message is lost, all limits are lifted: what is left goes out, and ends."""
        self.relays.make_free()
        for held in self.held:
            self.verbs.lose(held, max_deaths=1000)
        for _ in range(12):
            for node, flow in NODES.items():
                self.relays.register(node, flow)
            self.clock.forward(31)
            for row in self.relays.look(limit=100):
                node = "one" if self._flow(row) == "f@1" else "two"
                self.verbs.commit(self.verbs.claimed(row.run_id, row.key, lane=row.lane, node=node))
            if not self.relays.open_steps():
                return
        assert self.relays.open_steps() == []

    def _flow(self, row: Dispatched) -> str:
        return "f@" + str(self.verbs.run(row.run_id)["workflow_version"])

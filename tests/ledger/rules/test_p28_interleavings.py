"""Approve, deny, expire, cancel, crash and sweep in every order and at the same instant: one decision, and none that
nobody has made (P28, G10).
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import psycopg
import pytest
from ledger_clock import Clock
from ledger_fixtures import Crowd
from ledger_verbs import Verbs, ask, key
from safepoint.ledger.key import Key
from safepoint.ledger.steps import Cause, Claimed

OK = key("approval:ok#1")
PAY = key("pay#1")
EXPIRY = 10.0  # seconds
ACTIONS = ("approve", "deny", "expire", "cancel", "crash", "sweep")


def approval(**more: Any) -> dict[str, Any]:
    return ask(str(OK), "approval", name="ok", **more)


def guarded() -> dict[str, Any]:
    effect = {"requires_approval": "role:oncall"}
    return ask(str(PAY), "effect", request="bnVsbA==", encoding="json", effect=effect, reason={"code": "approval"})


def effect_outcome(verbs: Verbs, run: UUID) -> str | None:
    found: str | None = verbs.value("SELECT decision->>'outcome' FROM safepoint.effects WHERE run_id = %s", (run,))
    return found


# In every order.


@dataclass
class Expected:
    """What a person may expect of one question, told without the ledger."""

    name: str
    of: Key
    expires: bool
    is_over: bool = False
    outcome: str | None = None


@dataclass
class Played:
    """A run that asks for an approval with an expiry, and for that of an effect: every action meets both."""

    verbs: Verbs
    clock: Clock
    run: UUID
    questions: tuple[Expected, ...]
    is_cancelled: bool = False

    def act(self, action: str) -> Played:
        """Do one thing to the ledger, and give what follows from it."""
        after = replace(self, questions=tuple(replace(one) for one in self.questions))
        getattr(after, action)()
        return after

    def approve(self) -> None:
        for one in self.questions:
            self._decide(one, approved=True)

    def deny(self) -> None:
        for one in self.questions:
            self._decide(one, approved=False)

    def _decide(self, one: Expected, *, approved: bool) -> None:
        answer = self.verbs.decide(self.run, one.name, approved=approved).answer
        is_taken = not (one.outcome or one.is_over or self.is_cancelled)
        if is_taken:
            one.outcome = "approved" if approved else "denied"
        assert (answer == "decided") is is_taken

    def expire(self) -> None:
        self.clock.forward(EXPIRY)
        for one in self.questions:
            one.is_over = one.expires

    def sweep(self) -> None:
        self.verbs.look()
        self.verbs.chores()
        for one in self.questions:
            if one.is_over and not self.is_cancelled and one.outcome is None:
                one.outcome = "expired"

    def cancel(self) -> None:
        self.verbs.cancel(self.run)
        self.is_cancelled = True

    def crash(self) -> None:
        """A worker takes the decided waits, and dies before it commits."""
        for one in self.questions:
            claimed = self._claim(one)
            assert claimed is None or one.outcome is not None  # nothing that nobody has decided goes on
            if claimed is not None:
                self.verbs.lose(claimed, Cause.CHILD)

    def _claim(self, one: Expected) -> Claimed | None:
        answer = self.verbs.claim(self.run, one.of, lane=self.verbs.step(self.run, one.of)["lane"])
        return answer if isinstance(answer, Claimed) else None

    def heard(self, one: Expected) -> str | None:
        """What the next worker that claims the wait would give to the flow."""
        claimed = self._claim(one)
        if claimed is None:
            return None
        if claimed.kind == "effect":
            return effect_outcome(self.verbs, self.run)
        assert claimed.outcome is not None
        return "expired" if claimed.outcome.data is None else str(json.loads(claimed.outcome.data)["outcome"])

    def check(self) -> None:
        """One decision for each question, or none; and the flow hears that one, if it hears of anything any more."""
        self.sweep()
        query = (
            "SELECT key, data->>'outcome' AS o FROM safepoint.events WHERE run_id = %s AND type = 'approval.decided'"
        )
        told = sorted((row["key"], row["o"]) for row in self.verbs.rows(query, (self.run,)))
        assert told == sorted((str(one.of), one.outcome) for one in self.questions if one.outcome)
        for one in self.questions:
            assert self.heard(one) == (None if self.is_cancelled else one.outcome)


def test_p28_in_every_order_there_is_one_decision_and_none_that_nobody_made(verbs: Verbs, clock: Clock) -> None:
    """All 720 orders: those that begin alike are played once up to where they part."""
    verbs.node(lease=10_000.0)
    questions = Expected("ok", OK, expires=True), Expected("pay", PAY, expires=False)
    run = verbs.begun(approval(delay=EXPIRY), guarded())
    ends: Counter[tuple[str | None, ...]] = Counter()

    def play(played: Played, *done: str) -> None:
        if len(done) == len(ACTIONS):
            played.check()
            ends[tuple(one.outcome for one in played.questions)] += 1
        for action in [one for one in ACTIONS if one not in done]:
            with verbs.connection.transaction() as savepoint:
                then = clock.seconds
                try:
                    play(played.act(action), *done, action)
                except AssertionError as error:
                    error.add_note(" -> ".join((*done, action)))
                    raise
                clock.seconds = then
                raise psycopg.Rollback(savepoint)

    play(Played(verbs, clock, run, questions))

    assert ends.total() == 720
    assert {ok for ok, _ in ends} == {"approved", "denied", "expired", None}
    assert {pay for _, pay in ends} == {"approved", "denied", None}


# At the same instant.

RUNS = 60
Racer = Callable[[Verbs, UUID], object]


def approves(verbs: Verbs, run: UUID) -> str:
    return verbs.decide(run, "ok" if is_flow(verbs, run) else "pay").answer


def denies(verbs: Verbs, run: UUID) -> str:
    return verbs.decide(run, "ok" if is_flow(verbs, run) else "pay", approved=False).answer


def cancels(verbs: Verbs, run: UUID) -> str:
    return verbs.cancel(run)


def sweeps(verbs: Verbs, run: UUID) -> int:
    return verbs.chores().fired


def claims(verbs: Verbs, run: UUID) -> object:
    claimed = verbs.claim(run, OK if is_flow(verbs, run) else PAY)
    if isinstance(claimed, Claimed):
        verbs.lose(claimed, Cause.CHILD)
    return claimed


def is_flow(verbs: Verbs, run: UUID) -> bool:
    return bool(verbs.value("SELECT count(*) FROM safepoint.steps WHERE run_id = %s AND kind = 'approval'", (run,)))


RACES: list[tuple[Racer, ...]] = [
    (approves, approves),
    (approves, denies),
    (approves, cancels),
    (approves, sweeps),
    (denies, sweeps, cancels),
    (approves, denies, claims, sweeps),
]


@pytest.mark.parametrize("is_effect", [False, True], ids=["approval", "effect"])
@pytest.mark.parametrize("racers", RACES, ids=lambda racers: "-".join(racer.__name__ for racer in racers))
def test_p28_at_the_same_instant_one_decides(crowd: Crowd, racers: tuple[Racer, ...], is_effect: bool) -> None:
    """Each race on runs of its own, with a connection for each racer; waits of a flow expire while it goes on."""
    check = crowd()
    check.many(RUNS)
    runs = [row["run_id"] for row in check.rows("SELECT run_id FROM safepoint.runs")]
    for n, run in enumerate(runs):
        # Every second one expires about when it is its turn.
        asked = guarded() if is_effect else approval(delay=0.002 * n) if n % 2 else approval(delay=1000.0)
        check.commit(check.claimed(run), asked=[asked])
    barrier, everyone = threading.Barrier(len(racers), timeout=30), [crowd() for _ in racers]

    def race(verbs: Verbs, racer: Racer) -> None:
        for run in runs:
            barrier.wait()
            racer(verbs, run)

    with ThreadPoolExecutor(len(racers)) as pool:
        for future in [pool.submit(race, *pair) for pair in zip(everyone, racers, strict=True)]:
            future.result(timeout=60)
    check.chores()

    assert (
        check.value("SELECT count(*) FROM pg_stat_database WHERE datname = current_database() AND deadlocks > 0") == 0
    )
    assert [wrong(check, run, PAY if is_effect else OK) for run in runs] == [None] * RUNS
    counts = check.rows(
        "SELECT data->>'outcome' AS o, count(*) AS n FROM safepoint.events WHERE type = 'approval.decided' GROUP BY 1"
    )
    told = {row["o"]: row["n"] for row in counts}
    assert sum(told.values()) <= RUNS
    assert "approved" not in told or approves in racers  # nothing approves itself
    assert "denied" not in told or denies in racers


def wrong(verbs: Verbs, run: UUID, of: Key) -> str | None:
    """Say what is wrong with a run: events and row tell of one decision, or of none."""
    events = verbs.rows(
        "SELECT data->>'outcome' AS o FROM safepoint.events WHERE run_id = %s AND type = 'approval.decided'", (run,)
    )
    row = verbs.step(run, of)
    outcome = row["outcome"] or {}
    stored = "expired" if outcome.get("status") == "expired" else outcome.get("outcome")
    if of == PAY:
        stored = effect_outcome(verbs, run)
    told = [event["o"] for event in events]
    if told != ([stored] if stored else []):
        return f"{run}: events tell of {told}, the row of {stored}"
    if not told and row["status"] not in {"waiting", "cancelled"}:
        return f"{run}: nobody has decided, and yet it is {row['status']}"
    return None


# Signals: before the wait, at the same instant, after, twice.


def test_p27_a_signal_that_is_sent_twice_while_its_wait_is_made_is_taken_once(crowd: Crowd) -> None:
    """A thousand runs: two senders with one message, before, beside and after the commit of the wait by turns."""
    committer, *senders = crowd(), crowd(), crowd()
    check = crowd()
    for verbs in (committer, *senders, check):
        verbs.connection.execute("SET synchronous_commit = off")
    check.many(1000)
    runs = [row["run_id"] for row in check.rows("SELECT run_id FROM safepoint.runs")]
    waits_for = [ask("go#1", "signal"), ask("gather#1.1/go#1", "signal", name="go")]
    tokens = {run: committer.claimed(run) for run in runs}
    barrier = threading.Barrier(3, timeout=60)

    def send(verbs: Verbs, *, backwards: bool) -> list[str]:
        answers = []
        for start in range(0, 1000, 10):
            chunk = runs[start : start + 10]
            barrier.wait()
            answers += [verbs.signal(run, dedupe="once") for run in (reversed(chunk) if backwards else chunk)]
        return answers

    with ThreadPoolExecutor(2) as pool:
        sent = [pool.submit(send, verbs, backwards=n > 0) for n, verbs in enumerate(senders)]
        for n, run in enumerate(runs):
            if n % 10 == 0:
                barrier.wait()
            committer.commit(tokens[run], advanced_from=0, asked=waits_for)
        answers = [answer for future in sent for answer in future.result(timeout=60)]

    waits = check.rows(
        "SELECT array_agg(status ORDER BY status) AS pair, count(*) OVER () AS n FROM safepoint.steps"
        " WHERE name = 'go' GROUP BY run_id"
    )
    assert {tuple(row["pair"]) for row in waits} == {("ready", "waiting")}  # none lost, none doubled
    assert len(waits) == 1000
    assert check.value("SELECT count(*) FROM safepoint.mailbox WHERE consumed_at IS NOT NULL") == 1000
    assert check.value("SELECT count(*) FROM safepoint.mailbox") == 1000
    assert answers.count("duplicate") == 1000
    assert {"stored", "delivered"} <= set(answers)  # before and after have both happened, or this shows nothing

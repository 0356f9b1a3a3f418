"""P31: going on in place. One message for many steps, and for each of them everything else that a step has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psycopg
import pytest
from ledger_clock import Clock
from ledger_fixtures import Crowd
from ledger_verbs import Verbs
from safepoint import Permanent, approval, current, effect, flow, gather, step
from safepoint.config.settings import Settings
from safepoint.ledger import commit as commits
from safepoint.ledger.errors import ArtifactStoreUnavailable, RetryAfter
from safepoint.tasks.execute import Executor
from workshop import Workshop, settings_of

SLICE = 60.0
did: list[str] = []


@step(name="place_add")
def add(n: int) -> int:
    did.append(f"add {n}")
    return n + 1


@step(name="place_gpu", lane="recovery")
def elsewhere(n: int) -> int:
    return n + 1


@step(name="place_ask", uses="place_llm")
def ask(n: int) -> int:
    return n + 1


@step(name="place_flaky")
def flaky(n: int) -> int:
    if current().attempt == 1:
        raise RetryAfter(5.0)
    return n + 1


@step(name="place_broken")
def broken(n: int) -> int:
    raise Permanent("no")


@effect(name="place_send", idempotent=True)
def send(n: int) -> int:
    did.append(f"send {n} {current().idempotency_key[:6]}")
    return n + 1


@flow(name="place_chain", version="1")
async def chain(length: int) -> int:
    n = 0
    for _ in range(length):
        n = await add(n)
    return n


@flow(name="place_mixed", version="1")
async def mixed() -> int:
    n = await add(0)
    n = await send(n)
    n = await elsewhere(n)
    a, b = await gather(add(n), add(n + 10))
    n = await flaky(a + b)
    try:
        n = await broken(n)
    except Exception:  # noqa: BLE001  # as a user would
        n = await add(n)
    return n


@step(name="place_costly")
def costly(n: int) -> int:
    current().spend(tokens=7)  # type: ignore[attr-defined]  # a step's
    return n


@flow(name="place_pays", version="1")
async def pays() -> int:
    return await add(await costly(1))


@flow(name="place_asks", version="1")
async def asks() -> int:
    return await ask(await add(0))


@flow(name="place_waits", version="1")
async def waits() -> int:
    n = await add(0)
    await approval("go", show=n)
    return await add(n)


class Place:
    """A node whose lane lets it go on in place."""

    def __init__(self, url: str, settings: Settings, verbs: Verbs, clock: Clock, *, slice_: float = SLICE) -> None:
        online = settings.lanes["online"].model_copy(update={"inline_slice": slice_})
        settings = settings.model_copy(update={"lanes": {**settings.lanes, "online": online}})
        self.shop, self.verbs, self.clock, self.url = Workshop(url, settings), verbs, clock, url
        verbs.connection.execute("UPDATE safepoint.lanes SET inline_slice = %s WHERE name = 'online'", (slice_,))
        self.shop.register(url)

    def play(self, flow_: str, **given: Any) -> dict[str, Any]:
        """Play a run to its end."""
        run = self.verbs.enqueue(flow=flow_, input=json.dumps(given))
        self.shop.work(self.url)
        return self.verbs.run(run)

    def events(self, run: dict[str, Any]) -> list[str]:
        """The run's events."""
        rows = self.verbs.rows(
            "SELECT type, key FROM safepoint.events WHERE run_id = %s ORDER BY seq", (run["run_id"],)
        )
        return [f"{row['type']} {row['key'] or ''}".strip() for row in rows]


@pytest.fixture
def place(crowd: Crowd, crowd_clock: Clock, crowded_ledger_url: str, tmp_path: Path) -> Place:
    did.clear()
    settings = settings_of(tmp_path, relay={"grace": 0.0})
    return Place(crowded_ledger_url, settings, crowd(), crowd_clock)


def test_p31_a_chain_takes_one_message(place: Place) -> None:
    run = place.play("place_chain", length=5)

    assert (run["status"], run["result"]) == ("succeeded", b"5")
    assert place.shop.belt.steps() == []  # the relay's @start was handed over by the test; nothing was published
    assert did == [f"add {n}" for n in range(5)]
    epochs = place.verbs.rows("SELECT epoch, attempt FROM safepoint.steps WHERE kind = 'step'")
    assert [(row["epoch"], row["attempt"]) for row in epochs] == [(1, 1)] * 5
    for n in range(1, 6):
        assert place.events(run).count(f"step.started place_add#{n}") == 1
        assert place.events(run).count(f"step.committed place_add#{n}") == 1


def test_p31_a_slice_of_nothing_sends_every_step(place: Place) -> None:
    place.verbs.connection.execute("UPDATE safepoint.lanes SET inline_slice = 0")  # as an override does

    run = place.play("place_chain", length=3)

    assert run["status"] == "succeeded"
    assert place.shop.belt.steps() == [f"place_add#{n}" for n in range(1, 4)]


def test_p31_what_is_no_single_step_of_the_lane_is_sent(place: Place) -> None:
    run = place.verbs.enqueue(flow="place_mixed", input="{}")
    place.shop.work(place.url)
    place.clock.forward(10)
    place.verbs.beat()
    place.shop.work(place.url)
    done = place.verbs.run(run)

    assert (done["status"], done["result"]) == ("succeeded", b"20")
    sent = place.shop.belt.steps()
    assert "place_send#1" not in sent  # add and send went on from the start
    assert {"gather#1.1/place_add#1", "gather#1.2/place_add#1"} <= set(sent)
    assert len([one for one in did if one.startswith("send")]) == 1


def test_p31_a_wait_ends_the_task(place: Place) -> None:
    run = place.play("place_waits")

    assert run["status"] == "waiting"
    assert not place.shop.board.active()


@pytest.mark.parametrize(
    "shut",
    [
        "UPDATE safepoint.nodes SET draining = true",
        "UPDATE safepoint.lanes SET paused = true WHERE name = 'online'",
        "UPDATE safepoint.runs SET paused_at = safepoint.now()",
        "UPDATE safepoint.lanes SET in_flight = 5 WHERE name = 'online'",
    ],
)
def test_p31_the_guards_are_those_of_any_claim(place: Place, monkeypatch: pytest.MonkeyPatch, shut: str) -> None:
    """What happens while the first step executes holds for the second one."""

    def shutting(n: int) -> int:
        place.verbs.connection.execute(shut.encode())
        return n + 1

    monkeypatch.setattr(add, "fn", shutting)
    run = place.verbs.enqueue(flow="place_asks", input="{}")
    (row,) = place.verbs.dispatch()
    place.shop.execute(row.run_id, row.key.wire)

    found = place.verbs.rows("SELECT step_id, status FROM safepoint.steps WHERE run_id = %s AND kind = 'step'", (run,))
    assert {row["step_id"]: row["status"] for row in found} == {"place_add": "succeeded", "place_ask": "ready"}


def test_p39_a_breaker_that_is_not_closed_is_met_by_a_claim_of_its_own(place: Place) -> None:
    place.verbs.connection.execute(
        "INSERT INTO safepoint.breakers (name, state, next_probe_at) VALUES ('place_llm', 'open', 'infinity')"
        " ON CONFLICT (name) DO UPDATE SET state = 'open', next_probe_at = 'infinity'"
    )

    run = place.play("place_asks")

    (row,) = place.verbs.rows("SELECT status, reason FROM safepoint.steps WHERE step_id = 'place_ask'")
    assert (row["status"], row["reason"]["code"]) == ("ready", "breaker")
    assert run["status"] in {"running", "waiting"}


def test_p31_others_that_wait_shorten_the_slice(place: Place) -> None:
    """A quarter of it is over, and another message has been waiting: the next step goes through the broker."""
    place.verbs.enqueue(flow="place_chain", input='{"length": 1}')
    assert len(place.verbs.dispatch()) == 1
    place.clock.forward(1)
    place.verbs.beat()
    ages = iter([0.0, SLICE / 2, SLICE / 2, SLICE / 2])
    run = place.verbs.enqueue(flow="place_chain", input='{"length": 3}')
    (row,) = place.verbs.dispatch()
    original = commits.GoOn.facts

    def aged(self: commits.GoOn) -> dict[str, Any]:
        return {**original(self), "age": next(ages)}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commits.GoOn, "facts", aged)
        place.shop.execute(run, row.key.wire)

    assert place.shop.belt.steps() == ["place_add#2"]


def test_p31_a_lost_answer_is_asked_for_again_and_claims_once(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """P3, P4: commit and claim stand, nobody has heard of it; the identical call answers with both."""
    asked: list[int] = []
    original = commits._both

    def losing(*arguments: Any) -> Any:
        asked.append(1)
        if len(asked) == 2:
            place.shop.loan.disconnect()
            raise psycopg.OperationalError("the answer is lost")
        return original(*arguments)

    monkeypatch.setattr(commits, "_both", losing)
    run = place.play("place_chain", length=4)

    assert (run["status"], run["result"]) == ("succeeded", b"4")
    assert did == [f"add {n}" for n in range(4)]
    assert place.shop.belt.steps() == []
    epochs = place.verbs.rows("SELECT epoch FROM safepoint.steps WHERE kind = 'step'")
    assert [row["epoch"] for row in epochs] == [1] * 4


def test_p31_both_claims_are_named_while_the_answer_is_awaited(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    named: list[int] = []
    original = commits._both

    def looking(*arguments: Any) -> Any:
        named.append(len(place.shop.board.active()))
        return original(*arguments)

    monkeypatch.setattr(commits, "_both", looking)
    place.play("place_chain", length=3)

    assert named == [2, 2, 2]
    assert place.shop.board.active() == []


def test_p05_what_is_committed_in_place_is_durable(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim alone commits asynchronously; with a commit it must not."""
    durable: list[tuple[bool, str]] = []
    original = commits.commit

    def looking(connection: Any, *arguments: Any, **more: Any) -> commits.Answer:
        with connection.transaction():
            answer = original(connection, *arguments, **more)
            (how,) = connection.execute("SELECT current_setting('synchronous_commit')").fetchone()
        durable.append((answer.claimed is not None, how))
        return answer

    monkeypatch.setattr(commits, "commit", looking)
    place.play("place_chain", length=2)

    assert durable == [(True, "on"), (True, "on"), (False, "on")]


def test_p31_a_claim_in_place_whose_values_are_away_is_given_back(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing of what the step before it has spent is charged to it."""
    original = Executor._turn
    seen: list[str] = []

    def away(self: Executor, claimed: Any, *arguments: Any, **more: Any) -> Any:
        seen.append(claimed.key.wire)
        if seen == ["@start#1", "place_costly#1", "place_add#1"]:
            raise ArtifactStoreUnavailable(text="away")
        return original(self, claimed, *arguments, **more)

    monkeypatch.setattr(Executor, "_turn", away)
    run = place.play("place_pays")

    (row,) = place.verbs.rows("SELECT status, attempt, wasted_tokens FROM safepoint.steps WHERE step_id = 'place_add'")
    assert row == {"status": "ready", "attempt": 1, "wasted_tokens": 0}
    assert run["spent_tokens"] == 7

"""`current()` in steps and flows, `once`, and artifacts."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from driving import Driving
from safepoint import Artifact, Budget, current, flow, now, random, step
from safepoint.errors import ArtifactCorrupt, NotInFlow, NotInStep, ValueNotEncodable
from safepoint.ledger.codec import Codec
from safepoint.testing import MemoryLedger, step_context


@dataclass
class Page:
    url: str
    words: int


def test_a_step_knows_its_run():
    with step_context(tenant="acme", key="search#2", attempt=3, tags={"team": "sre"}) as context:
        here = current()

    assert here is context
    assert (here.tenant, here.key, here.attempt, here.tags) == ("acme", "search#2", 3, {"team": "sre"})
    assert here.idempotency_key == "test-key"
    assert here.reference.endswith("/1/search#2")


def test_only_an_effect_has_an_idempotency_key():
    with step_context(idempotency_key=None), pytest.raises(NotInStep, match="only @effect"):
        _ = current().idempotency_key


def test_what_is_spent_is_charged_and_seen_at_once():
    with step_context(budget=Budget(tokens=100, usd=1.0)) as context:
        current().spend(tokens=30, usd=0.25)
        current().spend(tokens=10)

        assert current().budget == Budget(tokens=60, usd=0.75)

    assert (context.spent_tokens, context.spent_usd) == (40, 0.25)


@pytest.mark.parametrize(
    "spent", [{"tokens": -1}, {"tokens": 1.5}, {"usd": float("nan")}, {"usd": -0.1}, {"tokens": True}]
)
def test_what_cannot_be_spent_is_refused(spent):
    with step_context(), pytest.raises(ValueError, match="accepted is"):
        current().spend(**spent)


def test_notes_are_kept_in_order():
    with step_context() as context:
        current().note("reading", percent=10)
        current().note("done")

    assert context.notes == [{"text": "reading", "percent": 10}, {"text": "done"}]
    with pytest.raises(ValueError, match="0 to 100"):
        context.note("too much", percent=101)


def test_outside_there_is_nothing():
    for call in (current, now, random):
        with pytest.raises((NotInFlow, NotInStep), match="inside a flow"):
            call()


def test_the_time_of_a_flow_is_not_for_steps():
    with step_context(), pytest.raises(NotInFlow, match="works only inside a flow"):
        now()


@flow
async def spending() -> None:
    current().spend(tokens=1)


@flow
async def keyed() -> None:
    _ = current().key


@pytest.mark.parametrize(("call", "what"), [(spending(), "spend"), (keyed(), "key")])
def test_what_only_steps_have_is_refused_in_a_flow(call, what: str):
    assert f"current().{what} works only inside a step" in Driving(call).outcome.text


def test_once_calls_its_function_once_over_all_attempts():
    ledger, calls, spent = MemoryLedger(), [], []

    def fetch() -> Page:
        calls.append(1)
        current().spend(tokens=5)
        return Page("a", 3)

    for _ in range(2):
        with step_context(ledger=ledger) as context:
            assert current().once("page", fetch) == Page("a", 3)
        spent.append(context.spent_tokens)

    assert len(calls) == 1
    assert ledger.tokens == 5
    assert spent == [0, 0]


def test_what_once_has_spent_is_committed_with_its_row_only():
    with step_context(budget=Budget(tokens=10)) as context:
        current().spend(tokens=1)
        current().once("page", lambda: current().spend(tokens=4))

        assert current().budget.tokens == 5

    assert context.spent_tokens == 1


def test_what_a_failed_once_has_spent_is_charged_to_the_step():
    def fail() -> None:
        current().spend(tokens=4)
        raise RuntimeError

    with step_context() as context, pytest.raises(RuntimeError):
        current().once("page", fail)

    assert context.spent_tokens == 4


def test_the_first_writer_wins_and_the_loser_reads():
    ledger = MemoryLedger()

    def slow() -> str:
        current().spend(tokens=4)
        with step_context(ledger=ledger):
            current().once("page", lambda: "first")
        return "second"

    with step_context(ledger=ledger) as context:
        assert current().once("page", slow) == "first"

    assert context.spent_tokens == 4  # paid for nothing, but paid


def test_once_runs_coroutines_several_at_a_time():
    ledger, calls = MemoryLedger(), []

    async def fetch(n: int) -> Page:
        calls.append(n)
        current().spend(tokens=n)
        await asyncio.sleep(0)
        return Page(str(n), n)

    async def body() -> list[Page]:
        here = current()
        first = await asyncio.gather(*[here.once(f"page-{n}", partial(fetch, n), type=Page) for n in range(3)])
        again = await here.once("page-1", lambda: fetch(1), type=Page)
        other = await here.once("page-9", lambda: fetch(9), type=Page)
        return [*first, again, other]

    for _ in range(2):
        with step_context(ledger=ledger) as context:
            assert [page.words for page in asyncio.run(body())] == [0, 1, 2, 1, 9]
        assert context.spent_tokens == 0

    assert calls == [0, 1, 2, 9]
    assert ledger.tokens == 12


def test_a_value_that_does_not_come_back_is_refused_by_name():
    with (
        step_context(),
        pytest.raises(ValueNotEncodable, match=r"once\['page'\]: a value of type Page comes back as dict"),
    ):
        current().once("page", lambda: Page("a", 1))


@pytest.mark.parametrize("name", ["", "x" * 201, 3])
def test_a_name_that_no_row_can_have_is_refused(name):
    with step_context(), pytest.raises(ValueError, match="1 to 200 characters"):
        current().once(name, lambda: 1)


def test_spending_from_threads_adds_up():
    with step_context() as context:
        threads = [threading.Thread(target=lambda: [context.spend(tokens=1) for _ in range(200)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert context.spent_tokens == 800


def test_an_artifact_is_named_by_its_content(tmp_path: Path):
    path = tmp_path / "report.json"
    path.write_bytes(b"{}")

    with step_context():
        stored = [
            current().artifact(b"{}", name="a.json"),
            current().artifact("{}"),
            current().artifact(path),
        ]
        assert [one.read() for one in stored] == [b"{}"] * 3
        with stored[0].open() as stream:
            assert stream.read(1) == b"{"

    assert len({one.sha256 for one in stored}) == 1
    assert [one.media_type for one in stored] == [
        "application/json",
        "text/plain; charset=utf-8",
        "application/octet-stream",
    ]
    assert [one.name for one in stored] == ["a.json", None, "report.json"]


def test_an_artifact_is_a_value():
    artifact = Artifact("0" * 64, 3, "text/plain", "a")
    codec = Codec[dict[str, Artifact]](dict[str, Artifact])

    data = codec.encode({"a": artifact}).data

    assert data == b'{"a":{"sha256":"%s","size":3,"media_type":"text/plain","name":"a"}}' % (b"0" * 64)
    assert codec.decode(data) == {"a": artifact}
    with pytest.raises(NotInStep, match="reading the artifact a"):
        artifact.read()


def test_a_changed_artifact_is_not_read():
    ledger = MemoryLedger()
    with step_context(ledger=ledger):
        artifact = current().artifact(b"abc")
        ledger.artifacts._stored[artifact.sha256] = b"abd"

        with pytest.raises(ArtifactCorrupt):
            artifact.read()


@step
def produce() -> Artifact:
    return current().artifact(b"abc")


@flow
async def reading() -> bytes:
    return (await produce()).read()


def test_a_flow_passes_artifacts_on_and_does_not_read_them():
    driving = Driving(reading())

    driving.commit("produce#1", Artifact("0" * 64, 3))

    assert "reading the artifact" in driving.outcome.text

"""A run as its caller sees it: the wait for its result, its events, and what may be done to it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from prepared import FIRST, START, Ledger, prepared, step
from pydantic import BaseModel
from safepoint import Artifact, Client, Run, flow
from safepoint.config.settings import Settings
from safepoint.ledger import artifacts
from safepoint.ledger.codec import Encoded
from safepoint.ledger.commit import Ending
from safepoint.ledger.errors import (
    ArtifactMissing,
    Refused,
    RunCancelled,
    RunFailed,
    RunHeld,
    UnknownRun,
    ValueNotDecodable,
    ValueNotEncodable,
)
from safepoint.ledger.listen import Listener


@dataclass
class Report:
    title: str
    pages: int = 0


class Order(BaseModel):
    number: int


@flow(name="runs_report")
async def report() -> Report:
    return Report("x")


@flow(name="runs_file")
async def file() -> Artifact: ...  # type: ignore[empty-body]  # only its result's type counts


@pytest.fixture
def ledger(ledger_url: str) -> Iterator[Ledger]:
    with prepared(ledger_url) as opened:
        opened.register(flows=("triage@1", "runs_report@1", "runs_file@1"))
        yield opened


def end(ledger: Ledger, run: UUID, status: str = "succeeded", *, value: Any = None, **rest: Any) -> None:
    """Let the run's flow end at its start."""
    data = json.dumps(value).encode() if status == "succeeded" else None
    ending = Ending(status, data, "json" if data else None, **rest)
    ledger.claim(run, START)
    ledger.commit(run, START, ending=ending)


# --- results --------------------------------------------------------------------------------------------------------


def test_a_result_is_plain_json_where_the_flow_is_not_here(client: Client, ledger: Ledger):
    run = ledger.enqueue()
    end(ledger, run, value={"n": [1, 10**30, "ä"]})

    assert client.run(run).result() == {"n": [1, 10**30, "ä"]}


def test_a_result_is_decoded_by_its_declared_type(client: Client, ledger: Ledger):
    run: Run[Report] = client.enqueue(report())
    end(ledger, UUID(run.id), value={"title": "t", "pages": 3})

    assert run.result(timeout=5) == Report("t", 3)


def test_a_result_that_no_longer_fits_its_type_says_where(client: Client, ledger: Ledger):
    run = client.enqueue(report())
    end(ledger, UUID(run.id), value={"title": 5})

    with pytest.raises(ValueNotDecodable, match=r"^result\.title"):
        run.result()


def test_a_run_without_a_result_gives_none(client: Client, ledger: Ledger):
    run = ledger.enqueue()
    end(ledger, run)

    assert client.run(run).result() is None


def test_a_large_result_comes_from_the_store(client: Client, ledger: Ledger, settings: Settings):
    store = artifacts.Store(settings.artifacts_url)
    large = Encoded.of(json.dumps("x" * 100_000).encode())
    stored = artifacts.externalize(large, tenant="acme", store=store, threshold=1000)
    run = ledger.enqueue(tenant="acme")
    ledger.claim(run, START)
    ledger.commit(run, START, ending=Ending("succeeded", stored.data, stored.encoding))

    assert client.run(run).result() == "x" * 100_000
    Path(store.path("acme", large.digest.hex())).unlink()
    with pytest.raises(ArtifactMissing):
        client.run(run).result()


def test_an_artifact_in_a_result_can_be_read(client: Client, ledger: Ledger):
    stored = client.artifact(b"much", tenant="acme", name="a.txt")
    run = client.enqueue(file(), tenant="acme")
    end(ledger, UUID(run.id), value={"sha256": stored.sha256, "size": 4, "media_type": "text/plain", "name": "a.txt"})

    assert run.result().read() == b"much"


def test_a_failed_run_raises_its_error(client: Client, ledger: Ledger):
    run = ledger.enqueue()
    end(ledger, run, "failed", error={"type": "StepFailed", "message": "no disk", "step": "look#1"})

    with pytest.raises(RunFailed, match="failed: look#1: StepFailed: no disk") as caught:
        client.run(run).result()

    assert (caught.value.run_id, caught.value.error["step"]) == (str(run), "look#1")


def test_a_cancelled_run_raises_that(client: Client, ledger: Ledger):
    run = client.run(ledger.enqueue())

    assert run.cancel(by="me") == "cancelled"
    with pytest.raises(RunCancelled, match=run.id):
        run.result()


def test_a_held_run_raises_its_reason(client: Client, ledger: Ledger):
    run = ledger.enqueue()
    ledger.claim(run, START)
    ledger.commit(run, START, hold={"code": "flow_error", "text": "KeyError: 'x'", "next": "mend it"})

    with pytest.raises(RunHeld, match="waits for a person: KeyError") as caught:
        client.run(run).result()

    assert (caught.value.code, caught.value.reason["next"]) == ("flow_error", "mend it")
    assert client.run(run).status == "held"
    reason = client.run(run).reason
    assert reason is not None
    assert reason["code"] == "flow_error"


@pytest.mark.parametrize("timeout", [0, 0.1])
def test_a_time_out_says_where_the_run_stands(client: Client, ledger: Ledger, timeout: float):
    run = client.run(ledger.enqueue())
    run.pause()

    with pytest.raises(TimeoutError, match=f"has not ended within {timeout} s: it is waiting .paused by a person"):
        run.result(timeout=timeout)


def test_a_run_that_does_not_exist_is_said(client: Client):
    with pytest.raises(UnknownRun):
        client.run(uuid4()).result(timeout=1)


# --- waiting --------------------------------------------------------------------------------------------------------


def test_who_waits_is_woken_by_the_end(
    client: Client, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., None]
):
    # Without a notification the next look would come after a minute.
    monkeypatch.setattr("safepoint.tasks.run.FIRST_LOOK", 60.0)
    monkeypatch.setattr("safepoint.tasks.run.LONGEST_LOOK", 60.0)
    run = ledger.enqueue()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.run(run).result, timeout=50)
        eventually(lambda: assert_listens(ledger))
        end(ledger, run, value=1)

        assert waiting.result(10) == 1


def test_who_waits_is_woken_by_a_hold(
    client: Client, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., None]
):
    monkeypatch.setattr("safepoint.tasks.run.FIRST_LOOK", 60.0)
    run = ledger.enqueue()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.run(run).result, timeout=50)
        eventually(lambda: assert_listens(ledger))
        ledger.claim(run, START)
        ledger.commit(run, START, hold={"code": "flow_error", "text": "x", "next": "y"})

        with pytest.raises(RunHeld):
            waiting.result(10)


def assert_listens(ledger: Ledger) -> None:
    row = ledger.connection.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'safepoint client' AND query LIKE 'LISTEN%'"
        " AND datname = current_database() AND state = 'idle'"
    ).fetchone()
    assert row == (1,)


def test_who_waits_looks_for_itself_where_nothing_is_heard(
    client: Client, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
):
    # As behind a transaction pooler: LISTEN is accepted and nothing ever comes.
    monkeypatch.setattr("safepoint.ledger.listen.CHANNEL", "safepoint_deaf")
    run = ledger.enqueue()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.run(run).result, timeout=50)
        end(ledger, run, value=1)

        assert waiting.result(10) == 1


def test_many_waiters_share_one_listening_connection(client: Client, ledger: Ledger, eventually: Callable[..., None]):
    runs = [ledger.enqueue() for _ in range(20)]
    with ThreadPoolExecutor(20) as pool:
        waiting = [pool.submit(client.run(run).result, timeout=50) for run in runs]
        eventually(lambda: assert_listens(ledger))
        for n, run in enumerate(runs):
            end(ledger, run, value=n)

        assert [one.result(10) for one in waiting] == list(range(20))
    assert_listens(ledger)


def test_a_listener_that_lost_its_connection_listens_again(
    client: Client, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., None]
):
    monkeypatch.setattr("safepoint.tasks.run.FIRST_LOOK", 60.0)
    monkeypatch.setattr("safepoint.ledger.listen.PAUSE", 0.05)
    run = ledger.enqueue()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.run(run).result, timeout=50)
        eventually(lambda: assert_listens(ledger))
        ledger.connection.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'safepoint client'"
            " AND datname = current_database()"
        )
        eventually(lambda: assert_listens(ledger))
        end(ledger, run, value=1)

        assert waiting.result(10) == 1


def test_a_listener_ends_when_nobody_waits_any_more(
    client: Client, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., None]
):
    monkeypatch.setattr("safepoint.ledger.listen.LINGER", 0.05)
    listener: Listener = client._link.listener
    with pytest.raises(TimeoutError):
        client.run(ledger.enqueue()).result(timeout=0.1)

    def has_ended() -> None:
        assert listener._thread is None

    eventually(has_ended)
    run = ledger.enqueue()
    end(ledger, run, value=1)
    assert client.run(run).result(timeout=5) == 1


def test_closing_a_client_ends_its_thread(client: Client, ledger: Ledger):
    with pytest.raises(TimeoutError):
        client.run(ledger.enqueue()).result(timeout=0.1)
    client.close()

    assert not [thread for thread in threading.enumerate() if thread.name == "safepoint-listener"]


def test_many_tasks_wait_without_a_thread_each(client: Client, ledger: Ledger):
    runs = [ledger.enqueue() for _ in range(50)]

    async def wait_for_all() -> list[Any]:
        waiting = [asyncio.create_task(client.run(run).aresult(timeout=50)) for run in runs]
        await asyncio.to_thread(lambda: [end(ledger, run, value=n) for n, run in enumerate(runs)])
        return await asyncio.gather(*waiting)

    assert asyncio.run(wait_for_all()) == list(range(50))


def test_a_task_hears_of_failure_cancel_hold_and_time_out(client: Client, ledger: Ledger):
    failed, cancelled, open_ = (ledger.enqueue() for _ in range(3))
    end(ledger, failed, "failed", error={"type": "X", "message": "m"})
    client.run(cancelled).cancel()

    async def wait_for(run: UUID) -> Any:
        return await client.run(run).aresult(timeout=0.1)

    for run, error in ((failed, RunFailed), (cancelled, RunCancelled), (open_, TimeoutError), (uuid4(), UnknownRun)):
        with pytest.raises(error):
            asyncio.run(wait_for(run))


# --- events ---------------------------------------------------------------------------------------------------------


def test_events_are_given_so_far(client: Client, ledger: Ledger):
    run = client.run(ledger.started(step(FIRST)))

    assert [event.type for event in run.events()] == ["run.queued", "run.started", "step.scheduled"]
    assert [event.seq for event in run.events(after=1)] == [2, 3]
    assert list(run.events(after=3)) == []


def test_g11_a_follower_that_comes_back_sees_every_later_event_once(client: Client, ledger: Ledger):
    run = ledger.started(step(FIRST))
    events = client.run(run).events(follow=True)
    first = [next(events), next(events)]
    events.close()  # type: ignore[attr-defined]  # it is a generator
    ledger.claim(run, FIRST)
    ledger.commit(run, FIRST, ending=Ending("succeeded", b"1", "json"))

    rest = list(client.run(run).events(after=first[-1].id, follow=True))

    assert [event.seq for event in first + rest] == list(range(1, 7))
    assert rest[-1].type == "run.succeeded"


def test_following_ends_after_the_final_event(client: Client, ledger: Ledger):
    run = ledger.started(step(FIRST))
    seen: list[str] = []
    following = threading.Thread(
        target=lambda: seen.extend(event.type for event in client.run(run).events(follow=True))
    )
    following.start()
    ledger.claim(run, FIRST)
    ledger.commit(run, FIRST, ending=Ending("succeeded", b"1", "json"))
    following.join(10)

    assert seen[-2:] == ["step.committed", "run.succeeded"]


def test_following_a_run_that_has_ended_ends_at_once(client: Client, ledger: Ledger):
    run = ledger.enqueue()
    end(ledger, run)
    last = list(client.run(run).events())[-1]

    assert list(client.run(run).events(after=last.seq, follow=True)) == []


def test_following_goes_on_over_a_reopened_end(client: Client, ledger: Ledger):
    run = ledger.started(step(FIRST))
    ledger.claim(run, FIRST)
    error = {"type": "X", "message": "m", "step": "look#1"}
    ledger.commit(run, FIRST, ending=Ending("failed", error=error))
    client.run(run).retry()
    client.run(run).cancel()

    types = [event.type for event in client.run(run).events()]
    assert types.index("run.resumed") > types.index("run.failed")


def test_more_events_than_one_read_gives_come_in_order(client: Client, ledger: Ledger, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("safepoint.tasks.run.BATCH", 2)
    run = ledger.started(step(FIRST))
    ledger.claim(run, FIRST)
    ledger.commit(run, FIRST, ending=Ending("succeeded", b"1", "json"))

    assert [event.seq for event in client.run(run).events()] == list(range(1, 7))
    assert [event.seq for event in client.run(run).events(follow=True)] == list(range(1, 7))


def test_events_are_followed_from_a_loop(client: Client, ledger: Ledger):
    run = ledger.enqueue()

    async def follow() -> list[str]:
        types = []
        async for event in client.run(run).aevents(follow=True):
            types.append(event.type)
            if event.type == "run.queued":
                await asyncio.to_thread(end, ledger, run)
        return types

    assert asyncio.run(follow()) == ["run.queued", "run.started", "run.succeeded"]


def test_events_of_a_run_that_does_not_exist_are_refused(client: Client):
    with pytest.raises(UnknownRun):
        list(client.run(uuid4()).events())


def test_a_bad_event_id_is_refused(client: Client, ledger: Ledger):
    with pytest.raises(ValueError, match="is no event id"):
        list(client.run(ledger.enqueue()).events(after="x-y"))


# --- verbs ----------------------------------------------------------------------------------------------------------


def test_a_paused_run_goes_on_when_it_is_resumed(client: Client, ledger: Ledger):
    run = client.run(ledger.started(step(FIRST)))

    assert run.pause() == "waiting"
    assert run.resume() == "running"


def test_a_failed_run_is_retried_in_place(client: Client, ledger: Ledger):
    run = ledger.started(step(FIRST))
    ledger.claim(run, FIRST)
    ledger.commit(run, FIRST, ending=Ending("failed", error={"type": "X", "message": "m", "step": "look#1"}))

    assert client.run(run).retry() == "running"


@pytest.mark.parametrize("status", ["queued", "succeeded"])
def test_a_run_that_has_not_failed_is_not_retried(client: Client, ledger: Ledger, status: str):
    run = ledger.enqueue()
    if status == "succeeded":
        end(ledger, run)

    with pytest.raises(Refused, match=f"retry is not possible: it is {status}, not failed"):
        client.run(run).retry()


@pytest.mark.parametrize("value", [None, 5, {"a": [1]}, Report("t", 1), Order(number=7)], ids=repr)
def test_a_signal_is_stored_for_a_wait_to_come(client: Client, ledger: Ledger, value: object):
    run = ledger.enqueue()

    assert client.signal(run, "go", value, sender="me") == "stored"
    row = ledger.connection.execute("SELECT kind, name, sender, payload, encoding FROM safepoint.mailbox").fetchone()
    assert row is not None
    assert row[:3] == ("signal", "go", "me")
    assert row[4] == "json"
    assert json.loads(row[3]) == getattr(value, "__dict__", value)


def test_a_signal_with_a_key_is_taken_once(client: Client, ledger: Ledger):
    run = client.run(ledger.enqueue())

    assert run.signal("go", 1, dedupe="d") == "stored"
    assert run.signal("go", 1, dedupe="d") == "duplicate"


def test_a_signal_to_an_ended_run_is_refused(client: Client, ledger: Ledger):
    run = client.run(ledger.enqueue())
    run.cancel()

    with pytest.raises(Refused, match="signal is not possible: the run has ended"):
        run.signal("go")


def test_a_signal_that_cannot_be_encoded_is_refused(client: Client, ledger: Ledger):
    with pytest.raises(ValueNotEncodable, match=r"^signal\.a"):
        client.signal(ledger.enqueue(), "go", {"a": object()})


@pytest.mark.parametrize("verb", ["cancel", "pause", "resume", "retry"])
def test_what_is_done_to_no_run_is_refused(client: Client, verb: str):
    with pytest.raises(UnknownRun):
        getattr(client.run(uuid4()), verb)()


def test_handles_on_one_run_are_equal(client: Client, ledger: Ledger):
    run = ledger.enqueue()

    assert client.run(run) == client.run(str(run))
    assert len({client.run(run), client.run(str(run)), client.run(uuid4())}) == 2
    assert repr(client.run(run)) == f"<run {run}>"

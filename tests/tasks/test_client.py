"""The client: enqueues by call and by name, one and many; says which field is wrong; never needs the broker."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest
from prepared import Ledger, prepared
from safepoint import Budget, Client, flow
from safepoint.config.settings import load
from safepoint.ledger.errors import (
    BadArguments,
    ConfigError,
    IdempotencyConflict,
    LedgerUnavailable,
    NaiveDatetime,
    RunHeld,
    SchemaTooOld,
    UnknownFlow,
    UnknownRun,
    ValueNotEncodable,
    ValueTooLarge,
)
from safepoint.tasks.client import close_default_client, default_client
from safepoint.testing import run_flow


@dataclass
class Alert:
    id: int
    text: str = ""


@flow(name="client_incident", version="2", uses_versions={"prompt": "p7", "index": lambda: "i9"})
async def incident(alert: Alert, ratio: float = 1.0) -> str:
    return "done"


@flow(name="client_careless")
async def careless() -> None:
    incident(Alert(1)).enqueue()


@pytest.fixture
def ledger(ledger_url: str) -> Iterator[Ledger]:
    with prepared(ledger_url) as opened:
        opened.connection.execute("INSERT INTO safepoint.flows VALUES ('triage', '1', '', '{}', now())")
        yield opened


def stored(ledger: Ledger, run_id: str, *columns: str) -> Any:
    query = f"SELECT {', '.join(columns)} FROM safepoint.runs WHERE run_id = %s"
    row = ledger.connection.execute(query, [run_id]).fetchone()  # type: ignore[arg-type]  # the tests' own columns
    assert row is not None
    return row if len(columns) > 1 else row[0]


# --- by call, and by name -------------------------------------------------------------------------------------------


def test_a_call_is_enqueued_with_its_version_and_the_versions_it_uses(client: Client, ledger: Ledger):
    run = client.enqueue(incident(Alert(42)))

    row = stored(ledger, run.id, "flow", "workflow_version", "input", "prompt_version", "index_version")
    assert row == ("client_incident", "2", b'{"alert":{"id":42,"text":""}}', "p7", "i9")
    assert UUID(run.id).version == 7


def test_options_are_stored_with_the_run(client: Client, ledger: Ledger):
    run = client.enqueue(
        incident(Alert(1)),
        tenant="acme",
        budget=Budget(tokens=5, usd=0.5),
        priority=3,
        tags={"team": "sre", "empty": ""},
        conversation="c-1",
    )

    row = stored(ledger, run.id, "tenant_id", "budget", "priority", "tags", "conversation_id")
    assert row == ("acme", {"tokens": 5, "usd": 0.5}, 3, {"team": "sre", "empty": ""}, "c-1")


def test_by_name_the_code_that_is_here_checks_and_decides_the_version(client: Client, ledger: Ledger):
    run = client.enqueue("client_incident", {"alert": {"id": 42}})

    assert stored(ledger, run.id, "workflow_version", "prompt_version") == ("2", "p7")


def test_by_name_and_by_call_are_one_input(client: Client):
    by_call = client.enqueue(incident(Alert(1, "x")), key="k")

    assert client.enqueue("client_incident", {"alert": {"text": "x", "id": 1}}, key="k") == by_call
    assert client.enqueue("client_incident", {"alert": Alert(1, "x")}, key="k") == by_call


def test_by_name_without_code_the_ledger_knows_the_version(client: Client, ledger: Ledger):
    run = client.enqueue("triage", {"alert": {"id": 42}})

    assert stored(ledger, run.id, "workflow_version", "input") == ("1", b'{"alert":{"id":42}}')


def test_without_arguments_a_flow_is_called_with_none(client: Client, ledger: Ledger):
    assert stored(ledger, client.enqueue("triage").id, "input") == b"{}"


def test_a_version_may_be_named_that_nobody_serves_yet(client: Client, ledger: Ledger):
    run = client.enqueue("client_incident", {"anything": 1}, version="3")

    assert stored(ledger, run.id, "workflow_version") == "3"


@pytest.mark.parametrize(("name", "meant"), [("client_incidents", "client_incident"), ("triaje", "triage")])
def test_an_unknown_flow_is_refused_with_the_one_that_may_be_meant(
    client: Client, ledger: Ledger, name: str, meant: str
):
    with pytest.raises(UnknownFlow, match=f"no flow '{name}'.* Did you mean '{meant}'"):
        client.enqueue(name, {})


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({}, "alert: Field required"),
        ({"alert": {"id": 1}, "aler": 2}, "aler: Extra inputs"),
        ({"alert": {"id": "x"}}, "alert.id: Input should be a valid integer"),
        ({"alert": 5}, "alert: "),
        ([1], r"\[1\] is no mapping"),
        ({1: 2}, "is no mapping"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_where_the_code_is(client: Client, arguments: Any, says: str):
    with pytest.raises(BadArguments, match=says):
        client.enqueue("client_incident", arguments)


def test_a_call_that_does_not_fit_its_signature_is_refused_when_it_is_made():
    with pytest.raises(TypeError, match="client_incident"):
        incident(wrong=1)  # type: ignore[call-arg]  # what is tested


@pytest.mark.parametrize("value", [object(), float("nan"), {1, 2}, "\ud800"], ids=["object", "nan", "set", "surrogate"])
def test_what_cannot_be_encoded_is_refused_with_its_path(client: Client, ledger: Ledger, value: object):
    with pytest.raises(ValueNotEncodable, match=r"^input\.deep\.list\[1\]"):
        client.enqueue("triage", {"deep": {"list": [1, value]}})


def test_an_input_over_the_limit_is_refused(ledger_url: str, tmp_path: Path):
    settings = load(env={"SAFEPOINT_HOME": str(tmp_path), "SAFEPOINT_VALUES__MAX_SIZE": "1000"})
    with Client(ledger_url, settings=settings) as client, pytest.raises(ValueTooLarge, match="input has 1008 bytes"):
        client.enqueue("triage", {"t": "x" * 1000})


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"priorty": 1}, TypeError, "'priorty' is no option. Did you mean 'priority'"),
        ({"tenant": ""}, ValueError, "tenant="),
        ({"tenant": None}, TypeError, "tenant="),
        ({"key": ""}, ValueError, "key="),
        ({"key": "a\x00b"}, ValueError, "key="),
        ({"key": "\ud800"}, ValueError, "key="),
        ({"key": 5}, TypeError, "key="),
        ({"conversation": "a\x00"}, ValueError, "conversation="),
        ({"priority": -1}, ValueError, "priority="),
        ({"priority": 2**31}, ValueError, "priority="),
        ({"priority": 1.5}, TypeError, "priority="),
        ({"priority": True}, TypeError, "priority="),
        ({"tags": {"a": 1}}, TypeError, "tags="),
        ({"tags": ["a"]}, TypeError, "tags="),
        ({"tags": {"a": "\x00"}}, ValueError, "tags"),
        ({"budget": {"token": 1}}, TypeError, "budget="),
        ({"budget": {"tokens": -1}}, ValueError, "budget="),
        ({"budget": 5}, TypeError, "budget="),
        ({"deadline": "soon"}, TypeError, "deadline="),
        ({"deadline": -1}, ValueError, "deadline"),
        ({"deadline": float("inf")}, ValueError, "deadline"),
        ({"deadline": 1e12}, ValueError, "deadline="),
        ({"deadline": datetime(2030, 1, 1)}, NaiveDatetime, "deadline"),  # noqa: DTZ001  # what is tested
        ({"start_at": datetime(2030, 1, 1)}, NaiveDatetime, "start_at"),  # noqa: DTZ001  # what is tested
        ({"start_at": "now"}, TypeError, "start_at="),
        ({"connection": 5}, TypeError, "connection: builtins.int"),
    ],
)
def test_a_bad_option_is_refused_by_its_name(
    client: Client, options: dict[str, Any], error: type[Exception], says: str
):
    with pytest.raises(error, match=says):
        client.enqueue("client_incident", {"alert": {"id": 1}}, **options)
    with pytest.raises(error, match=says):
        client.enqueue_many("client_incident", [{"alert": {"id": 1}}], **options)


@pytest.mark.parametrize("name", ["", None, 5, "a\x00b"])
def test_what_is_no_flows_name_is_refused(client: Client, name: Any):
    with pytest.raises(TypeError, match="flow="):
        client.enqueue(name, {})


def test_a_call_takes_no_arguments_beside_it(client: Client):
    with pytest.raises(TypeError, match="a call brings its own"):
        client.enqueue(incident(Alert(1)), {"alert": 1})  # type: ignore[call-overload]  # what is tested


# --- times ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [90, 90.0, timedelta(seconds=90)])
def test_a_duration_counts_from_the_enqueue_by_the_ledgers_clock(client: Client, ledger: Ledger, value: Any):
    run = client.enqueue("triage", deadline=value, start_at=value)

    deadline, start_at, created = stored(ledger, run.id, "deadline", "start_at", "created_at")
    assert deadline - created == start_at - created == timedelta(seconds=90)


def test_an_instant_is_kept_whatever_its_zone(client: Client, ledger: Ledger):
    there = datetime(2040, 1, 1, 12, tzinfo=timezone(timedelta(hours=5)))
    run = client.enqueue("triage", deadline=there, start_at=there)

    assert stored(ledger, run.id, "deadline", "start_at") == (there, there)


def test_a_run_for_later_is_not_ready_before(client: Client, ledger: Ledger):
    at = datetime(2040, 1, 1, tzinfo=UTC)
    run = client.enqueue("triage", start_at=at)

    row = ledger.connection.execute(
        "SELECT ready_at, due_at FROM safepoint.steps WHERE run_id = %s", [run.id]
    ).fetchone()
    assert row == (at, at)


# --- keys -----------------------------------------------------------------------------------------------------------


def test_the_same_key_and_input_give_the_same_run(client: Client, ledger: Ledger):
    run = incident(Alert(1))

    assert client.enqueue(run, key="k") == client.enqueue(run, key="k", priority=5)
    assert client.count() == {"queued": 1}


def test_a_key_with_another_input_is_a_conflict(client: Client, ledger: Ledger):
    first = client.enqueue(incident(Alert(1)), key="k")

    with pytest.raises(IdempotencyConflict) as caught:
        client.enqueue(incident(Alert(2)), key="k")

    assert (caught.value.key, caught.value.run_id) == ("k", first.id)


def test_an_input_with_a_nul_has_its_key_too(client: Client, ledger: Ledger):
    first = client.enqueue("triage", {"b": 1, "a": "\x00"}, key="k")

    assert client.enqueue("triage", {"a": "\x00", "b": 1}, key="k") == first
    with pytest.raises(IdempotencyConflict):
        client.enqueue("triage", {"a": "\x00", "b": 2}, key="k")


# --- many -----------------------------------------------------------------------------------------------------------


def test_many_runs_of_one_flow(client: Client, ledger: Ledger):
    runs = client.enqueue_many(
        "client_incident", [{"alert": {"id": n}} for n in range(3)], keys=["a", None, "b"], tags={"batch": "1"}
    )

    ids = [stored(ledger, run.id, "convert_from(input, 'UTF8')::jsonb") for run in runs]
    assert [one["alert"]["id"] for one in ids] == [0, 1, 2]
    assert client.count(tags={"batch": "1"}) == {"queued": 3}
    assert client.enqueue_many(incident, [{"alert": {"id": 2}}], keys=["b"]) == runs[2:]


def test_many_runs_of_several_kinds(client: Client, ledger: Ledger):
    runs = client.enqueue_many(
        [
            incident(Alert(1)),
            (incident(Alert(2)), {"key": "k", "tenant": "acme"}),
            ("triage", {"alert": 3}),
            ("triage", None, {"priority": 9}),
        ],
        tenant="other",
    )

    rows = [stored(ledger, run.id, "flow", "tenant_id", "priority") for run in runs]
    assert rows == [
        ("client_incident", "other", 0),
        ("client_incident", "acme", 0),
        ("triage", "other", 0),
        ("triage", "other", 9),
    ]


def test_a_key_of_each_run_goes_before_one_for_all(client: Client, ledger: Ledger):
    runs = client.enqueue_many("triage", [{}, {}, {}], keys=["a", None, None], key="all")

    assert len(set(runs)) == 3
    assert client.enqueue("triage", key="a") == runs[0]
    assert client.enqueue("triage", key="all") not in runs


@pytest.mark.parametrize("key", ["", "k" * 1001, "a\x00b", 5], ids=["empty", "long", "nul", "number"])
def test_a_bad_key_among_many_is_refused_by_its_name(client: Client, ledger: Ledger, key: Any):
    with pytest.raises((TypeError, ValueError), match=r"^key="):
        client.enqueue_many("triage", [{}, {}], keys=["a", key])

    assert client.count() == {}


def test_no_runs_are_no_work(client: Client, ledger: Ledger):
    assert client.enqueue_many([]) == []
    assert client.enqueue_many("triage", []) == []


def test_many_runs_are_accepted_together_or_not_at_all(client: Client, ledger: Ledger):
    client.enqueue("triage", {"n": 1}, key="k1500")

    with pytest.raises(IdempotencyConflict) as caught:
        client.enqueue_many("triage", [{"n": 0} for _ in range(2500)], keys=[f"k{n}" for n in range(2500)])

    assert caught.value.key == "k1500"
    assert client.count() == {"queued": 1}


def test_many_runs_with_one_unknown_flow_are_refused_with_its_name(client: Client, ledger: Ledger):
    with pytest.raises(UnknownFlow, match=r"no flow 'triaje'.* Did you mean 'triage'"):
        client.enqueue_many([("triage", {}), ("triaje", {})])

    assert client.count() == {}


def test_more_than_one_statement_of_runs_keeps_the_order(client: Client, ledger: Ledger):
    keys = [f"k{(n * 7919) % 2500}" for n in range(2500)]
    runs = client.enqueue_many("triage", ({"n": n} for n in range(2500)), keys=keys)

    rows = ledger.connection.execute("SELECT key, run_id::text FROM safepoint.idempotency_keys").fetchall()
    assert [run.id for run in runs] == [dict(rows)[key] for key in keys]


@pytest.mark.parametrize(
    ("items", "more", "says"),
    [
        (["triage"], {}, "'triage' cannot be enqueued"),
        ([("triage", [1])], {}, "cannot be enqueued"),
        ([(5, {})], {}, "cannot be enqueued"),
        ("triage", {"arguments": [{}, {}], "keys": ["a"]}, "keys: there are 1 for 2 runs"),
        ([("triage", {})], {"arguments": [{}]}, "arguments: accepted only beside"),
        ([("triage", {}, {"prio": 1})], {}, "'prio' is no option"),
        ([("triage", {}, {"connection": 1})], {}, "connection: accepted once for all runs"),
    ],
)
def test_what_cannot_be_enqueued_is_refused(client: Client, items: Any, more: dict[str, Any], says: str):
    with pytest.raises((TypeError, ValueError), match=says):
        client.enqueue_many(items, **more)


# --- the default client, threads, processes, outages ----------------------------------------------------------------


@pytest.fixture
def configured(ledger_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    from safepoint.config import settings

    monkeypatch.setenv("SAFEPOINT_LEDGER_URL", ledger_url)
    monkeypatch.setenv("SAFEPOINT_BROKER_URL", "redis://127.0.0.1:1/0")  # where nobody answers
    monkeypatch.setenv("SAFEPOINT_HOME", str(tmp_path))
    settings.reset()
    yield
    close_default_client()
    settings.reset()


def test_a_call_enqueues_itself_with_the_configured_ledger_and_no_broker(configured: None, ledger: Ledger):
    run = incident(Alert(1)).enqueue(tenant="acme", key="k", deadline=60, start_at=5)

    assert run.status == "queued"
    assert default_client().run(run.id) == run


def test_a_call_enqueues_itself_without_blocking_the_loop(configured: None, ledger: Ledger):
    run = asyncio.run(incident(Alert(1)).aenqueue(budget={"tokens": 5}))

    assert stored(ledger, run.id, "budget") == {"tokens": 5}


def test_a_flow_must_not_enqueue_itself(configured: None, ledger: Ledger):
    with pytest.raises(RunHeld, match="NotInStep: a flow does not enqueue"):
        run_flow(careless())

    assert ledger.connection.execute("SELECT count(*) FROM safepoint.runs").fetchone() == (0,)


def test_threads_share_a_client(client: Client, ledger: Ledger):
    with ThreadPoolExecutor(16) as pool:
        runs = list(pool.map(lambda n: client.enqueue("triage", {"n": n}), range(100)))

    assert len({run.id for run in runs}) == 100
    row = ledger.connection.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'safepoint client'"
        " AND datname = current_database()"
    ).fetchone()
    assert row is not None
    assert 1 <= row[0] <= 10


def test_tasks_of_a_loop_share_a_client(client: Client, ledger: Ledger):
    async def many() -> set[str]:
        made = await asyncio.gather(*(client.aenqueue("triage", {"n": n}) for n in range(20)))
        made += await client.aenqueue_many("triage", [{"n": 1}, {"n": 2}])
        return {run.id for run in made}

    assert len(asyncio.run(many())) == 22


def test_a_forked_child_has_connections_of_its_own(client: Client, ledger: Ledger):
    before = client.enqueue("triage", {"n": 0})
    pid = os.fork()
    if pid == 0:
        try:
            same = client.enqueue("triage", {"n": 0}, key="child").status == "queued"
            client.close()
        except BaseException:  # noqa: BLE001  # the parent sees the exit code
            os._exit(2)
        os._exit(0 if same else 1)

    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert before.status == "queued"
    assert client.count() == {"queued": 2}


def test_a_fork_under_a_lock_that_a_thread_holds_does_not_hang(client: Client, ledger: Ledger):
    client.enqueue("triage")
    held = client._link._open().pool._here.lock
    with held:
        pid = os.fork()
        if pid == 0:
            watchdog = threading.Timer(10, os._exit, [3])
            watchdog.daemon = True
            watchdog.start()
            os._exit(0 if client.enqueue("triage").status == "queued" else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_ledger_that_is_away_is_said_in_a_sentence():
    with Client("postgresql://nobody:secret@127.0.0.1:1/x") as client, pytest.raises(LedgerUnavailable) as caught:
        client.enqueue("triage", {"n": 1})

    assert str(caught.value).startswith("The ledger does not answer: ")
    assert "port 1 failed: Connection refused" in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("url", ["mysql://me:secret@host/db", "host=x password=secret", "", 5])
def test_a_url_of_no_postgresql_is_refused_without_showing_it(url: Any):
    with pytest.raises(ConfigError, match=r"ledger_url: .* Accepted: a URL that starts with postgresql://") as caught:
        Client(url)

    assert "secret" not in str(caught.value)


@pytest.mark.slow
def test_where_nothing_is_configured_the_embedded_stack_starts_with_its_schema(tmp_path: Path):
    with Client(settings=load(env={"SAFEPOINT_HOME": str(tmp_path / "home")})) as client:
        assert repr(client) == "<Client of no configured place>"
        assert client.enqueue(incident(Alert(1))).status == "queued"
        assert repr(client) == "<Client of the embedded stack>"


def test_a_database_without_a_schema_is_said_with_the_command_to_type(postgres_url: str):
    with Client(postgres_url) as client, pytest.raises(SchemaTooOld, match="safepoint db upgrade"):
        client.enqueue("triage", {"n": 1})


def test_a_closed_client_says_so(client: Client, ledger: Ledger):
    client.enqueue("triage")
    client.close()

    with pytest.raises(LedgerUnavailable, match="this client is closed"):
        client.enqueue("triage")


def test_a_client_shows_its_place_and_no_password():
    shown = repr(Client("postgresql://someone:secret@example.org/db"))

    assert "database db on example.org" in shown
    assert "secret" not in shown


def test_an_idle_connection_that_broke_is_replaced_unseen(
    client: Client, ledger: Ledger, postgres_url: str, eventually: Callable[..., None]
):
    client.enqueue("triage")
    ledger.connection.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'safepoint client'"
        " AND datname = current_database()"
    )

    assert client.enqueue("triage").status == "queued"


# --- what there is --------------------------------------------------------------------------------------------------


def test_runs_are_found_by_tags_status_flow_and_tenant(client: Client, ledger: Ledger):
    first = client.enqueue("triage", tags={"team": "sre", "env": "prod"}, tenant="acme")
    second = client.enqueue("triage", tags={"team": "sre"})
    third = client.enqueue("client_incident", {"alert": {"id": 1}})
    third.cancel()

    assert client.runs() == [third, second, first]
    assert client.runs(tags={"team": "sre"}) == [second, first]
    assert client.runs(tags={"team": "sre", "env": "prod"}) == [first]
    assert client.runs(status="cancelled") == [third]
    assert client.runs(status=["queued", "cancelled"], limit=2) == [third, second]
    assert client.runs(flow="triage", tenant="acme") == [first]
    assert client.count(tags={"team": "sre"}) == {"queued": 2}
    assert client.count() == {"cancelled": 1, "queued": 2}


@pytest.mark.parametrize("run_id", ["x", "", "01a22837-896e-787b-8126-132c7cc53ec3"])
def test_an_unknown_run_is_said_by_its_id(client: Client, run_id: str):
    with pytest.raises(UnknownRun, match=f"no run {run_id}"):
        _ = client.run(run_id).status


def test_an_artifact_is_stored_before_the_run_that_takes_it(client: Client, ledger: Ledger, tmp_path: Path):
    (tmp_path / "report.txt").write_text("much")
    from_path = client.artifact(tmp_path / "report.txt", tenant="acme")
    from_bytes = client.artifact(b"much", tenant="acme", media_type="text/plain", name="other")

    assert (from_path.name, from_path.media_type, from_path.size) == ("report.txt", "text/plain", 4)
    assert from_path.sha256 == from_bytes.sha256
    assert from_path.read() == b"much"
    row = ledger.connection.execute("SELECT tenant_id, encode(sha256, 'hex'), size FROM safepoint.artifacts").fetchall()
    assert row == [("acme", from_path.sha256, 4)]


def test_nothing_is_opened_before_it_is_needed(ledger_url: str):
    with psycopg.connect(ledger_url, autocommit=True) as connection, Client(ledger_url):
        row = connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'safepoint client'"
            " AND datname = current_database()"
        ).fetchone()

    assert row == (0,)

"""The SQL function that accepts runs: from plain SQL, in the caller's own transaction, with the meaning of its key."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import errors
from psycopg.types.json import Jsonb
from safepoint.ledger import enqueue as accepting
from safepoint.ledger import nodes
from safepoint.ledger.codec import Codec, Encoded
from safepoint.ledger.connect import Connection, connect
from safepoint.ledger.enqueue import Request, Verdict

FLOW = "f"


@pytest.fixture
def connection(ledger_url: str) -> Iterator[Connection]:
    with connect(ledger_url, name="test") as opened:
        serve(opened, "f@1")
        yield opened


def serve(connection: Connection, *flows: str, node: str = "node", lease: float = 60.0) -> None:
    versions = tuple({"name": one.split("@")[0], "version": one.split("@")[1]} for one in flows)
    told = nodes.Node(node, "host", 1, ("online",), flows, versions=versions)
    nodes.register(connection, told, lease=lease, with_lock=False)


def enqueue(connection: psycopg.Connection[Any], **arguments: Any) -> UUID:
    given = {"flow": FLOW, **arguments}
    names = ", ".join(f"{name} => %({name})s" for name in given)
    row = connection.execute(f"SELECT safepoint.enqueue({names})", given).fetchone()  # type: ignore[arg-type]  # names
    assert row is not None
    return UUID(str(row[0]))


def one(connection: psycopg.Connection[Any], query: str, *values: Any) -> Any:
    row = connection.execute(query, values).fetchone()  # type: ignore[arg-type]  # the tests' own statements
    return None if row is None else row[0]


def request(data: bytes = b"{}", **terms: Any) -> Request:
    return Request(str(uuid4()), FLOW, Encoded.of(data), terms={"tenant": "default", **terms})


# --- one run --------------------------------------------------------------------------------------------------------


def test_plain_sql_makes_a_run_with_its_first_step_and_event(connection: Connection):
    run = enqueue(connection, input='{"alert": {"id": 42}}')

    row = connection.execute(
        "SELECT r.status, r.workflow_version, convert_from(r.input, 'UTF8')::jsonb, s.kind, s.status, e.type"
        " FROM safepoint.runs r JOIN safepoint.steps s USING (run_id) JOIN safepoint.events e USING (run_id)"
        " WHERE r.run_id = %s",
        [run],
    ).fetchone()
    assert row == ("queued", "1", {"alert": {"id": 42}}, "start", "ready", "run.queued")


def test_a_run_id_made_by_the_ledger_sorts_by_time(connection: Connection):
    first, second = enqueue(connection), enqueue(connection)

    assert first < second
    assert (first.version, first.variant) == (7, uuid4().variant)


def test_an_enqueue_is_part_of_the_callers_transaction(connection: Connection, ledger_url: str):
    with psycopg.connect(ledger_url) as app:
        run = enqueue(app)
        assert one(connection, "SELECT count(*) FROM safepoint.runs") == 0
        app.rollback()
        assert one(connection, "SELECT count(*) FROM safepoint.runs WHERE run_id = %s", run) == 0


def test_one_notification_wakes_the_relay_per_transaction(connection: Connection, ledger_url: str):
    connection.execute("LISTEN safepoint_relay")
    with psycopg.connect(ledger_url) as app:
        for _ in range(3):
            enqueue(app)

    assert len(list(connection.notifies(timeout=2, stop_after=1))) == 1
    assert list(connection.notifies(timeout=0)) == []


def test_a_run_without_a_version_starts_with_one_that_a_live_worker_serves(connection: Connection):
    serve(connection, "f@3", node="gone", lease=-1.0)

    run = enqueue(connection)

    assert one(connection, "SELECT workflow_version FROM safepoint.runs WHERE run_id = %s", run) == "1"


def test_a_run_without_a_version_starts_with_the_one_that_came_last(connection: Connection):
    serve(connection, "f@2", node="newer")

    run = enqueue(connection)

    assert one(connection, "SELECT workflow_version FROM safepoint.runs WHERE run_id = %s", run) == "2"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"flow": ""}, "flow: "),
        ({"input": "[1]"}, "input: "),
        ({"input": "null"}, "input: "),
        ({"tenant": ""}, "tenant: "),
        ({"key": ""}, "key: "),
        ({"key": "k" * 1001}, "key: "),
        ({"priority": -1}, "priority: "),
        ({"budget": '{"token": 1}'}, "budget: "),
        ({"budget": '{"tokens": "many"}'}, "budget: "),
        ({"budget": '{"usd": -1}'}, "budget: "),
        ({"budget": '{"tokens": 1.5}'}, "budget: "),
        ({"budget": '{"usd": 1e300}'}, "budget: "),
        ({"budget": "5"}, "budget: "),
        ({"deadline": "infinity"}, "deadline: "),
        ({"deadline": "20000-01-01"}, "deadline: "),
        ({"start_at": "-infinity"}, "start_at: "),
        ({"tenant": "t" * 201}, "tenant: "),
        ({"tags": '["a"]'}, "tags: "),
        ({"tags": '{"a": 1}'}, "tags: "),
        ({"versions": "[]"}, "versions: "),
    ],
)
def test_a_bad_argument_is_refused_by_its_name(connection: Connection, arguments: dict[str, Any], says: str):
    with pytest.raises(psycopg.Error, match=f"^{says}") as caught:
        enqueue(connection, **arguments)

    assert caught.value.sqlstate == "SP002"
    assert one(connection, "SELECT count(*) FROM safepoint.runs") == 0


@pytest.mark.parametrize("budget", ["{}", '{"tokens": 5}', '{"usd": 0.25, "retries": 0, "tokens": null}'])
def test_a_budget_may_bound_what_it_likes(connection: Connection, budget: str):
    assert enqueue(connection, budget=budget)


def test_a_flow_that_nobody_has_served_is_unknown_unless_a_version_is_named(connection: Connection):
    with pytest.raises(psycopg.Error, match="flow g: no worker has served it") as caught:
        enqueue(connection, flow="g")

    assert caught.value.sqlstate == "SP003"
    assert enqueue(connection, flow="g", version="7")


# --- keys and repeats -----------------------------------------------------------------------------------------------


def test_the_same_key_and_input_give_the_same_run(connection: Connection):
    first = enqueue(connection, input='{"a": 1, "b": [2]}', key="k")

    assert enqueue(connection, input='{"b": [2], "a": 1}', key="k") == first
    assert one(connection, "SELECT count(*) FROM safepoint.runs") == 1


def test_a_key_belongs_to_its_tenant(connection: Connection):
    assert enqueue(connection, key="k", tenant="a") != enqueue(connection, key="k", tenant="b")


@pytest.mark.parametrize("other", [{"input": '{"a": 2}'}, {"flow": "g", "version": "1"}], ids=["input", "flow"])
def test_the_same_key_with_something_else_is_a_conflict(connection: Connection, other: dict[str, Any]):
    first = enqueue(connection, input='{"a": 1}', key="k")

    with pytest.raises(psycopg.Error) as caught:
        enqueue(connection, **{"input": '{"a": 1}', **other}, key="k")

    assert (caught.value.sqlstate, caught.value.diag.message_detail) == ("SP001", str(first))


def test_p18_a_key_waits_for_its_first_writer_and_sees_it(
    connection: Connection, ledger_url: str, eventually: Callable[..., None]
):
    with psycopg.connect(ledger_url) as first, psycopg.connect(ledger_url) as second, ThreadPoolExecutor(1) as pool:
        run = enqueue(first, key="k")
        waiting = pool.submit(enqueue, second, key="k")
        eventually(lambda: assert_waits(connection, second.info.backend_pid))
        first.commit()
        assert waiting.result(5) == run


def test_p18_a_key_whose_first_writer_rolls_back_is_free(
    connection: Connection, ledger_url: str, eventually: Callable[..., None]
):
    with psycopg.connect(ledger_url) as first, psycopg.connect(ledger_url) as second, ThreadPoolExecutor(1) as pool:
        run = enqueue(first, key="k")
        waiting = pool.submit(enqueue, second, key="k")
        eventually(lambda: assert_waits(connection, second.info.backend_pid))
        first.rollback()
        assert waiting.result(5) != run


def test_p18_a_conflicting_key_waits_too(connection: Connection, ledger_url: str, eventually: Callable[..., None]):
    with psycopg.connect(ledger_url) as first, psycopg.connect(ledger_url) as second, ThreadPoolExecutor(1) as pool:
        enqueue(first, key="k", input='{"a": 1}')
        waiting = pool.submit(enqueue, second, key="k", input='{"a": 2}')
        eventually(lambda: assert_waits(connection, second.info.backend_pid))
        first.commit()
        with pytest.raises(psycopg.Error, match="another input"):
            waiting.result(5)


def assert_waits(connection: Connection, pid: int) -> None:
    assert one(connection, "SELECT wait_event_type FROM pg_stat_activity WHERE pid = %s", pid) == "Lock"


def test_p18_a_repeat_with_the_same_id_changes_nothing(connection: Connection):
    mine = uuid4()

    assert enqueue(connection, run_id=mine) == enqueue(connection, run_id=mine) == mine
    assert one(connection, "SELECT count(*) FROM safepoint.steps") == 1


def test_p18_a_repeat_waits_for_the_first_one_that_still_runs(
    connection: Connection, ledger_url: str, eventually: Callable[..., None]
):
    mine = uuid4()
    with psycopg.connect(ledger_url) as first, psycopg.connect(ledger_url) as second, ThreadPoolExecutor(1) as pool:
        enqueue(first, run_id=mine, key="k")
        waiting = pool.submit(enqueue, second, run_id=mine, key="k")
        eventually(lambda: assert_waits(connection, second.info.backend_pid))
        first.commit()
        assert waiting.result(5) == mine


def test_an_id_of_another_run_is_refused(connection: Connection):
    taken = enqueue(connection, tenant="a")

    with pytest.raises(psycopg.Error) as caught:
        enqueue(connection, tenant="b", run_id=taken)

    assert caught.value.sqlstate == "SP004"


def test_p40_a_key_outlives_its_run_and_does_not_make_it_again(connection: Connection):
    mine = uuid4()
    enqueue(connection, key="k", run_id=mine)
    connection.execute("DELETE FROM safepoint.runs")

    assert enqueue(connection, key="k", run_id=mine) == mine
    assert one(connection, "SELECT count(*) FROM safepoint.runs") == 0


@pytest.mark.parametrize("others", [0, 2], ids=["alone", "among many"])
def test_p40_the_id_of_a_pruned_run_makes_no_second_one(connection: Connection, others: int):
    pruned = request(budget={"tokens": 5})
    connection.execute(
        "INSERT INTO safepoint.pruned_runs (run_id, tenant_id, flow, status, finished_at, pruned_at)"
        " VALUES (%s, 'default', %s, 'succeeded', now(), now())",
        [pruned.run_id, FLOW],
    )

    answers = accepting.enqueue(connection, [pruned, *(request() for _ in range(others))])

    assert {answer.verdict for answer in answers} == {Verdict.ACCEPTED}
    for table in ("runs", "steps", "events"):
        assert one(connection, f"SELECT count(*) FROM safepoint.{table}") == others
    assert one(connection, "SELECT count(*) FROM safepoint.budgets") == 0


def test_a_serializable_transaction_hears_of_a_key_that_it_cannot_see(connection: Connection, ledger_url: str):
    with psycopg.connect(ledger_url) as app:
        app.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        app.execute("SELECT 1 FROM safepoint.runs")
        enqueue(connection, key="k")

        with pytest.raises(errors.SerializationFailure):
            enqueue(app, key="k")


# --- Python and SQL mean the same input -----------------------------------------------------------------------------

VALUES = {
    "empty": {},
    "key order": {"bb": 1, "a": 2, "ä": 3, "aaa": {"z": 1, "y": 2}},
    "whole": {"n": [0, -1, 2**53 + 1, 2**63, 10**40, -(10**40)]},
    "fractions": {"n": [1.0, -0.0, 0.1, 1.50, 1e16, 1e22, 1e-7, 5e-324, 1.7976931348623157e308]},
    "unicode": {"t": "ä€😀\u2028\x7f", "ключ": "значение"},
    "escapes": {"t": 'quote " slash / back \\ \t\n\r\b\f\x01', "u": "\\u0000 is no NUL"},
    "looks like a number": {"t": "1.50, 2.0", "1.0": "x"},
    "nested": {"a": [[[{"b": [None, True, False, [], {}]}]]]},
}


def hashed(connection: Connection, run: str | UUID | None) -> Any:
    return one(connection, "SELECT input_hash FROM safepoint.runs WHERE run_id = %s", run)


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_a_call_from_python_and_from_sql_has_one_hash(connection: Connection, value: dict[str, Any]):
    encoded = Codec[dict[str, Any]](dict[str, Any]).encode(value)
    from_sql = enqueue(connection, input=Jsonb(value, dumps=json.dumps), key="k")

    (answer,) = accepting.enqueue(
        connection, [Request(str(uuid4()), FLOW, encoded, terms={"tenant": "default", "key": "k"})]
    )

    assert (answer.verdict, answer.run_id) == (Verdict.ACCEPTED, str(from_sql))


@pytest.mark.parametrize(
    ("one_", "other"),
    [
        ('{"n": 1}', '{"n": 1.0}'),
        ('{"n": 100}', '{"n": 1e2}'),
        ('{"n": 0}', '{"n": -0.0}'),
        ('{"a": 1, "b": 2}', '{ "b":2,"a":1 }'),
        ('{"t": "\\u00e4"}', '{"t": "ä"}'),
        ('{"t": "\\/"}', '{"t": "/"}'),
    ],
)
def test_two_spellings_of_a_value_have_one_hash(connection: Connection, one_: str, other: str):
    assert hashed(connection, enqueue(connection, input=one_)) == hashed(connection, enqueue(connection, input=other))


@pytest.mark.parametrize(
    ("one_", "other"),
    [
        ('{"n": 9007199254740993}', '{"n": 9007199254740992}'),
        ('{"n": 1}', '{"n": "1"}'),
        ('{"n": 1.5}', '{"n": 1.05}'),
        ('{"n": [10.0]}', '{"n": [1.0]}'),
        ('{"t": "1.0"}', '{"t": "1.00"}'),
        ('{"t": null}', "{}"),
    ],
)
def test_two_values_have_two_hashes(connection: Connection, one_: str, other: str):
    assert hashed(connection, enqueue(connection, input=one_)) != hashed(connection, enqueue(connection, input=other))


@pytest.mark.parametrize("data", [b'{"t": "a\\u0000b"}', b'{"t": "\\\\\\u0000"}'])
def test_a_value_that_jsonb_cannot_hold_is_accepted_and_hashed_by_python(connection: Connection, data: bytes):
    first, second = request(data, key="k"), request(data.replace(b": ", b":"), key="k")

    (answer,) = accepting.enqueue(connection, [first])
    (again,) = accepting.enqueue(connection, [second])

    assert (answer.verdict, again.verdict, again.run_id) == (Verdict.ACCEPTED, Verdict.ACCEPTED, first.run_id)
    assert one(connection, "SELECT input FROM safepoint.runs") == data


def test_the_bytes_that_python_encoded_are_the_bytes_that_are_stored(connection: Connection):
    data = b'{ "z":1.0 ,"a" : "\\u00e4" }'

    accepting.enqueue(connection, [request(data)])

    assert one(connection, "SELECT input FROM safepoint.runs") == data


def test_the_canonical_text_differs_from_jsonbs_own_in_trailing_zeros_only(connection: Connection):
    document = {"b": [1, Decimal("2.5"), "1.0"], "a": None, "c": {}, "d": [], 'é"': {"x": [{}]}}
    text = json.dumps(document, default=float)

    canonical = one(connection, "SELECT safepoint.canonical_v1(%s::jsonb)", text)

    assert canonical == one(connection, "SELECT %s::jsonb::text", text)


# --- many at once ---------------------------------------------------------------------------------------------------


def test_many_requests_answer_in_their_order(connection: Connection):
    kept = request(b'{"n": 1}', key="k")
    accepting.enqueue(connection, [kept])
    asked = [request(), request(b'{"n": 1}', key="k"), request(b'{"n": 2}', key="m"), request(b'{"n": 2}', key="m")]

    answers = accepting.enqueue(connection, asked)

    assert {answer.verdict for answer in answers} == {Verdict.ACCEPTED}
    assert [answer.run_id for answer in answers] == [asked[0].run_id, kept.run_id, asked[2].run_id, asked[2].run_id]
    assert one(connection, "SELECT count(*) FROM safepoint.runs") == 3


def test_p18_many_repeats_among_new_requests_change_nothing(connection: Connection):
    first, second, new = request(priority=3), request(budget={"tokens": 5}), request(budget={"tokens": 7})
    accepting.enqueue(connection, [first, second])

    answers = accepting.enqueue(connection, [second, new, first, new])

    assert [answer.run_id for answer in answers] == [second.run_id, new.run_id, first.run_id, new.run_id]
    for table in ("runs", "steps", "events"):
        assert one(connection, f"SELECT count(*) FROM safepoint.{table}") == 3
    assert one(connection, "SELECT array_agg(tokens ORDER BY tokens) FROM safepoint.budgets") == [5, 7]


def test_a_run_alone_is_written_as_one_among_others(connection: Connection):
    terms: dict[str, Any] = {
        "deadline": "2030-01-01T00:00:00Z", "start_at": "2029-01-01T00:00:00Z", "budget": {"tokens": 5}, "priority": 7,
        "tags": {"team": "sre"}, "conversation": "c",
    }  # fmt: skip
    versions = {"prompt": "p", "tool_schema": "t", "model_policy": "m", "index": "i"}
    plain, full = [request() for _ in range(3)], [replace(request(**terms), versions=versions) for _ in range(3)]
    for alone, *others in (plain, full):
        accepting.enqueue(connection, [alone])
        accepting.enqueue(connection, others)

        for table in ("runs", "steps", "events", "budgets"):
            key = "budget_id" if table == "budgets" else "run_id"
            rows = [
                one(connection, f"SELECT to_jsonb(x) FROM safepoint.{table} x WHERE {key} = %s", run.run_id)
                for run in (alone, *others)
            ]
            assert _timeless(rows[0]) == _timeless(rows[1]) == _timeless(rows[2])


def _timeless(row: dict[str, Any] | None) -> dict[str, Any] | None:
    own = {"run_id", "budget_id", "created_at", "updated_at", "at"}
    started = row is not None and str(row.get("due_at")) == str(row.get("created_at"))
    own |= {"due_at", "ready_at"} if started else set()
    return row and {name: value for name, value in row.items() if name not in own}


@pytest.mark.parametrize(
    ("bad", "state"),
    [
        (request(b'{"n": 2}', key="k"), "SP001"),
        (request(priority=-1), "SP002"),
        (Request(str(uuid4()), "g", Encoded.of(b"{}"), terms={"tenant": "default"}), "SP003"),
    ],
    ids=["conflict", "bad", "unknown"],
)
def test_many_requests_are_accepted_together_or_not_at_all(connection: Connection, bad: Request, state: str):
    accepting.enqueue(connection, [request(b'{"n": 1}', key="k")])

    with pytest.raises(psycopg.Error) as caught:
        accepting.enqueue(connection, [request(key="new"), bad])

    assert caught.value.sqlstate == state
    assert one(connection, "SELECT count(*) FROM safepoint.runs") == 1
    assert one(connection, "SELECT count(*) FROM safepoint.idempotency_keys") == 1


def test_a_single_refusal_leaves_the_transaction_usable(ledger_url: str, connection: Connection):
    accepting.enqueue(connection, [request(b'{"n": 1}', key="k")])
    with psycopg.connect(ledger_url) as app:
        (answer,) = accepting.enqueue(app, [request(b'{"n": 2}', key="k")])

        assert answer.verdict is Verdict.CONFLICT
        assert enqueue(app)


def test_p2_many_keys_are_taken_in_one_order(connection: Connection, ledger_url: str):
    keys = [f"k{n}" for n in range(300)]
    start = threading.Barrier(2)

    def run(order: list[str]) -> None:
        with connect(ledger_url, name="test") as own:
            start.wait()
            for _ in range(5):
                accepting.enqueue(own, [request(key=key) for key in order])

    with ThreadPoolExecutor(2) as pool:
        done = [pool.submit(run, keys), pool.submit(run, keys[::-1])]
    for one_ in done:
        one_.result()

    assert one(connection, "SELECT count(*) FROM safepoint.runs") == 300


def test_batches_are_never_a_single_request_among_many():
    sizes = [len(batch) for batch in accepting.batches([request() for _ in range(1001)])]

    assert sum(sizes) == 1001
    assert min(sizes) > 1


def test_large_inputs_make_smaller_batches():
    big = request(b'{"t": "%s"}' % (b"x" * 5_000_000))

    assert [len(batch) for batch in accepting.batches([big] * 7)] == [2, 2, 3]
    assert [len(batch) for batch in accepting.batches([big])] == [1]


# --- who may, and who may not ---------------------------------------------------------------------------------------


def test_p42_nobody_may_call_a_function_who_was_not_granted_it(connection: Connection):
    # pg_monitor stands for any role: it may read a lot, and nothing of ours.
    allowed = connection.execute(
        "SELECT p.oid::regprocedure::text FROM pg_proc p WHERE pronamespace = 'safepoint'::regnamespace"
        " AND has_function_privilege('pg_monitor', p.oid, 'EXECUTE')"
    ).fetchall()

    assert allowed == []


def test_p42_an_app_needs_no_right_but_to_call_the_functions_that_accept_runs(connection: Connection):
    definers = connection.execute(
        "SELECT DISTINCT proname FROM pg_proc WHERE pronamespace = 'safepoint'::regnamespace AND prosecdef ORDER BY 1"
    ).fetchall()

    assert definers == [("enqueue",), ("enqueue_v1",)]


def test_p42_a_callers_temporary_table_is_not_read(connection: Connection):
    connection.execute("CREATE TEMP TABLE flows (name text, version text, versions jsonb, registered_at timestamptz)")
    connection.execute("INSERT INTO flows VALUES ('f', 'forged', '{}', 'infinity')")
    connection.execute("CREATE TEMP TABLE runs AS SELECT * FROM safepoint.runs")
    connection.execute("SET search_path = pg_temp, public")

    run = enqueue(connection)

    assert one(connection, "SELECT workflow_version FROM safepoint.runs WHERE run_id = %s", run) == "1"


def test_the_id_of_another_ledger_is_answered_and_nothing_written(connection: Connection):
    rows = connection.execute(
        accepting.STATEMENT.format(requests="%s", ledger="%s"),
        tuple(accepting.parameters([request()], ledger=str(uuid4())).values()),
    ).fetchall()

    (answer,) = accepting.answers(rows)
    assert answer.verdict is Verdict.ELSEWHERE
    assert answer.detail == accepting.place(connection)
    assert one(connection, "SELECT count(*) FROM safepoint.runs") == 0

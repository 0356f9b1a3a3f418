"""What must never be is refused by the database itself, whoever writes it (G1, G11, P10, P42)."""

from __future__ import annotations

import re
from uuid import UUID, uuid4

import psycopg
import pytest
from ledger_verbs import Verbs, ask, key

A = key("a#1")


def refused(verbs: Verbs, statement: str, run: UUID, *, by: str) -> None:
    with pytest.raises(psycopg.errors.IntegrityError) as raised, verbs.connection.transaction():
        verbs.connection.execute(statement.encode(), {"run": run})
    assert by in str(raised.value)


COPY = """
    INSERT INTO safepoint.steps SELECT (jsonb_populate_record(s, %s)).* FROM safepoint.steps s
     WHERE s.run_id = %%(run)s AND s.step_id = 'a'"""


def test_g1_a_step_key_has_one_row_and_so_one_result(verbs: Verbs) -> None:
    run = verbs.begun(ask("a#1"))
    verbs.done(run, A)

    refused(verbs, COPY % "'{\"commit_seq\": 9}'", run, by="steps_pkey")


def test_g1_a_number_of_the_history_is_given_once(verbs: Verbs) -> None:
    run = verbs.begun(ask("a#1"))
    verbs.done(run, A)

    refused(verbs, COPY % "'{\"iteration\": 2}'", run, by="steps_history")


def test_g11_a_number_of_an_event_is_given_once(verbs: Verbs) -> None:
    run = verbs.enqueue()
    again = (
        "INSERT INTO safepoint.events SELECT run_id, seq, tenant_id, v, 'note', key, data, at FROM safepoint.events"
        " WHERE run_id = %(run)s"
    )

    refused(verbs, again, run, by="events_pkey")


def test_g11_events_are_numbered_without_a_gap(verbs: Verbs) -> None:
    run = verbs.begun(ask("a#1"), ask("go#1", "signal"))
    verbs.retry(verbs.claimed(run, A))
    verbs.lose(verbs.claimed(run, A))
    verbs.signal(run)
    verbs.pause(run)
    verbs.resume(run)
    verbs.cancel(run)

    numbers = [
        row["seq"] for row in verbs.rows("SELECT seq FROM safepoint.events WHERE run_id = %s ORDER BY 1", (run,))
    ]

    assert numbers == list(range(1, verbs.run(run)["event_seq"] + 1))
    assert len(numbers) > 5


@pytest.mark.parametrize("ending", ["succeeded", "cancelled", "failed"])
@pytest.mark.parametrize("change", ["status = 'running', finished_at = NULL", "result = 'x'", "updated_at = now()"])
def test_a_final_run_does_not_change(verbs: Verbs, ending: str, change: str) -> None:
    run = verbs.enqueue()
    verbs.done(run, ending=ending)

    refused(verbs, f"UPDATE safepoint.runs SET {change} WHERE run_id = %(run)s", run, by="final")


@pytest.mark.parametrize(
    ("change", "by"),
    [
        ("status = 'succeeded'", "runs_final_has_finished_at"),
        ("finished_at = now()", "runs_final_has_finished_at"),
        ("status = 'sleeping'", "runs_status"),
        ("ending = 'held'", "runs_ending"),
    ],
)
def test_a_run_is_final_if_and_only_if_it_has_finished(verbs: Verbs, change: str, by: str) -> None:
    refused(verbs, f"UPDATE safepoint.runs SET {change} WHERE run_id = %(run)s", verbs.enqueue(), by=by)


@pytest.mark.parametrize(
    ("change", "by"),
    [
        ("due_at = NULL", "steps_ready_is_due"),
        ("status = 'running'", "steps_running_has_token"),
        ("status = 'succeeded'", "steps_final_has_seq"),
        ("commit_seq = 4", "steps_final_has_seq"),
        ("status = 'lost'", "steps_status"),
        ("kind = 'task'", "steps_kind"),
    ],
)
def test_p10_a_step_is_in_a_state_that_somebody_looks_at(verbs: Verbs, change: str, by: str) -> None:
    refused(verbs, f"UPDATE safepoint.steps SET {change} WHERE run_id = %(run)s", verbs.enqueue(), by=by)


def test_a_step_belongs_to_a_run(verbs: Verbs) -> None:
    run = verbs.begun(ask("a#1"))

    refused(verbs, COPY % f'\'{{"run_id": "{uuid4()}"}}\'', run, by="steps_run_id_fkey")


# P42: functions.


FUNCTIONS = """
    SELECT p.proname, p.prosrc,
           coalesce((SELECT min(c) FROM unnest(p.proconfig) AS c WHERE starts_with(c, 'search_path=')), '') AS config,
           has_function_privilege('pg_monitor', p.oid, 'EXECUTE') AS is_public
      FROM pg_proc p WHERE p.pronamespace = 'safepoint'::regnamespace"""


def test_p42_every_function_names_its_schema_with_the_temporary_one_last(verbs: Verbs) -> None:
    wrong = [row["proname"] for row in verbs.rows(FUNCTIONS) if row["config"] != "search_path=safepoint, pg_temp"]

    assert wrong == []
    assert len(verbs.rows(FUNCTIONS)) >= 30


def test_p42_no_function_is_everybodys(verbs: Verbs) -> None:
    assert [row["proname"] for row in verbs.rows(FUNCTIONS) if row["is_public"]] == []


def test_p42_a_callers_temporary_table_is_not_read(verbs: Verbs) -> None:
    run = verbs.begun(ask("a#1"))
    verbs.connection.execute("CREATE TEMPORARY TABLE runs AS SELECT * FROM safepoint.runs")
    verbs.connection.execute("CREATE TEMPORARY TABLE steps AS SELECT * FROM safepoint.steps")
    verbs.connection.execute("UPDATE pg_temp.runs SET cancel_at = now()")

    assert verbs.claimed(run, A)
    assert verbs.value("SELECT count(*) FROM pg_temp.steps WHERE status = 'running'") == 0


def test_p07_no_function_reads_another_clock(verbs: Verbs) -> None:
    clocks = r"(?<!safepoint\.)\bnow\(\)|clock_timestamp|statement_timestamp|transaction_timestamp|CURRENT_TIMESTAMP"

    wrong = {row["proname"] for row in verbs.rows(FUNCTIONS) if re.search(clocks, uncommented(row["prosrc"]), re.I)}

    assert wrong == {"now"}


def uncommented(body: str) -> str:
    return re.sub(r"--.*", "", body)


KEYS = """
    SELECT r.relname, a.attname AS leading FROM pg_constraint c JOIN pg_class r ON r.oid = c.conrelid
      JOIN pg_attribute a ON a.attrelid = c.conrelid AND a.attnum = c.conkey[1]
     WHERE c.contype IN ('p', 'u') AND c.connamespace = 'safepoint'::regnamespace"""


def test_p42_what_a_caller_names_is_unique_within_its_tenant(verbs: Verbs) -> None:
    leading = {(row["relname"], row["leading"]) for row in verbs.rows(KEYS)}

    assert {("idempotency_keys", "tenant_id"), ("artifacts", "tenant_id")} <= leading

"""Connections to the ledger: what a URL may say besides what libpq reads."""

from __future__ import annotations

import psycopg
import pytest
from psycopg.types.json import Jsonb
from safepoint.ledger.connect import connect, forget, psycopg_url, repeat


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("postgresql+psycopg://u@h/d", "postgresql://u@h/d"),
        ("postgresql://u@h/d?prepared_statements=off", "postgresql://u@h/d"),
        (
            "postgresql://u@h/d?sslmode=require&prepared_statements=off&gssencmode=disable",
            "postgresql://u@h/d?sslmode=require&gssencmode=disable",
        ),
    ],
)
def test_libpq_is_given_what_it_knows(given: str, read: str) -> None:
    assert psycopg_url(given) == read


@pytest.mark.parametrize(("more", "prepared"), [("", 1), ("?prepared_statements=off", 0)])
def test_statements_are_prepared_unless_the_url_says_no(shared_ledger_url: str, more: str, prepared: int) -> None:
    with connect(shared_ledger_url + more, name="test") as connection:
        connection.execute("SELECT safepoint.now()")
        connection.execute("SELECT safepoint.now()")

        found = connection.execute("SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE '%now()'")

        assert found.fetchone() == (prepared,)


def test_a_repeated_statement_keeps_its_cursor_whatever_its_parameters_are(shared_ledger_url: str) -> None:
    statement = "SELECT %s::text, %s::jsonb, %s::bigint"
    with connect(shared_ledger_url, name="test") as connection:
        rows = [
            repeat(connection, statement, values)
            for values in (("a", None, 1), (None, Jsonb({"b": 1}), 2**40), ("c", Jsonb([]), None))
        ]
        kept = connection.cursors[statement]  # type: ignore[attr-defined]  # no caller needs to know of it

        assert rows == [("a", None, 1), (None, {"b": 1}, 2**40), ("c", [], None)]
        assert repeat(connection, statement, ("d", None, 4)) == ("d", None, 4)
        assert connection.cursors[statement] is kept  # type: ignore[attr-defined]  # as above
        with pytest.raises(psycopg.errors.InvalidTextRepresentation):
            repeat(connection, "SELECT %s::text::integer", ("no number",))
        assert repeat(connection, "SELECT %s::text::integer", ("5",)) == (5,)  # an error leaves nothing behind
        forget(connection, statement)
        assert statement not in connection.cursors  # type: ignore[attr-defined]  # as above

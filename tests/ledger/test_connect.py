"""Connections to the ledger: what a URL may say besides what libpq reads."""

from __future__ import annotations

import pytest
from safepoint.ledger.connect import connect, psycopg_url


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

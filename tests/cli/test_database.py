"""`db upgrade`, `db current`, and what is said when there is no ledger, none that answers, or a wrong setting."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

import psycopg
import pytest
from servers import drop_database

Run = Callable[..., Any]


@pytest.fixture
def empty(postgres_url: str, clean: pytest.MonkeyPatch) -> Iterator[str]:
    """A database without a ledger in it."""
    name = f"empty_{uuid4().hex[:12]}"
    url = urlunsplit(urlsplit(postgres_url)._replace(path=f"/{name}"))
    clean.setenv("SAFEPOINT_LEDGER_URL", url)
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")  # type: ignore[arg-type]  # our own name
        yield url
        drop_database(connection, name)


def test_upgrade_makes_a_ledger_once(empty: str, run: Run) -> None:
    before, first, again, after = run("db", "current"), run("db", "upgrade"), run("db", "upgrade"), run("db", "current")

    assert (before.code, first.code, again.code, after.code) == (1, 0, 0, 0)
    assert "safepoint db upgrade" in before.err
    assert run("db", "current", "--json").document["is_current"]
    assert run("runs", "--json").document == []


@pytest.mark.parametrize("verb", [("runs",), ("nodes", "--json"), ("enqueue", "f"), ("runs", "--count"), ("sweep",)])
def test_a_database_without_a_ledger_names_the_way_out(empty: str, run: Run, verb: tuple[str, ...]) -> None:
    ran = run(*verb)

    assert (ran.code, ran.out) == (1, "")
    assert "safepoint db upgrade" in ran.err
    assert len(ran.err.splitlines()) == 1


@pytest.mark.parametrize("verb", [("runs",), ("db", "current"), ("db", "upgrade"), ("sweep",), ("cancel", uuid4())])
def test_a_ledger_that_is_away_is_one_line(clean: pytest.MonkeyPatch, run: Run, verb: tuple[object, ...]) -> None:
    clean.setenv("SAFEPOINT_LEDGER_URL", "postgresql://me:secret@127.0.0.1:1/x")

    ran = run(*verb)

    assert (ran.code, ran.out) == (1, "")
    assert "The ledger does not answer" in ran.err
    assert "secret" not in ran.err
    assert "Traceback" not in ran.err


def test_no_ledger_at_all_names_up(run: Run) -> None:
    ran = run("runs")

    assert ran.code == 1
    assert "safepoint up" in ran.err


@pytest.mark.parametrize("verb", [("runs",), ("worker",), ("up",), ("relay",), ("enqueue", "f")])
def test_a_wrong_setting_is_wrong_usage_and_named(clean: pytest.MonkeyPatch, run: Run, verb: tuple[str, ...]) -> None:
    clean.setenv("SAFEPOINT_WORKER__POOL", "gevent")

    ran = run(*verb)

    assert ran.code == 2
    assert "SAFEPOINT_WORKER__POOL" in ran.err
    assert "prefork or threads" in ran.err

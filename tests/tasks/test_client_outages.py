"""A client whose answers get lost: it repeats what may be repeated, and says when it does not know (P3, P18)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import pytest
from lossy import LossyProxy
from prepared import FIRST, Ledger, prepared, step
from safepoint import Client
from safepoint.config.settings import load
from safepoint.ledger.commit import Ending
from safepoint.ledger.errors import LedgerUnavailable


@pytest.fixture
def ledger(ledger_url: str) -> Iterator[Ledger]:
    with prepared(ledger_url) as opened:
        opened.connection.execute("INSERT INTO safepoint.flows VALUES ('triage', '1', '', '{}', now())")
        yield opened


@pytest.fixture
def proxy(ledger_url: str) -> Iterator[LossyProxy]:
    parts = urlsplit(ledger_url)
    opened = LossyProxy(parts.hostname or "127.0.0.1", parts.port or 5432)
    with opened:
        yield opened


@pytest.fixture
def client(ledger_url: str, proxy: LossyProxy, tmp_path: Path) -> Iterator[Client]:
    parts = urlsplit(ledger_url)
    netloc = f"{parts.username}:{parts.password}@127.0.0.1:{proxy.port}"
    # A patience of two seconds: what libpq takes at least.
    settings = load(env={"SAFEPOINT_HOME": str(tmp_path), "SAFEPOINT_LEDGER__CONNECT_TIMEOUT": "2"})
    with Client(urlunsplit(parts._replace(netloc=netloc)), settings=settings) as opened:
        opened.count()  # from here on a lost answer is one to a question, not to a connect
        yield opened


def runs(ledger: Ledger) -> int:
    row = ledger.connection.execute("SELECT count(*) FROM safepoint.runs").fetchone()
    assert row is not None
    return int(row[0])


def test_p18_an_enqueue_whose_answer_is_lost_makes_one_run(client: Client, ledger: Ledger, proxy: LossyProxy):
    proxy.lose()
    run = client.enqueue("triage", {"n": 1})

    assert proxy.lost == 1
    assert runs(ledger) == 1
    assert run.status == "queued"


def test_p18_two_lost_answers_make_one_run_too(client: Client, ledger: Ledger, proxy: LossyProxy):
    proxy.lose(2)
    client.enqueue("triage", {"n": 1}, key="k")

    assert runs(ledger) == 1


def test_p18_many_runs_whose_commits_answer_is_lost_are_made_once(client: Client, ledger: Ledger, proxy: LossyProxy):
    proxy.lose()
    made = client.enqueue_many("triage", [{"n": n} for n in range(2500)])

    assert len(made) == runs(ledger) == 2500


def test_an_outage_that_lasts_is_said_and_that_nobody_knows(client: Client, ledger: Ledger, proxy: LossyProxy):
    proxy.lose(1000)

    with pytest.raises(LedgerUnavailable, match="it was asked, and whether it has done so is not known after 2 s"):
        client.enqueue("triage", {"n": 1})


def test_a_signal_whose_answer_is_lost_is_delivered_once(client: Client, ledger: Ledger, proxy: LossyProxy):
    run = client.enqueue("triage", {"n": 1})
    proxy.lose()

    assert run.signal("go", 1) == "stored"
    row = ledger.connection.execute("SELECT count(*) FROM safepoint.mailbox").fetchone()
    assert row == (1,)


def test_a_retry_whose_answer_is_lost_is_no_refusal(client: Client, ledger: Ledger, proxy: LossyProxy):
    run = ledger.started(step(FIRST))
    ledger.claim(run, FIRST)
    ledger.commit(run, FIRST, ending=Ending("failed", error={"type": "X", "message": "x", "step": "look#1"}))
    proxy.lose()

    assert client.run(run).retry() == "running"


def test_a_wait_outlasts_a_short_outage(
    client: Client, ledger: Ledger, proxy: LossyProxy, eventually: Callable[..., None]
):
    run = ledger.started()
    outcome: list[object] = []
    waiting = threading.Thread(target=lambda: outcome.append(client.run(run).result(timeout=20)))
    waiting.start()
    proxy.lose(20)
    proxy.cut()

    def has_lost_some() -> None:
        assert proxy.lost > 5

    eventually(has_lost_some)
    proxy.lose(0)
    ledger.connection.execute(
        "UPDATE safepoint.runs SET ending = 'succeeded', result = '7', result_encoding = 'json' WHERE run_id = %s",
        [run],
    )
    ledger.connection.execute("SELECT safepoint.finish_v1(%s)", [run])
    waiting.join(20)

    assert outcome == [7]

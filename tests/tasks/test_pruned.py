"""P40: an app that holds the id of a run that was pruned is told so, by every way to ask."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from old_runs import old_run
from safepoint import Artifact, Client, flow
from safepoint.config.settings import reset
from safepoint.errors import RunPruned, UnknownRun
from safepoint.ledger import prune
from safepoint.ledger.connect import connect
from safepoint.tasks.run import Run

DAY = 86_400.0


@flow(name="pruned_reads", version="1")
async def reads(document: Artifact) -> int:
    return document.size


@pytest.fixture
def client(ledger_url: str) -> Iterator[Client]:
    with Client(ledger_url) as made:
        yield made


@pytest.fixture
def gone(client: Client, ledger_url: str) -> Run[Any]:
    """A handle on a run that was pruned."""
    with connect(ledger_url, name="test") as connection:
        run = old_run(connection, "failed")
        connection.execute(
            "INSERT INTO safepoint.idempotency_keys SELECT 'default', 'k', %s, 'f', sha256('{}'), now()", (run,)
        )
        list(prune.runs(connection, prune.cutoffs(connection, older=30 * DAY, failed=30 * DAY)))
    return client.run(run)


ASKED: dict[str, Callable[[Run[Any]], object]] = {
    "status": lambda run: run.status,
    "reason": lambda run: run.reason,
    "result": lambda run: run.result(timeout=0),
    "events": lambda run: list(run.events()),
    "followed events": lambda run: list(run.events(after=3, follow=True)),
    "effects": lambda run: run.effects(),
    "cancel": lambda run: run.cancel(),
    "pause": lambda run: run.pause(),
    "retry": lambda run: run.retry(),
    "signal": lambda run: run.signal("go", {"sha256": "0" * 64}),
    "approve": lambda run: run.approve("ok", by="ann"),
}


def test_p40_whoever_asks_for_a_pruned_run_is_told_when_it_went(gone: Run[Any]) -> None:
    for ask in ASKED.values():
        with pytest.raises(RunPruned, match=f"Run {gone.id} .f, failed on .* was pruned on 20"):
            ask(gone)


def test_p40_its_key_still_answers_with_it(client: Client, gone: Run[Any]) -> None:
    assert client.enqueue("f", {}, version="1", key="k") == gone
    assert client.runs() == []


def test_a_run_that_never_was_is_unknown(client: Client) -> None:
    with pytest.raises(UnknownRun, match="There is no run"):
        _ = client.run("0" * 32).status


def test_p40_a_run_refers_to_the_artifacts_that_it_is_handed(
    client: Client, ledger_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SAFEPOINT_VALUES__ARTIFACTS", f"file://{tmp_path}/blobs")
    reset()
    first, second = client.artifact(b"first"), client.artifact(b"second")
    run = client.enqueue(reads(first))
    run.signal("more", second)

    with connect(ledger_url, name="test") as connection:
        uses = connection.execute("SELECT encode(sha256, 'hex'), run_id::text FROM safepoint.artifact_uses").fetchall()
    assert set(uses) == {(first.sha256, run.id), (second.sha256, run.id)}

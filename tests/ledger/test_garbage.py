"""P40: artifacts that no run refers to go, row first and blob later; one that a commit refers to again survives."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from ledger_clock import Clock
from ledger_fixtures import Crowd
from ledger_verbs import Verbs
from psycopg.types.json import Jsonb
from safepoint.ledger import control, prune
from safepoint.ledger.artifacts import Discarded, Store, named
from safepoint.ledger.codec import Encoded
from safepoint.ledger.enqueue import Request, enqueue
from safepoint.ledger.seal import Seal

DAY = 86_400.0
GRACE = 7 * DAY
DATA = b"x" * 1000
SHA = hashlib.sha256(DATA).hexdigest()
ROW: dict[str, Any] = {"sha256": SHA, "size": len(DATA), "media_type": "text/plain", "name": None}
DOCUMENT = json.dumps({"doc": ROW})


@pytest.fixture(params=["file", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return Store(f"{request.param}://{tmp_path}/blobs")


@pytest.fixture
def folder(tmp_path: Path) -> Store:
    return Store(f"file://{tmp_path}/blobs")


def put(store: Store, *, days: float = 30, data: bytes = DATA, tenant: str = "default") -> None:
    """Store a blob that was written so many days ago."""
    sha256, _ = store.put(tenant, data)
    path = store.path(tenant, sha256)
    then = time.time() - days * DAY
    if store.url.startswith("file:"):
        os.utime(path, (then, then))
    else:
        store._files.store[path].modified = store._files.modified(path).fromtimestamp(then, tz=_utc(store, path))


def _utc(store: Store, path: str) -> Any:
    return store._files.modified(path).tzinfo


def is_there(store: Store, tenant: str = "default") -> bool:
    return bool(store._files.exists(store.path(tenant, SHA)))


def touch(verbs: Verbs, *, days: float = 0.0, tenant: str = "default") -> None:
    """Have a row that was touched so many days ago."""
    verbs.connection.execute("SELECT safepoint.touch_artifacts_v1(%s, %s)", (tenant, Jsonb([ROW])))
    verbs.connection.execute(
        "UPDATE safepoint.artifacts SET touched_at = safepoint.now() - make_interval(secs => %s)"
        " WHERE tenant_id = %s AND sha256 = %s",
        (days * DAY, tenant, bytes.fromhex(SHA)),
    )


def rows(verbs: Verbs) -> int:
    return int(verbs.value("SELECT count(*) FROM safepoint.artifacts"))


def marked(verbs: Verbs, **more: Any) -> int:
    """Remove the rows that nobody needs."""
    at = prune.cutoffs(verbs.connection, older=0, failed=0)
    return sum(prune.artifacts(verbs.connection, at.before(GRACE), **more))


def swept(verbs: Verbs, store: Store, **more: Any) -> list[Discarded]:
    """Remove the blobs whose rows are gone."""
    return list(prune.blobs(verbs.connection, store, older_than=GRACE, **more))


def committed(verbs: Verbs, run: UUID | None = None) -> UUID:
    """Commit the start of a run with a reference to the artifact."""
    run = run or verbs.enqueue()
    verbs.commit(verbs.claimed(run), artifacts=[ROW], ending="succeeded")
    return run


def pruned(verbs: Verbs, **more: Any) -> int:
    at = prune.cutoffs(verbs.connection, older=GRACE, failed=GRACE)
    return sum(batch.runs for batch in prune.runs(verbs.connection, at, **more))


@pytest.fixture
def late(verbs: Verbs, clock: Clock) -> Verbs:
    clock.set(100 * DAY)
    return verbs


def test_p40_what_a_run_has_stored_goes_after_it(late: Verbs, clock: Clock, store: Store) -> None:
    put(store)
    committed(late)
    clock.forward(8 * DAY)

    assert (marked(late), swept(late, store)) == (0, [])
    assert pruned(late) == 1
    assert (marked(late), swept(late, store)) == (1, [Discarded.GONE])
    assert not is_there(store)
    assert (marked(late), swept(late, store)) == (0, [])


def test_p40_content_that_another_run_refers_to_stays(late: Verbs, clock: Clock, folder: Store) -> None:
    put(folder)
    first = committed(late)
    second = committed(late)
    clock.forward(8 * DAY)

    assert pruned(late, limit=1) == 1
    assert {row["run_id"] for row in late.rows("SELECT run_id FROM safepoint.runs")} < {first, second}
    assert (marked(late), swept(late, folder), is_there(folder)) == (0, [], True)


def test_p40_each_tenant_has_its_own(late: Verbs, folder: Store) -> None:
    for tenant in ("default", "other"):
        put(folder, tenant=tenant)
        touch(late, days=8, tenant=tenant)

    assert marked(late, tenant="other") == 1
    assert swept(late, folder, tenant="default") == []
    assert swept(late, folder, tenant="other") == [Discarded.GONE]
    assert (is_there(folder), is_there(folder, "other")) == (True, False)


def test_p40_what_was_uploaded_a_while_ago_stays_for_its_run(late: Verbs, folder: Store) -> None:
    put(folder, days=6)
    touch(late, days=6)

    assert (marked(late), swept(late, folder)) == (0, [])


def test_p40_a_blob_that_the_store_has_not_is_done(late: Verbs, store: Store) -> None:
    touch(late, days=8)

    assert marked(late) == 1
    assert swept(late, store) == [Discarded.GONE]
    assert late.value("SELECT count(*) FROM safepoint.artifact_garbage") == 0


# Who refers to it.


def by_input(verbs: Verbs) -> None:
    verbs.enqueue(input=DOCUMENT)


def by_sealed_input(verbs: Verbs) -> None:
    plain = Request(str(UUID(int=7)), "f", Encoded.of(DOCUMENT.encode()), "1", terms={"tenant": "default"})
    enqueue(verbs.connection, [plain.sealed(Seal.load("toy_codec:xor"))])
    assert verbs.value("SELECT position('sha256'::bytea IN input) FROM safepoint.runs") == 0


def by_signal(verbs: Verbs) -> None:
    control.mail(
        verbs.connection, verbs.enqueue(), kind="signal", name="go", data=DOCUMENT.encode(), encoding="json",
        artifacts=named(DOCUMENT.encode()),
    )  # fmt: skip


def by_child(verbs: Verbs) -> None:
    run = verbs.enqueue()
    verbs.connection.execute(
        "SELECT safepoint.create_run_v1(%s, 'default', 'f', '1', %s, 'json', 'h', NULL, '{}', 0, '{}', NULL, NULL,"
        " '{}', %s, 'c#1')",
        (UUID(int=8), DOCUMENT.encode(), run),
    )


@pytest.mark.parametrize("refer", [by_input, by_sealed_input, by_signal, by_child])
def test_p40_a_run_refers_to_what_it_is_handed(late: Verbs, folder: Store, refer: Callable[[Verbs], None]) -> None:
    put(folder)
    touch(late, days=8)
    refer(late)

    assert (marked(late), swept(late, folder)) == (0, [])
    assert late.value("SELECT count(*) FROM safepoint.runs WHERE artifacts @> %s", (Jsonb([ROW]),)) == 1


# In between.


def test_p40_a_commit_under_way_keeps_what_it_refers_to(crowd: Crowd, folder: Store) -> None:
    one, other = crowd(), crowd()
    put(folder)
    touch(one, days=8)
    run = one.enqueue()

    with one.connection.transaction():
        committed(one, run)
        other.connection.execute("SET lock_timeout = '5s'")
        assert marked(other) == 0

    assert (marked(other), swept(other, folder), rows(one)) == (0, [], 1)


def test_p40_an_artifact_that_is_referred_to_between_row_and_blob_survives(
    crowd: Crowd, folder: Store, eventually: Callable[..., None]
) -> None:
    one, other, watch = crowd(), crowd(), crowd()
    put(folder)
    touch(one, days=8)
    run = one.enqueue()

    def is_waiting() -> None:
        assert watch.waiting_backends() == 1

    with ThreadPoolExecutor(1) as pool:
        with other.connection.transaction():
            assert marked(other) == 1
            commit = pool.submit(committed, one, run)
            eventually(is_waiting)
        commit.result(timeout=10)

    assert rows(watch) == 1
    assert swept(other, folder) == [Discarded.USED]
    assert (is_there(folder), swept(other, folder), marked(other)) == (True, [], 0)


def test_p40_an_input_that_is_being_enqueued_keeps_what_it_names_and_stops_no_commit(crowd: Crowd) -> None:
    app, one, other = crowd(), crowd(), crowd()
    touch(one, days=8)
    run = one.enqueue()

    with app.connection.transaction():
        app.enqueue(input=DOCUMENT)
        assert marked(other) == 0
        one.connection.execute("SET lock_timeout = '5s'")
        committed(one, run)


def test_p40_a_blob_that_was_just_written_again_stays(late: Verbs, store: Store) -> None:
    put(store)
    touch(late, days=8)
    assert marked(late) == 1
    store.put("default", DATA)  # by a step whose commit is to come

    assert (swept(late, store), is_there(store)) == ([Discarded.YOUNG], True)
    touch(late)
    assert (swept(late, store), is_there(store)) == ([Discarded.YOUNG], True)
    put(store)
    assert (swept(late, store), is_there(store)) == ([Discarded.USED], True)


def test_p40_a_file_that_is_written_in_the_very_moment_of_its_removal_is_put_back(folder: Store) -> None:
    put(folder)

    def writes_meanwhile() -> bool:
        folder.put("default", DATA)
        return False

    outcome = folder.discard("default", SHA, older_than=GRACE, is_used=writes_meanwhile)

    assert outcome is Discarded.YOUNG
    assert folder.read("default", SHA) == DATA
    assert len(list(Path(folder.path("default", SHA)).parent.iterdir())) == 1


@pytest.mark.parametrize(("days", "outcome"), [(0.0, Discarded.YOUNG), (30.0, Discarded.GONE)])
def test_p40_what_a_killed_prune_has_put_aside_is_found(folder: Store, days: float, outcome: Discarded) -> None:
    put(folder, days=days)
    path = Path(folder.path("default", SHA))
    path.rename(path.with_name(f".{SHA}.discarded"))

    assert folder.discard("default", SHA, older_than=GRACE, is_used=lambda: False) is outcome
    assert is_there(folder) == (outcome is Discarded.YOUNG)
    assert len(list(path.parent.iterdir())) == int(outcome is Discarded.YOUNG)

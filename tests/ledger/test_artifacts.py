"""Large values: stored once for each tenant by their content, whole or not at all, and checked when they are read."""

from __future__ import annotations

import hashlib
import io
import os
import time
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from safepoint.ledger import artifacts
from safepoint.ledger.artifacts import Store, TenantStore
from safepoint.ledger.codec import Encoded
from safepoint.ledger.errors import ArtifactCorrupt, ArtifactMissing, ArtifactStoreUnavailable, Permanent

DATA = b"x" * 100_000
DIGEST = hashlib.sha256(DATA).hexdigest()


@pytest.fixture(params=["file", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    url = f"file://{tmp_path}/blobs" if request.param == "file" else f"memory://{tmp_path.name}/blobs"
    yield Store(url)
    MemoryFileSystem.store.clear()


@pytest.fixture
def folder(tmp_path: Path) -> Store:
    return Store(f"file://{tmp_path}/blobs")


def blob(store: Store, tenant: str = "acme", sha256: str = DIGEST) -> Path:
    return Path(store.path(tenant, sha256))


def test_bytes_are_read_as_they_were_stored(store: Store):
    assert store.put("acme", DATA) == (DIGEST, len(DATA))
    assert store.read("acme", DIGEST) == DATA
    assert store.read("acme", DIGEST, size=len(DATA)) == DATA


def test_a_stream_is_stored_like_its_bytes(store: Store):
    assert store.put("acme", io.BytesIO(DATA), media_type="text/plain") == (DIGEST, len(DATA))
    with store.open("acme", DIGEST) as stream:
        assert stream.read() == DATA


def test_nothing_is_a_value_too(store: Store):
    sha256, size = store.put("acme", b"")

    assert (store.read("acme", sha256), size) == (b"", 0)


def test_a_stream_larger_than_memory_allows_is_stored(folder: Store, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(artifacts, "IN_MEMORY", 1000)

    assert folder.put("acme", io.BytesIO(DATA)) == (DIGEST, len(DATA))
    assert folder.read("acme", DIGEST) == DATA


def test_the_same_bytes_are_written_once(folder: Store):
    folder.put("acme", DATA)
    first = blob(folder).stat()
    folder.put("acme", DATA)

    assert blob(folder).stat().st_ino == first.st_ino


def test_p40_a_blob_old_enough_to_be_collected_is_written_anew(folder: Store):
    folder.put("acme", DATA)
    long_ago = time.time() - 2 * artifacts.FRESH
    os.utime(blob(folder), (long_ago, long_ago))
    folder.put("acme", DATA)

    assert blob(folder).stat().st_mtime > long_ago + artifacts.FRESH


def test_what_was_cut_short_is_written_anew(folder: Store):
    folder.put("acme", DATA)
    blob(folder).write_bytes(DATA[:10])
    folder.put("acme", DATA)

    assert folder.read("acme", DIGEST) == DATA


def test_tenants_do_not_share_blobs(store: Store):
    store.put("acme", DATA)

    with pytest.raises(ArtifactMissing, match=f"no artifact {DIGEST}"):
        store.read("other", DIGEST)


@pytest.mark.parametrize("tenant", ["..", ".", "../acme", "/etc", "a/b", "a\\b", ".hidden", "ä" * 200, "%2E"])
def test_no_tenants_name_leads_out_of_the_store(folder: Store, tenant: str, tmp_path: Path):
    folder.put(tenant, DATA)

    inside = blob(folder, tenant).resolve().relative_to(tmp_path / "blobs")
    assert len(inside.parts) == 3
    assert folder.read(tenant, DIGEST) == DATA


def test_two_tenants_never_have_one_folder(folder: Store):
    names = ["a.b", "a%2Eb", "a/b", "a%2Fb", "A.B", "ä" * 200, "ä" * 199]

    assert len({folder.path(name, DIGEST) for name in names}) == len(names)


@pytest.mark.parametrize("damaged", [DATA[:-1], DATA[:-1] + b"y", b""])
def test_a_damaged_blob_is_noticed(folder: Store, damaged: bytes):
    folder.put("acme", DATA)
    blob(folder).write_bytes(damaged)

    with pytest.raises(ArtifactCorrupt, match=f"{len(damaged)} bytes"):
        folder.read("acme", DIGEST)


def test_a_size_that_differs_from_the_rows_is_noticed(folder: Store):
    folder.put("acme", DATA)

    with pytest.raises(ArtifactCorrupt):
        folder.read("acme", DIGEST, size=1)


def test_a_failed_write_leaves_nothing_behind(folder: Store, tmp_path: Path):
    class Breaking(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            raise OSError("the disk is full")

    with pytest.raises(ArtifactStoreUnavailable, match="the disk is full"):
        write(folder, Breaking())

    assert [path for path in (tmp_path / "blobs").rglob("*") if path.is_file()] == []


def write(store: Store, stream: io.BytesIO) -> None:
    with store._answering():
        store._write(store.path("acme", DIGEST), stream, media_type="text/plain")


def test_a_store_that_is_away_is_an_error_to_try_again(tmp_path: Path):
    (tmp_path / "blobs").write_text("a file where a folder should be")
    store = Store(f"file://{tmp_path}/blobs")

    with pytest.raises(ArtifactStoreUnavailable) as caught:
        store.put("acme", DATA)

    # The default policy of steps never repeats these.
    assert not isinstance(caught.value, Permanent | ValueError | TypeError | KeyError | PermissionError)


def test_a_protocol_that_nobody_has_installed_is_named():
    with pytest.raises(ArtifactStoreUnavailable, match="nosuch://bucket"):
        Store("nosuch://bucket").put("acme", DATA)


def test_a_store_is_usable_in_a_forked_child(store: Store):
    store.put("acme", DATA)
    pid = os.fork()
    if pid == 0:
        os._exit(0 if store.read("acme", DIGEST) == DATA else 1)

    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_small_value_stays_in_its_row(store: Store):
    small = Encoded.of(b'"small"')

    assert artifacts.externalize(small, tenant="acme", store=store, threshold=7) is small
    assert artifacts.internalize(small.data, small.encoding, tenant="acme", store=store) == small.data


def test_a_large_value_leaves_a_reference_in_its_row(store: Store):
    large = Encoded.of(orjson.dumps("x" * 100_000))

    stored = artifacts.externalize(large, tenant="acme", store=store, threshold=65_536)

    assert (stored.encoding, stored.digest) == ("artifact", large.digest)
    assert orjson.loads(stored.data)["size"] == len(large.data)
    assert artifacts.internalize(stored.data, stored.encoding, tenant="acme", store=store) == large.data
    assert artifacts.externalize(stored, tenant="acme", store=store, threshold=0) is stored


def test_one_tenants_part_is_opened_by_digest_alone(store: Store):
    store.put("acme", DATA)

    with TenantStore(store, "acme").open(DIGEST) as stream:
        assert stream.read() == DATA


def test_what_is_stored_in_a_folder_is_for_its_user_alone(tmp_path: Path) -> None:
    store = Store(f"file://{tmp_path / 'artifacts'}")

    sha256, _ = store.put("acme", b"a result")

    found = [tmp_path / "artifacts", *(tmp_path / "artifacts").rglob("*")]
    assert {path.stat().st_mode & 0o077 for path in found} == {0}
    assert store.read("acme", sha256) == b"a result"

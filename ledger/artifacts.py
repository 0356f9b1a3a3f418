"""Values too large for a row: stored once for each tenant under their sha-256, through fsspec: a folder or S3 alike.

A blob is complete or absent, and is checked when it is read. The row that says it is in use is touched by the commit
that refers to it (P40); a blob without one is garbage.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import IO, Any, BinaryIO, Final, cast
from urllib.parse import quote
from uuid import uuid4

import orjson

from .codec import ARTIFACT, JSON, Encoded
from .errors import ArtifactCorrupt, ArtifactMissing, ArtifactStoreUnavailable
from .seal import Seal

__all__ = ["FRESH", "Discarded", "Store", "TenantStore", "externalize", "internalize", "named"]

# A blob older than this is written again instead of being relied on, so that what collects garbage by age cannot take
# it between the look and the commit that refers to it.
FRESH: Final = 3600.0  # seconds
IN_MEMORY: Final = 8 << 20  # bytes of an upload that are kept in memory; more goes through a temporary file
CHUNK: Final = 1 << 20
PLAIN: Final = Seal()
# A put of these is atomic by itself; elsewhere a temporary name is moved to its place.
ATOMIC: Final = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "az", "memory"})


# An Artifact as JSON, in any document; a text that only looks like one keeps a blob too long, which harms nobody.
_NAMED: Final = re.compile(rb'"sha256"\s*:\s*"([0-9a-f]{64})"')


class Discarded(StrEnum):
    """What became of a blob that was to be removed."""

    GONE = "gone"  # it is not there any more
    USED = "used"  # a commit has referred to it again
    YOUNG = "young"  # somebody has written it, and may be about to refer to it


class Store:
    """The blobs under one fsspec URL."""

    def __init__(self, url: str) -> None:
        self.url = url

    @cached_property
    def _opened(self) -> tuple[int, Any, str]:
        from fsspec.core import url_to_fs  # noqa: PLC0415  # only who stores something pays for fsspec's import

        try:
            files, root = url_to_fs(self.url)
        except (ImportError, ValueError) as error:
            raise ArtifactStoreUnavailable(text=f"{self._shown}: {error}") from error
        return os.getpid(), files, str(root).rstrip("/")

    @property
    def _files(self) -> Any:
        # An object store's client does not survive a fork.
        if self._opened[0] != os.getpid():
            del self._opened
        return self._opened[1]

    @property
    def _shown(self) -> str:
        return self.url.partition("?")[0]

    @property
    def _is_local(self) -> bool:
        return "file" in _protocols(self._files)

    def path(self, tenant: str, sha256: str) -> str:
        """Return where a blob is; no tenant's name leads out of the store, or into another tenant's part."""
        _ = self._files
        return f"{self._opened[2]}/{_folder(tenant)}/{sha256[:2]}/{sha256}"

    def put(
        self, tenant: str, data: bytes | BinaryIO, *, media_type: str = "application/octet-stream"
    ) -> tuple[str, int]:
        """Store bytes or a stream, and return their digest and size; what is there already is not written again.

        Args:
            tenant: whose they are.
            data: the content; a stream is read to its end.
            media_type: what they are, for stores that keep it beside them.

        Raises:
            ArtifactStoreUnavailable: the store does not answer; trying again later is right.
        """
        with _spooled(data) as (stream, sha256, size), self._answering():
            path = self.path(tenant, sha256)
            if not self._is_there(path, size):
                self._write(path, stream, media_type=media_type)
        return sha256, size

    def open(self, tenant: str, sha256: str) -> BinaryIO:
        """Open a blob for reading; who reads it to its end checks the digest."""
        with self._answering(sha256):
            return cast("BinaryIO", self._files.open(self.path(tenant, sha256), "rb"))

    def read(self, tenant: str, sha256: str, *, size: int | None = None) -> bytes:
        """Return a blob, checked.

        Raises:
            ArtifactMissing: there is none.
            ArtifactCorrupt: what is there is not what was stored.
            ArtifactStoreUnavailable: the store does not answer; trying again later is right.
        """
        with self._answering(sha256):
            data = bytes(self._files.cat_file(self.path(tenant, sha256)))
        if hashlib.sha256(data).hexdigest() != sha256 or size not in (None, len(data)):
            raise ArtifactCorrupt(sha256=sha256, size=len(data))
        return data

    def discard(self, tenant: str, sha256: str, *, older_than: float, is_used: Callable[[], bool]) -> Discarded:
        """Remove a blob whose row is gone, unless it was written within `older_than` seconds, or is in use again.

        Who puts the same content relies only on a blob younger than `FRESH` and commits long before `older_than` is
        over, so whether it is in use is asked after its age: a commit that relied on an old blob is seen then.

        Raises:
            ArtifactStoreUnavailable: the store does not answer; trying again later is right.
        """
        with self._answering(sha256):
            path = self.path(tenant, sha256)
            if self._is_local:
                return _discard_locally(Path(path), older_than=older_than, is_used=is_used)
            try:
                age = _age(self._files.modified(path))
            except FileNotFoundError:
                return Discarded.GONE
            # A store that tells no age: what it has may have been written a moment ago.
            except (NotImplementedError, KeyError, TypeError):
                return Discarded.YOUNG
            if age < older_than:
                return Discarded.YOUNG
            if is_used():
                return Discarded.USED
            # An object store has no removal on a condition: what is written within this one request is lost.
            with suppress(FileNotFoundError):
                self._files.rm_file(path)
            return Discarded.GONE

    def _is_there(self, path: str, size: int) -> bool:
        try:
            found = self._files.info(path)
        except FileNotFoundError:
            return False
        if found.get("size") != size:
            return False
        with suppress(NotImplementedError, KeyError, TypeError):
            return _age(self._files.modified(path)) < FRESH
        return True

    def _write(self, path: str, stream: IO[bytes], *, media_type: str) -> None:
        stream.seek(0)
        if self._is_local:
            _write_locally(Path(path), stream)
            return
        if not ATOMIC.intersection(_protocols(self._files)):
            self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
            temporary = f"{path}.{uuid4().hex}"
            _pour(stream, self._files.open(temporary, "wb"))
            self._files.mv(temporary, path)
            return
        described = {"ContentType": media_type} if "s3" in _protocols(self._files) else {}
        _pour(stream, self._files.open(path, "wb", **described))

    @contextmanager
    def _answering(self, sha256: str = "") -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise ArtifactMissing(sha256=sha256, store=self._shown) from error
        except (OSError, TimeoutError) as error:
            raise ArtifactStoreUnavailable(text=f"{self._shown}: {error}") from error
        except Exception as error:  # object stores' clients have errors of their own that are no OSError
            if type(error).__module__.split(".")[0] not in {"botocore", "aiobotocore", "aiohttp", "gcsfs", "azure"}:
                raise
            raise ArtifactStoreUnavailable(text=f"{self._shown}: {error}") from error


@dataclass(frozen=True, slots=True)
class TenantStore:
    """One tenant's part of a store: what an `Artifact` is read from."""

    store: Store
    tenant: str

    def open(self, sha256: str, /) -> BinaryIO:
        """Open a blob of the tenant's."""
        return self.store.open(self.tenant, sha256)


def externalize(encoded: Encoded, *, tenant: str, store: Store, threshold: int) -> Encoded:
    """Return the value with its bytes in the store and a reference in their place, if they are more than `threshold`.

    The digest stays the value's own. A value that stays in its row is returned as it is.
    """
    if len(encoded.data) <= threshold or encoded.encoding == ARTIFACT:
        return encoded
    media_type = "application/json" if encoded.encoding == JSON else "application/octet-stream"
    sha256, size = store.put(tenant, encoded.data, media_type=media_type)
    reference = {"sha256": sha256, "size": size, "media_type": media_type, "encoding": encoded.encoding}
    return Encoded(orjson.dumps(reference), ARTIFACT, encoded.digest)


def internalize(data: bytes, encoding: str, *, tenant: str, store: Store, seal: Seal = PLAIN) -> bytes:
    """Return a stored value's plain bytes, read from the store and checked where the row holds a reference."""
    if encoding == ARTIFACT:
        reference = orjson.loads(data)
        data, encoding = store.read(tenant, reference["sha256"], size=reference["size"]), reference["encoding"]
    return seal.open(data, encoding, tenant)


def _age(written: datetime) -> float:
    aware = written if written.tzinfo else written.replace(tzinfo=UTC)
    return (datetime.now(UTC) - aware).total_seconds()


def _discard_locally(path: Path, *, older_than: float, is_used: Callable[[], bool]) -> Discarded:
    """Remove a file; under another name first, so that one that is written anew in this moment is told by its age.

    Who dies in between leaves that name, which the next call finds.
    """
    aside = path.with_name(f".{path.name}.discarded")
    oldest = time.time() - older_than
    with suppress(FileNotFoundError):
        if path.stat().st_mtime > oldest:
            return Discarded.YOUNG
    if is_used():
        _put_back(aside, path)
        return Discarded.USED
    with suppress(FileNotFoundError):
        path.rename(aside)
    with suppress(FileNotFoundError):
        if aside.stat().st_mtime > oldest:
            _put_back(aside, path)
            return Discarded.YOUNG
        aside.unlink()
    return Discarded.GONE


def _put_back(aside: Path, path: Path) -> None:
    with suppress(FileNotFoundError):
        with suppress(FileExistsError):  # written anew: the same content
            os.link(aside, path)
        aside.unlink()


def named(document: bytes) -> tuple[str, ...]:
    """Return the digests of the artifacts that a JSON document refers to."""
    return tuple(dict.fromkeys(found.decode() for found in _NAMED.findall(document)))


def _protocols(files: Any) -> frozenset[str]:
    return frozenset([files.protocol] if isinstance(files.protocol, str) else files.protocol)


def _folder(tenant: str) -> str:
    # Quoted, it holds no slash; a leading dot would be the folder above, or a hidden one.
    name = quote(tenant, safe="").replace(".", "%2E")
    return name if len(name) <= 120 else hashlib.sha256(tenant.encode()).hexdigest()


@contextmanager
def _spooled(data: bytes | BinaryIO) -> Iterator[tuple[IO[bytes], str, int]]:
    """Give the content as something that can be read twice, with its digest and size."""
    if isinstance(data, bytes | bytearray | memoryview):
        yield BytesIO(data), hashlib.sha256(data).hexdigest(), len(data)
        return
    digest, size = hashlib.sha256(), 0
    with tempfile.SpooledTemporaryFile(max_size=IN_MEMORY) as spool:
        while chunk := data.read(CHUNK):
            digest.update(chunk)
            size += len(chunk)
            spool.write(chunk)
        yield cast("IO[bytes]", spool), digest.hexdigest(), size


def _pour(stream: IO[bytes], target: Any) -> None:
    try:
        while chunk := stream.read(CHUNK):
            target.write(chunk)
    except BaseException:  # a Ctrl-C as well: closing would publish half of it under its name
        with suppress(Exception):  # not every store can; the first error is the one to tell
            target.discard()
        raise
    target.close()


def _make_folder(folder: Path) -> None:
    """Make a folder, and those that lead to it, for this user alone; those that are there stay as they are."""
    if not folder.is_dir():
        _make_folder(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def _write_locally(path: Path, stream: IO[bytes]) -> None:
    _make_folder(path.parent)
    temporary = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        # Results may be anything: for this user alone.
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as target:
            while chunk := stream.read(CHUNK):
                target.write(chunk)
            target.flush()
            # The row that refers to it is durable: so must this be, before it has its name.
            os.fsync(target.fileno())
        temporary.replace(path)
    except BaseException:  # a Ctrl-C as well: nobody looks for the half of a file again
        temporary.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)

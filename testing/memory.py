"""A ledger in memory for one step: `once` rows and artifacts, as a real one would keep them."""

from __future__ import annotations

import hashlib
import io
from typing import TYPE_CHECKING, BinaryIO

from ..tasks.artifact import Artifact, reading_from

if TYPE_CHECKING:
    from ..ledger.codec import Encoded

__all__ = ["Artifacts", "MemoryLedger"]


class Artifacts:
    """Stored bytes by their digest."""

    def __init__(self) -> None:
        self._stored: dict[str, bytes] = {}

    def put(self, stream: BinaryIO, *, name: str | None, media_type: str) -> Artifact:
        """Store a stream."""
        data = stream.read()
        sha256 = hashlib.sha256(data).hexdigest()
        self._stored[sha256] = data
        return Artifact(sha256, len(data), media_type, name)

    def add(self, data: bytes | str, *, name: str | None = None, media_type: str | None = None) -> Artifact:
        """Store what a run is given, as `client.artifact` does; the test can read it too."""
        raw = data.encode() if isinstance(data, str) else data
        fallback = "text/plain; charset=utf-8" if isinstance(data, str) else "application/octet-stream"
        with reading_from(self):
            return self.put(io.BytesIO(raw), name=name, media_type=media_type or fallback)

    def open(self, sha256: str, /) -> BinaryIO:
        """Open what was stored."""
        if sha256 not in self._stored:
            msg = f"no artifact {sha256} was stored in this test"
            raise FileNotFoundError(msg)
        return io.BytesIO(self._stored[sha256])


class MemoryLedger:
    """What one step writes besides its result; the rows outlive its attempts."""

    def __init__(self, artifacts: Artifacts | None = None) -> None:
        self.rows: dict[str, Encoded] = {}
        self.artifacts = artifacts or Artifacts()
        self.tokens = 0
        self.usd = 0.0

    def once_get(self, name: str, /) -> Encoded | None:
        """Give the row of that name."""
        return self.rows.get(name)

    def once_put(self, name: str, value: Encoded, /, *, tokens: int, usd: float) -> Encoded | None:
        """Write the row unless there is one."""
        if name in self.rows:
            return self.rows[name]
        self.rows[name] = value
        self.tokens += tokens
        self.usd += usd
        return None

    def artifact_put(self, stream: BinaryIO, /, *, name: str | None, media_type: str) -> Artifact:
        """Store a stream."""
        return self.artifacts.put(stream, name=name, media_type=media_type)

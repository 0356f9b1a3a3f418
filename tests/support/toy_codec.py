"""Codecs as a user may name them in `values.codec`; none of them keeps a secret from anybody but a test."""

from __future__ import annotations

import hashlib
from itertools import cycle

__all__ = ["Xor", "broken", "calls", "deaf", "other", "silent", "xor"]

calls: list[str] = []


class Xor:
    """Each tenant has a key of its own, and what was sealed shows it by a mark."""

    MARK = b"\x00xor:"

    def __init__(self, secret: str) -> None:
        self.secret = secret

    def encode(self, tenant: str, data: bytes) -> bytes:
        """Seal."""
        calls.append(tenant)
        return self.MARK + hashlib.sha256(data).digest()[:8] + self._turned(tenant, data)

    def decode(self, tenant: str, data: bytes) -> bytes:
        """Open, or refuse what another key has sealed."""
        start = len(self.MARK)
        check, plain = data[start : start + 8], self._turned(tenant, data[start + 8 :])
        if hashlib.sha256(plain).digest()[:8] != check:
            raise LookupError(f"the key of {tenant} does not fit")
        return plain

    def _turned(self, tenant: str, data: bytes) -> bytes:
        key = hashlib.sha256(f"{self.secret}{tenant}".encode()).digest()
        return bytes(one ^ other for one, other in zip(data, cycle(key), strict=False))


class Broken(Xor):
    """Seals only while it is told to."""

    works = False

    def encode(self, tenant: str, data: bytes) -> bytes:
        """Seal, or raise as a key service does that is away."""
        if not self.works:
            raise ConnectionError("the key service is away")
        return super().encode(tenant, data)


class Silent(Xor):
    """Gives nothing."""

    def encode(self, tenant: str, data: bytes) -> bytes:
        """Give nothing."""
        return b""


xor, other, broken, silent, deaf = Xor("a"), Xor("b"), Broken("a"), Silent("a"), object()

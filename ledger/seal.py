"""Seals values: a codec of the user's (`[values] codec`) turns a tenant's bytes into bytes that only it can read.

Pure but for the user's own code, which may raise: that is an error with words, never the end of whoever asked.
"""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Final, Protocol, cast

from .codec import JSON, Encoded
from .errors import ConfigError, Problem, ValueNotOpened, ValueNotSealed

__all__ = ["SEALED", "Seal", "ValueCodec"]

SEALED: Final = "sealed"
KEY: Final = "values.codec"
ACCEPTED: Final = (
    '"module:object", an object with encode(tenant: str, data: bytes) -> bytes and decode(tenant: str, data: bytes)'
    " -> bytes"
)
TOLD: Final = 300  # characters of what the user's code says


class ValueCodec(Protocol):
    """What the setting names."""

    def encode(self, tenant: str, data: bytes, /) -> bytes:
        """Turn a value's bytes into what may be stored."""
        ...

    def decode(self, tenant: str, data: bytes, /) -> bytes:
        """Turn what was stored into the value's bytes."""
        ...


class Seal:
    """The configured codec, loaded when the first value needs it; without one, values are stored as they are."""

    __slots__ = ("_codec", "_place")

    def __init__(self, place: str | None = None) -> None:
        self._place = place
        self._codec: ValueCodec | None = None

    @classmethod
    def load(cls, place: str | None) -> Seal:
        """Make one from the setting."""
        return cls(place)

    @property
    def is_configured(self) -> bool:
        """Whether values are sealed at all."""
        return self._place is not None

    def close(self, encoded: Encoded, tenant: str) -> Encoded:
        """Seal a value for its tenant; the digest stays the plain value's.

        Raises:
            ConfigError: the setting names no codec.
            ValueNotSealed: the codec has failed.
        """
        if self._place is None or encoded.encoding != JSON:
            return encoded
        codec = self._loaded(self._place)
        try:
            data = _bytes(codec.encode(tenant, encoded.data), what="encode")
        except Exception as error:  # whatever the user's codec raises: the attempt fails with it
            raise ValueNotSealed(text=_told(error)) from error
        return Encoded(data, SEALED, encoded.digest)

    def open(self, data: bytes, encoding: str, tenant: str) -> bytes:
        """Give a value's plain bytes.

        Raises:
            ValueNotOpened: it is sealed, and there is no codec here, or one that has failed.
        """
        if encoding == JSON:
            return data
        if encoding != SEALED:
            raise ValueNotOpened(path="value", text=f"this release knows no encoding {encoding!r}")
        if self._place is None:
            text = f"it is encrypted, and no codec is configured here: set {KEY} to the one that wrote it"
            raise ValueNotOpened(path="value", text=text)
        try:
            return _bytes(self._loaded(self._place).decode(tenant, data), what="decode")
        except Exception as error:  # whatever the user's codec raises: the reader learns which value it was
            raise ValueNotOpened(path="value", text=_told(error)) from error

    def _loaded(self, place: str) -> ValueCodec:
        if self._codec is None:
            self._codec = _load(place)
        return self._codec


def _load(place: str) -> ValueCodec:
    module, _, name = place.partition(":")
    try:
        found: object = import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except Exception as error:  # whatever the user's module raises
        raise _wrong(place, f"it cannot be imported ({type(error).__name__}: {error})") from error
    for method in ("encode", "decode"):
        own = getattr(found, method, None)
        if not callable(own):
            raise _wrong(place, f"it has no {method}")
        try:
            inspect.signature(own).bind("tenant", b"data")
        except TypeError as error:  # of a class, say, in the place of its instance
            raise _wrong(place, f"its {method} cannot be called with a tenant and bytes ({error})") from error
        except ValueError:  # a built-in's, which tells nothing of its parameters
            continue
    return cast("ValueCodec", found)


def _wrong(place: str, text: str) -> ConfigError:
    return ConfigError(None, Problem("settings", KEY, f"{place!r}: {text}", ACCEPTED))


def _bytes(given: object, *, what: str) -> bytes:
    if isinstance(given, bytes | bytearray | memoryview) and len(given):
        return bytes(given)
    raise TypeError(f"{what} gave {type(given).__name__ if given else 'nothing'}, not bytes")


def _told(error: Exception) -> str:
    if isinstance(error, ConfigError):
        return str(error)
    try:
        said = str(error)
    except Exception:  # noqa: BLE001  # a user's __str__ may raise; the type is still told
        said = ""
    return f"the codec of {KEY} raised {type(error).__name__}{f': {said[:TOLD]}' if said else ''}"

"""Values as bytes and back: JSON by declared type, checked to come back equal before it is believed.

pydantic is imported when the first value is encoded: a program that only enqueues by name never pays for it.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final, Generic, TypeVar, cast

import orjson

from .equality import DEPTH, Difference, difference, parts
from .errors import ValueNotDecodable, ValueNotEncodable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import TypeAdapter, ValidationError

__all__ = ["ARTIFACT", "JSON", "Codec", "Encoded", "digest", "input_hash", "where"]

JSON: Final = "json"
ARTIFACT: Final = "artifact"

T = TypeVar("T")

_LONG_NUMBER = re.compile(rb"[0-9]{19}")


@dataclass(frozen=True, slots=True)
class Encoded:
    """A value as stored: its bytes, how they are to be read, and their sha-256."""

    data: bytes
    encoding: str
    digest: bytes

    @classmethod
    def of(cls, data: bytes, *, encoding: str = JSON) -> Encoded:
        """Wrap bytes that are known to be right."""
        return cls(data, encoding, digest(data))


def digest(data: bytes) -> bytes:
    """Give the sha-256 of the bytes: 32 bytes."""
    return hashlib.sha256(data).digest()


def input_hash(data: bytes) -> bytes:
    """Give the sha-256 of a JSON document that does not depend on the order of its keys."""
    if _LONG_NUMBER.search(data):
        # orjson reads integers beyond 64 bits as floats: two of them would share a hash.
        canonical = json.dumps(json.loads(data), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return digest(canonical.encode(errors="surrogatepass"))
    return digest(orjson.dumps(orjson.loads(data), option=orjson.OPT_SORT_KEYS))


class Codec(Generic[T]):
    """Encodes and decodes values of one declared type; `root` begins the path that an error names."""

    def __init__(self, type: object, *, root: str = "value") -> None:  # noqa: A002  # reads as the annotation it takes
        self.type = type
        self.root = root

    def __repr__(self) -> str:
        """Name the type and the root."""
        return f"Codec({self.type!r}, root={self.root!r})"

    @cached_property
    def adapter(self) -> TypeAdapter[T]:
        """The pydantic adapter of the type, built at first use."""
        from pydantic import ConfigDict, PydanticUserError, TypeAdapter  # noqa: PLC0415  # see the module's second line

        config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64", arbitrary_types_allowed=True)
        try:
            return TypeAdapter(cast("type[T]", self.type), config=config)
        except PydanticUserError as error:
            if error.code != "type-adapter-config-unused":
                raise
            return TypeAdapter(cast("type[T]", self.type))  # a model or dataclass, which has a configuration of its own

    def schema(self) -> dict[str, object]:
        """Give the JSON schema of the type."""
        return self.adapter.json_schema()

    @cached_property
    def _holds_sets(self) -> bool:
        return _mentions(self.adapter.core_schema, kinds=frozenset({"set", "frozenset"}))

    def encode(self, value: object) -> Encoded:
        """Encode the value, or refuse with the path of what would not come back equal."""
        data = self._dump(value)
        try:
            back = self._read(data)
        except ValueError as error:  # pydantic's ValidationError
            path, text = where(error, root=self.root)
            raise ValueNotEncodable(path=path, text=text) from error
        if not _is_equal(back, value):
            self._refuse(value, back=back)
        return Encoded.of(data)

    def show(self, value: object) -> Encoded:
        """Encode one way, for people: nothing has to come back from it."""
        return Encoded.of(self._dump(value))

    def decode(self, data: bytes, *, encoding: str = JSON) -> T:
        """Decode by the declared type, or say where the stored value does not fit it."""
        if encoding != JSON:
            msg = f"encoding {encoding!r} has to be loaded before it is decoded"
            raise ValueError(msg)
        try:
            return self._read(data)
        except ValueError as error:  # pydantic's ValidationError
            path, text = where(error, root=self.root)
            raise ValueNotDecodable(path=path, text=text) from error

    def _read(self, data: bytes) -> T:
        # Ours are written by the fields' names; what a client has written may use their aliases.
        return self.adapter.validate_json(data, by_alias=True, by_name=True)

    def _dump(self, value: object) -> bytes:
        try:
            if self._holds_sets:
                return _dump_sorted(self.adapter, value)
            return self.adapter.dump_json(cast("T", value), by_alias=False, round_trip=True, warnings=False)
        except (ValueError, TypeError, RecursionError, AttributeError) as error:
            found = _unencodable(value, path=self.root)
            path, text = (found.path, found.text) if found else (self.root, str(error))
            raise ValueNotEncodable(path=path, text=text) from error

    def _refuse(self, value: object, *, back: T) -> None:
        found = difference(value, back, path=self.root)
        if found is None:
            return
        # A value that its declared type reads as another one (a tuple for a list) comes back as the declared type says.
        try:
            declared = self.adapter.validate_python(value, by_alias=True, by_name=True)
        except ValueError:
            declared = None
        if declared is None or difference(declared, back, path=self.root) is not None:
            raise ValueNotEncodable(path=found.path, text=found.text)


def where(error: ValueError, *, root: str) -> tuple[str, str]:
    """Give the path and the words of pydantic's first complaint."""
    from pydantic import ValidationError  # noqa: PLC0415  # see the module's second line

    if not isinstance(error, ValidationError):
        return root, str(error)
    first = _first(error)
    path = root + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])  # type: ignore[attr-defined]  # a tuple of names and positions
    return path, str(first["msg"])


def _first(error: ValidationError) -> Mapping[str, object]:
    return error.errors(include_url=False, include_context=False, include_input=False)[0]


def _is_equal(back: object, value: object) -> bool:
    try:
        return bool(back == value) and type(back) is type(value)
    except Exception:  # noqa: BLE001  # a user's __eq__ may raise; the structural comparison then decides
        return False


def _mentions(schema: object, *, kinds: frozenset[str]) -> bool:
    match schema:
        case {"type": str(kind)} if kind in kinds:
            return True
        case dict():
            return any(_mentions(part, kinds=kinds) for part in schema.values())
        case list() | tuple():
            return any(_mentions(part, kinds=kinds) for part in schema)
        case _:
            return False


def _dump_sorted(adapter: TypeAdapter[T], value: object) -> bytes:
    """Dump with every set in a fixed order: the order of a set of strings differs from process to process."""
    plain = adapter.dump_python(cast("T", value), mode="json", by_alias=False, round_trip=True, warnings=False)
    return orjson.dumps(_sorted(value, plain), option=orjson.OPT_NON_STR_KEYS)


def _sorted(value: object, plain: object) -> object:
    match value, plain:
        case (set() | frozenset(), list()):
            parts = [_sorted(one, other) for one, other in zip(value, plain, strict=True)]
            return sorted(parts, key=lambda part: orjson.dumps(part, option=orjson.OPT_SORT_KEYS))
        case (list() | tuple(), list()) if len(value) == len(plain):
            return [_sorted(one, other) for one, other in zip(value, plain, strict=True)]
        case (dict(), dict()) if len(value) == len(plain):
            return {key: _sorted(one, plain[key]) for one, key in zip(value.values(), plain, strict=True)}
        case (_, dict()):
            return {key: _sorted(getattr(value, key, None), part) for key, part in plain.items()}
        case _:
            return plain


def _unencodable(value: object, *, path: str, depth: int = 0) -> Difference | None:
    """Find the first part of a value that has no JSON form, by trying the parts one by one."""
    from pydantic_core import PydanticSerializationError, to_json  # noqa: PLC0415  # see the module's second line

    if depth > DEPTH:
        return Difference(path, "is nested too deeply, or holds itself")
    for name, part in parts(value):
        found = _unencodable(part, path=path + name, depth=depth + 1)
        if found is not None:
            return found
    try:
        to_json(value)
    except (PydanticSerializationError, ValueError, RecursionError) as error:
        return Difference(path, f"{type(value).__name__} has no JSON form ({error})")
    return None

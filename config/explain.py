"""What is wrong with a setting, in words: its key, the value unless it may be a secret, and what is accepted."""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from .errors import Problem

__all__ = ["Found", "Unset", "explain", "find", "is_mapping", "unknown", "variables"]

Keys = tuple[str, ...]

_KINDS = {bool: "true or false", int: "a whole number", float: "a number", Path: "a folder", SecretStr: "a URL"}
_BOUNDS = {"gt": "above", "ge": "at least", "lt": "below", "le": "at most"}


@dataclass(frozen=True, slots=True)
class Unset:
    """Stands in an annotation, and says with which word a value that may be none is unset."""

    word: str


class Found(NamedTuple):
    """A key's place in the models: the table that it is in, and its field there if there is one."""

    table: type[BaseModel]
    path: Keys
    field: FieldInfo | None


def find(model: type[BaseModel], keys: Keys) -> Found:
    """Walk as far along the keys as there are tables; what lies behind the field (a list's item) is ignored."""
    table, path = model, keys[:0]
    for position, key in enumerate(keys):
        field = table.model_fields.get(key)
        below = _table(field.annotation) if field else None
        if field is None and position < len(keys) - 1 and (named := _named(table)) is not None:
            inner = find(named, keys[position + 1 :])
            return inner._replace(path=keys[: position + 1] + inner.path)
        if field and _is_table(field) and below is None and len(keys) > position + 2:
            inner = find(typing.get_args(field.annotation)[1], keys[position + 2 :])
            return inner._replace(path=keys[: position + 2] + inner.path)
        if below is None:
            return Found(table, path, field)
        table, path = below, keys[: position + 1]
    return Found(table, path, None)


def variables(model: type[BaseModel], lanes: Sequence[str]) -> list[str]:
    """Return every variable that sets something, the given lanes' included."""
    names: list[str] = []
    for key, field in model.model_fields.items():
        below = _table(field.annotation)
        if below is not None:
            names += [f"{key}__{name}" for name in below.model_fields]
        elif key == "lanes":
            inner = typing.get_args(field.annotation)[1].model_fields
            names += [f"{key}__{lane}__{name}" for lane in lanes for name in inner if name != "name"]
        elif _is_table(field):
            continue  # tables whose names are not known here
        else:
            names.append(key)
    return [f"SAFEPOINT_{name}".upper() for name in names]


def explain(
    model: type[BaseModel], error: Mapping[str, Any], *, source: str, key: str | None, value: object
) -> Problem:
    """Turn one of pydantic's errors into a problem; `key` is the variable that set the value, if one did."""
    keys = tuple(str(part) for part in error["loc"])
    found = find(model, keys)
    if error["type"] == "extra_forbidden" or (found.field is None and error["type"] == "model_type"):
        known = [
            ".".join((*found.path, name)) for name in found.table.model_fields if (*found.path, name)[2:] != ("name",)
        ]
        return unknown(source, key or ".".join(keys), known)
    if keys[-1:] == ("[key]",):
        keys, value = keys[:-1], keys[-2]
        return Problem(source, key or ".".join(keys[:-1]), f"{value!r} is no name", "text of 1 to 200 letters")
    if keys[:1] == ("lanes",) and keys[2:] == ("name",):  # nobody has typed that key: it is the table's own name
        keys = keys[:2]
    return Problem(source, key or ".".join(keys), _text(error, found.field, value), _accepted(found, keys))


def _accepted(found: Found, keys: Keys) -> str:
    if found.field is None or _is_table(found.field):
        return ""
    if is_mapping(found.field) and len(keys) > len(found.path) + 1:  # one of them
        return _words(typing.get_args(found.field.annotation)[1], ())
    return _words(found.field.annotation, found.field.metadata)


def unknown(source: str, key: str, known: Sequence[str]) -> Problem:
    """Say that there is no such key, and which one was probably meant."""
    close = difflib.get_close_matches(key, known, n=1)
    if close:
        return Problem(source, key, f"unknown key; did you mean {close[0]}?")
    return Problem(source, key, "unknown key", ", ".join(name for name in known if "__" not in name))


def _text(error: Mapping[str, Any], field: FieldInfo | None, value: object) -> str:
    # Our own checks word their message for people, and know what they must not repeat.
    if error["type"] == "value_error":
        return str(error["msg"]).removeprefix("Value error, ")
    if field is None or _is_secret(field.annotation) or isinstance(value, dict):
        return "a value of the wrong kind"
    return f"{value!r} is not accepted"


def _table(kind: Any) -> type[BaseModel] | None:  # annotations are values of any type
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _named(table: type[BaseModel]) -> type[BaseModel] | None:
    """Return what the tables are that may stand in this one under any name."""
    kind = table.__annotations__.get("__pydantic_extra__")
    return _table(typing.get_args(typing.get_type_hints(table)["__pydantic_extra__"])[1]) if kind else None


def _is_table(field: FieldInfo) -> bool:
    is_dict = typing.get_origin(field.annotation) is dict
    return _table(field.annotation) is not None or (is_dict and not is_mapping(field))


def is_mapping(field: FieldInfo) -> bool:
    """Whether a key holds values under names that the user chooses, as weights of tenants."""
    is_dict = typing.get_origin(field.annotation) is dict
    return is_dict and _table(typing.get_args(field.annotation)[1]) is None


def _is_secret(kind: Any) -> bool:
    return kind is SecretStr or any(_is_secret(part) for part in typing.get_args(kind))


def _words(kind: Any, metadata: Sequence[Any]) -> str:
    """Say what a type and its bounds let through."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        return " or ".join(str(arg) for arg in args)
    if origin is typing.Annotated:
        return _words(args[0], [*args[1:], *metadata])
    if origin in {typing.Union, types.UnionType}:
        unset = next((part.word for part in metadata if isinstance(part, Unset)), "unset")
        return " or ".join(unset if arg is type(None) else _words(arg, metadata) for arg in args)
    if origin is dict:
        return "names, each with " + _words(args[1], ())
    if origin is tuple:
        return "a list, each " + _words(args[0], ())
    return " ".join([_KINDS.get(kind, "text"), *_bounds(metadata)])


def _bounds(metadata: Sequence[Any]) -> list[str]:
    # A Field() inside Annotated keeps its bounds in a list of its own.
    flat = [part for item in metadata for part in getattr(item, "metadata", [item])]
    limits = [
        f"{word} {getattr(part, sign):.15g}" for part in flat for sign, word in _BOUNDS.items() if hasattr(part, sign)
    ]
    patterns = [f"like {part.pattern}" for part in flat if getattr(part, "pattern", None)]
    return limits + patterns

"""Where a setting comes from: the shipped defaults, the file, the environment; laid over each other in this order.

Every problem is named by its source and key, and none repeats a value that may be a secret.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
import types
import typing
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, SecretStr, ValidationError

from .errors import ConfigError, Problem

__all__ = ["read", "shipped_lanes"]

ModelT = TypeVar("ModelT", bound=BaseModel)
Tree = dict[str, Any]  # what TOML gives: checked by the models right after
Path_ = tuple[str, ...]

PREFIX = "SAFEPOINT_"
# Read elsewhere (crash.py, tests, CI): not settings, but ours.
_OTHER = re.compile(r"^SAFEPOINT_(CONFIG|CI|CRASH|CRASH_POINTS|CRASH_TARGET|CRASH_ONCE|TEST_\w+)$")
# Kubernetes puts these into every pod beside a service called safepoint or safepoint-something.
_SERVICE_LINK = re.compile(r"^SAFEPOINT_(\w+_)?(SERVICE_(HOST|PORT(_\w+)?)|PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?)$")


def shipped_lanes(lane: type[ModelT]) -> dict[str, ModelT]:
    """Return the lanes of defaults.toml."""
    return {name: lane(**values, name=name) for name, values in _shipped()["lanes"].items()}


def read(model: type[ModelT], path: Path | None, env: Mapping[str, str] | None) -> ModelT:
    """Lay the three sources over each other and check the result once, as a whole."""
    env = os.environ if env is None else env
    source, tree = _file(path, env)
    merged = _merge(_shipped(), tree)
    origin: dict[Path_, str] = {}
    problems: list[Problem] = []
    for variable, keys, value in _variables(model, env, merged, problems):
        origin[keys] = variable
        _put(merged, keys, value)
    for name, lane in _tables(merged.get("lanes")):
        lane.setdefault("name", name)
    _anchor_home(merged, origin, source)
    try:
        result = model.model_validate(merged)
    except ValidationError as error:
        problems += [_explain(model, item, origin, source) for item in error.errors(include_input=False)]
    else:
        if not problems:
            return result
    # Outside the except block: the original error must not be chained, its traceback shows the values.
    raise ConfigError(None, *problems)


def _shipped() -> Tree:
    return tomllib.loads(resources.files(__package__).joinpath("defaults.toml").read_text(encoding="utf-8"))


def _file(path: Path | None, env: Mapping[str, str]) -> tuple[Path | None, Tree]:
    asked = path or (Path(env["SAFEPOINT_CONFIG"]) if env.get("SAFEPOINT_CONFIG") else None)
    found = asked or Path("safepoint.toml")
    try:
        return found, tomllib.loads(found.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if asked is None:
            return None, {}
        raise ConfigError(None, Problem(str(found), "", "there is no such file", "a TOML file")) from None
    except OSError as error:
        raise ConfigError(None, Problem(str(found), "", f"cannot be read: {error.strerror}")) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(None, Problem(str(found), "", f"is not TOML: {error}")) from None


def _variables(
    model: type[BaseModel], env: Mapping[str, str], merged: Tree, problems: list[Problem]
) -> Iterator[tuple[str, Path_, Any]]:
    """Yield each setting of the environment; a variable that sets nothing is a problem, like a key of the file."""
    for variable in sorted(env):
        if not variable.startswith(PREFIX) or _OTHER.match(variable):
            continue
        keys = tuple(variable.removeprefix(PREFIX).lower().split("__"))
        kind = _kind(model, keys, merged)
        if kind is not None:
            yield variable, keys, _parsed(kind, env[variable])
        elif not _SERVICE_LINK.match(variable):
            problems.append(_unknown("environment", variable, [*_all_variables(model, merged)]))


def _parsed(kind: Any, text: str) -> Any:  # annotations are values of any type
    if typing.get_origin(kind) is tuple:
        return [part.strip() for part in text.split(",") if part.strip()]
    # An empty variable is how compose files and charts say "not set".
    return None if text == "" and _optional(kind) else text


def _optional(kind: Any) -> bool:
    return type(None) in typing.get_args(kind)


def _kind(model: type[BaseModel], keys: Path_, merged: Tree) -> Any:
    """Return the annotation of a key, or None when there is no such key or it is a table."""
    if keys[0] == "lanes" and len(keys) == 3:
        if keys[1] not in merged.get("lanes", {}):
            return None
        model, keys = typing.get_args(model.model_fields["lanes"].annotation)[1], keys[2:]
    for position, key in enumerate(keys):
        field = model.model_fields.get(key)
        if field is None:
            return None
        table = _table(field.annotation)
        if position == len(keys) - 1:
            return None if table or typing.get_origin(field.annotation) is dict else field.annotation
        if table is None:
            return None
        model = table
    return None


def _table(kind: Any) -> type[BaseModel] | None:
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _all_variables(model: type[BaseModel], merged: Tree) -> Iterator[str]:
    for name, field in model.model_fields.items():
        table = _table(field.annotation)
        if table is not None:
            yield from (f"{PREFIX}{name}__{key}".upper() for key in table.model_fields)
        elif name == "lanes":
            keys = typing.get_args(field.annotation)[1].model_fields
            yield from (f"{PREFIX}lanes__{lane}__{key}".upper() for lane in merged.get("lanes", {}) for key in keys)
        else:
            yield f"{PREFIX}{name}".upper()


def _tables(value: Any) -> Iterator[tuple[str, Tree]]:
    if isinstance(value, dict):
        yield from ((name, table) for name, table in value.items() if isinstance(table, dict))


def _merge(under: Tree, over: Tree) -> Tree:
    merged = dict(under)
    for key, value in over.items():
        below = merged.get(key)
        merged[key] = _merge(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


def _put(tree: Tree, keys: Path_, value: Any) -> None:
    for key in keys[:-1]:
        below = tree.get(key)
        tree[key] = dict(below) if isinstance(below, dict) else {}
        tree = tree[key]
    tree[keys[-1]] = value


def _anchor_home(merged: Tree, origin: Mapping[Path_, str], source: Path | None) -> None:
    # A relative folder in the file belongs beside the file, whatever directory a daemon was started in.
    if isinstance(merged.get("home"), str):
        base = source.parent if source is not None and ("home",) not in origin else Path()
        merged["home"] = (base / Path(merged["home"]).expanduser()).absolute()


def _explain(model: type[BaseModel], item: Any, origin: Mapping[Path_, str], source: Path | None) -> Problem:
    keys = tuple(str(part) for part in item["loc"])
    # The longest prefix that a variable has set: a tuple's item has its position behind the key.
    variable = next((origin[keys[:n]] for n in range(len(keys), 0, -1) if keys[:n] in origin), None)
    where = "environment" if variable else str(source or "defaults")
    key = variable or ".".join(keys)
    if item["type"] == "extra_forbidden":
        return _unknown(where, key, _siblings(model, keys))
    return Problem(where, key, item["msg"].removeprefix("Value error, "), _accepted(model, keys))


def _unknown(where: str, key: str, known: list[str]) -> Problem:
    close = difflib.get_close_matches(key, known, n=1) or difflib.get_close_matches(key.upper(), known, n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    accepted = "" if close else ", ".join(known if len(known) <= 20 else [name for name in known if "__" not in name])
    return Problem(where, key, f"unknown key{hint}", accepted)


def _model_at(model: type[BaseModel], keys: Path_) -> type[BaseModel] | None:
    here: type[BaseModel] | None = model
    for key in keys:
        if here is None or key not in here.model_fields:
            return None
        annotation = here.model_fields[key].annotation
        here = _table(annotation)
    return here


def _siblings(model: type[BaseModel], keys: Path_) -> list[str]:
    if keys[0] == "lanes" and len(keys) > 2:
        lane = typing.get_args(model.model_fields["lanes"].annotation)[1]
        return [".".join((*keys[:2], name)) for name in lane.model_fields if name != "name"]
    table = _model_at(model, keys[:-1])
    return [".".join((*keys[:-1], name)) for name in table.model_fields] if table else []


def _accepted(model: type[BaseModel], keys: Path_) -> str:
    """Say in words what a key's type and bounds let through."""
    table: type[BaseModel] | None
    if keys[:1] == ("lanes",) and len(keys) > 2:
        table, keys = typing.get_args(model.model_fields["lanes"].annotation)[1], keys[2:]
    else:
        table = _model_at(model, keys[:-1]) or _model_at(model, keys[:-2])
        keys = keys[-1:] if _model_at(model, keys[:-1]) else keys[-2:-1]
    field = table.model_fields.get(keys[0]) if table and keys else None
    if field is None or _table(field.annotation):
        return ""
    return _words(field.annotation, field.metadata)


def _words(kind: Any, metadata: list[Any]) -> str:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        return ", ".join(str(arg) for arg in args)
    if origin is typing.Annotated:
        return _words(args[0], [*args[1:], *metadata])
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_words(arg, metadata) for arg in args if arg is not type(None))
    if origin is tuple:
        return "a list of words"
    names = {float: "a number", int: "a whole number", bool: "true, false", SecretStr: "a URL or password", Path: "a folder"}
    return names.get(kind, "text") + _bounds(metadata)


def _bounds(metadata: list[Any]) -> str:
    signs = {"gt": "above", "ge": "at least", "lt": "below", "le": "at most"}
    flat = [item for entry in metadata for item in getattr(entry, "metadata", [entry])]
    parts = [
        f"{word} {getattr(item, sign):g}"
        for item in flat
        for sign, word in signs.items()
        if getattr(item, sign, None) is not None
    ]
    return (" " + ", ".join(parts)) if parts else ""

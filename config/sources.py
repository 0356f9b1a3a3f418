"""Where a setting comes from: the shipped defaults, the file, the environment; laid over each other in this order.

Every problem of all three is reported at once, named by its source and key.
"""

from __future__ import annotations

import os
import re
import tomllib
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from .errors import ConfigError, Problem
from .explain import Keys, explain, find, is_mapping, unknown, variables

__all__ = ["read", "shipped_lanes"]

ModelT = TypeVar("ModelT", bound=BaseModel)
Tree = dict[str, Any]  # what TOML gives; the models check it right after

_PREFIX = "SAFEPOINT_"
# Read elsewhere (crash.py, the command line, the tests, CI): not settings, but ours.
_OTHERS = re.compile(r"^SAFEPOINT_(CONFIG|CI|TRACEBACK|CRASH|CRASH_POINTS|CRASH_TARGET|CRASH_ONCE|TEST_\w+)$")
# Kubernetes puts these into every pod that has a service called safepoint or safepoint-something beside it.
_SERVICE_LINK = re.compile(r"^SAFEPOINT_(\w+_)?(SERVICE_(HOST|PORT(_\w+)?)|PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?)$")


@dataclass(slots=True)
class _Layers:
    """The sources on top of each other, with what is known of where each value is from."""

    tree: Tree
    file: Path | None = None
    variable: dict[Keys, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def lanes(self) -> dict[str, Tree]:
        lanes = self.tree.get("lanes")
        return {name: lane for name, lane in lanes.items() if isinstance(lane, dict)} if isinstance(lanes, dict) else {}

    def origin(self, keys: Keys) -> tuple[str, str | None]:
        """Return a value's source, and the variable that set it; an item of a list has its number behind the key."""
        for length in range(len(keys), 0, -1):
            if keys[:length] in self.variable:
                return "environment", self.variable[keys[:length]]
        return str(self.file or "defaults"), None

    def value(self, keys: Keys) -> object:
        here: object = self.tree
        for key in keys:
            here = here.get(key) if isinstance(here, dict) else here
        return here


def shipped_lanes(lane: type[ModelT]) -> dict[str, ModelT]:
    """Return the lanes of defaults.toml."""
    return {name: lane(**values, name=name) for name, values in _shipped()["lanes"].items()}


def read(model: type[ModelT], path: Path | None, env: Mapping[str, str] | None) -> ModelT:
    """Lay the three sources over each other and check the result as a whole."""
    env = os.environ if env is None else env
    file, tree = _file(path, env)
    layers = _Layers(_merge(_shipped(), tree), file)
    _lay_variables(layers, model, env)
    for name, lane in layers.lanes().items():
        lane.setdefault("name", name)
    _anchor_home(layers)
    result = _checked(model, layers)
    if result is None or layers.problems:
        raise ConfigError(None, *layers.problems)
    return result


def _checked(model: type[ModelT], layers: _Layers) -> ModelT | None:
    # Pydantic's own error is not chained to ours: its traceback would show the values, secrets included.
    try:
        return model.model_validate(layers.tree)
    except ValidationError as error:
        for item in error.errors(include_input=False):
            keys = tuple(str(part) for part in item["loc"])
            if len(keys) > 2 and keys[0] == "breakers" and layers.value(keys) is None:
                continue  # what is wrong for all breakers is laid under each of them, and said once
            source, variable = layers.origin(keys)
            layers.problems.append(explain(model, item, source=source, key=variable, value=layers.value(keys)))
    return None


def _shipped() -> Tree:
    return tomllib.loads(Path(__file__).with_name("defaults.toml").read_text(encoding="utf-8"))


def _file(path: Path | None, env: Mapping[str, str]) -> tuple[Path | None, Tree]:
    asked = path or (Path(env["SAFEPOINT_CONFIG"]) if env.get("SAFEPOINT_CONFIG") else None)
    found = asked or Path("safepoint.toml")
    try:
        return found, tomllib.loads(found.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if asked is None:
            return None, {}
        problem = Problem(str(found), "", "there is no such file", "a TOML file")
    except OSError as error:
        problem = Problem(str(found), "", f"cannot be read: {error.strerror}")
    except ValueError as error:  # not TOML, or not UTF-8
        problem = Problem(str(found), "", f"is not TOML: {error}")
    raise ConfigError(None, problem)


def _lay_variables(layers: _Layers, model: type[BaseModel], env: Mapping[str, str]) -> None:
    """Put each variable into the tree; one that sets nothing is a problem, like a key of the file."""
    for variable in sorted(env):
        if not variable.startswith(_PREFIX) or _OTHERS.match(variable):
            continue
        keys = tuple(variable.removeprefix(_PREFIX).lower().split("__"))
        kind = _kind(model, keys, layers)
        if kind is not None:
            layers.variable[keys] = variable
            _put(layers.tree, keys, _parsed(kind, env[variable]))
        elif not _SERVICE_LINK.match(variable):
            layers.problems.append(unknown("environment", variable, variables(model, list(layers.lanes()))))


def _kind(model: type[BaseModel], keys: Keys, layers: _Layers) -> Any:  # annotations are values of any type
    found = find(model, keys)
    is_key = (
        found.field is not None
        and (*found.path, keys[-1]) == keys
        and (typing.get_origin(found.field.annotation) is not dict or is_mapping(found.field))
    )
    if not is_key or found.field is None:
        return None
    if keys[0] == "lanes" and (keys[1] not in layers.lanes() or keys[2] == "name"):
        return None  # a variable changes a lane and never makes one: it may be a slip of the pen
    if len(keys) > 2 and keys[0] in {"breakers", "dependencies"} and not isinstance(layers.value(keys[:2]), dict):
        return None  # as above
    return found.field.annotation


def _parsed(kind: Any, text: str) -> object:
    if typing.get_origin(kind) is tuple:
        return [part.strip() for part in text.split(",") if part.strip()]
    if typing.get_origin(kind) is dict and all("=" in part for part in text.split(",") if part.strip()):
        pairs = (part.partition("=") for part in text.split(",") if part.strip())
        return {name.strip(): value.strip() for name, _, value in pairs}
    # An empty variable is how compose files and charts say "not set".
    return None if text == "" and type(None) in typing.get_args(kind) else text


def _merge(under: Tree, over: Tree) -> Tree:
    merged = dict(under)
    for key, value in over.items():
        below = merged.get(key)
        merged[key] = _merge(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


def _put(tree: Tree, keys: Keys, value: object) -> None:
    for key in keys[:-1]:
        below = tree.setdefault(key, {})
        if not isinstance(below, dict):
            return  # the file has a value where a table should be, and is told so
        tree = below
    tree[keys[-1]] = value


def _anchor_home(layers: _Layers) -> None:
    # A relative folder in the file belongs beside the file, whatever directory a daemon was started in.
    home = layers.tree.get("home")
    if isinstance(home, str):
        base = layers.file.parent if layers.file is not None and ("home",) not in layers.variable else Path()
        layers.tree["home"] = (base / Path(home).expanduser()).absolute()

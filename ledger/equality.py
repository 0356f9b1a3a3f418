"""Where two values differ, through containers, dataclasses and models: the path of the first difference."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, NamedTuple, cast

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["DEPTH", "Difference", "difference", "parts"]

# Deeper than any document; a value that holds itself would otherwise end in a RecursionError far from its cause.
DEPTH = 200


class Difference(NamedTuple):
    """The path of a part that is not the same, and what is wrong with it."""

    path: str
    text: str


def difference(value: object, back: object, *, path: str, depth: int = 0) -> Difference | None:
    """Compare what was given with what came back, part by part."""
    if depth > DEPTH:
        return Difference(path, "is nested too deeply")
    if _is_plainly_equal(value, back):
        return None
    if type(value) is not type(back) or isinstance(value, (set, frozenset)):
        return Difference(path, _told(value, back))
    ours, theirs = dict(parts(value)), dict(parts(back))
    if not ours or ours.keys() != theirs.keys():
        return Difference(path, _told(value, back))
    for name, part in ours.items():
        found = difference(part, theirs[name], path=path + name, depth=depth + 1)
        if found is not None:
            return found
    return None


def parts(value: object) -> Iterator[tuple[str, object]]:
    """Give the parts of a container with their way of being named: `[3]`, `['key']`, `.field`."""
    match value:
        case dict():
            for key, part in value.items():
                yield (f".{key}" if isinstance(key, str) and key.isidentifier() else f"[{key!r}]"), part
        case list() | tuple() | set() | frozenset():
            yield from ((f"[{position}]", part) for position, part in enumerate(value))
        case _:
            yield from ((f".{name}", part) for name, part in _fields(value).items())


def _fields(value: object) -> Mapping[str, object]:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
    if hasattr(type(value), "model_fields"):  # a pydantic model; the module is not imported for the question
        return dict(cast("Mapping[str, object]", value))
    return {}


def _is_plainly_equal(value: object, back: object) -> bool:
    # 3 for a declared float comes back as 3.0, a member of a StrEnum as str: equal, and so is every use of them.
    try:
        return bool(value == back)
    except Exception:  # noqa: BLE001  # a user's __eq__ may raise; the parts then decide
        return False


def _told(value: object, back: object) -> str:
    one, other = type(value).__name__, type(back).__name__
    if one != other:
        return f"a value of type {one} comes back as {other}; declare its type, or pass what JSON can hold"
    return f"a value of type {one} does not come back equal"

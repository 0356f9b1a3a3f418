"""What a webhook says about an effect: which one, and what became of it.

Three bodies that can be read:

    {"key": "<64 hex digits>", "verdict": "succeeded", "value": {"number": 7}}
    {"key": "...", "verdict": "failed", "error": "card declined", "version": 3}
    {"key": "...", "verdict": "not_executed", "why": "no trace of it in our journal"}
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import orjson

from ..config.errors import SafepointError

__all__ = ["BadSettlement", "FieldProblem", "Settlement", "Verdict", "settlement"]

Verdict = Literal["succeeded", "not_executed", "failed"]
VERDICTS = ("succeeded", "not_executed", "failed")
LONGEST_TEXT = 4_096
GREATEST_VERSION = 2**31 - 1  # a column of the ledger

# Which field comes with which verdict, and with no other.
BELONGS = {"value": "succeeded", "error": "failed"}


@dataclass(frozen=True, slots=True)
class FieldProblem:
    """One thing that is wrong: the field, "" for the whole body, and what would be accepted."""

    field: str
    text: str

    def __str__(self) -> str:
        return f"{self.field}: {self.text}" if self.field else self.text


class BadSettlement(SafepointError, ValueError):  # noqa: N818  # as BadArguments
    """The settlement cannot be read: {text}."""

    text: str
    problems: tuple[FieldProblem, ...]


@dataclass(frozen=True, slots=True)
class Settlement:
    """What became of the effect with that idempotency key; without a version it is about the newest state of it."""

    key: str
    verdict: Verdict
    value: object = None
    error: str | None = None
    version: int | None = None
    why: str | None = None


def settlement(body: bytes) -> Settlement:
    """Read the body of a verified webhook, or raise `BadSettlement` with every field that is wrong."""
    try:
        given = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise _refusal([FieldProblem("", f"the body is no JSON: {error}")]) from None
    if not isinstance(given, dict):
        raise _refusal([FieldProblem("", "the body is no JSON object")])
    problems = list(_problems(given))
    if problems:
        raise _refusal(problems)
    return Settlement(**given)


def _refusal(problems: list[FieldProblem]) -> BadSettlement:
    return BadSettlement(text="; ".join(map(str, problems)), problems=tuple(problems))


def _problems(given: Mapping[str, object]) -> Iterator[FieldProblem]:
    verdict = given.get("verdict")
    for name, (accepted, fits) in FIELDS.items():
        if name in given and not fits(given[name]):
            yield FieldProblem(name, f"{_shown(given[name])} is given. Accepted: {accepted}")
        elif name not in given and _is_wanted(name, verdict):
            yield FieldProblem(name, f"it is missing. Accepted: {accepted}")
    for name in given:
        if name not in FIELDS:
            yield FieldProblem(name[:40], f"there is no such field. Accepted: {', '.join(FIELDS)}")
        elif verdict in VERDICTS and BELONGS.get(name, verdict) != verdict:
            yield FieldProblem(name, f"it comes with {BELONGS[name]!r}, and the verdict is {verdict!r}")


def _is_wanted(name: str, verdict: object) -> bool:
    return name in {"key", "verdict"} or (name in BELONGS and BELONGS[name] == verdict)


def _is_key(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[0-9a-f]{64}", value) is not None


def _is_version(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= GREATEST_VERSION


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip()) and len(value) <= LONGEST_TEXT and "\0" not in value


FIELDS: dict[str, tuple[str, Callable[[object], bool]]] = {
    "key": ("the effect's idempotency key, 64 hexadecimal digits in lower case", _is_key),
    "verdict": (", ".join(VERDICTS), lambda value: value in VERDICTS),
    "value": ("any JSON, the effect's result; null where it has none", lambda _: True),
    "error": (f"a text of at most {LONGEST_TEXT} characters", _is_text),
    "version": ("a whole number from 1", _is_version),
    "why": (f"a text of at most {LONGEST_TEXT} characters", _is_text),
}


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."

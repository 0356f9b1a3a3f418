"""Stands in for a language model: its answers are computed from what it is given, and counted in tokens.

No network, no randomness. RESEARCH_MODEL_SECONDS is how long an answer takes.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar

from library import words

USD_PER_TOKEN = 3 / 1_000_000
CHARACTERS_PER_TOKEN = 4
# What a reader wants to know about such a thing, and the words by which a passage is recognised.
ASPECTS = {"cost": "cost price euros", "comfort": "warm rooms comfort", "noise": "noise loud neighbours"}

T = TypeVar("T")


@dataclass(frozen=True)
class Answer(Generic[T]):
    """What the model says, and what it costs."""

    value: T
    tokens: int
    usd: float


def plan(question: str) -> Answer[list[str]]:
    """Say what to search for: the subject, and the first two things that people want to know about it."""
    subject = " ".join(re.findall(r"[a-z]{4,}", question.lower()))
    return _answer([subject, *(f"{subject} {aspect}" for aspect in list(ASPECTS)[:2])], question)


def rank(question: str, texts: Sequence[str]) -> Answer[list[int]]:
    """Order texts by what they have to do with the question."""
    wanted = words(f"{question} {' '.join(ASPECTS)}")
    return _answer(sorted(range(len(texts)), key=lambda place: -len(wanted & words(texts[place]))), question, *texts)


def read(question: str, page: str) -> Answer[list[str]]:
    """Quote the sentences that have to do with the question, or with what people want to know."""
    wanted = words(question)
    body = " ".join(page.partition("\n")[2].split())
    sentences = re.split(r"(?<=[.!?]) ", body)
    told = [one for one in sentences if len(wanted & words(one)) > 1 or _aspects(one)]
    return _answer(told[:4], question, page)


def gaps(question: str, quotes: Sequence[str]) -> Answer[list[str]]:
    """Say what to search for because no quote is about it."""
    known = {aspect for quote in quotes for aspect in _aspects(quote)}
    subject = " ".join(re.findall(r"[a-z]{4,}", question.lower()))
    return _answer([f"{subject} {ASPECTS[one]}" for one in ASPECTS if one not in known], question, *quotes)


def write(
    question: str, sources: Sequence[tuple[str, str, list[str]]], left_out: Sequence[str], as_of: datetime
) -> Answer[str]:
    """Write a report with its sources."""
    lines = [f"# {question}", "", f"As of {as_of:%Y-%m-%d}, from {len(sources)} sources.", ""]
    for aspect in ["", *ASPECTS]:
        told = [
            f"- {quote} [{n}]"
            for n, (_, _, quotes) in enumerate(sources, 1)
            for quote in quotes
            if aspect == next(iter(_aspects(quote)), "")
        ]
        if told:
            lines += [f"## {aspect.capitalize() or 'In general'}", "", *told, ""]
    lines += ["## Sources", "", *(f"{n}. {title}, {url}" for n, (title, url, _) in enumerate(sources, 1)), ""]
    if left_out:
        lines += ["Not read: " + "; ".join(left_out), ""]
    return _answer("\n".join(lines), question, *(quote for _, _, quotes in sources for quote in quotes))


def _aspects(text: str) -> list[str]:
    return [aspect for aspect, hints in ASPECTS.items() if words(hints) & words(text)]


def _answer(value: T, *read: str) -> Answer[T]:
    time.sleep(float(os.environ.get("RESEARCH_MODEL_SECONDS", "1")))
    tokens = (sum(map(len, read)) + len(str(value))) // CHARACTERS_PER_TOKEN
    return Answer(value, tokens, round(tokens * USD_PER_TOKEN, 6))

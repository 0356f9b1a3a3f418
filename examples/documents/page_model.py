"""Stands in for a model that reads pages: it answers in JSON, but for pages that nobody could read.

No network, no randomness. DOCUMENTS_MODEL_SECONDS is how long a page takes.
"""

from __future__ import annotations

import json
import os
import re
import time
from dataclasses import dataclass
from typing import Any

NAME = "stand-in-reader-1"
USD_PER_TOKEN = 3 / 1_000_000
CHARACTERS_PER_TOKEN = 4
LINE = re.compile(r"^ +(?P<text>\S.*?) {2,}(?P<amount>[\d,]+\.\d\d)$", re.MULTILINE)


class NonsenseError(Exception):
    """The model's answer cannot be read."""


@dataclass(frozen=True)
class Line:
    """One line of an invoice."""

    text: str
    cents: int


@dataclass(frozen=True)
class Invoice:
    """What an invoice says."""

    supplier: str
    number: str
    date: str
    lines: list[Line]
    total: int


@dataclass(frozen=True)
class Answer:
    """What the model says, and what it costs."""

    text: str
    tokens: int
    usd: float

    def invoice(self) -> Invoice:
        """Read the answer."""
        try:
            told: dict[str, Any] = json.loads(self.text)
            lines = [Line(str(line["text"]), int(line["cents"])) for line in told.pop("lines")]
            return Invoice(lines=lines, **told)
        except (ValueError, KeyError, TypeError) as error:
            raise NonsenseError(f"{self.text[:60]!r}") from error


def read_invoice(page: str) -> Answer:
    """Read a page."""
    time.sleep(float(os.environ.get("DOCUMENTS_MODEL_SECONDS", "0.5")))
    text = _read(page)
    tokens = (len(page) + len(text)) // CHARACTERS_PER_TOKEN
    return Answer(text, tokens, round(tokens * USD_PER_TOKEN, 6))


def _read(page: str) -> str:
    supplier = page.strip().partition("\n")[0].strip()
    number = re.search(r"Invoice +(\S+)", page)
    date = re.search(r"Date +(\d{4}-\d\d-\d\d)", page)
    total = re.search(r"^Total +([\d,]+\.\d\d)$", page, re.MULTILINE)
    if not (number and date and total):
        return "I am sorry, this page is too blurred to be read."
    lines = [{"text": line["text"], "cents": _cents(line["amount"])} for line in LINE.finditer(page)]
    facts = {"supplier": supplier, "number": number[1], "date": date[1], "total": _cents(total[1])}
    return json.dumps(facts | {"lines": lines})


def _cents(amount: str) -> int:
    return int(amount.replace(",", "").replace(".", ""))

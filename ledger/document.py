"""Stored data as plain JSON values for people and programs to read: whatever is stored, reading it never fails.

And the text that a document is hashed by, as the ledger makes it.
"""

from __future__ import annotations

import json
import math
from decimal import Decimal
from typing import Any

from .codec import ARTIFACT, JSON, digest

__all__ = ["dumps", "hashed", "money", "parsed", "shown"]


def parsed(text: str | None) -> Any:
    """Read a JSON text; what is none stays a text."""
    if text is None:
        return None
    try:
        # A number that JSON has none for (NaN) becomes its name: the document that holds it stays JSON.
        return json.loads(text, parse_constant=str)
    except (ValueError, RecursionError):
        return text


def shown(data: bytes | None, encoding: str | None) -> Any:
    """Give a stored value as JSON, or what can be said of one that is encrypted or broken."""
    if data is None:
        return None
    if encoding in {JSON, ARTIFACT}:
        try:
            return json.loads(data, parse_constant=str)
        except (ValueError, RecursionError):
            pass
    return {"encoding": encoding, "bytes": len(data)}


def hashed(data: bytes) -> bytes:
    """Give the hash that `enqueue_v1` makes of a JSON document: of jsonb's text, in which 1.0 and 10e-1 are 1."""
    whole = json.loads(data, parse_int=Decimal, parse_float=Decimal)
    return digest(_canonical(whole).encode(errors="surrogatepass"))


def _canonical(value: Any) -> str:
    match value:
        case dict():
            # jsonb's order: by length first.
            ordered = sorted(value.items(), key=lambda item: (len(own := item[0].encode(errors="surrogatepass")), own))
            return "{" + ", ".join(f"{_canonical(name)}: {_canonical(part)}" for name, part in ordered) + "}"
        case list():
            return "[" + ", ".join(_canonical(part) for part in value) + "]"
        case Decimal():
            text = format(value, "f")
            text = text.rstrip("0").rstrip(".") if "." in text else text
            return "0" if text == "-0" else text
        case _:
            return json.dumps(value, ensure_ascii=False)


def money(amount: Decimal | float | None) -> float:
    """Give an amount as JSON's number."""
    number = float(amount or 0)
    return number if math.isfinite(number) else 0.0


def dumps(value: object, *, indent: int | None = None) -> str:
    """Write a JSON document that every terminal and every parser takes."""
    text = json.dumps(value, indent=indent, ensure_ascii=False, default=str)
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return json.dumps(value, indent=indent, default=str)
    return text

"""Texts as PostgreSQL can hold them."""

from __future__ import annotations

__all__ = ["storable"]


def storable(text: str) -> str:
    """Give a text as PostgreSQL can hold it: neither a NUL nor half of a surrogate pair."""
    return text.replace("\x00", "\\x00").encode(errors="backslashreplace").decode()

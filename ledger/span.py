"""Lengths of time, as people say them."""

from __future__ import annotations

__all__ = ["span"]


def span(seconds: float) -> str:
    """Give a number of seconds as people say it."""
    if seconds < 10:
        return f"{max(seconds, 0):.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    if seconds < 172_800:
        return f"{seconds / 3600:.0f} h"
    return f"{seconds / 86_400:.0f} days"

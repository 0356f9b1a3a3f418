"""`demo`: the incident agent on the embedded stack, with two workers killed under it."""

from __future__ import annotations

from .console import say

__all__ = ["demo"]


def demo() -> None:
    """Run the incident agent, kill its worker twice, and show what was and was not done again."""
    say("not yet")

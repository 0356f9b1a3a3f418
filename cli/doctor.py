"""`doctor`: looks at ledger, broker, clocks, workers and their configuration, and says what to do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from .console import document, say
from .options import Json
from .words import short

if TYPE_CHECKING:
    from .finding import Finding

__all__ = ["doctor"]

_ORDER = ("error", "warning", "ok")
_MARKS = {"error": "✗", "warning": "!", "ok": "✓"}


def doctor(*, as_json: Json = False) -> None:
    """Look at everything a run depends on, and say what to do.

    Starts and changes nothing. Exit code 1 when something is wrong; a warning alone is 0.
    """
    from ..config.settings import settings  # noqa: PLC0415  # --help needs none of it
    from .examine import examine  # noqa: PLC0415

    found = sorted(examine(settings()), key=lambda one: _ORDER.index(one.level))
    ok = all(one.level != "error" for one in found)
    if as_json:
        document({"ok": ok, "findings": [asdict(one) for one in found]})
    else:
        _show(found)
    raise typer.Exit(0 if ok else 1)


def _show(found: Sequence[Finding]) -> None:
    say(_sentence(found), "")
    width = max((len(one.check) for one in found), default=0)
    for one in found:
        say(f"{_MARKS[one.level]} {one.check:<{width}}  {short(one.text, width=600)}")
        if one.next:
            say(f"  {'':<{width}}  → {short(one.next, width=600)}")


def _sentence(found: Sequence[Finding]) -> str:
    counts = Counter(str(one.level) for one in found)
    wrong, odd = counts["error"], counts["warning"]
    fine = f"{counts['ok']} as it should be"
    if not wrong and not odd:
        return f"All is well: {fine}."
    told = [
        f"{number} {word}{'' if number == 1 else 's'}"
        for number, word in ((wrong, "error"), (odd, "warning"))
        if number
    ]
    return f"{' and '.join(told)}, {fine}."

"""What is printed: JSON documents and tables on standard output, one clear line of trouble on standard error."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ..config.errors import ConfigError, SafepointError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

__all__ = ["complain", "document", "out", "say", "table"]

_SERVERS = {"psycopg": "ledger", "sqlalchemy": "ledger", "kombu": "broker", "redis": "broker"}
WIDE = 200  # columns of a table that goes into a file or a pipe: whoever reads it there wraps it himself


def out() -> Console:
    """Return the console of standard output."""
    from rich.console import Console  # noqa: PLC0415  # programs that read JSON do not pay for it

    return Console(highlight=False, width=None if sys.stdout.isatty() else WIDE, emoji=False)


def document(value: object) -> None:
    """Print one JSON document."""
    from ..ledger.document import dumps  # noqa: PLC0415  # as above

    sys.stdout.write(dumps(value, indent=2) + "\n")


def say(*parts: str) -> None:
    """Print lines for people, as they are: what a run holds is never read as markup."""
    for part in parts:
        sys.stdout.write(part + "\n")


def table(names: Sequence[str], rows: Iterable[Sequence[str | RenderableType]], **options: Any) -> None:
    """Print a table for people."""
    from rich.box import SIMPLE_HEAD  # noqa: PLC0415  # as above
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    drawn = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="bold", **options)
    for name in names:
        numeric = name.startswith("#")
        drawn.add_column(name.removeprefix("#"), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        drawn.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    out().print(drawn)


def complain(error: BaseException) -> int:
    """Print what is wrong in one line, and return the exit code that says so."""
    text = str(error) if isinstance(error, SafepointError) else _foreign(error)
    sys.stderr.write(f"safepoint: {text.strip()}\n")
    return 2 if isinstance(error, ConfigError) else 1


def _foreign(error: BaseException) -> str:
    """Word an error that is not ours."""
    first = " ".join(str(error).split("\n", maxsplit=1)[0].split())
    library = type(error).__module__.partition(".")[0]
    if type(error).__name__ == "OperationalError" and library in _SERVERS:
        return f"The {_SERVERS[library]} does not answer: {first}"
    if isinstance(error, OSError):
        return first
    return f"{type(error).__name__}: {first} (SAFEPOINT_TRACEBACK=1 shows where)"

"""Verbs of the ledger's database: `db upgrade`, `db current`; `db prune` is in `prune`."""

from __future__ import annotations

import typer

from .access import ledger
from .console import document, say
from .options import Json
from .prune import prune

__all__ = ["app"]

app = typer.Typer(help="The ledger's database.", no_args_is_help=True)
app.command()(prune)


@app.command()
def upgrade(*, as_json: Json = False) -> None:
    """Bring the database to this release's schema; does nothing when it is there."""
    from ..config.resolve import endpoints  # noqa: PLC0415  # --help needs none of it
    from ..config.settings import settings  # noqa: PLC0415
    from ..ledger.upgrade import upgrade as apply  # noqa: PLC0415

    ends = endpoints(settings())
    try:
        state = apply(ends.ledger_url)
    finally:
        ends.close()
    if as_json:
        document({"current": state.current, "wanted": state.wanted})
    else:
        say(f"The ledger's schema is at {state.current}.")


@app.command()
def current(*, as_json: Json = False) -> None:
    """Tell which schema the database has; exit code 1 when this release cannot work on it."""
    from ..ledger.upgrade import check, state  # noqa: PLC0415  # as above

    with ledger() as ends:
        found = state(ends.ledger_url)
        if as_json:
            document({"current": found.current, "wanted": found.wanted, "is_current": found.is_current})
        check(ends.ledger_url)
    if not as_json:
        say(f"The ledger's schema is at {found.current}, and this release wants {found.wanted}.")

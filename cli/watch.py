"""`watch`: a run's events as they come, with a progress bar; ends when the run does, or when it waits for a person."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer

from .access import UnknownRunError, reading, run_id
from .console import say
from .options import Json, RunId
from .words import lines_of, next_command, verdict

if TYPE_CHECKING:
    from sqlalchemy import Connection

__all__ = ["Look", "follow", "percent", "print_json", "print_live", "watch"]

POLL = 0.25  # seconds
PAGE = 500
FINAL = frozenset({"succeeded", "failed", "cancelled"})
EXIT = {"succeeded": 0, "failed": 1, "cancelled": 1, "held": 3}


@dataclass(slots=True)
class Look:
    """What one look has shown: the run, why it stands, the events since the look before."""

    run: dict[str, Any]
    why: dict[str, Any]
    events: list[dict[str, Any]] = field(default_factory=list)

    @property
    def obstacle(self) -> str | None:
        """What the run waits for, and the way out; None while something of it is under way."""
        if self.is_over or self.why["running"] or not self.why["reasons"]:
            return None
        first = self.why["reasons"][0]
        return f"{first['text']}. Next: {first['next']}"

    @property
    def is_over(self) -> bool:
        """Whether nothing more happens by itself."""
        return self.run["status"] in FINAL or self.run["status"] == "held"


def follow(connection: Connection, id_: UUID, *, after: int = 0, poll: float = POLL) -> Iterator[Look]:
    """Look again and again until the run is over; each event is shown once."""
    from ..ledger.views import list_events, read_summary  # noqa: PLC0415  # only verbs that read pay for SQLAlchemy
    from ..ledger.why import why as explain  # noqa: PLC0415

    while True:
        # One snapshot: the status and the events that led to it belong together.
        connection.rollback()
        run, reasons = read_summary(connection, id_), explain(connection, id_)
        if run is None or reasons is None:
            raise UnknownRunError(run=str(id_))
        events = list_events(connection, id_, after=after, limit=PAGE)
        after = events[-1]["seq"] if events else after
        look = Look(run, reasons, events)
        yield look
        if len(events) == PAGE:
            continue
        if look.is_over:
            return
        time.sleep(poll)


def watch(
    run: RunId,
    *,
    after: Annotated[int, typer.Option(min=0, help="Begin after this event.")] = 0,
    as_json: Json = False,
) -> None:
    """Follow a run until it ends or waits for a person.

    With --json, one event a line. Exit code: 0 succeeded, 1 failed or cancelled, 3 held.
    """
    from ..ledger.views import read_run  # noqa: PLC0415  # as above

    with reading() as connection:
        id_ = run_id(run, connection)
        looks = follow(connection, id_, after=after)
        last = print_json(looks) if as_json else print_live(looks)
        whole = read_run(connection, id_) or last.run  # of the last look's snapshot, and once: it grows with the steps
    if not as_json:
        say("", verdict(whole, last.why), f"Next: {next_command(whole, last.why)}")
    raise typer.Exit(EXIT[last.run["status"]])


def print_json(looks: Iterator[Look]) -> Look:
    """Print each event as a line of JSON, and return the last look."""
    from ..ledger.document import dumps  # noqa: PLC0415  # as above

    last: Look | None = None
    for last in looks:
        for event in last.events:
            sys.stdout.write(dumps(event) + "\n")
        sys.stdout.flush()
    assert last is not None  # every run is looked at once
    return last


def print_live(looks: Iterator[Look]) -> Look:
    """Print events and, at a terminal, a progress bar; return the last look."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415  # as above

    from .console import out  # noqa: PLC0415

    columns = (TextColumn("{task.fields[status]:<9}", markup=False), BarColumn(40), TextColumn("{task.fields[done]}"))
    # The bar is drawn for eyes only; a file gets the events.
    with Progress(*columns, TimeElapsedColumn(), console=out(), disable=not sys.stdout.isatty()) as progress:
        task = progress.add_task("", total=100, status="", done="")
        last: Look | None = None
        said: str | None = None
        for last in looks:
            for event in last.events:
                progress.console.print(lines_of(event), markup=False, soft_wrap=True)
            # By its kind: the seconds in its text change with every look.
            kind = last.why["reasons"][0]["code"] if last.obstacle else None
            if kind is not None and kind != said:
                progress.console.print(f"  … {last.obstacle}", markup=False, soft_wrap=True)
            said = kind
            progress.update(task, completed=percent(last.run), status=last.run["status"], done=_done(last.run))
    assert last is not None  # as above
    return last


def percent(run: Mapping[str, Any]) -> float:
    """Say how far a run is: all of it when it has succeeded, else by its steps, the open ones undone."""
    if run["status"] == "succeeded":
        return 100.0
    done, open_ = int(run["completed_steps"]), max(1, len(run["current"]))
    return 100.0 * done / (done + open_)


def _done(run: Mapping[str, Any]) -> str:
    current = ", ".join(run["current"][:3]) or "no open step"
    return f"{run['completed_steps']} steps committed · {current}"

"""The `safepoint` program: its verbs, and the one place where an error becomes a line and an exit code."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Annotated, NoReturn

import typer

from . import (
    approve,
    breakers,
    budget,
    control,
    database,
    demo,
    doctor,
    effects,
    fleet,
    lane_changes,
    lanes,
    plan,
    processes,
    reading,
    replay,
    up,
    watch,
)
from .console import complain
from .enqueue import enqueue, with_endless_wait
from .options import LogForm, use_log

__all__ = ["app", "main"]

app = typer.Typer(
    name="safepoint",
    help="Durable AI-agent runs on Celery.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rich's own help costs half of the time that --help takes, for its Markdown parser
    context_settings={"help_option_names": ["-h", "--help"]},
)

VERBS: tuple[Callable[..., None], ...] = (
    *(demo.demo, up.up, enqueue),
    *(reading.runs, reading.show, reading.why, watch.watch, replay.replay, fleet.nodes, fleet.versions),
    doctor.doctor,
    *(approve.approve, approve.deny),
    *(control.cancel, control.pause, control.resume, control.retry, control.signal, control.sweep, budget.budget),
    *(processes.worker, processes.relay, processes.beat, processes.flower),
)
for verb in VERBS:
    app.command(verb.__name__)(verb)
app.add_typer(effects.app, name="effects")
app.add_typer(breakers.app, name="breakers")
for verb in (*lane_changes.VERBS, plan.plan):
    lanes.app.command(verb.__name__.rstrip("_"))(verb)
app.add_typer(lanes.app, name="lanes")
app.add_typer(database.app, name="db")


def _version(asked: bool) -> None:  # noqa: FBT001  # typer's signature of a callback
    if asked:
        from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415  # only this option needs it

        try:
            typer.echo(version("safepoint"))
        except PackageNotFoundError:
            typer.echo("not installed, run from its source")
        raise typer.Exit


@app.callback()
def options(
    *,
    log: Annotated[LogForm | None, typer.Option(help="How processes write their log.")] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Durable AI-agent runs on Celery."""
    del version  # its callback has answered
    use_log(log)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and end the process."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if os.getcwd() not in sys.path:  # noqa: PTH109  # as Celery does: the flows of SAFEPOINT_FLOWS are found from here
        sys.path.insert(0, os.getcwd())  # noqa: PTH109  # as above
    try:
        app(args=with_endless_wait(given), prog_name="safepoint")
    except Exception as error:  # noqa: BLE001  # the person at the terminal sees it, as a line
        if os.environ.get("SAFEPOINT_TRACEBACK") == "1":
            traceback.print_exc()
        sys.exit(complain(error))
    sys.exit(0)

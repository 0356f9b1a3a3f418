"""`breakers`: which dependencies are let alone, why and until when; and a person's hand on them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from ..config.errors import SafepointError
from .access import reading, who, writing
from .console import document, say, table
from .options import By, Json, Why, seconds_of
from .words import age, short, span

__all__ = ["app"]

Document = Mapping[str, Any]

app = typer.Typer(
    help="Breakers: the dependencies of steps (uses=), which are open, and why.",
    invoke_without_command=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="The dependency, as in @step(uses=NAME).", show_default=False)
]


class UnknownBreakerError(SafepointError):
    """There is no breaker {name}. There are: {names}."""

    name: str
    names: str


@app.callback()
def breakers(context: typer.Context, *, as_json: Json = False) -> None:
    """List the breakers: those that are not closed first."""
    if context.invoked_subcommand is not None:
        return
    from ..ledger.breaker_views import list_breakers  # noqa: PLC0415  # only verbs that read pay for SQLAlchemy

    with reading() as connection:
        found = list_breakers(connection)
    if as_json:
        document(found)
    elif not found:
        say("No breakers: no worker has served a step with uses=NAME yet.")
    else:
        names = ("DEPENDENCY", "STATE", "#SINCE", "#OK", "#FAILED", "#THROTTLED", "#WAITING", "NEXT", "WHY")
        table(names, [_row(one) for one in found])


def _row(one: Document) -> tuple[str, ...]:
    calls = (str(one["calls"][name]) for name in ("ok", "failed", "throttled"))
    state = one["state"].replace("_", " ")
    waiting = str(one["waiting"] or "")
    return (one["name"], state, age(one["since"]), *calls, waiting, _next(one), short(one["why"] or "", width=80))


def _next(one: Document) -> str:
    match one["state"]:
        case "open" if one["next_probe_in"] is None:
            return f"safepoint breakers reset {one['name']}"
        case "open":
            return f"probes in {span(one['next_probe_in'])}"
        case "half_open":
            return f"{one['probes']['succeeded']} of {one['probes']['wanted']} probes have succeeded"
    return ""


@app.command()
def trip(
    name: Name,
    *,
    why: Why,
    for_: Annotated[
        str | None,
        typer.Option("--for", metavar="TIME", help="As in 90s, 30m, 2h; until it is reset when not given."),
    ] = None,
    by: By = None,
    as_json: Json = False,
) -> None:
    """Open a breaker: the steps that use the dependency wait in the ledger.

    What is running goes on. After the time given, probes go as after any failure.
    """
    from ..recovery import outcomes  # noqa: PLC0415  # as above

    seconds = None if for_ is None else seconds_of(for_, option="--for")
    with writing() as connection:
        if not outcomes.force_open(connection, name, by=who(by), why=why, seconds=seconds):
            raise _unknown(connection, name)
    until = "until safepoint breakers reset " + name if seconds is None else f"for {span(seconds)}"
    _answer(name, "open", f"{name} is open {until}.", as_json=as_json)


@app.command()
def reset(name: Name, *, why: Why, by: By = None, as_json: Json = False) -> None:
    """Close a breaker: what waits for the dependency goes on, and what was counted is forgotten."""
    from ..recovery import outcomes  # noqa: PLC0415  # as above

    with writing() as connection:
        if not outcomes.close(connection, name, by=who(by), why=why):
            raise _unknown(connection, name)
    _answer(name, "closed", f"{name} is closed.", as_json=as_json)


def _answer(name: str, state: str, text: str, *, as_json: bool) -> None:
    document({"name": name, "state": state}) if as_json else say(text)


def _unknown(connection: Any, name: str) -> UnknownBreakerError:
    from ..ledger.breakers import names  # noqa: PLC0415  # as above

    return UnknownBreakerError(name=name, names=", ".join(names(connection)) or "none, no step has uses= yet")

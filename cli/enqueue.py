"""`enqueue`: makes a run of a flow, whose code need not be here, and prints its id alone."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .access import ledger
from .console import document
from .options import Tags, parse_tags

if TYPE_CHECKING:
    from ..tasks.client import Client
    from ..tasks.run import Run

__all__ = ["enqueue", "with_endless_wait"]

ENDLESS = "inf"
TIME_OUT = 4
HELD = 3


def with_endless_wait(arguments: Sequence[str]) -> list[str]:
    """Let `--wait` stand without a number: the parser knows no options whose value may be left out."""
    given = list(arguments)
    if "--wait" in given:
        place = given.index("--wait")
        if place + 1 == len(given) or not _is_number(given[place + 1]):
            given[place] = f"--wait={ENDLESS}"
    return given


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def enqueue(  # noqa: PLR0913  # each is an option
    flow: Annotated[str, typer.Argument(help="The flow's name.", show_default=False)],
    *,
    given: Annotated[
        str,
        typer.Option(
            "--input", metavar="JSON", help="The arguments: an object by name, @FILE, or - for standard input."
        ),
    ] = "{}",
    tenant: Annotated[str, typer.Option(help="Whose run it is.")] = "default",
    key: Annotated[str | None, typer.Option(help="Idempotency key: the same key and input give the same run.")] = None,
    deadline: Annotated[str | None, typer.Option(metavar="SECONDS|INSTANT", help="When it must have ended.")] = None,
    tokens: Annotated[int | None, typer.Option(min=0, help="Budget: tokens.")] = None,
    usd: Annotated[float | None, typer.Option(min=0, help="Budget: US dollars.")] = None,
    retries: Annotated[int | None, typer.Option(min=0, help="Budget: retries of all steps together.")] = None,
    priority: Annotated[int, typer.Option(help="A higher one starts earlier.")] = 0,
    tag: Tags = None,
    conversation: Annotated[str | None, typer.Option(help="The conversation that it belongs to.")] = None,
    start_at: Annotated[str | None, typer.Option(metavar="INSTANT", help="Not before this time.")] = None,
    wait: Annotated[
        float | None, typer.Option(metavar="[SECONDS]", min=0, help="Wait for the end and print the result instead.")
    ] = None,
) -> None:
    """Make a run, and print its id alone on standard output.

    Exit code with --wait: 1 it failed or was cancelled, 3 it is held, 4 the time was over.
    """
    arguments = _arguments(given)
    options: dict[str, Any] = {
        "tenant": tenant,
        "key": key,
        "deadline": _deadline(deadline),
        "budget": _budget(tokens=tokens, usd=usd, retries=retries),
        "priority": priority,
        "tags": parse_tags(tag),
        "conversation": conversation,
        "start_at": _instant(start_at, option="--start-at"),
    }
    _import_flows()
    with ledger() as ends, _client(ends.ledger_url) as client:
        run = _enqueue(client, flow, arguments, options)
        if wait is None:
            typer.echo(run.id)
            return
        typer.echo(run.id, err=True)
        raise typer.Exit(_await_end(run, wait))


def _arguments(text: str) -> Any:
    if text == "-":
        text = sys.stdin.read()
    elif text.startswith("@"):
        try:
            text = Path(text[1:]).read_text()
        except OSError as error:
            raise typer.BadParameter(f"{text[1:]}: {error.strerror}", param_hint="--input") from None
    try:
        value = json.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"not JSON: {error}", param_hint="--input") from None
    if not isinstance(value, dict):
        raise typer.BadParameter('arguments are an object by name, as in {"alert": 42}', param_hint="--input")
    return value


def _deadline(text: str | None) -> float | datetime | None:
    return float(text) if text is not None and _is_number(text) else _instant(text, option="--deadline")


def _instant(text: str | None, *, option: str) -> datetime | None:
    if text is None:
        return None
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no instant, as in 2030-01-31T12:00:00Z", param_hint=option) from None


def _budget(**limits: float | None) -> Any:
    from ..tasks.budget import Budget  # noqa: PLC0415  # --help needs none of it

    named = {name: limit for name, limit in limits.items() if limit is not None}
    return Budget(**named) if named else None  # type: ignore[arg-type]  # the names are those of a budget


def _import_flows() -> None:
    """Import the flows, so that arguments are checked here; a flow whose code is elsewhere is enqueued by its name."""
    from contextlib import suppress  # noqa: PLC0415  # as below

    from ..config.errors import ConfigError  # noqa: PLC0415
    from ..config.settings import settings  # noqa: PLC0415
    from ..tasks import registry  # noqa: PLC0415

    modules = settings().flows
    with suppress(ConfigError):
        registry.load(modules)


def _client(ledger_url: str) -> Client:
    from ..tasks.client import Client  # noqa: PLC0415  # as above

    return Client(ledger_url)


def _enqueue(client: Client, flow: str, arguments: Any, options: dict[str, Any]) -> Run[Any]:
    from ..ledger.errors import BadArguments  # noqa: PLC0415  # as above

    try:
        return client.enqueue(flow, arguments, **options)
    except (BadArguments, ValueError, TypeError) as error:
        # What was typed does not fit: wrong usage, whichever option it was.
        raise typer.BadParameter(str(error)) from error


def _await_end(run: Run[Any], seconds: float) -> int:
    from ..ledger.errors import RunCancelled, RunFailed, RunHeld  # noqa: PLC0415  # as above

    try:
        result = run.result(timeout=None if seconds == float(ENDLESS) else seconds)
    except (RunFailed, RunCancelled) as error:
        return _told(error, code=1)
    except RunHeld as error:
        return _told(error, code=HELD)
    except TimeoutError:
        typer.echo(f"safepoint: run {run.id} has not ended within {seconds:g} s: safepoint watch {run.id}", err=True)
        return TIME_OUT
    from pydantic_core import to_jsonable_python  # noqa: PLC0415  # as above

    document(to_jsonable_python(result))
    return 0


def _told(error: Exception, *, code: int) -> int:
    typer.echo(f"safepoint: {error}", err=True)
    return code

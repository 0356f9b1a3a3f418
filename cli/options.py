"""Options that several verbs share, and what they do to this process's settings."""

from __future__ import annotations

import os
import re
from enum import StrEnum
from typing import Annotated

import typer

__all__ = [
    "By", "Json", "Log", "LogForm", "RunId", "Tags", "Tenant", "Why",
    "lane_names", "parse_tags", "seconds_of", "use_log",
]  # fmt: skip

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
LONGEST = 3650 * 86_400.0  # ten years: more is a slip of the pen, and the ledger's calendar has an end


class LogForm(StrEnum):
    """How a process writes its log."""

    CONSOLE = "console"
    JSON = "json"


def use_log(form: LogForm | None) -> None:
    """Choose the log's form for this process and for those that it starts."""
    if form is not None:
        os.environ["SAFEPOINT_LOG"] = form.value
        from ..config.settings import reset  # noqa: PLC0415  # pydantic is not needed for --help

        reset()


RunId = Annotated[
    str, typer.Argument(metavar="RUN", help="The run's id, or enough of its beginning.", show_default=False)
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Log = Annotated[LogForm | None, typer.Option("--log", help="How the process writes its log.")]
Tenant = Annotated[str | None, typer.Option(help="Only this tenant's.", show_default=False)]
Tags = Annotated[list[str] | None, typer.Option("--tag", metavar="NAME=VALUE", help="A tag; may be repeated.")]
By = Annotated[
    str | None, typer.Option(help="Who does this; the user who is logged in when not given.", show_default=False)
]


def _said(text: str | None) -> str | None:
    if text is not None and not text.strip():
        raise typer.BadParameter("is empty; accepted is a text, for those who read it later")
    return text


Why = Annotated[str, typer.Option(help="Why; for those who read it later.", show_default=False, callback=_said)]


def parse_tags(given: list[str] | None) -> dict[str, str]:
    """Read `name=value` pairs."""
    tags = {}
    for pair in given or ():
        name, found, value = pair.partition("=")
        if not name or not found:
            raise typer.BadParameter(f"{pair!r} is no tag; a tag is NAME=VALUE, as in team=sre")
        tags[name] = value
    return tags


def lane_names(text: str) -> tuple[str, ...]:
    """Read a list of lanes, separated by commas."""
    return tuple(name for name in re.split(r"[,\s]+", text) if name)


def seconds_of(text: str, *, option: str) -> float:
    """Read a length of time: a number with s, m, h or d; a bare number is seconds."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhd]?)", text.strip())
    seconds = float(found[1]) * _UNITS[found[2] or "s"] if found else 0.0
    if not 0 < seconds <= LONGEST:
        raise typer.BadParameter(f"{text!r} is no length of time; accepted is 90s, 30m, 2h, 1d", param_hint=option)
    return seconds

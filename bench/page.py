"""The page of a comparison: its figures put into `results_page.md`. Pure but for reading that file."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from string import Template

from compared import Compared
from comparison import costs, deaths, doors, lengths, table, throughput
from contenders import CONTENDERS
from goals import goals
from rounds import STEPS

__all__ = ["page", "tables"]

TEMPLATE = Path(__file__).with_name("results_page.md")


def tables(compared: Compared) -> list[str]:
    """Return all tables that have a row, each under its heading, for the screen."""
    parts = {
        "Steps": throughput(compared),
        "Where a step's processor time goes, ms": costs(compared),
        "Long runs": lengths(compared),
        "Enqueueing": doors(compared),
        "Recovery": deaths(compared),
        "Goals": goals(compared),
        "Left out": missing(compared),
    }
    return [
        line
        for title, part in parts.items()
        if len(part) > 2 or title == "Left out"
        for line in ("", f"## {title}", "", *part)
    ]


def page(compared: Compared, *, picture: str) -> str:
    """Return the whole page."""
    runs = sorted({one.steps // STEPS for done in compared.rounds.values() for one in done})
    most = max((len(done) for done in compared.rounds.values()), default=0)
    parts = {
        "throughput": throughput(compared),
        "costs": costs(compared),
        "goals": goals(compared),
        "lengths": lengths(compared),
        "deaths": deaths(compared),
        "doors": doors(compared),
        "remarks": [f"- {one.name}: {one.remark}." for one in CONTENDERS.values() if one.remark],
        "missing": missing(compared),
        "machine": table(["what", "value"], (compared.machine | _versions(compared)).items()),
        "runs": [" or ".join(str(one) for one in runs)],
        "passes": ["one" if most == 1 else f"{most} of them"],
        "picture": [picture],
    }
    return Template(TEMPLATE.read_text()).substitute({name: "\n".join(lines) for name, lines in parts.items()})


def missing(compared: Compared) -> list[str]:
    """Name what could not take part, with the reason; say so when all could."""
    return [f"- left out: {name}: {why}." for name, why in compared.missing.items()] or ["Nothing is left out."]


def _versions(compared: Compared) -> dict[str, str]:
    own = {name: metadata.version(name) for name in ("celery", "kombu", "psycopg")}
    return {**own, **compared.versions}

"""Verbs that look at the machinery: `nodes`, `versions`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from .access import reading
from .console import document, say, table
from .options import Json
from .words import age

__all__ = ["nodes", "versions"]


def nodes(
    *,
    past: Annotated[bool, typer.Option("--all", help="Those that have stopped as well.")] = False,
    as_json: Json = False,
) -> None:
    """List the workers, and what they execute now."""
    from ..ledger.fleet import list_nodes  # noqa: PLC0415  # only verbs that read pay for SQLAlchemy

    with reading() as connection:
        found = list_nodes(connection, past=past)
    if as_json:
        document(found)
    elif not found:
        say("No workers. safepoint worker starts one; safepoint up starts everything.")
    else:
        names = ("NODE", "HOST", "#PID", "STATE", "#SEEN", "LANES", "SERVES", "#ACTIVE")
        table(names, [_node_row(node) for node in found])


def _node_row(node: Mapping[str, Any]) -> tuple[str, ...]:
    busy = f"{len(node['active'])}/{node['concurrency']}"
    lanes_, serves = ",".join(node["lanes"]), ", ".join(node["serves"])
    return (node["id"], node["host"], str(node["pid"]), node["state"], age(node["last_seen"]), lanes_, serves, busy)


def versions(*, as_json: Json = False) -> None:
    """List the versions that runs need and workers serve."""
    from ..ledger.fleet import list_versions  # noqa: PLC0415  # as above

    with reading() as connection:
        found = list_versions(connection)
    if as_json:
        document(found)
    elif not found:
        say("No flows yet: no worker has served one, and no run asks for one.")
    else:
        table(("FLOW", "VERSION", "#LIVE RUNS", "#WORKERS", ""), [_version_row(one) for one in found])
        if any(one["missing"] for one in found):
            say("Missing: start a worker that has that version, or lists it in accepts=(...).")


def _version_row(one: Mapping[str, Any]) -> tuple[str, ...]:
    missing = "missing" if one["missing"] else ""
    return (one["flow"], one["version"], str(one["live_runs"]), str(len(one["nodes"])), missing)

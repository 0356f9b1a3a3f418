"""Verbs that look at runs: `runs`, `show`, `why`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any
from uuid import UUID

import typer

from .access import UnknownRunError, reading, run_id, writing
from .console import document, out, say, table
from .effects import show_cards, told
from .options import Json, RunId, Tags, Tenant, parse_tags
from .words import age, clock, next_command, short, verdict

__all__ = ["runs", "show", "why"]

STATUSES = ("queued", "running", "waiting", "held", "cancelling", "succeeded", "failed", "cancelled")
COLOURS = {"succeeded": "green", "failed": "red", "held": "yellow", "running": "cyan", "committed": "green"}
INTERNAL = frozenset({"start", "advance", "cancel"})


def runs(  # noqa: PLR0913  # each is an option
    *,
    status: Annotated[list[str] | None, typer.Option(help="Only runs in this status; may be repeated.")] = None,
    flow: Annotated[str | None, typer.Option(help="Only this flow: NAME or NAME@VERSION.")] = None,
    tenant: Tenant = None,
    tag: Tags = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many.")] = 50,
    before: Annotated[
        str | None, typer.Option(metavar="RUN", help="Only older ones: the next page after this run.")
    ] = None,
    count: Annotated[bool, typer.Option("--count", help="Count them by status instead.")] = False,
    as_json: Json = False,
) -> None:
    """List runs, the newest first."""
    from ..ledger.views import list_runs  # noqa: PLC0415  # only verbs that read pay for SQLAlchemy

    wrong = [one for one in status or () if one not in STATUSES]
    if wrong:
        raise typer.BadParameter(f"no status {wrong[0]!r}; there are {', '.join(STATUSES)}", param_hint="--status")
    tags = parse_tags(tag)
    if count:
        _show_counts(flow=flow, tenant=tenant, tags=tags, as_json=as_json)
        return
    with reading() as connection:
        last = run_id(before, connection) if before else None
        found = list_runs(
            connection, tenant=tenant, status=status or (), flow=flow, tags=tags, limit=limit, before=last
        )
    if as_json:
        document(found)
    elif not found:
        say("No runs. safepoint enqueue FLOW --input JSON makes one.")
    else:
        table(("RUN", "FLOW", "STATUS", "#STEPS", "#TOKENS", "#AGE", "WHERE IT STANDS"), [_row(run) for run in found])


def _show_counts(*, flow: str | None, tenant: str | None, tags: Mapping[str, str], as_json: bool) -> None:
    from ..ledger import progress  # noqa: PLC0415  # as above

    with writing() as connection:
        counts = progress.count(connection, flow=flow, tenant=tenant, tags=tags)
    document(counts) if as_json else table(("STATUS", "#RUNS"), [(name, str(n)) for name, n in counts.items()])


def _row(run: Mapping[str, Any]) -> tuple[Any, ...]:
    stands = run["reason"]["text"] if run["reason"] else ", ".join(run["current"])
    if run["status"] == "failed" and isinstance(run["error"], Mapping):
        stands = f"{run['error'].get('type')}: {run['error'].get('message')}"
    return (
        run["run_id"],
        f"{run['flow']}@{run['version']}",
        _coloured(run["status"]),
        str(run["completed_steps"]),
        f"{run['spent']['tokens']:,}",
        age(run["created_at"]),
        short(stands, width=60),
    )


def _coloured(status: str) -> Any:
    from rich.text import Text  # noqa: PLC0415  # as in console

    return Text(status, style=COLOURS.get(status, ""))


def show(run: RunId, *, as_json: Json = False) -> None:
    """Show where a run stands, and what to type next."""
    from ..ledger.views import read_budget  # noqa: PLC0415  # as above

    found, explained = _read(run)
    if as_json:
        document(found)
        return
    say(verdict(found, explained), f"Next: {next_command(found, explained)}", "")
    with reading() as connection:
        shared = read_budget(connection, UUID(found["run_id"]))
    _show_facts(found, shared)
    visible = [step for step in found["steps"] if step["kind"] not in INTERNAL]
    if visible:
        names = ("STEP", "STATUS", "#ATTEMPT", "#RUNS", "#RECOVERED", "#TOKENS", "NODE", "STARTED", "COMMITTED")
        table(names, [_step_row(step) for step in visible])
    if found["effects"]:
        rows = [_effect_row(effect) for effect in found["effects"]]
        table(("EFFECT", "STATUS", "#ATTEMPTS", "EXTERNAL ID", "IDEMPOTENCY KEY"), rows)


def _read(run: str) -> tuple[dict[str, Any], dict[str, Any]]:
    from ..ledger.views import read_run  # noqa: PLC0415  # as above
    from ..ledger.why import why as explain  # noqa: PLC0415

    with reading() as connection:
        id_ = run_id(run, connection)
        found, explained = read_run(connection, id_), explain(connection, id_)
    if found is None or explained is None:
        raise UnknownRunError(run=run)
    return found, explained


def _show_facts(run: Mapping[str, Any], shared: Mapping[str, Any] | None) -> None:
    budget, spent, wasted = run["budget"], run["spent"], run["wasted"]
    shared = shared or {"spent": spent, "reserved": {"tokens": 0, "usd": 0.0}}
    lost = f", {wasted['tokens']:,} of them wasted in attempts that failed or died" if wasted["tokens"] else ""
    lost_usd = f", {wasted['usd']:.4f} of it wasted" if wasted["usd"] else ""
    parts = {
        name: _of_budget(spent[name], shared["spent"][name], shared["reserved"][name], budget[name], form=form)
        for name, form in (("tokens", ",d"), ("usd", ",.4f"))
    }
    facts = {
        "run": run["run_id"],
        "tenant": run["tenant"],
        "tags": " ".join(f"{name}={value}" for name, value in run["tags"].items()) if run["tags"] else "",
        "deadline": run["deadline"],
        "tokens": f"{parts['tokens']}{lost}" if spent["tokens"] or budget["tokens"] is not None else "",
        "usd": f"{parts['usd']}{lost_usd}" if spent["usd"] or budget["usd"] is not None else "",
        "retries": f"{spent['retries']} of {budget['retries']}" if budget["retries"] is not None else "",
        "input": short(run["input"]),
        "result": "" if run["result"] is None else short(run["result"]),
        "events": str(run["events"]),
    }
    say(*(f"{name:<9} {value}" for name, value in facts.items() if value))


def _of_budget(spent: float, together: float, reserved: float, limit: float | None, *, form: str) -> str:
    """Say what was spent of how much, and by whom."""
    if limit is None:
        return f"{spent:{form}}"
    whole = type(spent)(limit)
    others = f" ({together:{form}} with the runs that share the budget)" if together != spent else ""
    held = f", {reserved:{form}} reserved by running steps" if reserved else ""
    return f"{spent:{form}}{others} of {whole:{form}}{held}"


def _step_row(step: Mapping[str, Any]) -> tuple[Any, ...]:
    return (
        step["key"] if step["generation"] == 1 else f"g{step['generation']}:{step['key']}",
        _coloured(step["status"]),
        str(step["attempt"]),
        str(step["epoch"]),
        str(step["recoveries"]),
        f"{step['spent']['tokens']:,}",
        step["node"] or "",
        clock(step["started_at"]),
        clock(step["committed_at"]),
    )


def _effect_row(effect: Mapping[str, Any]) -> tuple[Any, ...]:
    return (
        effect["key"],
        effect["status"],
        str(effect["attempts"]),
        effect["external_id"] or "",
        effect["idempotency_key"][:16] + "…",
    )


def why(run: RunId, *, as_json: Json = False) -> None:
    """Say why a run does not move, and what to type next."""
    found, explained = _read(run)
    sentence, next_ = verdict(found, explained), next_command(found, explained)
    if as_json:
        document({**explained, "text": sentence, "next": next_})
        return
    say(sentence, f"Next: {next_}")
    if len(explained["reasons"]) > 1:
        rows = [(one["code"], one["text"], age(one["since"]), one["next"]) for one in explained["reasons"]]
        table(("WHY", "WHAT", "#FOR", "NEXT"), rows)
    for step in explained["running"][1:]:
        out().print(f"  {step['step']} runs on {step['node']}", markup=False)
    for reason in explained["reasons"]:
        if lines := _question(reason) or _deaths(reason):
            say("", *lines)
    if any(reason["code"] in {"unknown_effect", "compensation"} for reason in explained["reasons"]):
        show_cards(found["run_id"])


def _deaths(reason: Mapping[str, Any]) -> list[str]:
    """Tell each death of a step that is held for them."""
    from ..ledger import deaths  # noqa: PLC0415  # as above

    detail = reason.get("detail")
    if reason["code"] != "poison" or not isinstance(detail, Mapping):
        return []
    return [f"  {clock(one.get('at'))}  {short(deaths.line(one), width=300)}" for one in deaths.deaths(detail)]


def _question(reason: Mapping[str, Any]) -> list[str]:
    """Say what is shown with a question, and both of its answers."""
    detail = reason.get("detail")
    if reason["code"] != "approval" or not isinstance(detail, Mapping) or "shown" not in detail:
        return []
    approve_ = reason["next"]
    deny = approve_.replace("safepoint approve ", "safepoint deny ", 1)
    return [f"{reason['step']}: {reason['text']}", f"  shown:   {told(detail['shown'])}",
            f"  digest:  {detail['digest']}", f"  approve: {approve_}", f"  deny:    {deny}"]  # fmt: skip

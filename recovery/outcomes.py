"""Writes what outcomes come to: locks the breakers, lets the pure machine judge, writes its verdict. And people's.

Outcomes of ordinary calls come summed per node, with its beat; a probe's comes at once, under its claim's token (P39).
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any
from uuid import UUID

import structlog

from ..config.breakers import BreakerPolicy, Breakers
from ..ledger import breakers
from ..ledger.connect import Connection
from .breaker import Breaker, Bucket, Outcome, State, Tally, judge, probed, reset, trip

__all__ = ["apply", "close", "force_open", "introduce", "record", "record_probe"]

log = structlog.get_logger("safepoint.breaker")


def introduce(
    connection: Connection, configured: Breakers, names: set[str], *, only_missing: bool = False
) -> dict[str, str]:
    """Make the breakers of these dependencies, with their configured policies; return what became of each."""
    policies = {name: configured.of(name).model_dump() for name in names}
    return breakers.apply(connection, policies, only_missing=only_missing)


def apply(connection: Connection, configured: Breakers) -> dict[str, str]:
    """Write the configured policies to all breakers that there are, and make those that the file names.

    Returns what became of each: `added`, `changed` or `same`.
    """
    return introduce(connection, configured, {*breakers.names(connection), *(configured.model_extra or {})})


def record(connection: Connection, tallies: Mapping[str, Tally], configured: Breakers, *, by: str) -> list[str]:
    """Count what a node's calls have come to; answers which breakers have opened. One that nobody has made yet is
    made with this process's policy.
    """
    told = {name: tally for name, tally in tallies.items() if tally.volume}
    if not told:
        return []
    opened = []
    with _locked(connection, configured, set(told)) as (now, rows):
        for row in rows:
            before = _breaker(row)
            after = judge(before, told[row.name], policy=_policy(row), now=now, jitter=random.random())
            if after is not before and _turn(connection, row, after, by=by):
                opened.append(row.name)
    return opened


def record_probe(  # one probe's parts, each by name
    connection: Connection, name: str, outcome: Outcome, configured: Breakers, *, token: UUID, leave_for: float, by: str
) -> State | None:
    """Take a probe's outcome; answers the state that it has come to, None when its round is over."""
    with _locked(connection, configured, {name}) as (now, rows):
        for row in rows:
            if not breakers.end_probe(connection, name, token=token):
                return None
            after = probed(
                _breaker(row), outcome, policy=_policy(row), now=now, jitter=random.random(), leave_for=leave_for
            )
            _turn(connection, row, after, by=by)
            return after.state
    return None


def force_open(connection: Connection, name: str, *, by: str, why: str, seconds: float | None) -> bool:
    """Open a breaker by hand, for a while or until it is reset; False when there is none of that name."""
    return _by_hand(connection, name, by=by, why=why, seconds=seconds, opens=True)


def close(connection: Connection, name: str, *, by: str, why: str) -> bool:
    """Close a breaker by hand; what was counted is forgotten. False when there is none of that name."""
    return _by_hand(connection, name, by=by, why=why, seconds=None, opens=False)


def _by_hand(connection: Connection, name: str, *, by: str, why: str, seconds: float | None, opens: bool) -> bool:
    with _locked(connection, None, {name}) as (now, rows):
        for row in rows:
            words = f"{'opened' if opens else 'closed'} by {by}: {why}"
            until = math.inf if seconds is None else now + seconds
            after = trip(_breaker(row), now=now, until=until, why=words) if opens else reset(now=now, why=words)
            _turn(connection, row, after, by=by, anyway=True)
    return bool(rows)


@contextmanager
def _locked(
    connection: Connection, configured: Breakers | None, names: set[str]
) -> Iterator[tuple[float, list[breakers.Row]]]:
    with connection.transaction():
        now, rows = breakers.lock(connection, sorted(names))
        missing = names - {row.name for row in rows}
        if missing and configured is not None:
            introduce(connection, configured, missing, only_missing=True)
            now, rows = breakers.lock(connection, sorted(names))
        yield now, rows


def _turn(connection: Connection, row: breakers.Row, after: Breaker, *, by: str, anyway: bool = False) -> bool:
    facts = {"pause": _finite(after.pause), "opens": after.opens} if after.state is State.OPEN else {}
    turned = breakers.write(
        connection, _row(row.name, after), actor=by, why=after.why or after.state.value, facts=facts, anyway=anyway
    )
    if turned and not anyway:  # a person reads the answer, not the log
        log.warning("breaker.turned", dependency=row.name, before=row.state, after=after.state.value, why=after.why)
    return turned


# A breaker and its row.


def _policy(row: breakers.Row) -> BreakerPolicy:
    # A later release may know more keys.
    known = {key: value for key, value in row.policy.items() if key in BreakerPolicy.model_fields}
    try:
        return BreakerPolicy.model_validate(known)
    except ValueError:  # or accept other values
        return BreakerPolicy()


def _breaker(row: breakers.Row) -> Breaker:
    detail = row.detail
    buckets = tuple(Bucket(start, Tally(*counts)) for start, *counts in detail.get("buckets", ()))
    return Breaker(
        State(row.state),
        opened_at=row.opened_at,
        probe_at=row.next_probe_at,
        pause=_number(detail.get("pause"), none=math.inf if row.state == State.OPEN else 0.0),
        opens=detail.get("opens", 0),
        closed_at=_number(detail.get("closed_at"), none=-math.inf),
        good=detail.get("good", 0),
        buckets=buckets,
        streak=detail.get("streak", 0),
        why=detail.get("why", ""),
    )


def _row(name: str, breaker: Breaker) -> breakers.Row:
    detail: dict[str, Any] = {
        "pause": _finite(breaker.pause),
        "opens": breaker.opens,
        "closed_at": _finite(breaker.closed_at),
        "good": breaker.good,
        "buckets": [[bucket.start, *list(asdict(bucket.tally).values())[:3]] for bucket in breaker.buckets],
        "streak": breaker.streak,
        "why": breaker.why,
    }
    return breakers.Row(name, breaker.state.value, breaker.opened_at, breaker.probe_at, detail)


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None  # JSON has no infinity


def _number(number: float | None, *, none: float) -> float:
    return none if number is None else float(number)

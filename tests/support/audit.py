"""What must be true of a run in the ledger, whatever has happened to its processes: checked by every test that kills.

The snapshot (runs, steps) and the log (events) are two accounts of one thing; each is worked out from the other here.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
from psycopg.adapt import Loader
from psycopg.rows import dict_row

__all__ = ["Account", "Execution", "assert_sound", "auditor", "executions", "read"]

EXECUTED = ("step", "effect")
TAKEN = ("child", "lease", "node", "unnamed")  # by the scan or a reported death; anything else is given back
OUTCOMES = ("step.committed", "step.failed")
ENDS = ("run.succeeded", "run.failed", "run.cancelled")


@dataclass(frozen=True)
class Execution:
    """One line of the record: some step's code began or ended in some process."""

    what: str
    run: str
    key: str
    epoch: int
    attempt: int
    pid: int
    at: float


@dataclass(frozen=True)
class Account:
    """All that the ledger has of a run."""

    run: dict[str, Any]
    steps: list[dict[str, Any]]
    events: list[dict[str, Any]] = field(repr=False)

    def step(self, key: str) -> dict[str, Any]:
        """Return the row of a step."""
        return next(step for step in self.steps if step["key"] == key)

    def events_of(self, key: str, *types: str) -> list[dict[str, Any]]:
        """Return a step's events of these types."""
        return [event for event in self.events if event["key"] == key and event["type"] in types]

    def causes(self, key: str) -> list[str]:
        """Return why a step was lost, in order."""
        return [event["data"]["cause"] for event in self.events_of(key, "step.lost")]


class _Instant(Loader):
    """Reads instants, of which a parked step's is infinite."""

    def load(self, data: Any) -> datetime:
        text = bytes(data).decode()
        return datetime.max.replace(tzinfo=UTC) if text == "infinity" else datetime.fromisoformat(text)


@contextlib.contextmanager
def auditor(url: str) -> Iterator[psycopg.Connection[dict[str, Any]]]:
    """Lend a connection for `read`: what it reads of one run is one snapshot."""
    with psycopg.Connection[dict[str, Any]].connect(url, row_factory=dict_row, options="-c timezone=UTC") as connection:
        connection.adapters.register_loader("timestamptz", _Instant)
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        yield connection


def read(connection: psycopg.Connection[dict[str, Any]], run_id: UUID) -> Account:
    """Read a run's two accounts."""
    with connection.transaction():
        run = connection.execute("SELECT * FROM safepoint.runs WHERE run_id = %s", [run_id]).fetchone()
        steps = connection.execute(
            "SELECT *, safepoint.key_v1(path, step_id, iteration) AS key FROM safepoint.steps WHERE run_id = %s"
            " ORDER BY commit_seq",
            [run_id],
        ).fetchall()
        events = connection.execute(
            "SELECT * FROM safepoint.events WHERE run_id = %s ORDER BY seq", [run_id]
        ).fetchall()
    assert run is not None
    return Account(run, steps, events)


def executions(record: Path, run_id: UUID | None = None) -> list[Execution]:
    """Return what steps have written down, of one run or of all."""
    lines = [line.split() for line in record.read_text().splitlines() if line.startswith(("begin", "end"))]
    found = [Execution(w[0], w[1], w[2], int(w[3]), int(w[4]), int(w[5]), float(w[6])) for w in lines]
    return [one for one in found if run_id is None or one.run == str(run_id)]


def assert_sound(account: Account, executed: Sequence[Execution] = ()) -> None:
    """Check one run: log and snapshot agree, each step was committed once, none was executed after its commit."""
    _assert_contiguous(account)
    _assert_ends_once(account)
    for step in account.steps:
        if step["kind"] in EXECUTED:
            _assert_step(account, step)
    _assert_counts(account)
    _assert_nothing_ran_after_its_commit(account, executed)


def _assert_contiguous(account: Account) -> None:
    assert [event["seq"] for event in account.events] == list(range(1, account.run["event_seq"] + 1))
    types = [event["type"] for event in account.events]
    assert types[0] == "run.queued"
    assert types.count("run.started") <= 1


def _assert_ends_once(account: Account) -> None:
    ends = [event["type"] for event in account.events if event["type"] in ENDS]
    if account.run["finished_at"] is None:
        assert ends == []
        return
    assert ends == [f"run.{account.run['status']}"]
    assert account.events[-1]["type"] == ends[0]
    assert not [step["key"] for step in account.steps if step["status"] in ("ready", "running", "waiting", "held")]


def _assert_step(account: Account, step: dict[str, Any]) -> None:
    """The step's row is what its events add up to."""
    key = step["key"]
    outcomes = account.events_of(key, *OUTCOMES)
    lost, retried = account.events_of(key, "step.lost"), account.events_of(key, "step.retried")
    assert len(account.events_of(key, "step.scheduled")) == 1, key
    assert len(outcomes) == (step["status"] in ("succeeded", "failed")), (key, outcomes)
    for outcome in outcomes:
        assert outcome["type"] == ("step.committed" if step["status"] == "succeeded" else "step.failed")
        said = [outcome["data"][name] for name in ("epoch", "attempt", "recoveries")]
        assert said == [step["epoch"], step["attempt"], step["recoveries"]], key
    # Every claim has an end in the log: committed, retried or lost. A late commit ends one that was lost before (P35).
    late = sum(bool(outcome["data"].get("late")) for outcome in outcomes)
    running = step["status"] == "running"
    ends = len(lost) + len(retried) + len(outcomes) + running - late
    # One that leaves an effect unknown, or asks about it in vain, is told in the effect's history instead.
    assert ends <= step["epoch"] if step["kind"] == "effect" else ends == step["epoch"], (key, lost, retried, outcomes)
    counted = [event for event in lost if event["data"]["cause"] in TAKEN]
    assert len(counted) == step["recoveries"], (key, counted)


def _assert_counts(account: Account) -> None:
    done = [step for step in account.steps if step["kind"] in EXECUTED and step["status"] == "succeeded"]
    committed = Counter(event["key"] for event in account.events if event["type"] == "step.committed")
    assert account.run["completed_steps"] == len(done)
    for step in done:
        assert committed[step["key"]] == 1, step["key"]
    seqs = sorted(step["commit_seq"] for step in account.steps if step["commit_seq"] is not None)
    assert seqs == list(range(1, len(seqs) + 1))
    assert account.run["state_version"] >= len(seqs)


def _assert_nothing_ran_after_its_commit(account: Account, executed: Sequence[Execution]) -> None:
    by_key = {step["key"]: step for step in account.steps}
    for one in executed:
        step = by_key[one.key]
        if one.what != "begin" or step["committed_at"] is None:
            continue
        assert one.epoch <= step["epoch"], f"{one} was executed under a claim made after the commit"
        assert one.at <= step["committed_at"].timestamp(), f"{one} began after its commit at {step['committed_at']}"

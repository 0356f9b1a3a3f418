"""Brings runs of a real ledger into the state that a test looks at, by the ledger's own verbs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import psycopg
from safepoint.ledger import commit, nodes, steps, views
from safepoint.ledger.connect import connect
from safepoint.ledger.key import Key
from safepoint.ledger.snapshot import snapshot
from safepoint.ledger.why import why

__all__ = ["FIRST", "NODE", "SECOND", "START", "Ledger", "prepared", "step"]

NODE = "node-1"
START = Key(1, "", "@start", 1)
FIRST = Key(1, "", "look", 1)
SECOND = Key(1, "gather#1.1", "search", 1)


@dataclass
class Ledger:
    """A ledger and the verbs that bring a run into the state a test looks at."""

    url: str
    connection: psycopg.Connection[Any]
    tokens: dict[Key, UUID] = field(default_factory=dict)

    def enqueue(self, **options: Any) -> UUID:
        options = {"flow": "triage", "version": "1", "input": json.dumps({"alert": 1}), **options}
        names = ", ".join(f"{name} => %({name})s" for name in options)
        row = self.connection.execute(f"SELECT safepoint.enqueue({names})".encode(), options).fetchone()
        assert row is not None
        return UUID(str(row[0]))

    def register(self, node: str = NODE, flows: tuple[str, ...] = ("triage@1",)) -> None:
        told = nodes.Node(node, "host", 1, ("online", "recovery"), flows, ("look", "search"), 2)
        nodes.register(self.connection, told, lease=60, with_lock=False)

    def claim(self, run: UUID, key: Key, lane: str = "online") -> None:
        self.tokens[key] = uuid4()
        who = steps.Claimer(NODE, 1, 1)
        answer = steps.claim(self.connection, run, key, lane=lane, claimer=who, token=self.tokens[key], timeout=60)
        assert isinstance(answer, steps.Claimed), answer

    def commit(self, run: UUID, key: Key, *, data: bytes | None = None, tokens: int = 0, **rest: Any) -> None:
        row = self.connection.execute("SELECT state_version FROM safepoint.runs WHERE run_id = %s", [run]).fetchone()
        assert row is not None
        outcome = commit.Result("succeeded", datetime.now(UTC), data, "json", b"d", tokens=tokens)
        rest.setdefault("advanced_from", row[0])
        commit.commit(self.connection, run, key, token=self.tokens[key], node=NODE, result=outcome, **rest)

    def started(self, *asked: dict[str, Any], **options: Any) -> UUID:
        """Enqueue a run whose flow has asked for something."""
        run = self.enqueue(**options)
        self.claim(run, START)
        self.commit(run, START, asked=asked)
        return run

    def change(self, run: UUID, **columns: Any) -> None:
        """Store what no release of ours would."""
        names = ", ".join(f"{name} = %({name})s" for name in columns)
        statement = f"UPDATE safepoint.runs SET {names} WHERE run_id = %(run)s"
        self.connection.execute(statement.encode(), {**columns, "run": run})

    def read(self, run: UUID) -> dict[str, Any]:
        with snapshot(self.url, name="test") as connection:
            found = views.read_run(connection, run)
        assert found is not None
        return found

    def reasons(self, run: UUID) -> list[dict[str, Any]]:
        with snapshot(self.url, name="test") as connection:
            found = why(connection, run)
        assert found is not None
        return list(found["reasons"])


def step(key: Key, kind: str = "step", **more: Any) -> dict[str, Any]:
    own = {"path": key.path, "step": key.step_id, "iteration": key.iteration, "kind": kind, "name": key.step_id}
    return {**own, "lane": "online", "hash": "00" * 32, **more}


@contextmanager
def prepared(url: str) -> Iterator[Ledger]:
    """Open a ledger with two lanes and a live node."""
    with connect(url, name="test") as connection:
        connection.execute("INSERT INTO safepoint.lanes (name) VALUES ('online') ON CONFLICT DO NOTHING")
        connection.execute("INSERT INTO safepoint.lanes (name, rate) VALUES ('recovery', 5) ON CONFLICT DO NOTHING")
        found = Ledger(url, connection)
        found.register()
        yield found

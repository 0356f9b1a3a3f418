"""The protocol's verbs on one connection, with all that a test does not care about filled in."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

from psycopg.abc import Buffer
from psycopg.rows import dict_row
from psycopg.types.datetime import TimestamptzLoader
from safepoint.ledger import commit as commits
from safepoint.ledger import control, nodes, orphans, outbox, people, steps
from safepoint.ledger.commit import Answer, Ending, Result
from safepoint.ledger.connect import Connection, connect
from safepoint.ledger.key import Key
from safepoint.ledger.outbox import Dispatched
from safepoint.ledger.people import Decided
from safepoint.ledger.steps import Cause, Claimed, Claimer, Loss, NotYours, Settled

__all__ = ["LEASE", "NODE", "PARKED", "START", "Verbs", "ask", "key"]

NODE = "node-1"
LEASE = 15.0
PARKED = datetime.max.replace(tzinfo=UTC)
START = Key(1, "", "@start", 1)
DONE = Result("succeeded", datetime(2030, 1, 1, tzinfo=UTC), b"1", "json", b"d")


class _Instants(TimestamptzLoader):
    """Reads instants; a parked row is due at infinity."""

    def load(self, data: Buffer) -> datetime:
        return PARKED if bytes(data) == b"infinity" else super().load(data)


def key(text: str) -> Key:
    """Read a step key: `a#1`, `gather#1.0/a#1`, `g2:a#1`."""
    return Key.from_wire(text)


def ask(text: str, kind: str = "step", **more: Any) -> dict[str, Any]:
    """Give a row as a flow asks for it."""
    parts = key(text)
    own = {"path": parts.path, "step": parts.step_id, "iteration": parts.iteration, "kind": kind, "name": parts.step_id}
    reason = {} if kind in ("step", "effect") else {"reason": {"code": kind}}
    return {**own, "lane": "online", "hash": "00" * 32, **reason, **more}


class Verbs:
    """A connection, and the verbs over it; a failure to claim or to commit fails the test at once."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    @classmethod
    def on(cls, url: str) -> Verbs:
        """Open a connection of its own."""
        return cls(connect(url, name="test"))

    # Nodes.

    def node(self, name: str = NODE, *, lock: bool = False, lease: float = LEASE, **facts: Any) -> None:
        """Register a node that serves the flow `f` on both lanes."""
        given: dict[str, Any] = {"lanes": ("online", "recovery"), "flows": ("f@1",), "concurrency": 2, **facts}
        nodes.register(self.connection, nodes.Node(name, "host", 1, **given), lease=lease, with_lock=lock)

    def beat(self, *active: UUID, node: str = NODE, marks: dict[str, Any] | None = None, **more: Any) -> nodes.Beat:
        """Beat once, naming claims."""
        return nodes.beat(self.connection, node, active=active, marks=marks or {}, lease=LEASE, **more)

    # Runs.

    def enqueue(self, **options: Any) -> UUID:
        """Accept a run of the flow `f`."""
        given = {"flow": "f", "version": "1", "input": "{}", **options}
        names = ", ".join(f"{name} => %({name})s" for name in given)
        return UUID(str(self.value(f"SELECT safepoint.enqueue({names})", given)))

    def begun(self, *asked: dict[str, Any], **options: Any) -> UUID:
        """Accept a run whose flow has been started and has asked for something."""
        run = self.enqueue(**options)
        self.commit(self.claimed(run), asked=asked)
        return run

    def many(self, count: int, *, tenant: str = "default") -> None:
        """Accept many runs in one statement."""
        self.connection.execute(
            "SELECT count(*) FROM safepoint.enqueue_v1((SELECT json_agg(json_build_object('n', n, 'flow', 'f',"
            " 'version', '1', 'input', json_build_object('n', n), 'tenant', %s::text))"
            " FROM generate_series(1, %s) AS n))",
            (tenant, count),
        )

    # Claims.

    def claim(
        self, run: UUID, of: Key = START, *, lane: str = "online", token: UUID | None = None, node: str = NODE,
        pid: int = 1, pid_start: int = 1, timeout: float = 60.0, seen: int = -1, settle: Sequence[Settled] = (),
    ) -> Claimed | NotYours:  # fmt: skip
        """Claim a step."""
        return steps.claim(
            self.connection, run, of, lane=lane, claimer=Claimer(node, pid, pid_start), token=token or uuid4(),
            timeout=timeout, seen=seen, settle=settle,
        )  # fmt: skip

    def claimed(self, run: UUID, of: Key = START, **more: Any) -> Claimed:
        """Claim a step that is to be had."""
        answer = self.claim(run, of, **more)
        assert isinstance(answer, Claimed), answer
        return answer

    def refusal(self, run: UUID, of: Key = START, **more: Any) -> str:
        """Ask for a step that is not to be had, and tell why."""
        answer = self.claim(run, of, **more)
        assert isinstance(answer, NotYours), answer
        return answer.reason

    # Ends of a claim.

    def commit(
        self, claimed: Claimed, *, result: Result = DONE, ending: Ending | str | None = None, **more: Any
    ) -> Answer:
        """Commit a claimed step, advanced from the version that stands."""
        if "joins" not in more:
            more.setdefault("advanced_from", self.run(claimed.run_id)["state_version"])
        ending = Ending(ending) if isinstance(ending, str) else ending
        return commits.commit(
            self.connection, claimed.run_id, claimed.key, token=claimed.token, node=NODE, result=result, ending=ending,
            **{"advanced_from": None, **more},
        )  # fmt: skip

    def done(self, run: UUID, of: Key = START, *, lane: str = "online", **more: Any) -> Answer:
        """Claim and commit a step."""
        return self.commit(self.claimed(run, of, lane=lane), **more)

    def retry(self, claimed: Claimed, *, delay: float = 0.0) -> Answer:
        """End an attempt that is to be repeated."""
        error = {"type": "Boom", "message": "boom"}
        return commits.retry(
            self.connection, claimed.run_id, claimed.key, token=claimed.token, node=NODE, error=error, delay=delay
        )

    def release(self, claimed: Claimed, **more: Any) -> bool:
        """Give a claim back."""
        return steps.release(
            self.connection, claimed.run_id, claimed.key, token=claimed.token, **{"why": "drain", **more}
        )

    def lose(self, claimed: Claimed, cause: Cause = Cause.CHILD, *, max_deaths: int = 5, **more: Any) -> str:
        """Report a claim as lost."""
        facts = {"pid": 1, "pid_start": 1, **more}
        loss = Loss(claimed.run_id, claimed.key, claimed.token, cause, **facts)
        return steps.lose(self.connection, loss, lane="recovery", max_deaths=max_deaths)

    # People.

    def signal(self, run: UUID, name: str = "go", data: bytes = b"1", **more: Any) -> str:
        """Send a signal, or another kind of mail."""
        return control.mail(
            self.connection, run, **{"kind": "signal", "name": name, "data": data, "encoding": "json", **more}
        )

    def decide(
        self, run: UUID, name: str = "ok", *, approved: bool = True, by: str = "ann", note: str | None = None,
        value: bytes | None = None, digest: str | None = None, id_: UUID | None = None, **seen: people.Question | None,
    ) -> Decided:  # fmt: skip
        """Decide what a run asks, exactly as it is asked now, or as `seen` says."""
        fitting = [one for one in people.asked(self.connection, run) if one.answers_to(name, digest=digest)]
        found = seen["seen"] if "seen" in seen else next(iter(fitting), None) if len(fitting) == 1 else None
        outcome = "approved" if approved else "denied"
        document = people.decision_document(outcome, by=by, note=note, value=value, shown=found and found.digest)
        return people.decide(
            self.connection, run, name, approved=approved, by=by, note=note,
            document=None if found and found.is_effect else document, edited=value is not None, digest=digest,
            seen=found, id_=id_ or uuid4(),
        )  # fmt: skip

    def cancel(self, run: UUID) -> str:
        """Cancel a run."""
        return control.cancel(self.connection, run, by="test")

    def pause(self, run: UUID) -> str:
        """Pause a run."""
        return control.pause(self.connection, run, by="test")

    def resume(self, run: UUID, code: str | None = None) -> str:
        """Resume a run."""
        return control.resume(self.connection, run, by="test", code=code)

    def hold(self, run: UUID, code: str) -> None:
        """Hold a run, as a commit or a release with a reason does."""
        self.connection.execute("SELECT safepoint.hold_v1(%s, %s, 'told', NULL, NULL)", (run, code))

    # The relay and the scan.

    def dispatch(self, *, limit: int = 100, settled: bool = True) -> list[Dispatched]:
        """Take what is due, and settle it as published unless told otherwise."""
        rows = outbox.dispatch(self.connection, limit=limit, grace=5.0, redispatch_after=10.0)
        if settled:
            tickets = [Settled(row.run_id, row.key, row.due, 10.0 * 2**row.dispatches) for row in rows]
            assert outbox.settle(self.connection, tickets) == len(rows)
        return rows

    def look(self, *, lease: float = LEASE, interval: float = 0.0) -> orphans.Round:
        """Look for orphans."""
        return orphans.look(self.connection, by="test", interval=interval, lease=lease)

    def chores(self, *, cancel_grace: float = 30.0) -> orphans.Chores:
        """Do what needs no verdict."""
        return orphans.chores(self.connection, limit=100, cancel_grace=cancel_grace)

    # What stands in the tables.

    def rows(self, query: str, values: Any = ()) -> list[dict[str, Any]]:
        """Read rows."""
        with self.connection.cursor(row_factory=dict_row) as cursor:
            cursor.adapters.register_loader("timestamptz", _Instants)
            return cursor.execute(query.encode(), values).fetchall()

    def value(self, query: str, values: Any = ()) -> Any:
        """Read one value."""
        row = self.connection.execute(query.encode(), values).fetchone()
        assert row is not None, query
        return row[0]

    def run(self, run: UUID) -> dict[str, Any]:
        """Read a run's row."""
        return self.rows("SELECT * FROM safepoint.runs WHERE run_id = %s", (run,))[0]

    def step(self, run: UUID, of: Key = START) -> dict[str, Any]:
        """Read a step's row."""
        where = "run_id = %s AND generation = %s AND path = %s AND step_id = %s AND iteration = %s"
        values = (run, of.generation, of.path, of.step_id, of.iteration)
        return self.rows(f"SELECT * FROM safepoint.steps WHERE {where}", values)[0]

    def statuses(self, run: UUID) -> dict[str, str]:
        """Read the status of each step of a run."""
        found = self.rows(
            "SELECT generation, path, step_id, iteration, status FROM safepoint.steps WHERE run_id = %s", (run,)
        )
        return {
            Key(row["generation"], row["path"], row["step_id"], row["iteration"]).wire: row["status"] for row in found
        }

    def events(self, run: UUID) -> list[str]:
        """Read the types of a run's events, in order."""
        found = self.rows("SELECT type FROM safepoint.events WHERE run_id = %s ORDER BY seq", (run,))
        return [row["type"] for row in found]

    def assert_unlocked(self, node: str) -> None:
        """Say that a node's session lock has gone; the server takes a moment to see a client leave."""
        assert not self.value("SELECT safepoint.has_lock_v1(%s)", (nodes.lock_key(node),))

    def waiting_backends(self) -> int:
        """Count the sessions of this database that wait for a lock."""
        return int(
            self.value(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
            )
        )

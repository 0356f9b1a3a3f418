"""One node's executor in this process, on a real ledger; its broker is a list that the test reads."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

from ledger_verbs import NODE
from safepoint.config.settings import Settings, load
from safepoint.ledger import outbox
from safepoint.ledger.connect import connect
from safepoint.ledger.nodes import Node, register
from safepoint.tasks import registry
from safepoint.tasks.board import Board
from safepoint.tasks.execute import Executor
from safepoint.tasks.histories import Histories
from safepoint.tasks.loan import Loan
from safepoint.tasks.performance import Performance
from safepoint.tasks.watchdog import Watchdog
from safepoint.tasks.wire import Chore, Message

__all__ = ["Belt", "Workshop", "settings_of"]


@dataclass
class Belt:
    """A broker of this process: what was sent, and what of it is still to be received. `broken` loses every answer."""

    sent: list[Message] = field(default_factory=list)
    queue: deque[Message] = field(default_factory=deque)
    broken: Callable[[Message], bool] = lambda _: False
    unknown: set[str] = field(default_factory=set)  # lanes that it has no queue for
    chores: list[Chore] = field(default_factory=list)

    def publish(self, messages: Sequence[Message]) -> list[Exception | None]:
        """Take messages, as the publisher does."""
        outcomes: list[Exception | None] = []
        for message in messages:
            if message.lane in self.unknown:
                outcomes.append(LookupError(f"no lane {message.lane!r}"))
                continue
            if self.broken(message):
                outcomes.append(ConnectionError("the broker is away"))
                continue
            self.sent.append(message)
            self.queue.append(message)
            outcomes.append(None)
        return outcomes

    def send_chore(self, chore: Chore) -> Exception | None:
        """Take a chore."""
        self.chores.append(chore)
        return None

    def close(self) -> None:
        """Have nothing to close."""

    def steps(self) -> list[str]:
        """Tell which steps were sent, in order."""
        return [message.step for message in self.sent]


def settings_of(folder: Path, **tables: dict[str, object]) -> Settings:
    """Make settings with short waits; `tables` change single keys of them."""
    made = load(env={}).model_copy(update={"home": folder})
    for name, changes in tables.items():
        made = made.model_copy(update={name: getattr(made, name).model_copy(update=changes)})
    return made


class Workshop:
    """A node with an executor; `work` receives and executes until nothing is left."""

    def __init__(self, url: str, settings: Settings, *, node: str = NODE, belt: Belt | None = None) -> None:
        self.settings = settings
        self.belt = belt or Belt()
        uses = {step.uses for step in registry.steps().values() if step.uses}
        self.board = Board(slots=8, lanes=tuple(settings.lanes), dependencies=tuple(sorted(uses)))
        self.board.beaten(time.monotonic())
        self.loan = Loan(settings, url, board=self.board, node_id=node)
        self.histories = Histories(size=16, watchdog=Watchdog(10.0))
        self.executor = Executor(
            settings,
            loan=self.loan,
            histories=self.histories,
            performance=Performance(settings, self.loan),
            publisher=self.belt,  # type: ignore[arg-type]  # it is asked to publish, and nothing else
            registry=registry.registry,
            node_id=node,
        )
        self.node = Node(
            node, "host", 1, ("online", "recovery"), tuple(f"{name}@{version}" for name, version in registry.flows()),
            tuple(registry.steps()), concurrency=2,
        )  # fmt: skip

    def register(self, url: str) -> None:
        """Tell the ledger what is served here; not through a proxy that the test counts on."""
        with connect(url, name="test") as connection:
            register(connection, self.node, lease=self.settings.worker.lease, with_lock=False)
            row = connection.execute("SELECT incarnation FROM safepoint.identity").fetchone()
            assert row
            self.board.identify(row[0])

    def execute(self, run: UUID, step: str = "@start#1", lane: str = "online") -> None:
        """Execute one step, as its message says; a thread of a test does not come back for its connection."""
        try:
            self.executor.execute(str(run), step, lane)
        finally:
            self.loan.disconnect()

    def work(self, url: str, *, stop: str | None = None) -> None:
        """Relay and execute until nothing is due and nothing is on the belt, or the step `stop` has come."""
        with connect(url, name="test") as connection:
            while True:
                while self.belt.queue:
                    message = self.belt.queue.popleft()
                    if message.step == stop:
                        return
                    self.execute(UUID(message.run), message.step, message.lane)
                rows = outbox.dispatch(connection, limit=100, grace=5.0, redispatch_after=10.0)
                if not rows:
                    return
                for row in rows:
                    self.execute(row.run_id, row.key.wire, row.lane)

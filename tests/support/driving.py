"""Drives a flow in a test as a ledger would: outcomes are committed in the order that the test says."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from safepoint import flow, step
from safepoint.ledger.codec import Codec
from safepoint.ledger.errors import describe
from safepoint.ledger.key import Key
from safepoint.tasks.awaited import Asked
from safepoint.tasks.driver import Driver
from safepoint.tasks.flow import Call, ChildRun
from safepoint.tasks.record import Record, RunInfo
from safepoint.tasks.step import StepCall

BEGIN = datetime(2025, 1, 1, tzinfo=UTC)


@step
def double(n: int) -> int:
    """Double a number."""
    return 2 * n


@flow
async def straight(n: int) -> int:
    """Two steps, one after the other."""
    return await double(await double(n))


class Driving:
    """A live driver and the history that it was fed."""

    def __init__(self, call: Call[Any], **run: Any) -> None:
        given: dict[str, Any] = {"run_id": "run-1", "tenant": "acme", "generation": 1, "created_at": BEGIN}
        self.call = call
        self.info = RunInfo(input=call.input.data, encoding="json", **(given | run))
        self.history: list[Record] = []
        self.driver = Driver(call.flow, run=self.info)
        self._feed(Record(0, Key(self.info.generation, "", "@start", 1), "start", "succeeded", BEGIN))

    @property
    def asked(self) -> list[str]:
        return [str(key) for key in self.driver.asked]

    @property
    def outcome(self) -> Any:
        return self.driver.outcome

    def ask(self, key: str) -> Any:
        return self.driver.asked[Key.parse(key, generation=self.info.generation)]

    def commit(self, key: str, value: object = None, **record: Any) -> None:
        """Commit a success."""
        asked = self.ask(key)
        if isinstance(asked.awaited, StepCall):
            encoded = asked.awaited.step.encode_result(value)
        elif isinstance(asked.awaited, ChildRun):
            encoded = asked.awaited.call.flow.result.encode(value)
        else:
            encoded = Codec[object](object).show(value)
        self.put(asked, status="succeeded", data=encoded.data, encoding="json", **record)

    def fail(self, key: str, error: BaseException, **record: Any) -> None:
        """Commit a failure."""
        self.put(self.ask(key), status="failed", error=describe(error, attempts=3), **record)

    def cancel(self) -> None:
        self._feed(
            Record(len(self.history), Key(self.info.generation, "", "@cancel", 1), "cancel", "succeeded", self.at())
        )

    def put(self, asked: Asked, **record: Any) -> None:
        given = {"seq": len(self.history), "kind": asked.kind, "at": self.at(), "input_hash": asked.input_hash}
        self._feed(Record(key=asked.key, **(given | record)))

    def at(self) -> datetime:
        return BEGIN + timedelta(seconds=len(self.history))

    def replayed(self, *, upto: int | None = None, call: Call[Any] | None = None) -> Driver:
        """A fresh driver, fed the history again."""
        driver = Driver((call or self.call).flow, run=self.info)
        for record in self.history[:upto]:
            driver.feed(record)
        return driver

    def _feed(self, record: Record) -> None:
        self.history.append(record)
        self.driver.feed(record)


def drive(call: Call[Any], *, choose: Callable[[list[Asked]], Asked] = lambda asked: asked[0], **run: Any) -> Driving:
    """Run a flow to its end with the steps' own functions, committing in the order that `choose` says."""
    driving = Driving(call, **run)
    while driving.outcome is None:
        asked = choose(list(driving.driver.asked.values()))
        assert isinstance(asked.awaited, StepCall)
        args, kwargs = asked.arguments()
        driving.commit(str(asked.key), asked.awaited.step.fn(*args, **kwargs))
    return driving

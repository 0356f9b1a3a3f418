"""An app that enqueues: with the flow's code and by name, in its own transaction, one run and many."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, assert_type

import psycopg
from safepoint import Artifact, Budget, Client, Run, flow
from sqlalchemy.orm import Session


@dataclass
class Order:
    number: int


@flow
async def ship(order: Order, *, urgent: bool = False) -> list[str]:
    return [str(order.number)]


def by_call(client: Client, session: Session) -> list[str]:
    run = client.enqueue(ship(Order(1), urgent=True), key="order-1", budget=Budget(tokens=5), connection=session)
    assert_type(run, Run[list[str]])
    assert_type(run.id, str)
    return run.result(timeout=5)


def by_name(client: Client, connection: psycopg.Connection[Any]) -> None:
    run = client.enqueue("ship", {"order": {"number": 1}}, deadline=timedelta(hours=1), connection=connection)
    assert_type(run, Run[Any])


async def asynchronously(client: Client) -> list[str]:
    run = await client.aenqueue(ship(Order(1)), tags={"team": "sre"})
    assert_type(run, Run[list[str]])
    async for event in run.aevents(follow=True):
        assert_type(event.type, str)
    return await run.aresult(timeout=5)


def many(client: Client, orders: Iterable[Order]) -> None:
    client.enqueue_many([ship(order) for order in orders])
    client.enqueue_many("ship", ({"order": {"number": order.number}} for order in orders), keys=None)
    client.enqueue_many(ship, [{"order": {"number": 1}}], tenant="acme")
    client.enqueue_many([("ship", {"order": 1}, {"priority": 9}), (ship(Order(2)), {"key": "two"})])


def looking(client: Client, run_id: str) -> dict[str, int]:
    run = client.run(run_id)
    for event in run.events(after=0, follow=True):
        assert_type(event.seq, int)
    assert_type(run.cancel() == "cancelled", bool)
    assert_type(client.runs(tags={"team": "sre"}, status="held"), list[Run[Any]])
    with client:
        assert_type(client.artifact(b"x", tenant="acme"), Artifact)
    return client.count(tags={"team": "sre"})


def wrong(client: Client) -> None:
    client.enqueue(ship(Order(1)), prio=1)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]

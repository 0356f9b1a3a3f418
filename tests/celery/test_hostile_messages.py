"""P41: whatever stands in the broker, no worker process ends, and every good message behind it is executed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

import amqp
import hostile
import pytest
import redis
from kombu import Connection
from processes import WorkerNode
from safepoint.tasks.wire import Message, Publisher

SEED = 20_260_801
COUNT = 10_000
Thing = TypeVar("Thing")
CHUNK = 500  # hostile messages between two good ones of each lane


class Poisoner:
    """Puts hostile messages into a broker past every client library of ours."""

    def __init__(self, url: str) -> None:
        self.url = url

    def send(self, count: int, *, seed: int) -> Iterator[int]:
        """Send that many, a chunk at a time."""
        send = self._to_valkey if self.url.startswith("redis") else self._to_rabbitmq
        return send(count, seed)

    def _to_valkey(self, count: int, seed: int) -> Iterator[int]:
        with redis.Redis.from_url(self.url) as client:
            items = (item for _, item in hostile.redis_items(seed, count))
            for chunk in _chunks(items):
                with client.pipeline(transaction=False) as pipeline:
                    for item in chunk:
                        pipeline.lpush("online", item)
                    pipeline.execute()
                yield len(chunk)

    def _to_rabbitmq(self, count: int, seed: int) -> Iterator[int]:
        with Connection(self.url) as connection:
            channel = connection.channel()
            # A mutation that AMQP itself cannot carry is replaced by the next one.
            endless = (message for _, message in hostile.amqp_messages(seed, 10 * count))
            sendable = (made for made in map(_amqp_message, endless) if made is not None)
            for chunk in _chunks(itertools.islice(sendable, count)):
                for made in chunk:
                    channel.basic_publish(made, exchange="", routing_key="online")
                yield len(chunk)


def _chunks(things: Iterator[Thing]) -> Iterator[list[Thing]]:
    while chunk := list(itertools.islice(things, CHUNK)):
        yield chunk


def _amqp_message(message: hostile.Forged) -> amqp.Message | None:
    headers = message.headers if isinstance(message.headers, dict) else {"x": message.headers}
    made = amqp.Message(
        message.body,
        content_type=str(message.content_type),
        content_encoding=str(message.content_encoding),
        application_headers=headers,
        **message.properties,
    )
    try:
        made._serialize_properties()
    except Exception:  # noqa: BLE001  # whatever py-amqp cannot write
        return None
    return made


def good(run: str) -> Message:
    return Message(run=run, step="good#1", lane="online", name="good", attempt=1, epoch=0)


def done(record: Path) -> set[str]:
    return {line.split()[1] for line in record.read_text().splitlines() if line.startswith("done ")}


def waiting(url: str) -> int:
    """How many messages wait in the queue or are not acked."""
    if url.startswith("redis"):
        with redis.Redis.from_url(url) as client:
            return client.llen("online") + client.hlen("unacked")
    with Connection(url) as connection:
        return connection.default_channel.queue_declare("online", passive=True).message_count


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_no_hostile_message_ends_a_worker(
    start_recorder: Callable[..., WorkerNode],
    publisher: Publisher,
    broker_url: str,
    pool: str,
    record: Path,
    eventually: Callable[..., None],
) -> None:
    worker = start_recorder(pool=pool)
    children, runs = worker.process.children(), []
    for _ in Poisoner(broker_url).send(COUNT, seed=SEED):
        runs.append(str(uuid4()))
        assert publisher.publish([good(runs[-1])]) == [None]

    def every_good_one_ran() -> None:
        if worker.process.status != "running":
            pytest.fail(f"the worker has ended:\n{worker.logs()[-3000:]}")
        assert done(record) >= set(runs)
        assert waiting(broker_url) == 0

    eventually(every_good_one_ran, timeout=240, every=0.2)
    assert worker.process.children() == children

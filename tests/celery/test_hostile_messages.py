"""P41: whatever stands in the broker, no worker process ends, and every good message behind it is executed."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import amqp
import hostile
import pytest
import redis
from kombu import Connection
from processes import WorkerNode
from safepoint.tasks.wire import Message, Publisher, parcel

SEED = 20_260_801
COUNT = 10_000
CHUNK = 500  # hostile messages between two good ones
Thing = TypeVar("Thing")


class Poisoner:
    """Puts hostile messages into a broker past every client library of ours."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.is_valkey = url.startswith("redis")

    def send(self, count: int, *, seed: int) -> Iterator[int]:
        """Send that many to the lane `online`, a chunk at a time."""
        send = self._to_valkey if self.is_valkey else self._to_rabbitmq
        return send(count, seed)

    def _to_valkey(self, count: int, seed: int) -> Iterator[int]:
        with redis.Redis.from_url(self.url) as client:
            for chunk in _chunks(item for _, item in hostile.redis_items(seed, count)):
                with client.pipeline(transaction=False) as pipeline:
                    for item in chunk:
                        pipeline.lpush("online", item)
                    pipeline.execute()
                yield len(chunk)

    def _to_rabbitmq(self, count: int, seed: int) -> Iterator[int]:
        with Connection(self.url) as connection:
            channel: Any = connection.channel()
            self._bind_exchange(channel)
            # A mutation that AMQP itself cannot carry is replaced by the next one.
            endless = (message for _, message in hostile.amqp_messages(seed, 10 * count))
            sendable = (made for made in map(_amqp_message, endless) if made is not None)
            for chunk in _chunks(itertools.islice(sendable, count)):
                for made in chunk:
                    channel.basic_publish(made, exchange="", routing_key="online")
                # One chunk in a hundred of the worst: what ends a client in the parser of AMQP itself.
                for raw in (hostile.IMPOSSIBLE_INSTANT, hostile.NO_UTF8_KEY):
                    channel.basic_publish(_RawHeaders(b"x", raw), exchange="", routing_key="online")
                channel.basic_publish(amqp.Message(b"x"), exchange="hostile", routing_key=hostile.NO_UTF8)
                channel.basic_publish(amqp.Message(b"x" * 1_000_000), exchange="", routing_key="online")
                yield len(chunk)

    def _bind_exchange(self, channel: Any) -> None:
        channel.exchange_declare("hostile", "fanout", durable=True, auto_delete=False)
        channel.queue_bind("online", "hostile")

    def command(self, body: bytes, *, content_type: str = "application/json") -> None:
        """Send a message to every worker's mailbox for commands."""
        if self.is_valkey:
            rng, database = random.Random(1), self.url.rpartition("/")[2]
            message = hostile.Forged({}, body, content_type=content_type)
            with redis.Redis.from_url(self.url) as client:
                client.publish(f"/{database}.celery.pidbox", hostile.as_item(message, rng))
        else:
            with Connection(self.url) as connection:
                made = amqp.Message(body, content_type=content_type, content_encoding="utf-8")
                channel: Any = connection.default_channel
                channel.basic_publish(made, exchange="celery.pidbox", routing_key="")


class _RawHeaders(amqp.Message):
    """A message whose properties are headers that no client library would write."""

    def __init__(self, body: bytes, table: bytes) -> None:
        super().__init__(body)
        self._table = table

    def _serialize_properties(self) -> bytes:
        return b"\x20\x00" + self._table


def _chunks(things: Iterator[Thing]) -> Iterator[list[Thing]]:
    while chunk := list(itertools.islice(things, CHUNK)):
        yield chunk


def _amqp_message(message: hostile.Forged) -> Any:
    headers = message.headers if isinstance(message.headers, dict) else {"x": message.headers}
    made: Any = amqp.Message(
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
    """How many messages wait in the queue or, on Valkey, are not acked."""
    if url.startswith("redis"):
        with redis.Redis.from_url(url) as client:
            return int(client.llen("online")) + int(client.hlen("unacked"))
    with Connection(url) as connection:
        channel: Any = connection.default_channel
        return int(channel.queue_declare("online", passive=True).message_count)


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
    assert "Traceback" not in worker.logs()


@pytest.mark.parametrize("defences", ["guard", "gate and guard"])
def test_without_the_defences_the_same_messages_end_a_worker(
    start_recorder: Callable[..., WorkerNode], broker_url: str, defences: str, eventually: Callable[..., None]
) -> None:
    worker, seeds = start_recorder(pool="threads", WITHOUT=defences), itertools.count(SEED)

    def it_has_ended() -> None:
        if worker.process.status != "exited":  # which of them is deadly depends on what it meets at work
            for _ in Poisoner(broker_url).send(CHUNK, seed=next(seeds)):
                pass
        assert worker.process.status == "exited"

    eventually(it_has_ended, timeout=60, every=1.0)


def test_commands_that_are_not_on_the_list_do_nothing(
    start_recorder: Callable[..., WorkerNode],
    publisher: Publisher,
    broker_url: str,
    pool: str,
    record: Path,
    eventually: Callable[..., None],
) -> None:
    worker, poisoner, run = start_recorder(pool=pool), Poisoner(broker_url), str(uuid4())
    children = worker.process.children()
    for method in hostile.COMMANDS:
        for arguments in hostile.ARGUMENTS:
            poisoner.command(hostile.dumps({"method": method, "arguments": arguments, "destination": None}))
    for body in hostile.commands(SEED, 300):
        poisoner.command(hostile.dumps(body))
    poisoner.command(b"\xff\xfe no json")
    poisoner.command(b"[" * 100_000)
    poisoner.command(hostile.dumps({"method": "ping"}), content_type="application/x-python-serialize")

    publisher.publish([good(run)])

    def it_ran() -> None:
        assert worker.process.status == "running", worker.logs()[-3000:]
        assert run in done(record)

    eventually(it_ran, timeout=30)
    assert worker.process.children() == children
    assert "Traceback" not in worker.logs()


@pytest.mark.parametrize("broker_url", ["valkey"], indirect=True)
def test_a_broken_entry_among_the_unacked_does_not_block_the_others(
    start_recorder: Callable[..., WorkerNode], broker_url: str, record: Path, eventually: Callable[..., None]
) -> None:
    run = str(uuid4())
    made = parcel(good(run), "online")
    item = hostile.envelope(hostile.Forged(made.headers, made.body), random.Random(1))
    entries = [b"", b"garbage", b"[1,2]", b"[1,2,3]", b'[[],"","online"]', hostile.dumps([item, "", "online"])]
    with redis.Redis.from_url(broker_url) as client:
        for number, entry in enumerate(entries):
            client.hset("unacked", f"tag{number}", entry)
            client.zadd("unacked_index", {f"tag{number}": 1_000_000 - number})

    worker = start_recorder(pool="threads")

    def it_came_back() -> None:
        assert run in done(record)
        assert waiting(broker_url) == 0

    eventually(it_came_back, timeout=30)
    assert worker.process.status == "running"


def test_flowers_questions_are_answered(
    start_recorder: Callable[..., WorkerNode], celery_setup_app: Any, broker_url: str
) -> None:
    worker = start_recorder(pool="threads")

    inspect = celery_setup_app.control.inspect(destination=[worker.hostname()], timeout=5, limit=1)

    assert inspect.ping() == {worker.hostname(): {"ok": "pong"}}
    assert inspect.stats()[worker.hostname()]["pid"] == worker.process.pid
    assert "good" in inspect.registered()[worker.hostname()]
    queues = {queue["name"] for queue in inspect.active_queues()[worker.hostname()]}
    assert queues == {"online", "recovery", "control"}
    password = broker_url.partition("@")[0].rpartition(":")[2]
    assert f":{password}@" not in str(inspect.conf())


def test_a_step_that_a_worker_does_not_know_reaches_our_handler(
    start_recorder: Callable[..., WorkerNode],
    publisher: Publisher,
    broker_url: str,
    record: Path,
    eventually: Callable[..., None],
) -> None:
    start_recorder(pool="threads")
    run = str(uuid4())

    publisher.publish([Message(run=run, step="other#1", lane="online", name="other", attempt=1, epoch=0)])

    def it_was_told() -> None:
        assert f"unknown {run} other#1" in record.read_text()
        assert waiting(broker_url) == 0

    eventually(it_was_told)


@pytest.mark.parametrize("broker_url", ["rabbitmq"], indirect=True)
def test_rabbitmq_keeps_a_refused_message_to_be_looked_at(
    start_recorder: Callable[..., WorkerNode], rabbitmq_url: str, eventually: Callable[..., None]
) -> None:
    start_recorder(pool="threads")

    with Connection(rabbitmq_url) as connection:
        channel: Any = connection.default_channel
        channel.basic_publish(amqp.Message("rubbish"), exchange="", routing_key="online")

        def it_is_there() -> None:
            assert channel.basic_get("safepoint.dead", no_ack=True) is not None

        eventually(it_is_there)

"""The publisher: an outcome for each message, bounded in time, whatever the broker does."""

from __future__ import annotations

import base64
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import redis
from kombu import Connection
from proxy import Proxy
from safepoint.config.settings import Settings
from safepoint.tasks.app import App, make_app
from safepoint.tasks.wire import Message, Publisher
from servers import ValkeyServer

BOUND = 10.0  # seconds
ESTABLISHED = "01"  # in /proc/net/tcp


def message(*, lane: str = "online", run: str | None = None) -> Message:
    return Message(run=run or str(uuid4()), step="good#1", lane=lane, name="good", attempt=1, epoch=0)


def queued(url: str, queue: str = "online") -> int:
    if url.startswith("redis"):
        with redis.Redis.from_url(url) as client:
            return int(client.llen(queue))
    with Connection(url) as connection:
        channel: Any = connection.default_channel
        return int(channel.queue_declare(queue, passive=True).message_count)


@pytest.fixture
def through_proxy(proxied_url: str, settings: Settings) -> Iterator[Publisher]:
    """A publisher that reaches the broker through the proxy."""
    app: App = make_app(settings, proxied_url)
    publisher = Publisher(app, lanes=app.lanes)
    yield publisher
    publisher.close()


def test_events_of_many_threads_leave_their_connection_whole(broker_url: str, settings: Settings) -> None:
    """A pool of threads publishes them on a connection that the worker's loop reads meanwhile: a publisher that waited
    there for confirms would take bytes of a frame that the loop has begun, and both would wait for ever.
    """
    app = make_app(settings, broker_url)
    connection: Any = app.connection_for_write()
    dispatcher: Any = app.events.Dispatcher(connection, hostname="test", buffer_group={"task"}, buffer_limit=2)
    dispatcher.send("worker-online")
    over, broken = threading.Event(), list[Exception]()

    def read() -> None:
        while not over.is_set() and broker_url.startswith("amqp"):
            try:
                connection.connection.drain_events(timeout=0)
            except (TimeoutError, BlockingIOError):
                over.wait(0.0005)
            except Exception as error:  # noqa: BLE001  # whatever it is, the loop would have ended with it
                broken.append(error)
                return

    def send(number: int) -> None:
        for part in range(100):
            dispatcher.send("task-started", uuid=f"{number}.{part}")

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    senders = [threading.Thread(target=send, args=(number,), daemon=True) for number in range(16)]
    for sender in senders:
        sender.start()
    until = time.monotonic() + 30
    for sender in senders:
        sender.join(max(0.0, until - time.monotonic()))
    over.set()
    reader.join(5)  # less than the socket's own limit
    hung = [thread for thread in (reader, *senders) if thread.is_alive()]
    connection.collect(socket_timeout=1)

    assert (hung, broken) == ([], [])


def test_a_batch_arrives(publisher: Publisher, broker_url: str) -> None:
    outcomes = publisher.publish([message() for _ in range(1_200)])

    assert outcomes == [None] * 1_200
    assert queued(broker_url) == 1_200


def test_on_redis_a_message_is_what_kombu_makes_of_it(valkey_url: str, settings: Settings) -> None:
    app = make_app(settings, valkey_url)
    publisher = Publisher(app, lanes=app.lanes)
    assert publisher.publish([message()]) == [None]
    publisher.close()
    with redis.Redis.from_url(valkey_url) as client:
        ours = json.loads(client.lindex("online", 0) or b"")

    with Connection(valkey_url) as connection:
        channel: Any = connection.default_channel
        theirs = channel.prepare_message(
            base64.b64decode(ours["body"]).decode(),
            content_type=ours["content-type"],
            content_encoding=ours["content-encoding"],
            headers=ours["headers"],
            properties={"correlation_id": ours["properties"]["correlation_id"], "delivery_mode": 2},
        )
        channel._inplace_augment_message(theirs, "", "online")

    assert ours["properties"].pop("delivery_tag") != theirs["properties"].pop("delivery_tag")
    assert ours == theirs


def test_a_lane_that_does_not_exist_is_an_error_of_its_message_alone(publisher: Publisher, broker_url: str) -> None:
    outcomes = publisher.publish([message(), message(lane="nowhere"), message(lane="recovery")])

    assert [type(outcome) for outcome in outcomes] == [type(None), LookupError, type(None)]
    assert queued(broker_url) == 1
    assert queued(broker_url, "recovery") == 1


@pytest.mark.parametrize("broker_url", ["rabbitmq"], indirect=True)
def test_a_message_that_no_queue_takes_is_an_error_and_the_queue_is_made_again(
    publisher: Publisher, broker_url: str
) -> None:
    publisher.publish([message(lane="recovery")])
    with Connection(broker_url) as connection:
        channel: Any = connection.default_channel
        channel.queue_delete("recovery")

    lost, sent, again = [publisher.publish([message(lane=lane)])[0] for lane in ("recovery", "online", "recovery")]

    assert "NO_ROUTE" in str(lost)
    assert sent is None
    assert again is None


def test_a_frozen_broker_is_an_error_in_bounded_time(
    through_proxy: Publisher, proxy: Proxy, eventually: Callable[..., None]
) -> None:
    assert through_proxy.publish([message()]) == [None]
    proxy.freeze()

    begins = time.monotonic()
    outcomes = through_proxy.publish([message(), message()])
    took = time.monotonic() - begins
    proxy.thaw()

    def it_publishes_again() -> None:
        assert through_proxy.publish([message()]) == [None]

    assert all(isinstance(outcome, Exception) for outcome in outcomes)
    assert took < BOUND
    eventually(it_publishes_again)


def test_a_broker_that_never_answers_is_an_error_in_bounded_time(through_proxy: Publisher, proxy: Proxy) -> None:
    proxy.freeze()

    begins = time.monotonic()
    outcomes = through_proxy.publish([message()])
    took = time.monotonic() - begins

    assert isinstance(outcomes[0], Exception)
    assert took < BOUND


def assert_heard_of_the_end(port: int) -> None:
    """No connection to that port is established: its end is there, where nobody looks before the next use."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    assert not [line for line in lines if line[2].endswith(f":{port:04X}") and line[3] == ESTABLISHED]


def test_a_connection_that_broke_while_idle_costs_no_message(
    through_proxy: Publisher, proxy: Proxy, eventually: Callable[..., None]
) -> None:
    assert through_proxy.publish([message()]) == [None]
    proxy.cut()

    eventually(lambda: assert_heard_of_the_end(proxy.port))
    outcomes = through_proxy.publish([message()])

    assert outcomes == [None]


def test_a_child_process_has_a_connection_of_its_own(publisher: Publisher, broker_url: str) -> None:
    assert publisher.publish([message()]) == [None]

    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if publisher.publish([message() for _ in range(20)]) == [None] * 20 else 2
            publisher.close()
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == 0
    assert publisher.publish([message() for _ in range(20)]) == [None] * 20
    assert queued(broker_url) == 41


def test_a_killed_valkey_is_an_error_until_it_is_back(valkey_server: ValkeyServer, settings: Settings) -> None:
    app = make_app(settings, valkey_server.url)
    publisher = Publisher(app, lanes=app.lanes)
    assert publisher.publish([message()]) == [None]
    valkey_server.kill()

    (outcome,) = publisher.publish([message()])
    valkey_server.start()

    assert isinstance(outcome, Exception)
    assert publisher.publish([message()]) == [None]
    publisher.close()

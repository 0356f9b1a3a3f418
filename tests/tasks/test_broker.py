"""What RabbitMQ tells, over AMQP and through its management API; Valkey is asked in tests/cli/test_doctor.py."""

from __future__ import annotations

import threading
from base64 import b64encode
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import ClassVar

import pytest
from kombu import Connection
from safepoint.config.settings import Settings
from safepoint.ledger.errors import BrokerUnavailable
from safepoint.tasks import broker, broker_amqp, management
from safepoint.tasks.app import queues

ALARMED = """[{"name": "rabbit@a", "mem_alarm": true, "disk_free_alarm": false}]"""
QUEUES = """[{"name": "online", "effective_policy_definition": {"consumer-timeout": 600000}, "arguments": {}},
 {"name": "recovery", "effective_policy_definition": {}, "arguments": {"x-consumer-timeout": 900000}},
 {"name": "control", "arguments": {}}]"""


class Pages(BaseHTTPRequestHandler):
    """Answers as RabbitMQ's management does, or as whatever else listens there."""

    realm: ClassVar[str] = "RabbitMQ Management"
    seen: ClassVar[list[str | None]] = []
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:  # the library's name
        given = self.headers.get("Authorization")
        self.seen.append(given)
        wanted = "Basic " + b64encode(b"me:pass word").decode()
        pages = {"/api/nodes": ALARMED, "/api/queues/%2F": QUEUES}
        found = pages.get(self.path) if given == wanted else None
        self.send_response(200 if found else 401)
        self.send_header("WWW-Authenticate", f'Basic realm="{self.realm}"')
        self.send_header("Content-Length", str(len(found or "")))
        self.end_headers()
        self.wfile.write((found or "").encode())

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the library's name
        pass


@pytest.fixture
def pages() -> Iterator[type[Pages]]:
    """The pages' class; `port` is where they are."""

    class Own(Pages):
        seen: ClassVar[list[str | None]] = []
        port: ClassVar[int] = 0

    with HTTPServer(("127.0.0.1", 0), Own) as server:
        Own.port = server.server_port
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield Own
        server.shutdown()
        thread.join()


def asked(pages: type[Pages], password: str = "pass%20word") -> management.Management | None:
    return management.ask(f"amqp://me:{password}@127.0.0.1:5672//", port=pages.port)  # type: ignore[attr-defined]  # the fixture's


def test_the_management_api_tells_alarms_and_timeouts(pages: type[Pages]) -> None:
    found = asked(pages)

    assert found is not None
    assert found.alarms == ("memory on rabbit@a",)
    assert found.consumer_timeouts == {"online": 600.0, "recovery": 900.0}


def test_the_brokers_password_goes_to_nobody_else(pages: type[Pages]) -> None:
    pages.realm = "a printer"

    assert asked(pages) is None
    assert pages.seen == [None]


def test_a_management_api_that_is_away_or_not_for_us_is_none(pages: type[Pages]) -> None:
    assert asked(pages, password="wrong") is None
    assert management.ask("amqp://me:x@127.0.0.1//", port=1) is None


@pytest.mark.rabbitmq
def test_rabbitmq_tells_its_queues_and_how_they_were_made_otherwise(settings: Settings, rabbitmq_url: str) -> None:
    with Connection(rabbitmq_url) as connection:
        channel = connection.default_channel
        for queue in queues(settings, rabbitmq_url):
            if queue.name == "online":
                queue(channel).declare()
        channel.queue_declare("recovery", durable=True, auto_delete=False)  # pyright: ignore[reportAttributeAccessIssue]  # kombu's stubs lack it

    found = broker_amqp.look(rabbitmq_url, settings)

    assert (found.name, found.confirms, found.blocked) == ("RabbitMQ", True, None)
    assert found.queues.waiting == {"control": None, "online": 0, "recovery": 0}
    assert found.queues.consumers == {"online": 0, "recovery": 0}
    assert list(found.queues.mismatched) == ["recovery"]
    assert "inequivalent arg 'x-" in found.queues.mismatched["recovery"]


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1/0", "amqp://me:secret@127.0.0.1:1//"])
def test_a_broker_that_is_away_is_an_error_without_its_password(url: str, settings: Settings) -> None:
    with pytest.raises(BrokerUnavailable) as caught, broker.opened(url):
        pass

    assert "secret" not in str(caught.value)


def test_the_bounds_are_those_of_a_worker_with_the_longest_step(settings: Settings) -> None:
    short = broker.bounds(settings, "redis://x", {})
    long = broker.bounds(settings, "redis://x", {"brief": 5.0, "endless": 7200.0})

    assert (short.step, short.visibility_timeout) == ("flow code", 3600)
    assert long.step == "endless"
    assert long.visibility_timeout == 4 * long.hard_limit
    assert broker.bounds(settings, "amqp://x", {}).visibility_timeout is None

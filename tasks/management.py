"""What only RabbitMQ's management API tells: alarms, and the consumer timeouts that policies and queues have.

It is asked where it usually is, beside the broker, and only after it has said that it is RabbitMQ's: the broker's
password goes to nobody else.
"""

from __future__ import annotations

import http.client
import json
import ssl
from base64 import b64encode
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, unquote, urlsplit

__all__ = ["Management", "ask"]

PORT, TLS_PORT = 15672, 15671
PATIENCE = 1.0  # seconds: most servers do not let everybody come here


@dataclass(frozen=True, slots=True)
class Management:
    """What the API says; timeouts are seconds."""

    alarms: tuple[str, ...] = ()
    consumer_timeouts: Mapping[str, float] = field(default_factory=dict)


def ask(url: str, *, port: int | None = None) -> Management | None:
    """Ask the management API of a broker; none when it does not answer us."""
    parts = urlsplit(url)
    host = parts.hostname or "127.0.0.1"
    vhost = quote(unquote(parts.path[1:]) or "/", safe="")
    user, password = unquote(parts.username or "guest"), unquote(parts.password or "guest")
    headers = {"Authorization": "Basic " + b64encode(f"{user}:{password}".encode()).decode()}
    try:
        with closing(_connection(parts.scheme, host, port)) as connection:
            if not _is_rabbitmq(connection):
                return None
            nodes, queues = _get(connection, "/api/nodes", headers), _get(connection, f"/api/queues/{vhost}", headers)
    except (OSError, http.client.HTTPException, ValueError):
        return None  # it is not there, or not for us
    if not isinstance(nodes, list) or not isinstance(queues, list):
        return None
    return Management(_alarms(nodes), {name: seconds for one in queues for name, seconds in _timeout(one)})


def _connection(scheme: str, host: str, port: int | None) -> http.client.HTTPConnection:
    if scheme == "amqps":
        context = ssl.create_default_context()
        return http.client.HTTPSConnection(host, port or TLS_PORT, timeout=PATIENCE, context=context)
    return http.client.HTTPConnection(host, port or PORT, timeout=PATIENCE)


def _is_rabbitmq(connection: http.client.HTTPConnection) -> bool:
    connection.request("GET", "/api/overview")
    answer = connection.getresponse()
    answer.read()
    return answer.status == 401 and "RabbitMQ" in (answer.getheader("WWW-Authenticate") or "")


def _get(connection: http.client.HTTPConnection, path: str, headers: Mapping[str, str]) -> Any:
    connection.request("GET", path, headers=dict(headers))
    answer = connection.getresponse()
    body = answer.read()
    return json.loads(body) if answer.status == 200 else None


def _alarms(nodes: list[Any]) -> tuple[str, ...]:
    kinds = {"mem_alarm": "memory", "disk_free_alarm": "disk space"}
    return tuple(f"{text} on {node.get('name')}" for node in nodes for key, text in kinds.items() if node.get(key))


def _timeout(queue: Mapping[str, Any]) -> list[tuple[str, float]]:
    policy = queue.get("effective_policy_definition") or {}
    own = (queue.get("arguments") or {}).get("x-consumer-timeout")
    found = [int(given) for given in (policy.get("consumer-timeout"), own) if given is not None]
    return [(str(queue["name"]), min(found) / 1000)] if found else []  # the shorter one counts

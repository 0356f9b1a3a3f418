"""A corpus of hostile messages: kinds of one idea each, mutated from a valid message by a seeded generator.

A `Forged` is a message on either broker: on Redis kombu's envelope in a list, on RabbitMQ a published message.
What only one of the two can carry (a list item that is no envelope; AMQP's own types) has kinds of its own.
"""

from __future__ import annotations

import json
import random
import zlib
from base64 import b64encode
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from safepoint.tasks.wire import Message, parcel

__all__ = [
    "AMQP_KINDS",
    "ARGUMENTS",
    "COMMANDS",
    "IMPOSSIBLE_INSTANT",
    "KINDS",
    "NO_UTF8",
    "NO_UTF8_KEY",
    "REDIS_KINDS",
    "Forged",
    "amqp_messages",
    "as_item",
    "commands",
    "dumps",
    "envelope",
    "redis_items",
    "valid",
]


@dataclass(frozen=True)
class Forged:
    """A message in the making; `body` are the bytes that the consumer would decode."""

    headers: Any
    body: bytes
    content_type: Any = "application/json"
    content_encoding: Any = "utf-8"
    properties: dict[str, Any] = field(default_factory=dict)


def _run(rng: random.Random) -> str:
    return str(UUID(int=rng.getrandbits(128)))


def valid(rng: random.Random, *, lane: str = "online") -> Forged:
    """Make a message as our own publisher sends it, for a step that no worker knows."""
    message = Message(
        run=_run(rng), step=f"hostile#{rng.randrange(1000)}", lane=lane, name="hostile", attempt=1, epoch=0
    )
    made = parcel(message, "online")
    return Forged(dict(made.headers), made.body, properties={"correlation_id": made.id})


def rubbish(rng: random.Random, depth: int = 0) -> Any:
    """Return some JSON value: of every type, and of unpleasant sizes."""
    leaves: list[Callable[[], Any]] = [
        lambda: None,
        lambda: rng.choice([True, False]),
        lambda: rng.choice([0, -1, 1, 2**31, 2**63, -(2**63) - 1, 10**40, rng.getrandbits(64)]),
        lambda: rng.choice([0.0, -1.5, 1e308, 5e-324]),
        lambda: rng.choice(
            ["", "a", "\x00", "é" * 50, "\ud800", "x" * 3000, "%s%n", "../../x", "\r\n[ERROR] forged", "{}"]
        ),
        list,
        dict,
    ]
    if depth < 3 and rng.random() < 0.4:
        if rng.random() < 0.5:
            return [rubbish(rng, depth + 1) for _ in range(rng.randrange(4))]
        return {str(rubbish(rng, 3))[:40]: rubbish(rng, depth + 1) for _ in range(rng.randrange(4))}
    return rng.choice(leaves)()


def dumps(value: Any) -> bytes:
    """Return JSON."""
    return json.dumps(value).encode()


def _with_headers(message: Forged, **changes: Any) -> Forged:
    return replace(message, headers={**message.headers, **changes})


def _missing_header(rng: random.Random, message: Forged) -> Forged:
    gone = rng.sample(sorted(message.headers), rng.randint(1, len(message.headers)))
    return replace(message, headers={name: value for name, value in message.headers.items() if name not in gone})


def _wrong_header(rng: random.Random, message: Forged) -> Forged:
    return _with_headers(message, **{rng.choice(sorted(message.headers)): rubbish(rng)})


def _extra_header(rng: random.Random, message: Forged) -> Forged:
    known = [
        *(
            "eta",
            "expires",
            "callbacks",
            "errbacks",
            "chord",
            "chain",
            "group",
            "group_index",
            "shadow",
            "timelimit",
            "meth",
        ),
        *(
            "origin",
            "parent_id",
            "stamped_headers",
            "stamps",
            "replaced_task_nesting",
            "ignore_result",
            "redelivered",
            "utc",
        ),
    ]
    instants = ["2026-13-45T99:99", "1970-01-01T00:00:00", "9999-12-31T23:59:59+14:00", "not a date"]
    value = rng.choice(instants) if rng.random() < 0.3 else rubbish(rng)
    return _with_headers(message, **{rng.choice(known): value})


def _no_headers(rng: random.Random, message: Forged) -> Forged:
    return replace(message, headers=rng.choice([{}, None, [], "text", 7, rubbish(rng)]))


def _protocol_1(rng: random.Random, message: Forged) -> Forged:
    body = {"task": rng.choice(["hostile", "celery.backend_cleanup", 1]), "id": _run(rng), "args": [], "kwargs": {}}
    body |= {rng.choice(["eta", "callbacks", "chord", "taskset", "expires", "timelimit"]): rubbish(rng)}
    return replace(message, headers={}, body=dumps(body))


def _hybrid(rng: random.Random, message: Forged) -> Forged:
    return replace(message, body=dumps({"args": rubbish(rng), "kwargs": rubbish(rng), "task": "hostile"}))


def _canvas(rng: random.Random, message: Forged) -> Forged:
    signature = {"task": "celery.map", "args": [], "kwargs": {}, "options": {}, "subtask_type": None, "immutable": True}
    embed = {
        rng.choice(["callbacks", "errbacks", "chain", "chord"]): rng.choice([[signature], signature, rubbish(rng)])
    }
    args, kwargs, _ = json.loads(message.body)
    return replace(message, body=dumps([args, kwargs, embed]))


def _wrong_body(rng: random.Random, message: Forged) -> Forged:
    args, kwargs, embed = json.loads(message.body)
    shapes = [
        rubbish(rng),
        [],
        [args],
        [args, kwargs],
        [args, kwargs, embed, {}],
        [[1], kwargs, embed],
        [{}, [], embed],
    ]
    return replace(message, body=dumps(rng.choice(shapes)))


def _wrong_arguments(rng: random.Random, message: Forged) -> Forged:
    args, kwargs, embed = json.loads(message.body)
    changed = dict(kwargs)
    match rng.randrange(3):
        case 0:
            changed[rng.choice(sorted(kwargs))] = rubbish(rng)
        case 1:
            del changed[rng.choice(sorted(kwargs))]
        case _:
            changed[rng.choice(["self", "request", "__class__", "epoch", ""])] = rubbish(rng)
    return replace(message, body=dumps([args, changed, embed]))


def _broken_body(rng: random.Random, message: Forged) -> Forged:
    body = bytearray(message.body)
    match rng.randrange(4):
        case 0:
            body = body[: rng.randrange(len(body))]
        case 1:
            body[rng.randrange(len(body))] = rng.randrange(256)
        case 2:
            body = bytearray(rng.randbytes(rng.randrange(1, 200)))
        case _:
            body = bytearray(b"\xff\xfe" + body)
    return replace(message, body=bytes(body))


def _deep(rng: random.Random, message: Forged) -> Forged:
    depth = rng.choice([100, 1500, 1990])
    opened, closed = rng.choice([(b"[", b"]"), (b'{"a":', b"}")])
    return replace(message, body=opened * depth + b"1" + closed * depth)


def _large(rng: random.Random, message: Forged) -> Forged:
    args, kwargs, embed = json.loads(message.body)
    size = rng.choice([4097, 20_000, 200_000])
    return replace(message, body=dumps([args, {**kwargs, "step": "x" * size}, embed]))


def _foreign_content(rng: random.Random, message: Forged) -> Forged:
    types = ["application/x-python-serialize", "application/x-yaml", "application/data", "text/plain", "nonsense", ""]
    encodings = ["binary", "utf-16", "zip", "rot13", "punycode", "no-such", "base64", ""]
    if rng.random() < 0.5:
        return replace(message, content_type=rng.choice(types))
    return replace(message, content_encoding=rng.choice(encodings))


def _compressed(rng: random.Random, message: Forged) -> Forged:
    packed = zlib.compress(b"0" * rng.choice([10, 5_000_000]), 9) if rng.random() < 0.1 else zlib.compress(message.body)
    names = ["application/x-gzip", "gzip", "application/x-bz2", "nonsense", 5, True]
    return replace(_with_headers(message, compression=rng.choice(names)), body=packed)


def _foreign_task(rng: random.Random, message: Forged) -> Forged:
    names = [
        "celery.chord_unlock",
        "celery.map",
        "celery.group",
        "celery.backend_cleanup",
        "os.system",
        "safepoint.scan",
    ]
    return _with_headers(message, task=rng.choice([*names, "a b", "", "x" * 500, "__import__('os')"]))


def _foreign_id(rng: random.Random, message: Forged) -> Forged:
    ids = ["", "a:b:c", _run(rng), f"{_run(rng)}:x#1:0", f"{message.headers['root_id']}:hostile#1:-1", "x" * 2000]
    return _with_headers(message, id=rng.choice(ids))


def _forged_text(rng: random.Random, message: Forged) -> Forged:
    texts = ["\x1b[2J", "line\nline", "\x00", "x" * 3000, "\u2028", "\ud800"]
    return _with_headers(message, **{rng.choice(["kwargsrepr", "argsrepr", "lang"]): rng.choice(texts)})


def _forged_chore(rng: random.Random, message: Forged) -> Forged:
    id_ = _run(rng)
    headers = {
        **message.headers,
        "task": "safepoint.scan",
        "id": id_,
        "root_id": id_,
        "expires": "2026-99-99T00:00:00+00:00",
    }
    if rng.random() < 0.5:
        headers["expires"] = rubbish(rng)
    return replace(message, headers=headers, body=b"[[],{},{}]")


KINDS: dict[str, Callable[[random.Random, Forged], Forged]] = {
    "missing header": _missing_header,
    "wrong header": _wrong_header,
    "extra header": _extra_header,
    "no headers": _no_headers,
    "protocol 1": _protocol_1,
    "hybrid protocol": _hybrid,
    "canvas": _canvas,
    "wrong body": _wrong_body,
    "wrong arguments": _wrong_arguments,
    "broken body": _broken_body,
    "deep": _deep,
    "large": _large,
    "foreign content": _foreign_content,
    "compressed": _compressed,
    "foreign task": _foreign_task,
    "foreign id": _foreign_id,
    "forged text": _forged_text,
    "forged chore": _forged_chore,
}


# --- Redis: items of a list -----------------------------------------------------------------------------------------


def envelope(message: Forged, rng: random.Random) -> dict[str, Any]:
    """Return the message as kombu puts it into a list."""
    return {
        "body": b64encode(message.body).decode(),
        "content-type": message.content_type,
        "content-encoding": message.content_encoding,
        "headers": message.headers,
        "properties": {
            **message.properties,
            "delivery_mode": 2,
            "delivery_info": {"exchange": "", "routing_key": "online"},
            "priority": 0,
            "body_encoding": "base64",
            "delivery_tag": _run(rng),
        },
    }


def as_item(message: Forged, rng: random.Random) -> bytes:
    """Return the message as an item of a list, or as kombu publishes it to a fanout."""
    return dumps(envelope(message, rng))


def _no_json(rng: random.Random, message: Forged) -> bytes:
    return rng.choice(
        [b"", b"{", b"nonsense", b"\xff\xfe\x00", b"[" * 100_000, rng.randbytes(50), b'"\\ud800"', b"1" * 5000]
    )


def _no_object(rng: random.Random, message: Forged) -> bytes:
    return dumps(rubbish(rng))


def _missing_part(rng: random.Random, message: Forged) -> bytes:
    made = envelope(message, rng)
    if rng.random() < 0.5:
        del made[rng.choice(sorted(made))]
    else:
        del made["properties"][rng.choice(sorted(made["properties"]))]
    return dumps(made)


def _wrong_part(rng: random.Random, message: Forged) -> bytes:
    made = envelope(message, rng)
    place = made if rng.random() < 0.5 else made["properties"]
    place[rng.choice(sorted(place))] = rubbish(rng)
    return dumps(made)


def _wrong_delivery(rng: random.Random, message: Forged) -> bytes:
    made = envelope(message, rng)
    match rng.randrange(3):
        case 0:
            made["properties"]["delivery_info"] = rng.choice(
                [{}, None, [], {"exchange": {}, "routing_key": []}, rubbish(rng)]
            )
        case 1:
            made["properties"]["delivery_tag"] = rng.choice([None, [], {}, 1, "", "x" * 5000, "same"])
        case _:
            made["properties"]["body_encoding"] = rng.choice(["rot13", "BASE64", 5, [], "utf-16"])
    return dumps(made)


def _bad_base64(rng: random.Random, message: Forged) -> bytes:
    return dumps({**envelope(message, rng), "body": rng.choice(["=", "a", "abc", "é", "====", "A" * 4001])})


def _typed_json(rng: random.Random, message: Forged) -> bytes:
    made = envelope(message, rng)
    kinds = ["datetime", "date", "uuid", "decimal", "bytes", "base64", "nonsense"]
    made["headers"] = {**message.headers, "x": {"__type__": rng.choice(kinds), "__value__": rubbish(rng)}}
    return dumps(made)


def _flipped(rng: random.Random, message: Forged) -> bytes:
    item = bytearray(dumps(envelope(message, rng)))
    for _ in range(rng.choice([1, 1, 2, 8])):
        item[rng.randrange(len(item))] = rng.randrange(256)
    return bytes(item[: rng.randrange(len(item))] if rng.random() < 0.2 else item)


def _huge(rng: random.Random, message: Forged) -> bytes:
    return dumps({**envelope(message, rng), "x": "y" * 2_000_000}) if rng.random() < 0.05 else _no_json(rng, message)


REDIS_KINDS: dict[str, Callable[[random.Random, Forged], bytes]] = {
    "no json": _no_json,
    "no object": _no_object,
    "missing part": _missing_part,
    "wrong part": _wrong_part,
    "wrong delivery": _wrong_delivery,
    "bad base64": _bad_base64,
    "typed json": _typed_json,
    "flipped bytes": _flipped,
    "huge": _huge,
}


def redis_items(seed: int, count: int) -> Iterator[tuple[str, bytes]]:
    """Return list items with the name of their kind, every kind equally often."""
    rng = random.Random(seed)
    names = [*KINDS, *REDIS_KINDS]
    for number in range(count):
        name = names[number % len(names)]
        if name in KINDS:
            yield name, dumps(envelope(KINDS[name](rng, valid(rng)), rng))
        else:
            yield name, REDIS_KINDS[name](rng, valid(rng))


# --- RabbitMQ: published messages -----------------------------------------------------------------------------------


def _amqp_types(rng: random.Random, message: Forged) -> Forged:
    values = [
        *(b"\xff\xfe", "\udcff", Decimal("1.5"), datetime(2026, 1, 1, tzinfo=UTC), 2**31, -(2**63), True, None, 1.5),
        *([1, [2, [3]]], {"a": {"b": {"c": {}}}}, ["x"] * 300, "y" * 60_000),
    ]
    return _with_headers(message, **{rng.choice(["x", "task", "id", "kwargsrepr", "retries"]): rng.choice(values)})


def _amqp_properties(rng: random.Random, message: Forged) -> Forged:
    choices: dict[str, list[Any]] = {
        "reply_to": ["evil", "x" * 200, ""],
        "expiration": ["100000"],
        "message_id": ["\x00", "m"],
        "timestamp": [datetime(1970, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC)],
        "type": ["x", "é" * 100],
        "app_id": ["x"],
        "priority": [0, 9, 255],
        "correlation_id": ["", "c" * 255],
        "delivery_mode": [1, 2],
    }
    name = rng.choice(sorted(choices))
    changed = _wrong_header(rng, message) if rng.random() < 0.5 else _missing_header(rng, message)
    return replace(changed, properties={**message.properties, name: rng.choice(choices[name])})


def _empty(rng: random.Random, message: Forged) -> Forged:
    return replace(message, body=b"")


# Tables of headers that only a hostile client writes, and that RabbitMQ hands on: an instant far outside of time, a key
# that is no text.
IMPOSSIBLE_INSTANT = b"\x00\x00\x00\x0b\x01aT\xff\xff\xff\xff\xff\xff\xff\xff"
NO_UTF8_KEY = b"\x00\x00\x00\x05\x02\xff\xfet\x01"
# A routing key may hold any bytes; an exchange that is bound to a queue hands it on.
NO_UTF8 = b"\xff\xfe"

AMQP_KINDS: dict[str, Callable[[random.Random, Forged], Forged]] = {
    "amqp types": _amqp_types,
    "amqp properties": _amqp_properties,
    "empty": _empty,
}


def amqp_messages(seed: int, count: int) -> Iterator[tuple[str, Forged]]:
    """Return messages with the name of their kind, every kind equally often."""
    rng = random.Random(seed)
    names = [*KINDS, *AMQP_KINDS]
    for number in range(count):
        name = names[number % len(names)]
        yield name, {**KINDS, **AMQP_KINDS}[name](rng, valid(rng))


# --- remote control -------------------------------------------------------------------------------------------------

COMMANDS = (
    *(
        "shutdown",
        "pool_grow",
        "pool_shrink",
        "pool_restart",
        "autoscale",
        "rate_limit",
        "time_limit",
        "revoke",
        "terminate",
    ),
    *("revoke_by_stamped_headers", "add_consumer", "cancel_consumer", "election", "memdump", "memsample", "objgraph"),
    *("hello", "report", "nonsense"),
)


ARGUMENTS: tuple[dict[str, Any], ...] = (
    {},
    {"n": 5},
    {"task_id": "x", "terminate": True, "signal": "KILL"},
    {"queue": "evil"},
    {"task_name": "good", "rate_limit": "1/h"},
    {"max": 50, "min": 50},
)


def commands(seed: int, count: int) -> Iterator[Any]:
    """Return bodies for the control exchange: forbidden commands, allowed ones in a wrong form, and rubbish."""
    rng = random.Random(seed)
    for _ in range(count):
        match rng.randrange(5):
            case 0:
                yield {"method": rng.choice(COMMANDS), "arguments": rng.choice(ARGUMENTS), "destination": None}
            case 1:
                yield {
                    "method": rng.choice(["ping", "stats", "conf", "registered", "query_task"]),
                    "arguments": rubbish(rng),
                }
            case 2:
                reply_to = rng.choice(
                    [{"exchange": "celeryev", "routing_key": "x"}, {"exchange": "evil"}, rubbish(rng)]
                )
                yield {"method": "ping", "arguments": {}, "reply_to": reply_to, "ticket": rubbish(rng)}
            case 3:
                yield {
                    "method": "ping",
                    "pattern": "(a+)+$",
                    "matcher": rng.choice(["pcre", "glob", 5]),
                    "destination": rubbish(rng),
                }
            case _:
                yield rubbish(rng)

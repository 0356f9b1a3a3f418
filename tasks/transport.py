"""Kombu's transports with a guard: what cannot be read arrives empty, and the gate refuses it like other rubbish.

A message that kombu or py-amqp fails to parse ends a worker before the gate can see it: the error is raised in the
event loop. So the guard looks first. It repairs nothing: it puts an empty message in the place of a broken one.
"""

from __future__ import annotations

import json
import select
import threading
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from hashlib import sha256
from queue import Empty
from ssl import SSLSocket
from typing import Any

from amqp import method_framing, spec
from amqp.basic_message import Message as AmqpMessage
from amqp.serialization import loads as amqp_loads
from celery.app.amqp import AMQP
from celery.utils.log import get_logger
from kombu import Connection
from kombu.transport import pyamqp
from kombu.transport import redis as kombu_redis
from kombu.transport.base import Transport
from kombu.utils.json import loads as kombu_loads

__all__ = ["UNREADABLE", "GuardedAMQP", "GuardedConnection", "guarded", "is_envelope", "readable"]

logger = get_logger(__name__)

MAX_ITEM = 1_048_576  # bytes of one item of a Redis list: more is not even parsed
UNREADABLE = "application/x-unreadable"
# Others would be decoded by Python's codecs before the gate is asked; some take minutes for a megabyte.
ENCODINGS = frozenset([None, "", "utf-8", "binary", "us-ascii"])


class GuardedConnection(Connection):
    """A broker connection whose transport is guarded."""

    def get_transport_cls(self) -> type[Transport]:
        """Return the guarded form of the URL's transport."""
        return guarded(super().get_transport_cls())


class GuardedAMQP(AMQP):
    """Celery's messaging with guarded connections."""

    Connection = GuardedConnection


def guarded(transport: type[Transport]) -> type[Transport]:
    """Return a transport's guarded form; what is neither Redis nor AMQP stays as it is."""
    form: type[Transport] = _guarded(transport)  # type: ignore[arg-type]  # a class is hashable, whatever the stubs say
    return form


@cache
def _guarded(transport: Any) -> Any:
    if issubclass(transport, kombu_redis.Transport):
        channel = type("GuardedChannel", (_RedisGuard, transport.Channel), {"QoS": _GuardedQoS})
        return type(f"Guarded{transport.__name__}", (transport,), {"Channel": channel})
    if issubclass(transport, pyamqp.Transport):
        return type(f"Guarded{transport.__name__}", (transport,), {"Connection": _GuardedAmqpConnection})
    return transport


# --- Redis ----------------------------------------------------------------------------------------------------------


def readable(item: bytes | str) -> bytes | str:
    """Return an item of a queue, or an empty message when kombu could not take it apart."""
    if len(item) > MAX_ITEM:
        return _empty(item)
    try:
        payload = kombu_loads(item)
    except Exception:  # noqa: BLE001  # kombu's decoders of typed values raise whatever they meet
        return _empty(item)
    return item if is_envelope(payload) else _empty(item)


def _empty(item: bytes | str) -> bytes:
    content = item.encode(errors="surrogatepass") if isinstance(item, str) else item
    properties = {
        "delivery_tag": "unreadable",
        "delivery_info": {"exchange": "", "routing_key": ""},
        "body_encoding": "base64",
    }
    payload = {
        "body": "",
        "content-type": UNREADABLE,
        "content-encoding": "utf-8",
        "headers": {"digest": sha256(content).hexdigest()},  # so that each is another one in the log
        "properties": properties,
    }
    return json.dumps(payload).encode()


def is_envelope(payload: object) -> bool:
    """Whether this is kombu's envelope of a message, as far as kombu relies on it."""
    match payload:
        case {"body": str(body), "properties": dict(properties), "headers": dict(headers), **others}:
            content, encoding = others.get("content-type"), others.get("content-encoding")
            if not isinstance(content, str | None) or not _is_encoding(encoding) or "compression" in headers:
                return False
            return _is_body(body, properties) and _is_delivery(properties)
    return False


def _is_encoding(value: object) -> bool:
    return (value is None or isinstance(value, str)) and value in ENCODINGS


def _is_body(body: str, properties: dict[str, Any]) -> bool:
    match properties.get("body_encoding"):
        case None | "utf-8":
            return True
        case "base64":
            try:
                b64decode(body)
            except ValueError:
                return False
            return True
    return False


def _is_delivery(properties: dict[str, Any]) -> bool:
    match properties:
        case {"delivery_tag": str(tag), "delivery_info": {"exchange": str(exchange), "routing_key": str(key)}}:
            # They become keys and arguments of Redis commands, which carry no lone surrogates.
            return 0 < len(tag) <= 100 and (tag + exchange + key).isascii()
    return False


class _GuardedQoS(kombu_redis.QoS):
    """The list of messages that are not acked, in which a broken entry does not block the others behind it."""

    channel: Any
    _remove_from_indices: Any

    @contextmanager
    def pipe_or_acquire(self, pipe: Any = None, client: Any = None) -> Iterator[Any]:
        """Give a pipeline, without kombu's transaction around it: the commands of an ack, or of a delivery, need none.

        Of a delivery the index comes first, of an ack the entry goes last; an index without its entry is dropped by the
        next restore, and an entry without its index is a hint that the ledger does not need.
        """
        if pipe is not None:
            yield pipe
        else:
            with self.channel.conn_or_acquire(client) as acquired:
                yield acquired.pipeline(transaction=False)

    def restore_by_tag(self, tag: Any, client: Any = None, leftmost: bool = False) -> None:  # noqa: FBT001, FBT002  # kombu's
        """Put a message back into its queue, or drop what is none."""
        try:
            super().restore_by_tag(tag, client, leftmost)
        except KeyError:
            self._drop(tag, "KeyError")  # kombu counts it among the connection's errors
        except (*self.channel.connection_errors, self.channel.ResponseError):
            raise
        except Exception as error:  # noqa: BLE001  # the entry is the broker's, and so is the error
            self._drop(tag, type(error).__name__)

    def _drop(self, tag: Any, reason: str) -> None:
        logger.warning("unacked entry dropped: reason=%s", reason)
        self._remove_from_indices(tag).execute()


class _RedisGuard:
    """What a Redis channel does differently when it is guarded; mixed in front of kombu's channel."""

    _commands: Any = None
    pool: Any
    connection_errors: tuple[type[Exception], ...]
    ResponseError: type[Exception]

    def _create_client(self, asynchronous: bool = False) -> Any:  # noqa: FBT001, FBT002  # kombu's signature
        if asynchronous:
            client = super()._create_client(asynchronous=True)  # type: ignore[misc]  # the channel behind this one
            parse = client.parse_response
            client.parse_response = lambda *args, **kwargs: _readable_reply(parse(*args, **kwargs))
            return client
        # kombu makes a client for each command, which costs more than the command. After a fork the pool is another.
        if self._commands is None or self._commands.connection_pool is not self.pool:
            self._commands = super()._create_client()  # type: ignore[misc]  # the channel behind this one
        return self._commands

    def _brpop_read(self, **options: Any) -> Any:
        return self._survive(super()._brpop_read, **options)  # type: ignore[misc]  # as above

    def _receive(self) -> Any:
        return self._survive(super()._receive)  # type: ignore[misc]  # as above

    def _survive(self, read: Callable[..., Any], **options: Any) -> Any:
        """Read, and let nothing but the connection's own errors into the event loop, which would end the worker."""
        try:
            return read(**options)
        except KeyError:
            pass  # kombu counts it among the connection's errors; here it is the message's
        except Empty:
            raise
        except (*self.connection_errors, self.ResponseError):
            raise
        except Exception as error:  # noqa: BLE001  # what the guard did not foresee costs a message, not a worker
            logger.warning("unreadable message dropped: reason=%s", type(error).__name__)
            return None
        logger.warning("unreadable message dropped: reason=KeyError")
        return None

    def _handle_message(self, client: Any, reply: Any) -> dict[str, Any]:
        payload: dict[str, Any] = super()._handle_message(client, reply)  # type: ignore[misc]  # as above
        if isinstance(payload["data"], bytes | str) and payload["data"]:
            payload["data"] = readable(payload["data"])
        return payload


def _readable_reply(reply: Any) -> Any:
    # A BRPOP's reply is a pair of key and item; every other command of this client answers something else.
    match reply:
        case [key, bytes() | str() as item]:
            return [key, readable(item)]
    return reply


# --- AMQP -----------------------------------------------------------------------------------------------------------


def _guarded_frame_handler(connection: Any, callback: Any, **kwargs: Any) -> Any:
    on_frame = method_framing.frame_handler(connection, callback, **kwargs)

    def on_guarded_frame(frame: Any) -> Any:
        kind, channel, buffer = frame
        if kind != 2:
            return on_frame(frame)
        # Class, weight and size of the body stay; the properties become none.
        emptied = (kind, channel, bytes(buffer[:12]) + b"\0\0")
        if not any(buffer[4:12]):  # without a body the message would be handed on from here, and its errors come back
            return on_frame(frame if _is_readable_header(buffer) else emptied)
        try:
            return on_frame(frame)  # parsed once: a body follows, so nothing but the parsing can fail here
        except Exception:  # noqa: BLE001  # it is the sender's choice which one
            return on_frame(emptied)

    return on_guarded_frame


def _is_readable_header(buffer: bytes) -> bool:
    header: Any = AmqpMessage()
    try:
        header.inbound_header(buffer)
    except Exception:  # noqa: BLE001  # it is the sender's choice which one
        return False
    return True


def _is_readable_delivery(payload: bytes) -> bool:
    names = bytes(payload[13 + 1 + payload[4] :])  # exchange and routing key, after the consumer's tag
    if names.isascii():
        return True
    try:
        amqp_loads("sLbss", payload, 4)
    except UnicodeDecodeError:
        return False
    return True


class _GuardedAmqpMessage(pyamqp.Message):
    def __init__(self, msg: Any, channel: Any = None, **kwargs: Any) -> None:
        headers = msg.properties.get("application_headers")
        if headers and headers.get("compression"):
            # kombu would unpack it here, however large it gets; without its body the message is refused.
            msg.body = b""
            headers["compression"] = None
        super().__init__(msg, channel=channel, **kwargs)


class _GuardedAmqpChannel(pyamqp.Channel):
    Message = _GuardedAmqpMessage

    def dispatch_method(self, method_sig: Any, payload: Any, content: Any) -> Any:
        """Hand a frame on, but reject a delivery whose names cannot be decoded (a routing key may hold any bytes)."""
        if method_sig == spec.Basic.Deliver:
            if not _is_readable_delivery(payload):
                (consumer, tag), _ = amqp_loads("sL", payload, 4)
                if consumer not in (self.no_ack_consumers or ()):
                    self.basic_reject(tag, requeue=False)
                return None
            if content.properties.get("content_encoding") not in ENCODINGS:
                content.properties = {}  # as of a header that cannot be parsed
        return super().dispatch_method(method_sig, payload, content)


class _GuardedAmqpConnection(pyamqp.Connection):
    Channel = _GuardedAmqpChannel

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "frame_handler": _guarded_frame_handler})
        self._reading = threading.RLock()  # a callback may publish, and that looks for frames as well

    def blocking_read(self, timeout: float | None = None) -> Any:
        """Read a frame: one thread at a time, and without waiting where none is asked for.

        py-amqp makes the socket itself non-blocking for a moment. With threads that publish beside the worker's loop,
        which looks before each message, one takes that back under the other's read, which then waits for ever, or
        another's write stops within a frame.

        Raises:
            TimeoutError: nothing has come, or somebody else reads it.
        """
        if not self._reading.acquire(timeout=-1 if timeout is None else timeout):
            raise TimeoutError
        try:
            sock = self.transport.sock
            # What TLS holds no poll can see; a socket that is closed says so when it is read.
            if timeout != 0 or isinstance(sock, SSLSocket) or sock is None or (place := sock.fileno()) < 0:
                return super().blocking_read(timeout)
            waiting = select.poll()
            waiting.register(place, select.POLLIN)
            if not waiting.poll(0):
                raise TimeoutError
            return self.on_inbound_frame(self.transport.read_frame())
        finally:
            self._reading.release()

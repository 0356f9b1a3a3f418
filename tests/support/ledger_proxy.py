"""A proxy before PostgreSQL that knows its protocol well enough to cut the connection around one statement."""

from __future__ import annotations

import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit, urlunsplit

__all__ = ["LedgerProxy"]

Hook = Callable[[], object]


@dataclass
class _Trap:
    """What is to happen at a statement that holds a text; each trap springs once."""

    text: bytes
    how: str  # before | after | during | call
    hook: Hook | None = None


@dataclass
class _Session:
    """One client's connection."""

    client: socket.socket
    server: socket.socket
    statements: dict[bytes, bytes] = field(default_factory=dict)  # prepared name -> text
    swallowing: bool = False  # the answer is not to reach the client
    leaving: bool = False  # the client goes as soon as its statement is whole

    def cut(self, *, server: bool = True) -> None:
        """Break it; without `server` its backend hears nothing and goes on."""
        for end in (self.client, self.server) if server else (self.client,):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


class LedgerProxy:
    """Forwards to the server of a URL. A context; `url` is the way through it.

    `cut_before("commit_v1")`: the next such statement does not reach the server. `cut_after`: it is executed and
    committed, its answer is lost. `cut_during`: the client loses its connection as soon as the statement is on its way,
    and the old backend goes on. `call_before`: something happens before it is forwarded.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._target = (parts.hostname or "127.0.0.1", parts.port or 5432)
        self._listener = socket.create_server(("127.0.0.1", 0))
        user = parts.netloc.rpartition("@")[0]
        netloc = f"{user}@127.0.0.1:{self._listener.getsockname()[1]}"
        query = "&".join(filter(None, [parts.query, "sslmode=disable", "gssencmode=disable"]))
        self.url: str = urlunsplit(parts._replace(netloc=netloc, query=query))
        self.statements: Counter[str] = Counter()  # how often each text was executed
        self.cuts = 0
        self._traps: list[_Trap] = []
        self._sessions: list[_Session] = []
        self._guard = threading.Lock()
        self._refusing = self._closed = False

    def __enter__(self) -> LedgerProxy:
        threading.Thread(target=self._accept, name="ledger-proxy", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed = True
        with suppress(OSError):  # wakes the thread that accepts
            socket.create_connection(self._listener.getsockname(), 1).close()
        self._listener.close()
        self.refuse()

    def cut_before(self, text: str) -> None:
        """Lose the next statement with that text."""
        self._traps.append(_Trap(text.encode(), "before"))

    def cut_after(self, text: str) -> None:
        """Lose the answer of the next statement with that text."""
        self._traps.append(_Trap(text.encode(), "after"))

    def cut_during(self, text: str) -> None:
        """Lose the client of the next statement with that text, while its backend executes it."""
        self._traps.append(_Trap(text.encode(), "during"))

    def call_before(self, text: str, hook: Hook, *, times: int = 1) -> None:
        """Call something before the next such statements are forwarded."""
        self._traps.extend(_Trap(text.encode(), "call", hook) for _ in range(times))

    def refuse(self) -> None:
        """Cut everything, and every new connection at once: the server is away."""
        self._refusing = True
        with self._guard:
            sessions, self._sessions = self._sessions, []
        for session in sessions:
            session.cut()

    def accept(self) -> None:
        """Let connections through again."""
        self._refusing = False

    # The wire.

    def _accept(self) -> None:
        while not self._closed:
            with suppress(OSError):
                client, _ = self._listener.accept()
                if self._refusing or self._closed:
                    client.close()
                    continue
                session = _Session(client, socket.create_connection(self._target, 5))
                with self._guard:
                    self._sessions.append(session)
                for pump in (self._to_server, self._to_client):
                    threading.Thread(target=pump, args=(session,), name="ledger-proxy", daemon=True).start()

    def _to_server(self, session: _Session) -> None:
        with suppress(OSError):
            session.server.sendall(next(_untyped(session.client), b""))
            for kind, frame in _frames(session.client):
                trap = self._sprung(session, kind, frame)
                if trap is not None and trap.how == "before":
                    break
                if trap is not None and trap.hook is not None:
                    trap.hook()
                session.server.sendall(frame)
                if session.leaving and kind in (b"S", b"Q"):
                    session.cut(server=False)
                    session.client.close()
                    return
        session.cut()
        session.client.close()

    def _sprung(self, session: _Session, kind: bytes, frame: bytes) -> _Trap | None:
        text = _text(session, kind, frame)
        if text is None:
            return None
        self.statements[text.decode(errors="replace")] += 1
        trap = next((one for one in self._traps if one.text in text), None)
        if trap is not None:
            self._traps.remove(trap)
            self.cuts += trap.how != "call"
            session.swallowing = trap.how in ("after", "during")
            session.leaving = trap.how == "during"
        return trap

    def _to_client(self, session: _Session) -> None:
        with suppress(OSError):
            for kind, frame in _frames(session.server):
                if not session.swallowing:
                    session.client.sendall(frame)
                elif kind == b"Z":  # the server is done with it
                    break
        session.cut()
        session.server.close()


def _text(session: _Session, kind: bytes, frame: bytes) -> bytes | None:
    """Tell what a frame executes: a simple query, or the statement that a Bind names."""
    body = frame[5:]
    if kind == b"Q":
        return body.rstrip(b"\0")
    if kind == b"P":
        name, text, _ = body.split(b"\0", 2)
        session.statements[name] = text
    elif kind == b"B":
        return session.statements.get(body.split(b"\0", 2)[1])
    return None


def _untyped(source: socket.socket) -> Iterator[bytes]:
    """The first message of a session has a length and no type."""
    head = _exactly(source, 4)
    if head:
        yield head + _exactly(source, struct.unpack(">I", head)[0] - 4)


def _frames(source: socket.socket) -> Iterator[tuple[bytes, bytes]]:
    while head := _exactly(source, 5):
        yield head[:1], head + _exactly(source, struct.unpack(">I", head[1:])[0] - 4)


def _exactly(source: socket.socket, count: int) -> bytes:
    found = bytearray()
    while len(found) < count:
        part = source.recv(min(65_536, count - len(found)))
        if not part:
            return b""
        found += part
    return bytes(found)

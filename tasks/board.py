"""The board: memory that a worker's main process shares with its pool children, so that a beat names what really
executes (P4).

A child writes which claim it executes; the main process reads it at each beat, and when a child dies. No lock is
needed: a slot has one
writer, and a torn read is one beat's omission (P4 asks for two).
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from ..recovery.breaker import Outcome, Tally

__all__ = ["Board", "Executing", "process_start"]

# last good beat (monotonic s), when draining began, draining, the ledger's incarnation (low 64 bits), 1 + the slot
# whose step runs alone
_HEAD = struct.Struct("=ddBxxxxxxxQq")
_MARK = struct.Struct("=dd")  # last claim (s since the epoch, the ledger's clock), newest dispatch among the claimed
# Calls of one dependency that one slot has made: ok, failed, throttled, and until when (monotonic s) the other side
# wants to be left alone. Native sizes: each number is written at once, so a reader sees the old one or the new one.
_CALLS = struct.Struct("@qqqd")
# claim token, the token of the claim that is asked for with its commit, pid, the process's start time, since when
# (monotonic s)
_SLOT = struct.Struct("=16s16sqqd")
_EMPTY = b"\0" * 16
_LANES = 64


@dataclass(frozen=True, slots=True)
class Executing:
    """What one slot says: the process, and the claim that it executes, if any."""

    slot: int
    pid: int
    pid_start: int
    token: UUID | None
    since: float


def process_start(pid: int) -> int:
    """Return when a process started, in clock ticks since boot; 0 where the system does not tell. With it a reused
    pid is nobody's.
    """
    with contextlib.suppress(OSError, ValueError, IndexError), Path(f"/proc/{pid}/stat").open("rb") as file:
        return int(file.read().rpartition(b")")[2].split()[19])
    return 0


class Board:
    """One worker's shared memory: made before the fork, inherited by every child."""

    def __init__(self, *, slots: int, lanes: tuple[str, ...], dependencies: tuple[str, ...] = ()) -> None:
        self.slots = slots
        self.lanes = lanes[:_LANES]
        self.dependencies = {name: place for place, name in enumerate(dependencies)}
        self._marks_at = _HEAD.size
        self._calls_at = self._marks_at + _MARK.size * _LANES
        self._slots_at = self._calls_at + _CALLS.size * slots * len(self.dependencies)
        self._memory = mmap.mmap(-1, self._slots_at + _SLOT.size * slots)
        self._free = list(range(slots))
        self._guard = threading.Lock()
        self._me = (0, 0)  # this process's id and start time
        self.hello_reader, self._hello_writer = os.pipe()
        os.set_blocking(self.hello_reader, False)
        os.set_blocking(self._hello_writer, False)

    # What the main process says.

    def beaten(self, at: float) -> None:
        """Say when the last beat succeeded, on the monotonic clock, which all processes of a machine share."""
        struct.pack_into("=d", self._memory, 0, at)

    def drain(self) -> None:
        """Say that nothing new starts."""
        struct.pack_into("=dB", self._memory, 8, time.monotonic(), 1)

    def identify(self, incarnation: UUID) -> None:
        """Say which ledger this is."""
        struct.pack_into("=Q", self._memory, 24, incarnation.int & (2**64 - 1))

    # What an executor asks.

    @property
    def draining(self) -> bool:
        """Whether the node drains."""
        return bool(_HEAD.unpack_from(self._memory, 0)[2])

    @property
    def incarnation(self) -> int:
        """The low half of the ledger's incarnation, 0 before it is known."""
        return int(_HEAD.unpack_from(self._memory, 0)[3])

    def since_beat(self) -> float:
        """Return the seconds since the last good beat."""
        return time.monotonic() - float(_HEAD.unpack_from(self._memory, 0)[0])

    # A step that runs alone (P23).

    def reserve(self, slot: int) -> bool:
        """Ask that nothing else starts on this node; whether this slot has it."""
        if not self._reserved:
            struct.pack_into("=q", self._memory, 32, slot + 1)
        return self._reserved == slot + 1

    def free(self, slot: int) -> None:
        """Let others start again."""
        if self._reserved == slot + 1:
            struct.pack_into("=q", self._memory, 32, 0)

    def is_reserved_from(self, slot: int) -> bool:
        """Whether another slot's step runs alone, or is about to."""
        return self._reserved not in {0, slot + 1}

    @property
    def _reserved(self) -> int:
        return int(_HEAD.unpack_from(self._memory, 0)[4])

    def mark(self, lane: str, *, claimed: float, dispatched: float) -> None:
        """Remember a claim of a lane: what a lane has overtaken tells the relay what it has lost (P11)."""
        if lane not in self.lanes:
            return
        at = self._marks_at + self.lanes.index(lane) * _MARK.size
        last, newest = _MARK.unpack_from(self._memory, at)
        _MARK.pack_into(self._memory, at, max(last, claimed), max(newest, dispatched))

    def marks(self) -> dict[str, list[float]]:
        """Return each lane's last claim and the newest dispatch among its claims, in seconds since the epoch."""
        found = {}
        for place, lane in enumerate(self.lanes):
            last, newest = _MARK.unpack_from(self._memory, self._marks_at + place * _MARK.size)
            if last:
                found[lane] = [last, newest]
        return found

    # Calls of dependencies (P39): each slot counts its own, and never down, so that nothing is lost with a child.

    def count(self, slot: int, dependency: str, outcome: Outcome, *, leave_for: float = 0.0) -> None:
        """Count a call; a bad one wakes the main process, which need not wait for its beat."""
        place = self.dependencies.get(dependency)
        if place is None:
            return
        at = self._calls_of(slot, place)
        ok, failed, throttled, until = _CALLS.unpack_from(self._memory, at)
        until = max(until, time.monotonic() + leave_for) if leave_for else until
        counted = {"ok": ok, "failed": failed, "throttled": throttled}
        counted[outcome.value] += 1
        _CALLS.pack_into(self._memory, at, *counted.values(), until)
        if outcome is not Outcome.OK:
            self._ring()

    def calls(self) -> dict[str, Tally]:
        """Sum what all slots have counted since the board was made."""
        now, found = time.monotonic(), {}
        for name, place in self.dependencies.items():
            rows = [_CALLS.unpack_from(self._memory, self._calls_of(slot, place)) for slot in range(self.slots)]
            ok, failed, throttled = (sum(row[which] for row in rows) for which in range(3))
            found[name] = Tally(ok, failed, throttled, max(0.0, max(row[3] for row in rows) - now))
        return found

    def _calls_of(self, slot: int, place: int) -> int:
        return self._calls_at + (place * self.slots + slot) * _CALLS.size

    # Slots.

    def introduce(self, slot: int) -> None:
        """Say that this process lives in a slot, so that its death is noticed; keeps what a dead predecessor was
        executing.
        """
        if self._first(slot).token is None:
            self._write(slot, _EMPTY, os.getpid(), process_start(os.getpid()))
        self._ring()

    def _ring(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._hello_writer, b"!")

    def expect(self, slot: int, token: UUID) -> None:
        """Name a second claim, which is asked for in the commit of the first: whichever of them the ledger has, a beat
        names it (P31).
        """
        first, also, pid, started, _ = self._slot(slot)
        self._write(slot, also if first == _EMPTY else first, pid, started, also=token.bytes)

    def go_on(self, slot: int, token: UUID) -> None:
        """Name this claim alone from now on."""
        _, _, pid, started, _ = self._slot(slot)
        self._write(slot, token.bytes, pid, started)

    def begin(self, slot: int, token: UUID) -> None:
        """Name a claim, before it is sent, since its answer may be lost (P4)."""
        self._write(slot, token.bytes, *self._myself())

    def end(self, slot: int) -> None:
        """Name no claim any more."""
        self._write(slot, _EMPTY, *self._myself())

    @contextlib.contextmanager
    def executing(self, slot: int, token: UUID) -> Iterator[None]:
        """Name a claim for as long as the block runs."""
        self.begin(slot, token)
        try:
            yield
        finally:
            self.end(slot)

    def borrow(self) -> int:
        """Lend a slot to a thread of this process."""
        with self._guard:
            return self._free.pop() if self._free else self.slots - 1

    def give_back(self, slot: int) -> None:
        """Take a slot back."""
        with self._guard:
            self._free.append(slot)

    def _myself(self) -> tuple[int, int]:
        if self._me[0] != os.getpid():  # after a fork it is another
            self._me = (os.getpid(), process_start(os.getpid()))
        return self._me

    def clear(self, slot: int, *, pid: int) -> None:
        """Empty the slot of a dead process, unless another one lives there already."""
        if self._first(slot).pid == pid:
            self._write(slot, _EMPTY, 0, 0)
            self.free(slot)

    def read(self) -> list[Executing]:
        """Return every slot with a process, once for each claim that it names."""
        return [found for slot in range(self.slots) for found in self._read(slot) if found.pid]

    def active(self) -> list[UUID]:
        """Return the tokens that a beat names."""
        return [found.token for found in self.read() if found.token is not None]

    def drain_hellos(self) -> None:
        """Empty the pipe that new children, and bad calls, write to."""
        with contextlib.suppress(BlockingIOError):
            while os.read(self.hello_reader, 4096):
                pass

    def _first(self, slot: int) -> Executing:
        return self._read(slot)[0]

    def _read(self, slot: int) -> list[Executing]:
        token, also, pid, started, since = self._slot(slot)
        named = [UUID(bytes=one) for one in (token, also) if one != _EMPTY]
        tokens: list[UUID | None] = [*named] or [None]
        return [Executing(slot, pid, started, one, since) for one in tokens]

    def _slot(self, slot: int) -> tuple[bytes, bytes, int, int, float]:
        found: tuple[bytes, bytes, int, int, float]
        found = _SLOT.unpack_from(self._memory, self._slots_at + slot * _SLOT.size)
        return found

    def _write(self, slot: int, token: bytes, pid: int, started: int, *, also: bytes = _EMPTY) -> None:
        at = self._slots_at + slot * _SLOT.size
        _SLOT.pack_into(self._memory, at, token, also, pid, started, time.monotonic())

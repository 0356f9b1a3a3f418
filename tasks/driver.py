"""The pure driver: feeds committed outcomes to a flow with `coroutine.send` and says what it asks for next.

It does no I/O and reads no clock, and the same records give the same state. A live driver is fed only what is new:
feeding one record costs the same however long the run is.
"""

from __future__ import annotations

from collections import deque
from types import MappingProxyType
from typing import TYPE_CHECKING

from ..ledger.codec import JSON
from ..ledger.errors import Cancelled, ForeignAwait, SafepointError, ValueNotDecodable, ValueNotOpened
from .awaited import Awaited, failure
from .branch import Branch, Group
from .ending import diverged, ending_of, returned, wrong_input
from .fresh import Fresh
from .gather import Gather
from .no_loop import no_event_loop
from .outcome import Diverged, FlowError, WasCancelled
from .situation import Situation

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from ..ledger.key import Key
    from .awaited import Asked
    from .flow import Flow
    from .outcome import Outcome
    from .record import Load, Record, RunInfo

__all__ = ["Driver"]

# The branch to go on with, the value it gets, or the error that is raised in it.
_Turn = tuple[Branch, object, BaseException | None]


class Driver:
    """One generation of one run, as far as its history has been fed."""

    def __init__(self, flow: Flow[..., object], *, run: RunInfo, load: Load | None = None) -> None:
        self.flow = flow
        self.situation = Situation(run, flow.signature, run.created_at)
        self.outcome: Outcome | None = None
        self.seen = 0
        self.last_seq = 0
        self.cancelled = False
        self.fresh = Fresh()
        self._load = load or _load_json
        self._started = False
        self._asked: dict[Key, Asked] = {}
        self._waiting: dict[Key, tuple[Branch, Awaited[object]]] = {}
        self._withdrawn: set[Key] = set()
        self._new: dict[Key, Asked] = {}  # only what is open: a replay must not hold every input there ever was
        self._dropped: list[Key] = []
        self._turns: deque[_Turn] = deque()
        self._root: Branch | None = None

    @property
    def run(self) -> RunInfo:
        """The run that it drives."""
        return self.situation.run

    @property
    def now(self) -> datetime:
        """The time of the flow: the commit of the newest record."""
        return self.situation.now

    @property
    def asked(self) -> Mapping[Key, Asked]:
        """What the flow waits for now, in the order in which it asked."""
        return MappingProxyType(self._asked)

    def take_new(self) -> list[Asked]:
        """Give what was asked for since the last call and is still open."""
        new, self._new = self._new, {}
        return list(new.values())

    def take_dropped(self) -> list[Key]:
        """Give the awaits that a cancellation has ended since the last call: nobody waits for them any more."""
        dropped, self._dropped = self._dropped, []
        return dropped

    def take_notes(self) -> list[Mapping[str, object]]:
        """Give the flow's notes since the last call."""
        notes, self.situation.notes = self.situation.notes, []
        return notes

    def start(self) -> None:
        """Run the flow to its first awaits."""
        if self._started:
            msg = f"{self.flow!r} has started already"
            raise RuntimeError(msg)
        self._started = True
        try:
            args, kwargs = self.flow.decode_input(self._load(self.run.input, self.run.encoding))
        except ValueNotOpened as error:  # no fault of the input's: give the process its codec, and the run goes on
            self.outcome = FlowError(error, f"{self.flow.name}: its input: {error}")
            return
        except ValueNotDecodable as error:
            self.outcome = wrong_input(self.flow, error)
            return
        self._root = Branch(self.situation, self.flow.fn(*args, **kwargs))
        self._go(self._root)

    def feed(self, record: Record) -> None:
        """Give the flow one committed outcome and run it on; a difference is an outcome, not an error."""
        self.seen += 1
        self.last_seq = record.seq
        situation = self.situation
        situation.now = max(situation.now, record.at)
        situation.spent_tokens += record.tokens
        situation.spent_usd += record.usd
        match record.kind:
            case "start":
                self.start()
            case "cancel":
                self.cancel()
            case "advance":
                pass
            case _:
                self._settle(record)

    def cancel(self) -> None:
        """Raise `Cancelled`, once, in every await that is open; the flow may ask for clean-up steps after it."""
        if self.cancelled or self.outcome is not None:
            return
        self.cancelled = True
        if not self._started:
            self._started = True
            self.outcome = WasCancelled(Cancelled())
            return
        waiting, self._waiting = self._waiting, {}
        self._withdrawn.update(waiting)
        self._dropped.extend(waiting)
        self._asked.clear()
        self._new.clear()
        for branch, _ in waiting.values():
            self._turns.append((branch, None, Cancelled()))
        self._run()

    def close(self) -> None:
        """End the flow's coroutines; the driver is of no use afterwards."""
        groups: dict[int, Group] = {}
        for branch, _ in self._waiting.values():
            branch.abandon()
            group = branch.group
            while group is not None and id(group) not in groups:
                groups[id(group)] = group
                group = group.parent.group
        self._waiting.clear()
        for group in groups.values():
            group.abandon()
        if self._root is not None:
            self._root.abandon()

    def __del__(self) -> None:
        self.close()

    def _settle(self, record: Record) -> None:
        asked = self._asked.get(record.key)
        if asked is None:
            if record.key not in self._withdrawn:
                self._diverge(record, None)
            return
        if asked.kind != record.kind or record.input_hash not in {None, asked.input_hash}:
            self._diverge(record, asked)
            return
        branch, awaited = self._waiting[record.key]
        error: BaseException | None = failure(awaited, record)
        value: object = None
        if error is None:
            try:
                value = awaited.value(record, self._load)
            except ValueNotDecodable as wrong:
                # The declared type has changed under the run: correct it, and the run goes on from here.
                self.outcome = FlowError(wrong, f"{record.key}: {wrong}")
                return
            self.fresh.keep(awaited, record)
        del self._asked[record.key], self._waiting[record.key]
        self._new.pop(record.key, None)
        self._go(branch, value, error)

    def _diverge(self, record: Record, asked: Asked | None) -> None:
        if isinstance(self.outcome, (FlowError, Diverged)):
            return  # held already; the first reason stands
        self.outcome = diverged(record, asked, others=self._asked.values(), ended=self.outcome)

    def _go(self, branch: Branch, value: object = None, error: BaseException | None = None) -> None:
        self._turns.append((branch, value, error))
        self._run()

    def _run(self) -> None:
        with no_event_loop():
            while self._turns:
                branch, value, error = self._turns.popleft()
                if self.outcome is None:
                    self._turn(branch, value, error)

    def _turn(self, branch: Branch, value: object, error: BaseException | None) -> None:
        """Run one branch to its next await or its end."""
        try:
            awaited = branch.send(value, error)
        except StopIteration as stop:
            self._end(branch, stop.value, None)
        except KeyboardInterrupt:
            raise
        except BaseException as raised:  # noqa: BLE001  # becomes the outcome of the branch, and so of the run
            self._end(branch, None, raised)
        else:
            self._await(branch, awaited)

    def _await(self, branch: Branch, awaited: object) -> None:
        match awaited:
            case Awaited():
                self._ask(branch, awaited)
            case Gather():
                self._open(branch, awaited)
            case _:
                self._turns.appendleft((branch, None, ForeignAwait(what=_told(awaited))))

    def _ask(self, branch: Branch, awaited: Awaited[object]) -> None:
        known = self.fresh.find(awaited, now=self.now)
        if known is not None:
            try:
                self._turns.appendleft((branch, awaited.value(known, self._load), None))
            except ValueNotDecodable as wrong:  # as in _settle
                self.outcome = FlowError(wrong, f"{known.key}: {wrong}")
            return
        group, bare = branch.group, branch.coroutine is awaited
        joins = group.name if group is not None and group.limit is None and bare else None
        asked = awaited.ask(branch.key(awaited.step_id), joins=joins)
        self._asked[asked.key] = asked
        self._waiting[asked.key] = (branch, awaited)
        self._new[asked.key] = asked

    def _open(self, branch: Branch, gather: Gather) -> None:
        own = f"gather#{branch.count('gather#')}"  # '#' keeps it apart from a step that is called gather
        name = f"{branch.path}/{own}" if branch.path else own
        group = Group(
            gather.members,
            parent=branch,
            name=name,
            limit=gather.limit,
            return_exceptions=gather.return_exceptions,
            cancelled=self.cancelled,
        )
        if not group.open:
            self._turns.appendleft((branch, [], None))
            return
        for _ in range(group.open if gather.limit is None else min(gather.limit, group.open)):
            self._start_member(group)

    def _start_member(self, group: Group) -> None:
        member = group.next_member()
        if member is None:
            return
        number, coroutine = member
        path = f"{group.name}.{number}"
        error = Cancelled() if self.cancelled and not group.cancelled else None
        self._turns.append((Branch(self.situation, coroutine, path=path, group=group, position=number), None, error))

    def _end(self, branch: Branch, value: object, error: BaseException | None) -> None:
        group = branch.group
        if group is None:
            self.outcome = returned(self.flow, value) if error is None else ending_of(self.flow, error)
        elif error is not None and not isinstance(error, Exception):
            self.outcome = ending_of(self.flow, error)
        elif group.end(branch.position, value=value, error=error):
            self._turns.append((group.parent, *group.outcome()))
        else:
            self._start_member(group)


def _told(awaited: object) -> str:
    if awaited is None:
        return "a bare yield, as asyncio.sleep(0) makes one"
    return f"{type(awaited).__module__}.{type(awaited).__qualname__}"


def _load_json(data: bytes, encoding: str) -> bytes:
    if encoding != JSON:
        msg = f"a value with encoding {encoding!r} needs a loader"
        raise SafepointError(msg)
    return data

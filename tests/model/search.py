"""Breadth-first search over every reachable state; finds the shortest schedule that breaks a rule, or a trap."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Hashable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Generic, Protocol, TypeVar

from pieces import Label

S = TypeVar("S", bound=Hashable)


class Searchable(Protocol[S]):
    """What the search asks of a model; `Model` and `EffectModel` are two."""

    @property
    def steps(self) -> tuple[str, ...]:
        """The names that labels number."""
        ...

    rules: ClassVar[frozenset[str]]  # that it judges; G2 is the search's own: no state is a trap

    def start(self, faults: int) -> S:
        """The first state."""
        ...

    def moves(self, state: S) -> Iterator[tuple[Label, S, bool, str | None]]:
        """Every move that is possible in a state."""
        ...

    def canonical(self, state: S) -> tuple[S, bool]:
        """The state that stands for all that are equal to it, and whether the workers' names were exchanged."""
        ...

    def broken(self, state: S) -> str | None:
        """The rule that a state breaks by itself."""
        ...

    def is_end(self, state: S) -> bool:
        """Whether the run is final."""
        ...

    def described(self, state: S) -> str:
        """One line on where a run stands."""
        ...


@dataclass(frozen=True)
class Counterexample:
    """A broken rule and a shortest schedule that breaks it."""

    rule: str
    schedule: tuple[str, ...]
    end: str

    def __str__(self) -> str:
        lines = (f"{number:3}. {line}" for number, line in enumerate(self.schedule, 1))
        what = "broken by" if self.rule != "G2" else "nothing that goes on by itself ends the run after"
        return "\n".join((f"{self.rule}: {what} these {len(self.schedule)} moves", *lines, f"   => {self.end}"))


@dataclass(frozen=True)
class Report:
    """What a search has seen: how many states and moves, and the first counterexample."""

    states: int
    moves: int
    counterexample: Counterexample | None


class Search(Generic[S]):
    """One model and one bound on the faults; `rules` are those that end the search, `traps` says to look for G2."""

    def __init__(
        self, model: Searchable[S], *, faults: int, rules: Collection[str] | None = None, traps: bool = True
    ) -> None:
        self.model, self.faults, self.traps = model, faults, traps
        self.rules = model.rules if rules is None else rules
        self.known: dict[S, int] = {}
        self.parents = array("l")
        self.progress = array("l")  # from, to, from, to, ...
        self.moves = 0

    def run(self) -> Report:
        """Visit everything; stop at the first broken rule, and look for a trap when there is none."""
        found = self._explore()
        if found is None and self.traps:
            found = self._find_trap()
        return Report(len(self.known), self.moves, found)

    def _explore(self) -> Counterexample | None:
        start, _ = self.model.canonical(self.model.start(self.faults))
        self.known[start] = 0
        self.parents.append(-1)
        level = [start]
        while level:
            following: list[S] = []
            for state in level:
                found = self._expand(state, following)
                if found:
                    return found
            level = following
        return None

    def _expand(self, state: S, following: list[S]) -> Counterexample | None:
        here, canonical = self.known[state], self.model.canonical
        for label, raw, progress, by_move in self.model.moves(state):
            self.moves += 1
            after, _ = canonical(raw)
            there = self.known.get(after)
            rule = by_move
            if there is None:
                there = self.known[after] = len(self.known)
                self.parents.append(here)
                following.append(after)
                rule = rule or self.model.broken(after)
            if rule in self.rules:
                return self._counterexample(rule, here, (label, after))
            if progress:
                self.progress.extend((here, there))
        return None

    def _find_trap(self) -> Counterexample | None:
        """A state from which no progress leads to a final run breaks G2.

        A finite graph in which a final state can be reached from everywhere is left by every fair schedule: "can" is
        "does" here.
        """
        backwards: list[list[int]] = [[] for _ in self.known]
        for index in range(0, len(self.progress), 2):
            backwards[self.progress[index + 1]].append(self.progress[index])
        found = [number for state, number in self.known.items() if self.model.is_end(state)]
        safe = bytearray(len(self.known))
        while found:
            number = found.pop()
            if not safe[number]:
                safe[number] = 1
                found.extend(backwards[number])
        trap = safe.find(0)  # numbers grow with the distance: this one has a shortest schedule
        return None if trap < 0 else self._counterexample("G2", self._standstill(trap), None)

    def _standstill(self, trap: int) -> int:
        """Of the states that progress reaches from a trap a farthest one, where the trap has closed for all to see."""
        onwards: dict[int, list[int]] = {}
        for index in range(0, len(self.progress), 2):
            onwards.setdefault(self.progress[index], []).append(self.progress[index + 1])
        visited, order = {trap}, [trap]
        for number in order:
            fresh = [there for there in dict.fromkeys(onwards.get(number, ())) if there not in visited]
            visited.update(fresh)
            order.extend(fresh)
        return order[-1]

    def _counterexample(self, rule: str | None, number: int, last: tuple[Label, S] | None) -> Counterexample:
        assert rule is not None
        states = list(self.known)
        path = [states[number]]
        while self.parents[number] >= 0:
            number = self.parents[number]
            path.append(states[number])
        path.reverse()
        lines, exchanged = self._retell(path)
        if last is not None:
            lines.append(self._line(last[0], exchanged=exchanged))
        return Counterexample(rule, tuple(lines), self.model.described(path[-1] if last is None else last[1]))

    def _retell(self, path: list[S]) -> tuple[list[str], bool]:
        """The labels along a path of canonical states, each worker under one name throughout."""
        lines: list[str] = []
        exchanged = False
        for before, wanted in pairwise(path):
            for label, raw, _, _ in self.model.moves(before):
                after, swap = self.model.canonical(raw)
                if after == wanted:
                    lines.append(self._line(label, exchanged=exchanged))
                    exchanged ^= swap
                    break
        return lines, exchanged

    def _line(self, label: Label, *, exchanged: bool) -> str:
        actor, which, verb, step = label
        worker = "AB"[which ^ exchanged]
        name = f"{actor} {worker}" if actor == "worker" else actor
        return f"{name} {verb.format(self.model.steps[step], worker=worker)}"

"""Breadth-first search over every reachable state; finds the shortest schedule that breaks a rule, or a trap."""

from __future__ import annotations

from array import array
from collections.abc import Collection
from dataclasses import dataclass
from itertools import pairwise

from moves import Model
from pieces import Label, canonical, described
from protocol import FINAL, State, broken_rules, enqueued

RULES = frozenset({"G1", "G3", "G4", "G5", "P9"})  # G2 is the search's own: no state is a trap


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


class Search:
    """One model and one bound on the faults; `rules` are those that end the search, `traps` says to look for G2."""

    def __init__(self, model: Model, *, faults: int, rules: Collection[str] = RULES, traps: bool = True) -> None:
        self.model, self.faults, self.rules, self.traps = model, faults, rules, traps
        self.known: dict[State, int] = {}
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
        start, _ = canonical(enqueued(self.model.flow, self.faults))
        self.known[start] = 0
        self.parents.append(-1)
        level = [start]
        while level:
            following: list[State] = []
            for state in level:
                found = self._expand(state, following)
                if found:
                    return found
            level = following
        return None

    def _expand(self, state: State, following: list[State]) -> Counterexample | None:
        here = self.known[state]
        for label, raw, progress, by_move in self.model.moves(state):
            self.moves += 1
            after, _ = canonical(raw)
            there = self.known.get(after)
            rule = by_move
            if there is None:
                there = self.known[after] = len(self.known)
                self.parents.append(here)
                following.append(after)
                rule = rule or broken_rules(self.model.flow, after)
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
        found = [number for state, number in self.known.items() if state.run in FINAL]
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

    def _counterexample(self, rule: str | None, number: int, last: tuple[Label, State] | None) -> Counterexample:
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
        return Counterexample(rule, tuple(lines), described(self.model.flow, path[-1] if last is None else last[1]))

    def _retell(self, path: list[State]) -> tuple[list[str], bool]:
        """The labels along a path of canonical states, each worker under one name throughout."""
        lines: list[str] = []
        exchanged = False
        for before, wanted in pairwise(path):
            for label, raw, _, _ in self.model.moves(before):
                after, swap = canonical(raw)
                if after == wanted:
                    lines.append(self._line(label, exchanged=exchanged))
                    exchanged ^= swap
                    break
        return lines, exchanged

    def _line(self, label: Label, *, exchanged: bool) -> str:
        actor, which, verb, step = label
        name = f"{actor} {'AB'[which ^ exchanged]}" if actor == "worker" else actor
        return f"{name} {verb.format(self.model.flow.steps[step])}"

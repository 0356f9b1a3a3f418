"""Deaths over an effect: each crash point, each kind of other side, a pool's child or the whole worker.

The deaths of one target are had together, for each has an effect, a run and a reference of its own: victims whose
children die one by one, or five at a time that die themselves. What came of it is read once and kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import orjson
from audit import Account
from crashes import Crew
from downstream import KINDS
from errands import POINTS, effect_at
from fleet import Fleet, trap
from processes import WorkerNode
from psycopg.types.json import Jsonb
from witness import Witness

__all__ = ["Death", "Deaths", "effects_of", "resolve", "result_of"]

Case = tuple[str, str]  # point, kind
CASES: list[Case] = [(point, kind) for kind in KINDS for point in POINTS]
AT_ONCE = 5  # whole workers that die together; more of them starting at once starve the others' beats


@dataclass(frozen=True)
class Death:
    """One death, and how things stood when everything had settled as far as it can without a person."""

    run: UUID
    reference: str
    account: Account
    effects: list[dict[str, Any]]
    facts: list[dict[str, Any]]

    def count(self, what: str) -> int:
        """Tell how often the other side was asked for something, or did it."""
        return sum(fact["what"] == what for fact in self.facts)

    @property
    def numbers(self) -> list[int]:
        """The numbers of what the other side has done."""
        return [fact["number"] for fact in self.facts if fact["what"] == "done"]


class Deaths:
    """Has the deaths of a target when they are first asked for."""

    def __init__(self, crew: Crew, witness: Witness) -> None:
        self.crew = crew
        self.witness = witness
        self._had: dict[str, dict[Case, Death]] = {}
        self._living: list[WorkerNode] = []  # of the victims' lane: one goes on after all deaths, for what comes later

    def of(self, target: str) -> dict[Case, Death]:
        """Return the deaths of that target; when having them has failed there are none."""
        if target not in self._had:
            self._had[target] = {}
            self._had[target] = self._have(target)
        return self._had[target]

    def _have(self, target: str) -> dict[Case, Death]:
        fleet, once, tag = self.crew.fleet, self.crew.once(), uuid4().hex[:8]
        specs = ",".join(f"{point}@{effect_at(kind, point)}" for point, kind in CASES)
        armed = trap(specs, target=target, once=once)
        self._end(self._living)
        runs = dict[Case, UUID]()
        for batch in _batches(CASES, AT_ONCE if target == "worker" else len(CASES)):
            self._start(armed, 1 + len(batch) if target == "worker" else 2)
            for point, kind in batch:
                name = effect_at(kind, point)
                runs[point, kind] = fleet.enqueue("errand", name=name, reference=f"{name}-{tag}")
            self._until_dead([_sprung(once, CASES.index(case)) for case in batch])
            for case in batch:
                fleet.until_status(runs[case], "succeeded", "failed", "cancelled", "held")
            self._end([worker for worker in self._living if worker.process.status == "exited"])
        return {case: self._read(run, f"{effect_at(case[1], case[0])}-{tag}") for case, run in runs.items()}

    def _start(self, armed: dict[str, str], count: int) -> None:
        """Have so many victims, with one child each, so that no two deaths meet."""
        for _ in range(count - len(self._living)):
            self._living.append(self.crew.fleet.worker("abroad", concurrency=1, wait=False, env=armed))
        for victim in self._living:
            victim.ready()

    def _end(self, workers: Sequence[WorkerNode]) -> None:
        for worker in list(workers):
            self.crew.fleet.end(worker)
            self._living.remove(worker)

    def _until_dead(self, traps: Sequence[Path]) -> None:
        self.crew.fleet.until(lambda: all(path.exists() for path in traps))

    def _read(self, run: UUID, reference: str) -> Death:
        fleet = self.crew.fleet
        return Death(run, reference, fleet.account(run), effects_of(fleet, run), self.witness.of(reference))


def effects_of(fleet: Fleet, run: UUID) -> list[dict[str, Any]]:
    """Return what the ledger has of a run's effects, each with its history and the status of its step."""
    rows = fleet.query(
        "SELECT to_jsonb(e) || jsonb_build_object('key', encode(e.idempotency_key, 'hex'), 'history', (SELECT"
        " jsonb_agg(to_jsonb(h) ORDER BY h.n) FROM safepoint.effect_history h"
        " WHERE h.idempotency_key = e.idempotency_key), 'step', (SELECT s.status FROM safepoint.steps s"
        " WHERE s.effect_key = e.idempotency_key))"
        " FROM safepoint.effects e WHERE run_id = %s ORDER BY e.created_at, e.reference",
        run,
    )
    return [row[0] for row in rows]


def resolve(fleet: Fleet, effect: dict[str, Any], *, verdict: str, value: object = None) -> str:
    """Say as a person what became of an effect, and return the ledger's answer."""
    row = fleet.query(
        "SELECT answer, text FROM safepoint.resolve_effect_v1(decode(%s, 'hex'), %s, %s, %s, %s, %s, 'person:Ada',"
        " 'asked the other side')",
        effect["key"],
        effect["version"],
        verdict,
        None if verdict != "succeeded" else orjson.dumps(value),
        None if verdict != "succeeded" else "json",
        None if verdict != "failed" else Jsonb({"type": "Refused", "message": "nobody has done it"}),
    )
    return str(row[0][0])


def result_of(account: Account) -> Any:
    """Return the run's result."""
    return orjson.loads(account.run["result"])


def _sprung(once: Path, index: int) -> Path:
    """Return the file that stands for the death of that trap of a list."""
    return once.with_name(f"{once.name}.{index}") if index else once


def _batches(cases: Sequence[Case], size: int) -> Iterator[Sequence[Case]]:
    for first in range(0, len(cases), size):
        yield cases[first : first + size]

"""One death at each crash point: who dies, over which step, and who has to go on.

A fleet has a relay and a survivor; the victim is new for each death and consumes the lane `front` alone, so it is
certain who gets the step that kills.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from uuid import UUID, uuid4

from audit import Account
from fleet import POOL, Fleet, trap
from processes import LocalProcess, WorkerNode

__all__ = ["IN_EXECUTION", "Crew", "die_in_execution", "die_in_relay", "die_in_scan"]


@dataclass(frozen=True)
class Death:
    """A crash point in the execution of a step: the flow, the step, and how often its code runs in all."""

    flow: str
    key: str
    runs: int

    @property
    def step(self) -> str:
        """The step's name."""
        return self.key.rpartition("/")[2].partition("#")[0]


# Some die over a member of a gather while the other one goes on, some over a step whose outcome asks for several.
IN_EXECUTION = {
    "claim.before": Death("forked", "gather#1.1/probe#1", 1),
    "claim.after": Death("forked", "gather#1.1/probe#1", 1),
    "commit.before": Death("forked", "gather#1.1/probe#1", 2),
    "commit.after": Death("early", "plan#1", 1),
    "publish.after": Death("early", "plan#1", 1),
}
RESULT = 30  # of both flows, for two parts


@dataclass
class Crew:
    """A fleet whose relay and survivor live through all deaths."""

    fleet: Fleet
    relay: LocalProcess
    survivor: WorkerNode

    @classmethod
    def start(cls, fleet: Fleet, *, pool: str = POOL) -> Crew:
        """Start relay and survivor."""
        survivor = fleet.worker("online", "recovery", pool=pool, wait=False)
        relay = fleet.relay()
        survivor.ready()
        return cls(fleet, relay, survivor)

    def once(self) -> Path:
        """Return a file that stands for a death which must happen once."""
        return self.fleet.folder / f"dead-{uuid4().hex[:8]}"


def has_died(once: Path, process: WorkerNode | LocalProcess, *, whole: bool) -> bool:
    """Tell whether the trap has sprung, and the whole process is gone where that was meant."""
    node = process.container if isinstance(process, WorkerNode) else process
    node.reload()
    return once.exists() and (not whole or node.status == "exited")


def die_in_execution(crew: Crew, point: str, *, target: str, pool: str = POOL, **env: str) -> Account:
    """Let a worker, or its child, die at a point of a step's execution; return the run when it has ended well."""
    fleet, death, once = crew.fleet, IN_EXECUTION[point], crew.once()
    armed = trap(f"{point}@{death.step}", target=target, once=once)
    victim = fleet.worker("front", pool=pool, concurrency=1, env={**armed, **env})
    run = fleet.enqueue(death.flow, n=2)

    fleet.until(lambda: has_died(once, victim, whole=target == "worker"))
    if point == "claim.before" and target == "worker":
        victim.restart()  # nobody else takes its lane, and nothing was claimed that could move to another
    account = _ends_well(fleet, run)

    assert len(fleet.began(run, death.key)) == death.runs, fleet.tell(run)
    fleet.end(victim)
    return account


def die_in_relay(crew: Crew, **env: str) -> Account:
    """Let a relay die between its publishing and its settling."""
    fleet, once = crew.fleet, crew.once()
    front = fleet.worker("front", concurrency=1, wait=False, env=env)
    crew.relay.pause()
    victim = fleet.relay(env={**trap("relay.published", target="child", once=once), **env})
    front.ready()
    run = fleet.enqueue("early", n=2)

    fleet.until(lambda: has_died(once, victim, whole=True))
    crew.relay.unpause()
    account = _ends_well(fleet, run)

    assert len(fleet.executions(run)) == 4
    fleet.end(front)
    return account


def die_in_scan(crew: Crew, *, target: str, **env: str) -> Account:
    """Let a worker, or its child, die in the scan, right after it has given an orphan to the recovery lane."""
    fleet, orphaned, once = crew.fleet, crew.once(), crew.once()
    front = fleet.worker(
        "front", concurrency=1, wait=False, env={**trap("claim.after@plan", target="worker", once=orphaned), **env}
    )
    scanner = fleet.worker(
        "control", concurrency=1, wait=False, env={**trap("scan.requeued", target=target, once=once), **env}
    )
    front.ready()
    scanner.ready()
    gate = f"scan-{uuid4().hex[:8]}"
    run = fleet.enqueue("guarded", name=gate)
    fleet.until_began(run, "linger#1")
    crew.relay.pause()  # it would scan as well
    fleet.open(gate)

    fleet.until(lambda: has_died(orphaned, front, whole=True))

    def scans() -> bool:
        fleet.ask_for_scan()  # as a beat does; one that follows another too soon does nothing
        return has_died(once, scanner, whole=target == "worker")

    fleet.until(scans, every=0.2)
    crew.relay.unpause()
    account = fleet.assert_sound(run)

    assert account.causes("plan#1") == ["node"]
    assert len(fleet.began(run, "plan#1")) == 1
    fleet.end(front)
    fleet.end(scanner)
    return account


def _ends_well(fleet: Fleet, run: UUID) -> Account:
    account = fleet.assert_sound(run)
    assert account.run["result"] == str(RESULT).encode(), fleet.tell(run)
    return account

"""Runs seeds of the effect fuzzer: `python tests/chaos/fuzz_effects.py --seeds 200`, or one again with `--seed N`.

A failing seed is told with its plan, what befell it and when, its events, its effects' histories and what the witness
world did. The plan is the seed's own; what neighbours did to its worker is not, so `--seeds 40-59` runs a range again.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import psycopg
from fleet import Fleet
from fuzz_audit import problems, tell
from fuzz_plan import plan
from fuzz_run import ENV, Fuzz
from safepoint.config import embedded
from safepoint.ledger.upgrade import upgrade
from servers import ValkeyServer, Vhosts, new_database, with_path
from witness import Witness

RABBITMQ = "amqp://guest:guest@127.0.0.1:5672//"


@contextlib.contextmanager
def servers(folder: Path, broker: str) -> Iterator[tuple[str, str]]:
    """Lend a ledger and a broker of our own."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(embedded.ensure(folder / "stack"))
        with psycopg.connect(server.ledger_url, autocommit=True) as connection:
            connection.execute("CREATE DATABASE safepoint_template")
        upgrade(with_path(server.ledger_url, "safepoint_template").replace("postgresql://", "postgresql+psycopg://"))
        ledger_url = stack.enter_context(new_database(server.ledger_url, "safepoint_template"))
        if broker == "valkey":
            valkey = ValkeyServer(folder)
            valkey.start()
            stack.callback(valkey.kill)
            yield ledger_url, valkey.url
        else:
            vhosts, name = Vhosts(RABBITMQ), f"safepoint-fuzz-{uuid4().hex[:12]}"
            if not vhosts.make(name):
                raise SystemExit("no right to make a RabbitMQ vhost")
            stack.callback(vhosts.delete, name)
            yield ledger_url, with_path(RABBITMQ, name)


def fuzz(fleet: Fleet, witness: Witness, seeds: range, *, workers: int, at_once: int) -> tuple[Fuzz, dict[int, str]]:
    """Run seeds and return what is wrong with each that has failed."""
    done = Fuzz(fleet, witness, workers=workers, at_once=at_once)
    wrong = {}
    for trial in done.run(seeds):
        found = problems(done, trial)
        if found:
            wrong[trial.plan.seed] = "\n".join([f"SEED {trial.plan.seed}", *found, tell(done, trial)])
    return done, wrong


def summary(done: Fuzz) -> str:
    """Say what has happened, to show that it was something."""
    ends = Counter(trial.status for trial in done.trials)
    kinds = Counter(kind for trial in done.trials for kind in trial.plan.kinds)
    executed = len([fact for fact in done.witness.facts if fact["what"] == "done"])
    by_people = sum(trial.settled_by_person for trial in done.trials)
    return (
        f"{len(done.trials)} runs: {dict(ends)}; effects {dict(kinds)}, {executed} executed, {by_people} settled by a"
        f" person\nbefell: {dict(sorted(done.counts.items()))}"
    )


def seeds_of(text: str) -> range:
    """Read `200` as the first two hundred, `40-59` as a range."""
    first, dash, last = text.partition("-")
    return range(int(first), int(last) + 1) if dash else range(int(first))


def main(say: Callable[[str], object] = print) -> int:
    """Run what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--seeds", type=seeds_of, default=range(200), help="how many, or a range like 40-59")
    which.add_argument("--seed", type=int, help="one alone, with its plan")
    parser.add_argument("--broker", choices=["valkey", "rabbitmq"], default="valkey")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--at-once", type=int, default=20)
    given = parser.parse_args()
    seeds = given.seeds if given.seed is None else range(given.seed, given.seed + 1)
    if given.seed is not None:
        say(str(plan(given.seed)))
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="safepoint-fuzz-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        ledger_url, broker_url = stack.enter_context(servers(folder, given.broker))
        witness = Witness.start(folder)
        stack.callback(witness.close)
        (folder / "fleet").mkdir()
        fleet = Fleet(folder / "fleet", ledger_url, broker_url, {**ENV, "OUTSIDE": witness.url})
        stack.callback(fleet.close)
        done, wrong = fuzz(fleet, witness, seeds, workers=given.workers, at_once=given.at_once)
        fleet.assert_no_deadlock()
        for text in wrong.values():
            say(text)
        if given.seed is not None:
            say(tell(done, done.trials[0]))
    took = time.monotonic() - began
    say(f"{summary(done)}\n{len(wrong)} of {len(done.trials)} seeds failed {sorted(wrong)}; {took:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

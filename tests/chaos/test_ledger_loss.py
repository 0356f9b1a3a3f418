"""A ledger that goes away and comes back: every run finishes, and no long step is paid twice for it (P13, P20)."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import UUID

import pytest
from fleet import Fleet, events
from processes import WorkerNode
from safepoint.config import embedded
from safepoint.config.postgres import Postgres
from safepoint.ledger.upgrade import upgrade

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(180)]
RUNS = 200
LEASE = 3.0
STEP = "linger#1"


class Ledger:
    """A PostgreSQL of the test's own, which it may stop, kill and start again on its port."""

    def __init__(self, stack: embedded.EmbeddedStack) -> None:
        self._server = Postgres(stack.home, stack._memory.postgres_password)
        self._port = stack._memory.postgres_port
        self.url = stack.ledger_url

    def stop(self) -> None:
        """Stop it as an operator does."""
        self._server.stop()

    def crash(self) -> None:
        """End it without a checkpoint: the next start recovers."""
        found = self._server.running()
        assert found is not None
        os.kill(found[0], signal.SIGQUIT)
        self._server.stop()

    def start(self) -> None:
        """Start it on the port that everybody knows."""
        assert self._server.ensure(self._port) == self._port


@pytest.fixture(scope="module")
def ledger() -> Iterator[Ledger]:
    """A cluster for these tests; not inside pytest's folder, which the server's user may not enter."""
    home = Path(tempfile.mkdtemp(prefix="safepoint-test-"))
    home.chmod(0o711)
    with embedded.ensure(home) as stack:
        upgrade(stack.ledger_url.replace("postgresql://", "postgresql+psycopg://"))
        yield Ledger(stack)
    shutil.rmtree(home, ignore_errors=True)


@pytest.fixture
def fleet(ledger: Ledger, new_valkey: Callable[[], str], tmp_path: Path) -> Iterator[Fleet]:
    """A fleet with a short lease on that ledger."""
    short = {"SAFEPOINT_WORKER__LEASE": str(LEASE), "SAFEPOINT_WORKER__BEAT": "0.6"}
    fleet = Fleet(tmp_path, ledger.url, new_valkey(), short)
    yield fleet
    fleet.close()
    fleet.assert_no_deadlock()


class Load:
    """200 runs: most are short, some are in a long step when the ledger goes."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.during = fleet.enqueue_many("patient", 2, name="during")
        self.after = fleet.enqueue_many("patient", 2, name="after")
        for run in self.long:
            fleet.until_began(run, STEP)
        self.short = fleet.enqueue_many("brief", RUNS - len(self.long), n=2)
        fleet.until(lambda: self.count("succeeded") >= 20)

    @property
    def long(self) -> list[UUID]:
        """The runs that have a long step."""
        return [*self.during, *self.after]

    def count(self, status: str) -> int:
        """How many of the runs have a status."""
        runs = [*self.long, *self.short] if hasattr(self, "short") else self.long
        found = self.fleet.query(
            "SELECT count(*) FROM safepoint.runs WHERE status = %s AND run_id = ANY (%s)", status, runs
        )
        return int(found[0][0])

    def assert_finishes(self) -> None:
        """Wait for all and check each; a long step has been executed once."""
        self.fleet.until(lambda: self.count("succeeded") == RUNS, timeout=120, every=0.2)
        self.fleet.close()
        self.fleet.assert_all_sound([*self.long, *self.short])
        assert [len(self.fleet.began(run, STEP)) for run in self.long] == [1] * len(self.long)


def start(fleet: Fleet) -> WorkerNode:
    worker = fleet.worker("online", "recovery", concurrency=6, wait=False)
    fleet.relay()
    worker.ready()
    return worker


def is_scanned_again(fleet: Fleet) -> bool:
    """Whether the worker beats and a relay scans on the server that has come back."""
    found = fleet.query(
        "SELECT bool_and(n.beat_at > pg_postmaster_start_time()), max(i.last_scan_at) > pg_postmaster_start_time()"
        " FROM safepoint.nodes n, safepoint.identity i WHERE n.lease_until > safepoint.now()"
    )
    return found == [(True, True)]


def test_200_runs_finish_when_the_ledger_crashes_and_recovers(fleet: Fleet, ledger: Ledger) -> None:
    worker = start(fleet)
    load = Load(fleet)

    ledger.crash()
    fleet.open("during")
    fleet.until(lambda: events(worker.raw, "ledger.away"))
    ledger.start()
    fleet.until(lambda: is_scanned_again(fleet))
    fleet.open("after")

    load.assert_finishes()


def test_200_runs_finish_when_the_ledger_is_away_for_two_leases(fleet: Fleet, ledger: Ledger) -> None:
    worker = start(fleet)
    load = Load(fleet)

    ledger.stop()
    fleet.open("during")
    fleet.until(lambda: any(line["since_beat"] >= 2 * LEASE for line in events(worker.raw, "node.beat_failed")))
    ledger.start()
    fleet.until(lambda: is_scanned_again(fleet))
    fleet.open("after")

    load.assert_finishes()

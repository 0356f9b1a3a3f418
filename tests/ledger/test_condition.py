"""How the ledger's work is counted: without reading what is done."""

from __future__ import annotations

import re

from prepared import prepared
from safepoint.ledger import condition


def test_ready_steps_are_counted_without_reading_those_that_have_ended(ledger_url: str) -> None:
    with prepared(ledger_url) as ledger:
        ledger.connection.execute("SET enable_seqscan = off")
        asked = {"late": 1.0, "lost": 1.0, "most": 10}
        statement = "EXPLAIN " + condition._LOADS

        plan = " ".join(str(line) for (line,) in ledger.connection.execute(statement.encode(), asked))

    used = set(re.findall(r"steps_[a-z_]+", plan)) - {"steps_1"}
    assert "Seq Scan on steps" not in plan
    assert used
    assert used <= {"steps_due", "steps_queue", "steps_in_flight", "steps_open"}  # none holds a step that has ended


def test_a_backlog_is_counted_by_lane_whether_the_lane_is_known_or_not(ledger_url: str) -> None:
    with prepared(ledger_url) as ledger:
        made = [ledger.enqueue() for _ in range(3)]
        ledger.connection.execute("UPDATE safepoint.steps SET lane = 'ghost' WHERE run_id = %s", [made[0]])

        found = {one.lane: one for one in condition.read_loads(ledger.connection, late=3600, lost=3600)}

    assert {lane: (one.is_known, one.due, one.late) for lane, one in found.items()} == {
        "ghost": (False, 1, 0),
        "online": (True, 2, 0),
        "recovery": (True, 0, 0),
    }

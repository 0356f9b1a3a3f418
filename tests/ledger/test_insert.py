"""One ordinary step goes in by a statement of its own; as it would by the one for any number of rows."""

from __future__ import annotations

from typing import Any

import pytest
from ledger_verbs import Verbs, ask, key

OWN = {"run_id", "ready_at", "created_at", "due_at"}


@pytest.mark.parametrize("shut", ["", "in_flight = 5", "paused = true"], ids=["open", "limited", "paused"])
@pytest.mark.parametrize(
    "asked",
    [
        ask("a#1"),
        ask("gather#1.0/a#2", uses="llm", joins="gather#1", hash="ab" * 32, reserve={"tokens": 5}),
        ask("a#1", request="eyJ4IjogMX0=", encoding="json"),
    ],
    ids=["plain", "in a gather", "with its input"],
)
def test_a_step_alone_is_written_as_one_among_others(verbs: Verbs, asked: dict[str, Any], shut: str) -> None:
    verbs.node()
    if shut:
        verbs.connection.execute(f"UPDATE safepoint.lanes SET {shut} WHERE name = 'recovery'".encode())
    asked = {**asked, "lane": "recovery"}
    rows, told, due = [], [], []
    for others in ([], [ask("z#1", lane="recovery")]):
        run = verbs.enqueue(priority=3)
        answer = verbs.commit(verbs.claimed(run), asked=[asked, *others])
        (row,) = verbs.rows("SELECT * FROM safepoint.steps WHERE run_id = %s AND step_id = 'a'", (run,))
        rows.append({name: value for name, value in row.items() if name not in OWN})
        due.append(row["due_at"] - row["ready_at"])
        (one,) = (next_ for next_ in answer.rows if next_.key.step_id == "a")
        told.append(
            (one.key, one.kind, one.name, one.lane, one.status, one.due is None, one.attempt, one.epoch, one.queued)
        )
        events = verbs.rows("SELECT type, key, data FROM safepoint.events WHERE run_id = %s ORDER BY seq", (run,))
        told.append(next(event for event in events if event["type"] == "step.scheduled"))

    assert rows[0] == rows[1]
    assert due[0] == due[1]
    assert told[:2] == told[2:]
    assert told[0][0] == key(f"{asked['path']}/a#{asked['iteration']}" if asked["path"] else "a#1")

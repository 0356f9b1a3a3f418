"""What a commit leaves in its run's row: what each one changes, and what few do, which has a statement of its own."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from ledger_verbs import Verbs, ask, key
from safepoint.ledger.commit import Result

FIRST = key("a#1")
NOTE = {"type": "note", "data": {"text": "half of it"}}
FILE = {"sha256": "ab" * 32, "size": 3, "media_type": "text/plain", "name": None}
COLUMNS = (
    "completed_steps", "spent_tokens", "spent_usd", "wasted_tokens", "wasted_usd", "plan", "artifacts", "holds",
    "current_node", "status", "state_version",
)  # fmt: skip
PLAIN = {
    "completed_steps": 1, "spent_tokens": 7, "spent_usd": Decimal("0.5"), "wasted_tokens": 0, "wasted_usd": Decimal(0),
    "plan": [], "artifacts": [], "holds": {}, "current_node": "b#1", "status": "running", "state_version": 2,
}  # fmt: skip
FAILED = {"completed_steps": 0, "wasted_tokens": 7, "wasted_usd": Decimal("0.5")}


@pytest.mark.parametrize(
    ("status", "more", "changed"),
    [
        ("succeeded", {}, {}),
        ("failed", {}, FAILED),
        ("succeeded", {"notes": [NOTE]}, {"plan": [NOTE]}),
        ("succeeded", {"artifacts": [FILE]}, {"artifacts": [FILE]}),
        ("failed", {"notes": [NOTE], "artifacts": [FILE]}, {**FAILED, "plan": [NOTE], "artifacts": [FILE]}),
    ],
    ids=["a result", "a failure", "a note", "an artifact", "all of it"],
)
def test_a_run_has_what_its_steps_commit_has_brought(
    verbs: Verbs, status: str, more: dict[str, Any], changed: dict[str, Any]
) -> None:
    run = verbs.begun(ask("a#1"))
    error = {"type": "Broken", "message": "it is"} if status == "failed" else None
    result = Result(status, datetime.now(UTC), error=error, tokens=7, usd=Decimal("0.5"))

    verbs.commit(verbs.claimed(run, FIRST), result=result, asked=[ask("b#1")], **more)

    row = verbs.run(run)
    assert {name: row[name] for name in COLUMNS} == {**PLAIN, **changed}
    types = [
        "step.started",
        "step.committed" if error is None else "step.failed",
        *(["note"] if "notes" in more else []),
    ]
    assert verbs.events(run)[-len(types) - 1 :] == [*types, "step.scheduled"]

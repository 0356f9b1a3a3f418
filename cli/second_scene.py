"""The demo's second scene: a pager that knows no key and cannot be asked, a death in between, and a person's word."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from ..config.errors import SafepointError

if TYPE_CHECKING:
    from .demo import Stage

__all__ = ["second_scene"]

Document = dict[str, Any]
ALERT = {"service": "checkout", "text": "p95 latency above 1500 ms"}
WHY = "the phone has rung, says its owner"


def second_scene(stage: Stage) -> tuple[Document, Document]:
    """Play it; return the run as it was held, and as it ended."""
    run = stage.enqueue("escalate", ALERT)
    stage.seen = 0
    stage.tell(f"\nRun {run}: a page by a pager that takes no key and cannot be asked")
    held: Document = stage.until(lambda: stage.step_on(run), what="the second run to be held")["run"]
    for effect in held["effects"]:
        _resolve(stage, effect["idempotency_key"])

    def ended() -> Document | None:
        found = stage.step_on(run)
        return found["run"] if found is not None and found["run"]["status"] != "held" else None

    return held, stage.until(ended, what="the second run to end")


def _resolve(stage: Stage, key: str) -> None:
    """Do what the person would do: the very command."""
    assert stage.stack is not None
    words = ["effects", "resolve", key[:12], "--succeeded", '"accepted"', "--by", "demo", "--why", WHY]
    shown = " ".join(f"'{word}'" if not word.isidentifier() and not word.startswith("-") else word for word in words)
    stage.tell(f"  $ safepoint {shown}")
    env = {**os.environ, "SAFEPOINT_LEDGER_URL": stage.stack.ledger_url, "SAFEPOINT_BROKER_URL": stage.stack.broker_url}
    ran = subprocess.run(  # our own command
        [sys.executable, "-m", __name__.partition(".")[0], *words], env=env, capture_output=True, text=True, check=False
    )
    if ran.returncode != 0:
        raise SafepointError(f"safepoint effects resolve failed: {ran.stderr.strip() or ran.stdout.strip()}")
    for line in ran.stdout.splitlines():
        stage.tell(f"  {line}")

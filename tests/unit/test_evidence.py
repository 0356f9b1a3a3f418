"""What is kept of a death: facts, and one suspicion."""

from __future__ import annotations

from typing import Any

import pytest
from safepoint.recovery.evidence import of_child, of_worker, sampled

GIB = 1 << 30
LIKELY = "likely"


@pytest.mark.parametrize(
    ("facts", "suspicion"),
    [
        ({"killed_by": "SIGKILL", "kills": 1}, LIKELY),
        ({"killed_by": "SIGKILL", "kills": 0}, None),
        ({"killed_by": "SIGKILL", "kills": None}, None),
        ({"killed_by": "SIGKILL", "resident": 19 * GIB // 10, "allowed": 2 * GIB}, LIKELY),
        ({"killed_by": "SIGKILL", "resident": GIB, "allowed": 2 * GIB, "kills": 0}, None),
        ({"killed_by": "SIGKILL", "resident": GIB, "allowed": 2 * GIB, "kills": 1}, LIKELY),  # others hold the rest
        ({"killed_by": "SIGSEGV", "resident": 2 * GIB, "allowed": 2 * GIB, "kills": 1}, None),
        ({"exit_code": 1, "kills": 1}, None),
    ],
)
def test_who_was_killed_when_the_kernel_killed_for_memory_was_likely_killed_for_it(
    facts: dict[str, Any], suspicion: str | None
) -> None:
    assert of_child(7, **facts).get("out_of_memory") == suspicion


def test_what_is_not_known_is_not_told() -> None:
    assert of_child(7) == {"dead": True, "pid": 7}
    assert of_child(7, exit_code=0, allowed=GIB) == {"dead": True, "pid": 7, "exit_code": 0}


def test_of_a_dead_worker_the_last_beat_is_left() -> None:
    beat = sampled({"7": GIB, "8": 2 * GIB}, allowed=2 * GIB)

    assert of_worker(7, beat, dead=False) == {"pid": 7, "resident": GIB, "allowed": 2 * GIB, "seen": "last beat"}
    assert of_worker(8, beat, dead=True)["out_of_memory"] == LIKELY


@pytest.mark.parametrize("beat", [None, {}, {"resident": None}, {"allowed": 5}])
def test_a_worker_whose_beats_told_nothing_has_no_memory(beat: dict[str, Any] | None) -> None:
    assert of_worker(7, beat, dead=False) == {"pid": 7}

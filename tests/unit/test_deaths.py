"""A poison step is told in one sentence that a person can act on, and death by death."""

from __future__ import annotations

from typing import Any

import pytest
from safepoint.ledger.deaths import line, next_step, sentence, size
from safepoint.ledger.reasons import complete

GIB = 1 << 30
PLACE = {"node": "vm:3:ab", "epoch": 6, "ran": 12.5, "cause": "child", "pid": 9}
KILLED = {**PLACE, "signal": "SIGKILL", "resident": 19 * GIB // 10, "allowed": 2 * GIB, "out_of_memory": "likely"}
CRASHED = {**PLACE, "signal": "SIGSEGV", "resident": GIB, "allowed": 2 * GIB}
GONE = {**PLACE, "cause": "node", "resident": GIB, "allowed": 2 * GIB, "seen": "last beat"}


def held(*evidence: dict[str, Any], **facts: Any) -> dict[str, Any]:
    return {"step": "crunch#1", "deaths": len(evidence), "evidence": list(evidence), **facts}


@pytest.mark.parametrize(
    ("detail", "told"),
    [
        (
            held(*[KILLED] * 6),
            "the worker died under step crunch#1 6 times: SIGKILL 6 times;"
            " last on vm:3:ab after 12.5 s with 1.9 GiB resident of 2.0 GiB allowed, likely out of memory",
        ),
        (
            held({**PLACE, "exit_code": 3}, CRASHED, CRASHED),
            "the worker died under step crunch#1 3 times: SIGSEGV 2 times, exit code 3 once;"
            " last on vm:3:ab after 12.5 s with 1.0 GiB resident of 2.0 GiB allowed, a crash in native code",
        ),
        (
            held({**GONE, "shared": True}, GONE, deaths=1, shared_deaths=1),
            "the worker died under step crunch#1 2 times (1 of them with other steps beside it): the whole worker died"
            " 2 times; last on vm:3:ab after 12.5 s with 1.0 GiB resident at its last beat of 2.0 GiB allowed;"
            " its supervisor or the kernel's log tells how it ended",
        ),
        (
            held({**PLACE, "error": {"type": "TypeError", "message": "no"}}, deaths=30),
            "the worker died under step crunch#1 30 times: of the last 1, an error outside its code, TypeError: no once"
            "; last on vm:3:ab after 12.5 s",
        ),
        (
            held({"cause": "child"}),
            "the worker died under step crunch#1 once: nobody has seen how once; last on a node",
        ),
    ],
)
def test_a_poison_step_is_told_in_a_sentence(detail: dict[str, Any], told: str) -> None:
    assert sentence(detail) == told


@pytest.mark.parametrize("detail", [{}, {"evidence": None}, {"pid": 7}, {"evidence": [3]}])
def test_a_hold_of_an_earlier_release_keeps_its_own_words(detail: dict[str, Any]) -> None:
    reason = {"code": "poison", "since": "now", "text": "it died", "next": "do this", "detail": detail}

    assert sentence(detail) is None
    assert {**complete(reason, "R"), "detail": detail} == reason


@pytest.mark.parametrize(("one", "what"), [(KILLED, "more memory"), (CRASHED, "mend the step")])
def test_what_to_do_follows_from_how_it_died(one: dict[str, Any], what: str) -> None:
    reason = complete({"code": "poison", "detail": held(one)}, "R")

    assert what in reason["next"]
    assert reason["next"].endswith("then: safepoint resume R")
    assert next_step({}, "R") == "safepoint resume R"


def test_each_death_is_a_line() -> None:
    assert line(KILLED) == (
        "SIGKILL, pid 9, on vm:3:ab, epoch 6, after 12.5 s, 1.9 GiB resident of 2.0 GiB allowed, likely out of memory"
    )


@pytest.mark.parametrize(
    ("count", "told"),
    [(0, "0 bytes"), (5000, "4.9 KiB"), (1001 << 20, "1.0 GiB"), (350 << 20, "350 MiB"), (1 << 60, "1048576 TiB")],
)
def test_a_size_is_told_as_people_say_it(count: int, told: str) -> None:
    assert size(count) == told

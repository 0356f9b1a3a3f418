"""Effects in a played run: approvals, rejections, and what nobody could know."""

from __future__ import annotations

import pytest
from safepoint import effect, flow
from safepoint.errors import RunFailed, RunHeld
from safepoint.testing import run_flow
from safepoint.testing.world import Stuck


class NoMoneyError(Exception):
    """The bank says no."""


@effect(
    name="played_pay", requires_approval="role:treasurer", rejected=(NoMoneyError,), not_sent=(ConnectionRefusedError,)
)
def pay(to: str) -> str:
    return f"paid {to}"


@flow(name="played_pays", version="1")
async def pays() -> str:
    return await pay("ann")


def test_an_effect_that_needs_approval_is_sent_with_one() -> None:
    shown: list[object] = []

    played = run_flow(pays(), steps={pay: "done"}, approvals={"played_pay": lambda show: shown.append(show) is None})

    assert played.result == "done"
    assert shown == [{"to": "ann"}]


def test_an_effect_that_was_denied_is_not_sent() -> None:
    with pytest.raises(RunFailed, match="test said no") as raised:
        run_flow(pays(), steps={pay: "done"}, approvals={"played_pay": False})

    assert raised.value.played.effects == []  # type: ignore[attr-defined]


def test_nothing_approves_itself() -> None:
    with pytest.raises(Stuck, match="a decision on played_pay#1"):
        run_flow(pays(), steps={pay: "done"})


def test_a_rejected_effect_is_not_tried_again() -> None:
    with pytest.raises(RunFailed, match="NoMoneyError") as raised:
        run_flow(pays(), steps={pay: NoMoneyError("no")}, approvals={"played_pay": True})

    assert len(raised.value.played.calls) == 1  # type: ignore[attr-defined]


def test_what_was_not_sent_is_tried_again() -> None:
    tries: list[int] = []

    def at_last(to: str) -> str:
        tries.append(1)
        if len(tries) < 3:
            raise ConnectionRefusedError
        return to

    assert run_flow(pays(), steps={pay: at_last}, approvals={"played_pay": True}).result == "ann"


def test_what_nobody_knows_holds_the_run() -> None:
    with pytest.raises(RunHeld, match="nobody knows"):
        run_flow(pays(), steps={pay: TimeoutError()}, approvals={"played_pay": True})

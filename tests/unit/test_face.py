"""The face: 25 names, sorted, cheap to import, and every error under one roof."""

from __future__ import annotations

import subprocess
import sys
from datetime import datetime

import pytest
import safepoint
import safepoint.errors
from safepoint import Budget
from safepoint.errors import NaiveDatetime, RetryAfter, RunFailed, SafepointError, StepFailed
from safepoint.http import webhook
from safepoint.ledger import effect_errors
from safepoint.ledger import errors as ledger_errors
from safepoint.tasks.enqueue import EnqueueOptions

NAMES = """
    flow step effect gather sleep wait_for approval continue_as now random uuid4 current on_start Budget Client Run Step
    Flow Artifact Decision Lookup Found NOT_EXECUTED UNSURE Permanent
"""


def test_the_face_has_the_names_of_the_contract():
    assert set(safepoint.__all__) == set(NAMES.split())
    assert len(safepoint.__all__) == 25
    assert safepoint.__all__ == sorted(
        safepoint.__all__, key=lambda name: (not name.isupper(), name[0].islower(), name)
    )
    assert set(dir(safepoint)) == set(safepoint.__all__)


def test_every_name_is_there():
    for name in safepoint.__all__:
        assert getattr(safepoint, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = safepoint.nonsense


def test_a_module_of_flows_pays_for_nothing_heavy():
    heavy = {"celery", "sqlalchemy", "psycopg", "pydantic", "tenacity", "asyncio"}
    program = f"import sys, safepoint; print(sorted({heavy} & set(sys.modules)))"

    said = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )

    assert said.stdout == "[]\n"


def test_every_error_has_a_public_name():
    homes = {name: home for home in (ledger_errors, effect_errors) for name in home.__all__ if name != "describe"}
    homes |= {"BadSettlement": webhook, "WebhookRefused": webhook}

    assert set(safepoint.errors.__all__) == set(homes)
    for name, home in homes.items():
        assert getattr(safepoint.errors, name) is getattr(home, name)


@pytest.mark.parametrize("name", [n for n in safepoint.errors.__all__ if n != "Problem"])
def test_every_error_has_one_root_and_a_docstring(name: str):
    kind = getattr(safepoint.errors, name)

    assert issubclass(kind, SafepointError)
    assert kind.__doc__


@pytest.mark.parametrize(
    "error",
    [
        StepFailed("search", "Busy", "no", 3),
        RetryAfter(3, "slow down"),
        RunFailed("run-1", {"type": "Busy", "message": "no"}),
        safepoint.Permanent("no"),
    ],
)
def test_errors_survive_their_way_between_processes(error: SafepointError):
    import pickle

    back = pickle.loads(pickle.dumps(error))

    assert (type(back), str(back), vars(back)) == (type(error), str(error), vars(error))


def test_what_cannot_be_shown_is_described_all_the_same():
    class MuteError(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert ledger_errors.describe(MuteError())["message"] == "<MuteError that cannot be shown>"
    assert ledger_errors.describe(RuntimeError("a\0b\ud800"))["message"] == "a\\x00b\\ud800"


def test_a_naive_datetime_has_an_error_of_its_own():
    with pytest.raises(NaiveDatetime, match="Accepted: an aware datetime"):
        EnqueueOptions(start_at=datetime(2025, 1, 1))  # noqa: DTZ001  # what the test is about


@pytest.mark.parametrize("amounts", [{"tokens": -1}, {"tokens": 1.5}, {"usd": float("inf")}, {"retries": True}])
def test_what_is_no_amount_is_refused(amounts):
    with pytest.raises((TypeError, ValueError), match="accepted is"):
        Budget(**amounts)


def test_a_budget_never_goes_below_nothing():
    assert Budget(tokens=5, usd=1, retries=2).less(tokens=9, usd=0.25, retries=1) == Budget(0, 0.75, 1)
    assert Budget().less(tokens=9) == Budget()

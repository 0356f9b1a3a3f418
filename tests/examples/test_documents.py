"""The document pipeline: played without servers, and on a real stack, uploaded and read back by its own program."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "documents"
sys.path.insert(0, str(EXAMPLE))

import document_pipeline as pipeline  # noqa: E402  # the example's folder is on the path only now
import page_model  # noqa: E402
from safepoint import Budget  # noqa: E402
from safepoint.errors import BudgetExceeded, RunFailed  # noqa: E402
from safepoint.testing import Artifacts, run_flow  # noqa: E402
from safepoint.testing.plugin import CrashAt  # noqa: E402
from safepoint.testing.stack import Stack  # noqa: E402

FILE = EXAMPLE / "input" / "invoices.txt"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCUMENTS_MODEL_SECONDS", "0")


def play(text: str | None = None, **options: Any) -> Any:
    uploaded = Artifacts()
    document = uploaded.add(FILE.read_text() if text is None else text, name="invoices.txt")
    return run_flow(pipeline.documents(document), artifacts=uploaded, **options)


def rows(report: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(report.decode().splitlines()))


@pytest.mark.parametrize("seed", range(3))
def test_the_pages_become_a_table_in_whatever_order_they_are_read(seed: int) -> None:
    result = play(order="shuffle", seed=seed).result

    table = rows(result.report.read())
    assert (result.invoices, result.total, result.for_a_person) == (11, 723_056, [6, 7, 10])
    assert sum(round(float(row["total"]) * 100) for row in table if row["remark"] == "total") == result.total
    assert result.report.name == "invoices.txt.csv"


def test_what_a_person_should_look_at_says_why() -> None:
    remarks = {row["page"]: row["remark"] for row in rows(play().result.report.read()) if row["page"]}

    assert remarks["6"] == "the lines add up to 193.40"
    assert remarks["10"] == "came twice"
    assert remarks["7"].startswith("not read: ")
    assert [page for page, remark in remarks.items() if remark] == ["6", "10", "7"]


def test_a_page_that_cannot_be_read_is_tried_three_times_and_paid_for() -> None:
    played = play()

    blurred = [call for call in played.calls if call.key == "gather#1.7/extract_invoice#1"]
    assert [type(call.error) for call in blurred] == [page_model.NonsenseError] * 3


def test_at_most_so_many_pages_are_read_at_once() -> None:
    played = play()

    scheduled = [event.type for event in played.events if "extract_invoice" in str(event.key)]
    assert scheduled[: pipeline.AT_ONCE + 1] == ["step.scheduled"] * pipeline.AT_ONCE + ["step.committed"]


def test_no_text_goes_from_step_to_step() -> None:
    played = play()

    assert all("Invoice  " not in repr(call.arguments) for call in played.calls)


@pytest.mark.parametrize(("text", "pages"), [("", 0), ("\f\f \n", 0), ("x\f" * 2_001, 2_001)])
def test_a_document_that_is_empty_or_far_too_long_is_refused(text: str, pages: int) -> None:
    with pytest.raises(RunFailed, match=f"has {pages} pages"):
        play(text)


def test_a_budget_that_is_used_up_ends_the_run() -> None:
    with pytest.raises(RunFailed) as caught:
        play(budget=Budget(tokens=600))

    assert isinstance(caught.value.__cause__, BudgetExceeded)


@pytest.mark.postgres
@pytest.mark.slow
def test_a_document_is_uploaded_read_and_reported_though_a_worker_dies(
    safepoint_stack: Stack, crash_at: CrashAt
) -> None:
    crash = crash_at("commit.before@extract_invoice:5")
    safepoint_stack.flows = ("document_pipeline",)
    safepoint_stack.relay()
    safepoint_stack.worker(concurrency=2)
    submit = [sys.executable, str(EXAMPLE / "submit.py"), str(FILE), "--tenant", "acme"]

    said = subprocess.run(submit, capture_output=True, text=True, check=True)

    assert crash.has_happened
    assert "11 invoices, 7230.56 in all" in said.stderr
    assert len(rows(said.stdout.encode())) == 17
    document = safepoint_stack.client.artifact(FILE, tenant="acme")
    again = pipeline.documents(document).enqueue(tenant="acme", key=f"document-{document.sha256}")
    assert str(again.id) in said.stderr

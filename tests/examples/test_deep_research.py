"""The research agent: played without servers, and on a real stack whose worker dies in the middle."""

from __future__ import annotations

import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "deep_research"
sys.path.insert(0, str(EXAMPLE))

import library  # noqa: E402  # the example's folder is on the path only now
import research_agent as agent  # noqa: E402
import research_model  # noqa: E402
from safepoint import Budget, Permanent  # noqa: E402
from safepoint.errors import BudgetExceeded, RunFailed  # noqa: E402
from safepoint.testing import run_flow  # noqa: E402
from safepoint.testing.plugin import CrashAt  # noqa: E402
from safepoint.testing.stack import Stack  # noqa: E402

READ_REPORT = str(EXAMPLE / "read_report.py")
QUESTION = "Are heat pumps any good in old houses?"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESEARCH_MODEL_SECONDS", "0")
    library.forget()


@pytest.mark.parametrize("seed", range(3))
def test_a_report_names_its_sources_and_what_could_not_be_read(seed: int) -> None:
    report = run_flow(agent.research(QUESTION), order="shuffle", seed=seed).result

    text = report.text.read().decode()
    assert text.startswith(f"# {QUESTION}")
    assert {f"{library.SITE}{page}" for page in ("field-trial", "residents", "acoustics")} <= set(report.sources)
    assert all(source in text for source in report.sources)
    assert [one.partition(" ")[0] for one in report.left_out] == [f"{library.SITE}a-forgotten-study"]


def test_the_second_round_asks_for_what_the_first_left_open() -> None:
    first = run_flow(agent.research(QUESTION, rounds=1)).result
    both = run_flow(agent.research(QUESTION, rounds=2)).result

    assert "## Noise" not in first.text.read().decode()
    assert "## Noise" in both.text.read().decode()
    assert both.sources[: len(first.sources)] == first.sources


def test_a_busy_engine_is_asked_again() -> None:
    played = run_flow(agent.research(QUESTION))

    attempts = [call.attempt for call in played.calls if call.step == "search_library"]
    assert (max(attempts), played.result.sources != []) == (2, True)


def test_a_site_that_wants_to_be_left_alone_is_left_alone() -> None:
    played = run_flow(agent.research(QUESTION))

    retried = [event for event in played.events if event.type == "step.retried" and "fetch_page" in str(event.key)]
    assert len(retried) >= 1


def test_at_most_so_many_searches_run_at_once() -> None:
    subjects = [f"heat pump {n}" for n in range(12)]

    played = run_flow(
        agent.research(QUESTION, rounds=1, width=3), steps={agent.plan_searches: subjects, agent.search_library: []}
    )

    scheduled = [event.type for event in played.events if "search_library" in str(event.key)]
    assert scheduled[:4] == ["step.scheduled"] * 3 + ["step.committed"]


def test_searches_that_fail_for_good_are_named() -> None:
    played = run_flow(agent.research(QUESTION, rounds=1), steps={agent.search_library: Permanent("no such index")})

    assert len(played.result.left_out) == 3
    assert "no such index" in played.result.text.read().decode()


def test_without_a_budget_there_is_no_report() -> None:
    with pytest.raises(RunFailed) as caught:
        run_flow(agent.research(QUESTION), budget=Budget(tokens=900))

    assert isinstance(caught.value.__cause__, BudgetExceeded)


def test_time_and_id_are_the_same_on_every_replay() -> None:
    reports = [run_flow(agent.research(QUESTION, rounds=1), seed=seed).result for seed in (1, 1, 2)]

    assert reports[0].id == reports[1].id != reports[2].id
    assert all(isinstance(report.as_of, datetime) and report.as_of.tzinfo for report in reports)


def test_the_model_answers_the_same() -> None:
    assert research_model.plan(QUESTION) == research_model.plan(QUESTION)


@pytest.mark.postgres
@pytest.mark.slow
def test_a_worker_dies_and_nothing_that_was_read_is_read_again(safepoint_stack: Stack, crash_at: CrashAt) -> None:
    crash = crash_at("commit.after@rerank_hits")
    safepoint_stack.flows = ("research_agent",)
    safepoint_stack.relay()
    safepoint_stack.worker(concurrency=2)

    run = agent.research(QUESTION, rounds=1).enqueue(deadline=3600, budget=Budget(tokens=50_000, usd=1))
    report: Any = run.result(timeout=60)

    assert crash.has_happened
    assert report.text.read().decode().startswith(f"# {QUESTION}")
    said = subprocess.run([sys.executable, READ_REPORT, run.id], capture_output=True, text=True, check=True).stdout
    assert said == report.text.read().decode() + "\n"
    committed = [event.key for event in run.events() if event.type == "step.committed"]
    assert len(committed) == len(set(committed))
    assert len(report.sources) >= 3

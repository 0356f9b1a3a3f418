from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

from compared import Compared
from comparison import deaths, spread, table, throughput
from goals import at_least, at_most, judge
from page import page, tables
from rounds import Round, growth
from spent import Bill, family, parse_stat, tree_seconds


def a_round(rate: float, *, cpu: float = 1.0, **more: object) -> Round:
    bill = Bill({"worker": cpu * 0.6, "PostgreSQL": cpu * 0.4}, records=900_000, pages=100_000, commits=2_500)
    return Round(1000, 1000 / rate, bill, [1.0, 2.0, 9.0], [5.0], **more)  # type: ignore[arg-type]  # short on purpose


def measured(**rounds: list[Round]) -> Compared:
    return Compared(rounds={name.replace("_", "-"): done for name, done in rounds.items()})


def value(compared: Compared, words: str) -> float:
    return next(goal.value for goal in judge(compared) if words in goal.what)


def test_a_name_with_spaces_and_brackets_does_not_shift_the_fields_of_a_process() -> None:
    line = "71 (a (b) c) S 42 71 71 0 -1 4194304 1 2 3 4 100 20 7 3 20 0 1 0 5 6"

    assert parse_stat(line) == (42, 130)


def test_a_process_is_in_its_own_family_and_has_spent_something() -> None:
    assert os.getpid() in family(os.getppid())
    assert tree_seconds({"me": os.getpid()})["me"] > 0


def test_who_has_ended_has_spent_nothing_and_breaks_nothing() -> None:
    assert tree_seconds({"gone": 2**22 + 1}) == {"gone": 0}


def test_a_spread_shows_the_middle_and_both_ends() -> None:
    assert spread([1.0, 9.0, 2.0], 1) == "2.0 (1.0–9.0)"
    assert spread([1234.0]) == "1,234"
    assert spread([]) == "–"


def test_a_table_has_a_line_for_each_row() -> None:
    assert table(["a", "b"], [["1", "2"]]) == ["| a | b |", "| --- | --- |", "| 1 | 2 |"]


def test_growth_compares_steps_after_the_tenth_with_the_last() -> None:
    instants = [0.001 * n for n in range(100)]
    instants += [instants[-1] + 0.002 * n for n in range(1, 101)]

    found = growth(instants)

    assert found["steps"] == 200
    assert math.isclose(found["late"] / found["early"], 2, rel_tol=1e-6)


def test_growth_of_a_short_run_takes_what_there_is() -> None:
    assert growth([float(n) for n in range(14)]) == {"steps": 14, "early": 1000.0, "late": 1000.0}


def test_ratios_are_taken_within_a_pass() -> None:
    compared = measured(ours_redis=[a_round(100), a_round(10)], chain_redis=[a_round(50), a_round(5)])

    assert math.isclose(value(compared, "Redis, prefork: steps/s ÷ Celery chain"), 2)


def test_the_faster_form_of_a_peer_counts() -> None:
    forms = {"dbos_threads": [a_round(10)], "dbos_queue": [a_round(20)]}

    assert math.isclose(value(measured(ours_redis=[a_round(40)], **forms), "steps/s ÷ DBOS"), 2)


def test_a_goal_without_a_measurement_is_neither_met_nor_missed() -> None:
    assert at_least("speed", 2, math.nan).row() == ["speed", "≥ 2", "–", "not measured"]
    assert all(goal.row()[-1] == "not measured" for goal in judge(Compared()))


def test_a_bound_itself_is_good_enough() -> None:
    assert at_least("speed", 2, 2.0, " ×").row() == ["speed", "≥ 2 ×", "2.00 ×", "met"]
    assert at_most("wait", 1, 1.5, " s").row() == ["wait", "≤ 1 s", "1.50 s", "**missed**"]


def test_a_step_that_never_came_back_is_not_averaged_away() -> None:
    compared = Compared(peer_deaths={"peer": [1.0, None]}, limits={"peer": 30.0}, deaths={"Redis, worker": [0.2, None]})

    assert deaths(compared)[-1] == "| peer | 2 | not within 30 | – | – |"
    assert value(compared, "Redis, worker killed") == math.inf


def test_the_ledger_is_shown_only_of_who_has_one() -> None:
    lines = throughput(measured(chain_redis=[a_round(50)], ours_redis=[a_round(40, statements=2.25)]))

    assert lines[2].endswith("| – | – | – |")
    assert lines[3].endswith("| 2.50 | 1,000 | 2.2 |")


def test_what_was_measured_survives_its_file(tmp_path: Path) -> None:
    compared = measured(ours_redis=[a_round(40, long={"steps": 20, "early": 1.0, "late": 1.5})])
    compared.missing["peer"] = "npm is not installed"

    compared.write(tmp_path / "kept.json")

    assert Compared.read(tmp_path / "kept.json") == compared
    assert json.loads((tmp_path / "kept.json").read_text())["missing"] == compared.missing


def test_the_page_names_who_is_left_out() -> None:
    compared = measured(ours_redis=[a_round(40)])
    compared.missing["Restate, one node"] = "npm is not installed"

    shown = page(compared, picture="results.png")

    assert "- left out: Restate, one node: npm is not installed." in shown
    assert "$" not in shown
    assert "## Left out" in tables(compared)

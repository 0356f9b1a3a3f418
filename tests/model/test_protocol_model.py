"""The protocol, checked in every reachable state within its bounds; and each defence, by what happens without it.

The bounds: one run, two workers, and up to two or three faults of any kind at any point (a death, a pause, a lost or
doubled message, a broker that loses everything, an answer that is lost, a request that arrives late, a raise).
`SAFEPOINT_MODEL_FAULTS=1` adds one fault to each bound (about five minutes and 1.5 GB; say `--timeout=0`).
"""

import os
import sys
from dataclasses import fields, replace

import pytest
from moves import Model
from protocol import (
    BARE_GATHER,
    EXECUTED,
    FINAL,
    FIRST,
    GATHER,
    GATHER_WAIT,
    GOT,
    GRANTED,
    LEASE_LOST,
    OWN,
    RECOVERY,
    REFUSED,
    RULES,
    SECOND,
    SEQUENCE,
    SHORT,
    SHORT_WAIT,
    STORED,
    WAIT,
    Defences,
    Flow,
    Task,
    claim,
    commit,
    enqueued,
    take_over,
)
from search import Counterexample, Search

MORE_FAULTS = int(os.environ.get("SAFEPOINT_MODEL_FAULTS", "0"))
ON = Defences()


def name_of(value: object) -> str:
    return value.name if isinstance(value, Flow) else str(value)


def searched(model: Model, *, faults: int, rules: frozenset[str] = RULES, traps: bool = True) -> Counterexample | None:
    search = Search(model, faults=faults, rules=rules, traps=traps)
    report = search.run()
    # For `pytest -s` and for whoever reads a failure: the bounds, and the schedule.
    sys.stdout.write(f"\n{model.flow.name}, {faults} faults: {report.states} states, {report.moves} moves\n")
    if report.counterexample:
        sys.stdout.write(f"{report.counterexample}\n")
    return report.counterexample


@pytest.mark.parametrize(
    ("flow", "faults", "cancels"),
    [
        pytest.param(SHORT, 3, True, marks=pytest.mark.slow),
        pytest.param(SHORT_WAIT, 3, True, marks=pytest.mark.slow),
        (SEQUENCE, 2, True),
        (WAIT, 2, True),
        pytest.param(GATHER, 2, True, marks=pytest.mark.slow),
        pytest.param(GATHER_WAIT, 2, False, marks=pytest.mark.slow),
        (BARE_GATHER, 1, True),
        (GATHER_WAIT, 1, True),
    ],
    ids=name_of,
)
def test_no_schedule_breaks_a_rule_and_no_state_is_a_trap(flow: Flow, faults: int, cancels: bool) -> None:
    model = Model(flow, cancels=cancels)

    assert searched(model, faults=faults + MORE_FAULTS) is None


@pytest.mark.parametrize(("flow", "faults"), [(SEQUENCE, 2), (GATHER, 1), (WAIT, 1)], ids=name_of)
def test_p35_a_takeover_may_clear_the_token_as_well_as_keep_it(flow: Flow, faults: int) -> None:
    model = Model(flow, replace(ON, late_commits=False), cancels=True)

    assert searched(model, faults=faults + MORE_FAULTS) is None


def test_p35_a_late_commit_is_accepted_until_somebody_claims_again() -> None:
    message = Task(GOT, 0, OWN)
    _, claimed = claim(ON, enqueued(SHORT, 0), FIRST, message)
    taken = take_over(ON, claimed, 0)
    _, claimed_again = claim(ON, taken, SECOND, message._replace(lane=RECOVERY))

    assert commit(ON, SHORT, taken, FIRST, message._replace(stage=EXECUTED))[0] == STORED
    assert commit(ON, SHORT, claimed_again, FIRST, message._replace(stage=EXECUTED))[0] == LEASE_LOST


def test_p9_an_orphan_is_claimed_from_the_recovery_lane_only() -> None:
    message = Task(GOT, 0, OWN)
    _, claimed = claim(ON, enqueued(SHORT, 0), FIRST, message)
    taken = take_over(ON, claimed, 0)

    assert claim(ON, taken, SECOND, message)[0] == REFUSED
    assert claim(ON, taken, SECOND, message._replace(lane=RECOVERY))[0] == GRANTED


@pytest.mark.parametrize(("flow", "faults"), [(SEQUENCE, 2), (GATHER, 1), (WAIT, 1)], ids=name_of)
def test_g4_an_early_ack_breaks_only_g4_and_loses_nothing(flow: Flow, faults: int) -> None:
    model = Model(flow, replace(ON, ack_after_commit=False), cancels=True)

    found = searched(model, faults=0)

    assert found
    assert found.rule == "G4"
    assert searched(model, faults=faults + MORE_FAULTS, rules=RULES - {"G4"}) is None


# Defence switched off, flow, faults, whether people may cancel, rules asked for, the rule that breaks, words of it.
WITHOUT = [
    ("token_in_commit", SHORT, 1, False, RULES, "G3", "worker A commits start"),
    ("recheck_under_lock", SHORT, 1, False, frozenset({"G1"}), "G1", "scan takes start over"),
    ("recheck_under_lock", SHORT, 1, False, RULES, "G5", "scan takes start over"),
    ("state_version", GATHER, 0, False, RULES, "G5", "commits b"),
    ("state_version", GATHER, 0, False, frozenset({"G1"}), "G2", "join not asked for; 0 messages"),
    ("open_count", BARE_GATHER, 0, False, RULES, "G5", "commits b"),
    ("outbox_in_commit", SHORT, 1, False, RULES, "G2", "a ready without a due_at; 0 messages"),
    ("due_at_on_takeover", SHORT, 1, False, RULES, "G2", "start ready without a due_at"),
    ("mailbox_under_lock", SHORT_WAIT, 0, False, RULES, "G2", "wait waiting; 0 messages; signal in the mailbox"),
    ("lane_of_claim", SHORT, 2, False, RULES, "P9", "claims start"),
    ("beats_name_claims", SHORT, 1, False, RULES, "G2", "start in hand"),
    ("commit_sees_cancel", SHORT, 0, True, RULES, "G5", "person cancels the run"),
    ("ack_after_commit", SHORT, 0, False, RULES, "G4", "claims start"),
]


@pytest.mark.parametrize(
    ("defence", "flow", "faults", "cancels", "rules", "broken", "tells"),
    WITHOUT,
    ids=[f"{defence}-{broken}" for defence, *_, broken, _ in WITHOUT],
)
def test_without_this_defence_the_search_finds_a_schedule(
    defence: str, flow: Flow, faults: int, cancels: bool, rules: frozenset[str], broken: str, tells: str
) -> None:
    model = Model(flow, replace(ON, **{defence: False}), cancels=cancels)

    found = searched(model, faults=faults, rules=rules)

    assert found, f"nothing is found without {defence}: the search is blind, or the defence is redundant"
    assert found.rule == broken
    assert tells in str(found)
    assert searched(replace(model, defences=ON), faults=faults, rules=rules) is None


def test_every_defence_is_switched_off_by_a_test() -> None:
    switched = {defence for defence, *_ in WITHOUT}

    assert {field.name for field in fields(Defences)} - switched == {"late_commits"}


def test_a_schedule_reads_like_a_story_with_each_worker_under_one_name() -> None:
    model = Model(GATHER, replace(ON, state_version=False))
    found = Search(model, faults=0).run().counterexample

    assert found
    assert found.schedule[:3] == ("relay publishes start", "worker A receives start", "worker A claims start")
    assert found.schedule[-2:] == ("worker B commits a", "worker A commits b")
    assert found.end.startswith("run running; start succeeded, a succeeded, b succeeded, join not asked for")


def test_a_run_without_faults_has_but_one_result_a_step() -> None:
    search = Search(Model(GATHER), faults=0)
    search.run()

    ends = [state for state in search.known if state.run in FINAL]

    assert ends
    assert {tuple(row.commits for row in state.rows) for state in ends} == {(1, 1, 1, 1)}
    assert enqueued(GATHER, 0) in search.known

"""An effect and its other side, checked in every reachable state within the bounds; and each defence, by what happens
without it.

The bounds: one effect (or two, or one and its compensation), two workers, and one or two faults of any kind at any
point: a death, with or without a request to the ledger on the way; a worker that is stopped or cut off and sends late;
a connection that cannot be made, a time-out, a refusal, an answer that is lost, a lookup that is unsure. Cancels,
webhooks, people and late requests cost no fault. `SAFEPOINT_MODEL_FAULTS=1` adds one to each bound (about a minute).
"""

import os
import sys
from dataclasses import fields, replace
from functools import cache

import pytest
from effect_ledger import BEGAN, LOST, SENT_BACK, Ledger
from effect_moves import EffectModel
from effect_rules import EFFECT_RULES
from effects import (
    DID_IT,
    DONE,
    DROPPED,
    EXECUTING,
    FIRST,
    HELD,
    PENDING,
    READY,
    SECOND,
    STOPPED,
    SUCCEEDED,
    UNKNOWN,
    EffectDefences,
    Plan,
    enqueued,
)
from search import Counterexample, Report, Search

MORE_FAULTS = int(os.environ.get("SAFEPOINT_MODEL_FAULTS", "0"))
ON = EffectDefences()
PAIR = ("ticket", "mail")

KEY = Plan("a key", keys=True)
CALM_KEY = replace(KEY, name="a key, nobody needed", calm=True)
KEY_FOR_A_WHILE = Plan("a key, remembered for a while", keys=True, forgets=True, calm=True)
KEY_UNDONE = Plan("a key, cancelled", keys=True, compensates=True, cancels=True, calm=True)
LOOKUP = Plan("a lookup", lookup=True)
LOOKUP_UNDONE = Plan("a lookup, cancelled", lookup=True, compensates=True, cancels=True, calm=True)
LOOKUP_FAILS = Plan("a lookup, failed", lookup=True, compensates=True, fails=True, calm=True)
NEITHER = Plan("neither", cancels=True)
NEITHER_UNDONE = Plan("neither, cancelled", compensates=True, cancels=True, calm=True)
BOTH = Plan("lookup, then key", keys=True, lookup=True)
TWO = Plan("two lookups, failed", lookup=True, effects=PAIR, compensates=True, fails=True, calm=True)
GATHER = Plan("gather, cancelled", lookup=True, effects=PAIR, together=True, compensates=True, cancels=True, calm=True)

BOUNDS = {
    KEY: 2,
    KEY_FOR_A_WHILE: 1,
    KEY_UNDONE: 1,
    LOOKUP: 2,
    LOOKUP_UNDONE: 1,
    LOOKUP_FAILS: 1,
    NEITHER: 2,
    NEITHER_UNDONE: 1,
    BOTH: 1,
    TWO: 1,
    GATHER: 0,
}


def name_of(value: object) -> str:
    return value.name if isinstance(value, Plan) else str(value)


@cache
def report(plan: Plan, faults: int, off: str = "", rules: frozenset[str] = EFFECT_RULES) -> Report:
    defences = replace(ON, **{off: False}) if off else ON
    found = Search(EffectModel(plan, defences), faults=faults + MORE_FAULTS, rules=rules).run()
    # For `pytest -s` and for whoever reads a failure: the bounds, and the schedule.
    without = f", without {off}" if off else ""
    sys.stdout.write(f"\n{plan.name}, {faults} faults{without}: {found.states} states, {found.moves} moves\n")
    if found.counterexample:
        sys.stdout.write(f"{found.counterexample}\n")
    return found


def searched(plan: Plan, *, faults: int, off: str = "", rules: frozenset[str] = EFFECT_RULES) -> Counterexample | None:
    return report(plan, faults, off, rules).counterexample


@pytest.mark.parametrize(("plan", "faults"), BOUNDS.items(), ids=name_of)
def test_no_schedule_does_an_effect_twice_or_tells_a_lie_and_no_state_is_a_trap(plan: Plan, faults: int) -> None:
    assert searched(plan, faults=faults) is None


@pytest.mark.parametrize(("plan", "faults"), [(KEY, 1), (LOOKUP, 1), (NEITHER, 1)], ids=name_of)
@pytest.mark.parametrize("optional", ["late_commits", "late_evidence"])
def test_p34_p35_late_knowledge_may_be_used_as_well_as_dropped(plan: Plan, faults: int, optional: str) -> None:
    assert searched(plan, faults=faults, off=optional) is None


# Defence switched off, plan, faults, the rule that breaks, words of its schedule.
WITHOUT = [
    ("begin_before_call", LOOKUP, 1, "twice", "worker A calls ticket at once"),
    ("begin_before_call", NEITHER, 1, "twice", "worker A calls ticket at once"),
    ("begin_fenced", LOOKUP, 1, "twice", "worker A is no longer cut off"),
    ("begin_sees_stop", LOOKUP_UNDONE, 0, "P29", "person cancels the run"),
    ("repeat_renews", LOOKUP, 2, "twice", "hears no answer to its begin of ticket, which was done"),
    ("check_before_send", LOOKUP, 1, "twice", "passes: nobody may send ticket any more"),
    ("check_before_send", NEITHER, 1, "twice", "person resolves ticket as not executed"),
    ("authoritative_after", LOOKUP, 1, "twice", "asks about ticket: not executed"),
    ("judged_when_asked", LOOKUP, 1, "twice", "passes: no request of ticket is on the way"),
    ("death_is_proved", LOOKUP, 1, "twice", "takes ticket over: its executor is dead"),
    ("latest_window", KEY, 2, "false failure", "worker B dies with ticket in hand"),
    ("loss_is_unknown", LOOKUP, 1, "twice", "takes ticket over"),
    ("silence_is_unknown", NEITHER, 1, "twice", "records that ticket is unknown"),
    ("frozen_request", KEY, 1, "twice", "claims ticket to settle it"),
    ("key_retention", KEY_FOR_A_WHILE, 1, "twice", "the key of ticket is forgotten"),
    ("unsent_keeps_doubt", KEY_UNDONE, 1, "false failure", "records that ticket was not sent"),
    ("unsent_keeps_doubt", KEY_FOR_A_WHILE, 1, "twice", "the key of ticket is forgotten"),
    ("refusal_keeps_doubt", KEY, 2, "false failure", "commits that ticket was refused"),
    ("settle_under_stop", NEITHER, 1, "G2", "ticket ready (unknown"),
    ("stop_spares_unsettled", LOOKUP_UNDONE, 1, "P32", "person cancels the run"),
    ("stop_spares_stored", LOOKUP_UNDONE, 1, "P37", "adds its receipt of ticket as evidence"),
    ("card_version", LOOKUP, 1, "twice", "person resolves ticket as not executed"),
    ("person_waits", NEITHER, 1, "twice", "person looks at ticket: not done"),
    ("resolution_sees_stop", NEITHER, 1, "G2", "person resolves ticket as not executed"),
    ("resolution_wakes_held", NEITHER, 1, "G2", "person resolves ticket"),
    ("compensation_waits", GATHER, 0, "P37", "person cancels the run"),
    ("compensation_in_turn", TWO, 0, "P37", "compensate:ticket ready"),
    ("refused_compensation_is_held", LOOKUP_FAILS, 1, "P37", "commits that compensate:ticket was refused"),
]


@pytest.mark.parametrize(
    ("defence", "plan", "faults", "broken", "tells"),
    WITHOUT,
    ids=[f"{defence}-{plan.name}-{broken}" for defence, plan, _, broken, _ in WITHOUT],
)
def test_without_this_defence_the_search_finds_a_schedule(
    defence: str, plan: Plan, faults: int, broken: str, tells: str
) -> None:
    found = searched(plan, faults=faults, off=defence, rules=frozenset({broken}))

    assert found, f"nothing is found without {defence}: the search is blind, or the defence is redundant"
    assert found.rule == broken
    assert tells in str(found)
    assert faults <= BOUNDS[plan]
    assert searched(plan, faults=BOUNDS[plan]) is None


@pytest.mark.parametrize("off", ["authoritative_after", "check_before_send"])
def test_g6_with_a_key_not_even_a_late_request_is_done_twice(off: str) -> None:
    assert searched(CALM_KEY, faults=1, off=off, rules=frozenset({"twice", "false success"})) is None


def test_every_defence_is_switched_off_by_a_test() -> None:
    switched = {defence for defence, *_ in WITHOUT}

    assert {field.name for field in fields(EffectDefences)} - switched == {"late_commits", "late_evidence"}


def test_p33_with_neither_key_nor_lookup_the_unknown_ends_held_and_a_person_settles_it() -> None:
    search = Search(EffectModel(NEITHER), faults=1)
    search.run()

    held = [state for state in search.known if state.rows[0].step == HELD]

    assert {state.rows[0].status for state in held} == {UNKNOWN}
    assert {state.remotes[0].did for state in held} == {0, 1}  # nobody but the other side knows which
    assert all(state.run not in (SUCCEEDED, STOPPED) for state in held)


def test_p37_every_run_that_stopped_has_undone_what_it_did_once() -> None:
    search = Search(EffectModel(LOOKUP_UNDONE), faults=1)
    search.run()

    ends = {tuple(remote.did for remote in state.remotes) for state in search.known if state.run == STOPPED}

    assert ends == {(0, 0), (1, 1)}


def test_p34_late_evidence_settles_an_unknown_and_the_next_claim_commits_it() -> None:
    ledger = Ledger(NEITHER, ON)
    _, begun = ledger.begin(ledger.claim(enqueued(NEITHER, 0), 0, FIRST), 0, FIRST, excluded=False)
    lost = ledger.claim(ledger.take_over(begun, 0, dead=False), 0, SECOND)
    held = ledger.hold(lost, 0, SECOND)
    assert held
    assert ledger.commit_success(held, 0, FIRST) is None

    told = ledger.evidence(held, 0)

    assert (told.rows[0].step, told.rows[0].status) == (READY, DID_IT)
    ended = ledger.commit_stored(ledger.claim(told, 0, SECOND), 0, SECOND)
    assert ended
    assert (ended.run, ended.rows[0].step) == (SUCCEEDED, DONE)


def test_p32_a_cancel_ends_what_was_never_sent_and_nothing_else() -> None:
    ledger = Ledger(LOOKUP_UNDONE, ON)
    asked = enqueued(LOOKUP_UNDONE, 0)
    claimed = ledger.claim(asked, 0, FIRST)
    answer, begun = ledger.begin(claimed, 0, FIRST, excluded=False)
    unknown = ledger.take_over(begun, 0, dead=True)

    assert answer == BEGAN
    assert (ledger.cancel(asked).run, ledger.cancel(asked).rows[0].step) == (STOPPED, DROPPED)
    assert ledger.begin(ledger.cancel(claimed), 0, FIRST, excluded=False)[0] == SENT_BACK
    assert ledger.cancel(begun).rows[0].status == EXECUTING
    assert ledger.may_claim(ledger.cancel(unknown), 0)


def test_g3_an_executor_that_was_taken_over_begins_nothing() -> None:
    ledger = Ledger(LOOKUP, ON)
    taken = ledger.take_over(ledger.claim(enqueued(LOOKUP, 0), 0, FIRST), 0, dead=False)

    assert ledger.begin(taken, 0, FIRST, excluded=False) == (LOST, taken)
    assert taken.rows[0].status == PENDING


def test_a_schedule_names_each_worker_throughout() -> None:
    found = searched(LOOKUP, faults=1, off="authoritative_after", rules=frozenset({"twice"}))

    assert found
    assert found.schedule[:3] == ("worker A claims ticket", "worker A begins ticket", "worker A sends ticket")
    assert "other side does ticket, as worker B asked, and answers" in found.schedule
    assert found.schedule[-1].startswith("other side does ticket")
    assert found.end.startswith("run running; ticket in hand (executing, done twice)")

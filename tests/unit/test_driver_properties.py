"""Properties of the driver over random flow programs: trees of steps, sequences and gathers; some steps fail."""

from __future__ import annotations

import random
from typing import Any

from driving import Driving
from hypothesis import given, settings
from hypothesis import strategies as st
from safepoint import flow, gather, step, uuid4
from safepoint.errors import StepFailed

Program = dict[str, Any]


@step
def work(n: int) -> int:
    return n + 1


@flow
async def interpreted(program: dict[str, Any]) -> object:
    return await run(program)


async def run(node: Program) -> object:
    match node["kind"]:
        case "step":
            return await work(node["n"])
        case "chance":
            return str(uuid4())
        case "sequence":
            return [await run(part) for part in node["parts"]]
        case "caught":
            try:
                return await run(node["part"])
            except StepFailed as error:
                return error.message
        case _:
            members = [work(part["n"]) if part["kind"] == "step" else run(part) for part in node["parts"]]
            return await gather(*members, limit=node["limit"])


leaves = st.one_of(
    st.builds(lambda n: {"kind": "step", "n": n}, st.integers(0, 3)),
    st.just({"kind": "chance"}),
)
programs = st.recursive(
    leaves,
    lambda parts: st.one_of(
        st.builds(lambda some: {"kind": "sequence", "parts": some}, st.lists(parts, max_size=3)),
        st.builds(lambda part: {"kind": "caught", "part": part}, parts),
        st.builds(
            lambda some, limit: {"kind": "gather", "parts": some, "limit": limit},
            st.lists(parts, max_size=4),
            st.sampled_from([None, 1, 2]),
        ),
    ),
    max_leaves=12,
)


def play(program: Program, *, seed: int | None, failing: frozenset[int]) -> Driving:
    chance = random.Random(seed)
    driving = Driving(interpreted(program))
    while driving.outcome is None:
        open_keys = driving.asked
        key = chance.choice(open_keys) if seed is not None else open_keys[0]
        n = driving.ask(key).arguments()[0][0]
        if n in failing:
            driving.fail(key, RuntimeError(f"no {n}"))
        else:
            driving.commit(key, n + 1)
    return driving


def ending(driving: Driving) -> object:
    outcome = driving.outcome
    return getattr(outcome, "value", None) or getattr(outcome, "error", None)


@settings(max_examples=50, deadline=None)
@given(programs, st.integers(0, 2**16), st.frozensets(st.integers(0, 3), max_size=1))
def test_no_order_of_commits_changes_keys_or_result(program: Program, seed: int, failing: frozenset[int]):
    straight, shuffled = (play(program, seed=one, failing=failing) for one in (None, seed))

    assert ending(shuffled) == ending(straight)
    assert sorted(str(record.key) for record in shuffled.history) == sorted(
        str(record.key) for record in straight.history
    )


@settings(max_examples=25, deadline=None)
@given(programs, st.integers(0, 2**16), st.data())
def test_a_replay_of_any_prefix_stands_where_the_live_driver_stood(program: Program, seed: int, data: st.DataObject):
    whole = play(program, seed=seed, failing=frozenset())
    upto = data.draw(st.integers(1, len(whole.history)))
    live = Driving(interpreted(program))
    for record in whole.history[1:upto]:
        live.driver.feed(record)

    replayed = whole.replayed(upto=upto)

    assert dict(replayed.asked).keys() == dict(live.driver.asked).keys()
    assert [one.input_hash for one in replayed.asked.values()] == [one.input_hash for one in live.driver.asked.values()]
    assert (replayed.outcome is None) == (live.outcome is None)


@settings(max_examples=25, deadline=None)
@given(programs, st.integers(0, 2**16), st.data())
def test_every_key_names_one_await_and_its_way_over_the_wire(program: Program, seed: int, data: st.DataObject):
    driving = play(program, seed=seed, failing=frozenset())
    keys = [record.key for record in driving.history]

    assert len(set(keys)) == len(keys)
    assert [type(key).from_wire(key.wire) for key in keys] == keys


@settings(max_examples=25, deadline=None)
@given(programs, st.integers(0, 2**16), st.data())
def test_a_cancellation_at_any_point_ends_the_run_on_every_replay(program: Program, seed: int, data: st.DataObject):
    whole = play(program, seed=seed, failing=frozenset())
    upto = data.draw(st.integers(1, len(whole.history)))
    driving = Driving(interpreted(program))
    for record in whole.history[1:upto]:
        driving.driver.feed(record)
    driving.history[1:] = whole.history[1:upto]
    driving.cancel()

    assert driving.outcome is not None
    assert type(driving.replayed().outcome) is type(driving.outcome)

"""P38, G7: what a step reserves before it starts, and who is charged for it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from books import child, model
from ledger_clock import Clock
from ledger_verbs import NODE, Verbs, ask, key
from safepoint.ledger import budgets, once
from safepoint.ledger import commit as commits
from safepoint.ledger.codec import Encoded
from safepoint.ledger.commit import Ending, Result
from safepoint.ledger.steps import Cause, Claimed
from safepoint.tasks.rows import child_id

A, B, C = (key(text) for text in ("a#1", "b#1", "c#1"))


def begun(verbs: Verbs, *asked: dict[str, Any], **budget: float) -> UUID:
    return verbs.begun(*asked, budget=json.dumps(budget))


def budget(verbs: Verbs, run: UUID) -> dict[str, Any]:
    return verbs.rows(
        "SELECT b.* FROM safepoint.budgets b JOIN safepoint.runs r USING (budget_id) WHERE r.run_id = %s", (run,)
    )[0]


def books(verbs: Verbs, run: UUID) -> tuple[int, int, int]:
    """What the budget has spent and reserved, and what of it the run calls wasted."""
    found = budget(verbs, run)
    return found["spent_tokens"], found["reserved_tokens"], verbs.run(run)["wasted_tokens"]


def cost(tokens: int, status: str = "succeeded", at: Claimed | None = None) -> Result:
    assert at
    error = {"type": "Boom", "message": "boom"} if status == "failed" else None
    return Result(status, at.db_now, b"1", "json", b"d", tokens=tokens, error=error)


def test_a_claim_reserves_and_a_commit_gives_the_rest_back(verbs: Verbs) -> None:
    run = begun(verbs, model("a#1", 30, 0.5), tokens=100, usd=1)
    claimed = verbs.claimed(run, A)

    assert books(verbs, run) == (0, 30, 0)
    assert float(budget(verbs, run)["reserved_usd"]) == 0.5
    assert claimed.run["purse"]["left"] == {"tokens": 100, "usd": 1, "retries": None}

    verbs.commit(claimed, result=cost(12, at=claimed))
    assert books(verbs, run) == (12, 0, 0)
    assert budget(verbs, run)["reserved_usd"] == 0


def test_p04_a_claim_that_is_repeated_reserves_once(verbs: Verbs) -> None:
    run, token = begun(verbs, model("a#1", 30), tokens=40), uuid4()

    first, second = (verbs.claimed(run, A, token=token) for _ in range(2))

    assert books(verbs, run) == (0, 30, 0)
    assert first.run["purse"]["left"] == second.run["purse"]["left"]
    assert "lacks" not in second.run["purse"]


@pytest.mark.parametrize("cause", [Cause.CHILD, Cause.RELEASED])
def test_a_crashed_attempt_is_charged_what_it_had_reserved_once(verbs: Verbs, cause: Cause) -> None:
    run = begun(verbs, model("a#1", 30), tokens=100)
    claimed = verbs.claimed(run, A)

    assert [verbs.lose(claimed, cause) for _ in range(2)] == ["lost", "moved"]

    assert books(verbs, run) == (30, 0, 30)
    assert verbs.step(run, A)["wasted_tokens"] == 30
    lost = verbs.rows("SELECT data FROM safepoint.events WHERE run_id = %s AND type = 'step.lost'", (run,))
    assert [event["data"]["wasted_tokens"] for event in lost] == [30]


def test_what_a_crashed_attempt_had_committed_in_parts_is_no_waste(verbs: Verbs) -> None:
    run = begun(verbs, model("a#1", 30), tokens=100)
    claimed = verbs.claimed(run, A)
    once.put(verbs.connection, run, A, token=claimed.token, name="part", value=Encoded.of(b"1"), tokens=20)
    assert books(verbs, run) == (20, 10, 0)

    verbs.lose(claimed)

    assert books(verbs, run) == (30, 0, 10)


def test_p35_a_late_commit_is_charged_what_it_says_instead(verbs: Verbs) -> None:
    run = begun(verbs, model("a#1", 30), tokens=100)
    claimed = verbs.claimed(run, A)
    verbs.lose(claimed)

    assert verbs.commit(claimed, result=cost(7, at=claimed)).late

    assert books(verbs, run) == (7, 0, 0)
    assert verbs.step(run, A)["tokens"] == 7


def test_a_late_commit_that_is_refused_leaves_the_waste_and_the_new_reservation(verbs: Verbs) -> None:
    run = begun(verbs, model("a#1", 30), tokens=100)
    old = verbs.claimed(run, A)
    verbs.lose(old)
    new = verbs.claimed(run, A, lane="recovery")

    assert verbs.commit(old, result=cost(7, at=old)).verdict == "lost"

    assert books(verbs, run) == (30, 30, 30)
    verbs.commit(new, result=cost(9, at=new))
    assert books(verbs, run) == (39, 0, 30)


def test_what_failed_attempts_cost_is_kept_apart(verbs: Verbs) -> None:
    run = begun(verbs, model("a#1", 30), tokens=100)
    claimed = verbs.claimed(run, A)
    commits.retry(
        verbs.connection, run, A, token=claimed.token, node=NODE, error={"type": "Boom"}, delay=0.0, tokens=11
    )
    claimed = verbs.claimed(run, A)
    verbs.commit(claimed, result=cost(5, "failed", at=claimed))

    assert books(verbs, run) == (16, 0, 16)
    step = verbs.step(run, A)
    assert (step["tokens"], step["wasted_tokens"]) == (0, 16)


def test_a_claim_given_back_costs_what_it_says(verbs: Verbs) -> None:
    run = begun(verbs, model("a#1", 30), tokens=100)

    verbs.release(verbs.claimed(run, A), tokens=4)

    assert books(verbs, run) == (4, 0, 4)


def test_a_run_without_a_budget_still_tells_what_a_crash_has_wasted(verbs: Verbs) -> None:
    run = verbs.begun(model("a#1", 30))

    verbs.lose(verbs.claimed(run, A))

    assert (verbs.run(run)["spent_tokens"], verbs.run(run)["wasted_tokens"]) == (30, 30)
    assert verbs.value("SELECT count(*) FROM safepoint.budgets") == 0


def test_who_forgets_to_settle_a_reservation_is_refused(verbs: Verbs) -> None:
    run = begun(verbs, model("a#1", 30), tokens=100)
    verbs.claimed(run, A)

    with pytest.raises(psycopg.errors.CheckViolation, match="steps_reserved_runs"):
        verbs.connection.execute(
            "UPDATE safepoint.steps SET status = 'cancelled' WHERE run_id = %s AND step_id = 'a'", (run,)
        )


# Before a step starts.


@pytest.mark.parametrize(
    ("bounds", "lacks"),
    [({"tokens": 29}, "tokens"), ({"usd": 0.4}, "usd"), ({"tokens": 0}, "tokens"), ({"tokens": 50, "usd": 0}, "usd")],
)
def test_a_step_whose_reservation_is_not_left_is_claimed_to_be_told(
    verbs: Verbs, bounds: dict[str, float], lacks: str
) -> None:
    run = begun(verbs, model("a#1", 30, 0.5), **bounds)

    claimed = verbs.claimed(run, A)

    assert claimed.run["purse"]["lacks"] == lacks
    assert books(verbs, run) == (0, 0, 0)  # nothing is reserved by what will not be executed


def test_p14_what_others_hold_may_come_back_so_the_step_waits(verbs: Verbs, clock: Clock) -> None:
    run = begun(verbs, *[model(one, 30) for one in ("a#1", "b#1")], tokens=50)
    first = verbs.claimed(run, A)
    verbs.dispatch()

    assert verbs.refusal(run, B) == "budget"

    step = verbs.step(run, B)
    assert (step["status"], step["attempt"], step["epoch"], step["reason"]["code"]) == ("ready", 1, 0, "budget")
    assert step["due_at"] == clock.now.replace(second=1)
    clock.forward(0.5)
    verbs.commit(first, result=cost(12, at=first))
    assert verbs.step(run, B)["due_at"] == clock.now  # woken, not polled
    assert [row.key for row in verbs.dispatch()] == [B]
    assert verbs.claimed(run, B)
    assert verbs.step(run, B)["reason"] is None


def test_p14_a_step_that_waits_for_a_budget_asks_more_and_more_seldom_and_never_later_than_due(
    verbs: Verbs, clock: Clock
) -> None:
    run = begun(verbs, *[model(one, 30) for one in ("a#1", "b#1")], tokens=50)
    verbs.claimed(run, A)
    pauses = []
    for _ in range(12):
        verbs.refusal(run, B)
        due = verbs.step(run, B)["due_at"]
        verbs.refusal(run, B)  # a message that is replayed
        assert verbs.step(run, B)["due_at"] == due
        pauses.append((due - clock.now).total_seconds())
        clock.forward(pauses[-1])
        verbs.beat()
        assert [row.key for row in verbs.dispatch()] == [B]

    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (1, 30)


def test_a_step_that_reserves_nothing_does_not_wait_for_what_others_hold(verbs: Verbs) -> None:
    run = begun(verbs, model("a#1", 50), ask("b#1"), tokens=50)
    verbs.claimed(run, A)

    assert "lacks" not in verbs.claimed(run, B).run["purse"]


def test_two_steps_that_meet_do_not_both_get_the_last_of_it(crowd: Callable[[], Verbs]) -> None:
    verbs, others = crowd(), [crowd() for _ in range(4)]
    runs = [begun(verbs, model("a#1", 30), tokens=30)]
    names = [f"m{n}#1" for n in range(4)]
    run = begun(verbs, *[model(one, 30) for one in names], tokens=70)
    answers: list[Any] = []
    threads = [
        threading.Thread(target=lambda own=own, one=one: answers.append(own.claim(run, key(one))))
        for own, one in zip(others, names, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sum(isinstance(answer, Claimed) for answer in answers) == 2
    assert books(verbs, run) == (0, 60, 0)
    assert books(verbs, runs[0]) == (0, 0, 0)


# Retries.


def fails(verbs: Verbs, claimed: Claimed, **more: Any) -> str:
    return commits.retry(
        verbs.connection, claimed.run_id, claimed.key, token=claimed.token, node=NODE, error={"type": "Boom"},
        delay=0.0, **more,
    ).verdict  # fmt: skip


def test_two_steps_do_not_both_take_the_last_retry(verbs: Verbs) -> None:
    run = begun(verbs, ask("a#1"), ask("b#1"), retries=1)
    first, second = verbs.claimed(run, A), verbs.claimed(run, B)

    assert fails(verbs, first) == "retried"
    assert fails(verbs, second) == "budget"

    assert verbs.step(run, B)["status"] == "running"  # nothing was written: its executor ends it
    assert budget(verbs, run)["spent_retries"] == 1


def test_where_a_person_is_to_decide_the_retry_is_kept_and_the_run_held(verbs: Verbs) -> None:
    run = begun(verbs, model("a#1", 30), tokens=100, retries=0)
    hold = {"code": "budget", "text": "no retry is left", "next": "add"}

    assert fails(verbs, verbs.claimed(run, A), hold=hold, tokens=5) == "retried"

    assert (verbs.run(run)["status"], verbs.run(run)["reason"]["text"]) == ("held", "no retry is left")
    assert verbs.refusal(run, A) == "held"
    assert books(verbs, run) == (5, 0, 5)
    verbs.resume(run, "budget")
    assert verbs.claimed(run, A).attempt == 2


# Children and generations.


def test_children_spend_from_the_budget_of_their_root(verbs: Verbs) -> None:
    run = begun(verbs, ask("a#1"), tokens=100)
    claimed = verbs.claimed(run, A)
    verbs.commit(claimed, result=cost(40, at=claimed), asked=[child(run)])
    sub = child_id(run, key("sub#1"))
    verbs.done(sub, asked=[model("a#1", 50), child(sub)])
    grandchild = child_id(sub, key("sub#1"))
    verbs.done(grandchild, asked=[model("a#1", 20)])

    mine = verbs.claimed(sub, A)

    assert verbs.run(sub)["budget"] == {"tokens": 60}  # what its flow is told: what was left as it began
    assert verbs.refusal(grandchild, A) == "budget"
    assert books(verbs, grandchild) == (40, 50, 0)
    verbs.commit(mine, result=cost(45, at=mine))
    assert verbs.claimed(grandchild, A).run["purse"]["lacks"] == "tokens"  # 15 are left
    assert (verbs.run(run)["spent_tokens"], verbs.run(sub)["spent_tokens"]) == (40, 45)


def test_a_run_that_continues_as_another_goes_on_with_what_is_left(verbs: Verbs) -> None:
    run = begun(verbs, ask("a#1"), tokens=100)
    claimed = verbs.claimed(run, A)
    verbs.commit(claimed, result=cost(70, at=claimed), ending=Ending("continued", b"{}", "json", b"h" * 32))

    verbs.done(run, key("g2:@start#1"), asked=[model("a#1", 40)])

    assert verbs.run(run)["budget"] == {"tokens": 30}
    assert verbs.claimed(run, key("g2:a#1")).run["purse"]["lacks"] == "tokens"
    assert books(verbs, run)[0] == 70


# What settles goes on.


def test_p32_a_clean_up_goes_on_although_nothing_is_left(verbs: Verbs) -> None:
    run = begun(verbs, ask("a#1"), tokens=10)
    claimed = verbs.claimed(run, A)
    verbs.commit(claimed, result=cost(10, at=claimed), asked=[ask("b#1")])
    verbs.cancel(run)
    verbs.done(run, key("@cancel#1"), asked=[model("c#1", 5)])

    cleanup = verbs.claimed(run, C)

    assert "lacks" not in cleanup.run["purse"]
    verbs.commit(cleanup, result=cost(3, at=cleanup))
    assert books(verbs, run)[:2] == (13, 0)


# A person adds to it.


def test_a_person_adds_once_and_only_to_what_is_bounded(verbs: Verbs) -> None:
    run, id_ = begun(verbs, ask("a#1"), tokens=10), uuid4()

    answers = [budgets.add(verbs.connection, run, id_=id_, tokens=5, by="ann", why="go on").answer for _ in range(2)]

    assert answers == ["raised", "already"]
    assert budget(verbs, run)["tokens"] == 15
    refused = budgets.add(verbs.connection, run, id_=uuid4(), retries=5, by="ann")
    assert (refused.answer, refused.detail) == ("unbounded", "retries")
    free = budgets.add(verbs.connection, verbs.enqueue(), id_=uuid4(), tokens=5, by="ann")
    assert (free.answer, free.detail) == ("unbounded", "anything")
    assert [one["by"] for one in budgets.changes(verbs.connection, run)] == ["ann"]
    assert verbs.events(run).count("budget.raised") == 1
    assert verbs.run(run)["budget"] == {"tokens": 10}  # its flow was told that; a replay must be told the same


def test_every_run_of_the_family_that_was_held_for_it_goes_on(verbs: Verbs) -> None:
    run = begun(verbs, ask("a#1"), tokens=10)
    claimed = verbs.claimed(run, A)
    verbs.commit(claimed, asked=[child(run)])
    sub = child_id(run, key("sub#1"))
    verbs.done(sub, asked=[ask("a#1")])
    for one in (run, sub):
        verbs.hold(one, "budget")
    verbs.hold(sub, "flow_error")

    freed = budgets.release_held(verbs.connection, sub, by="ann")

    assert freed == {run: "waiting", sub: "held"}
    assert set(verbs.run(sub)["holds"]) == {"flow_error"}

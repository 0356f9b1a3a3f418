"""G7 over kill -9: retries, children and generations share one budget; a death counts at most its reservation."""

from __future__ import annotations

import json
from uuid import UUID, uuid4

import pytest
from crashes import has_died
from fleet import Fleet, trap
from journeys import PRICE, RESERVE

pytestmark = [pytest.mark.chaos, pytest.mark.slow]

# A call of the run and one of its child in each of three generations; in the last one both fail once.
CALLS = 3 * 2 + 2


def enqueue(fleet: Fleet, generations: int, tokens: int) -> UUID:
    budget = json.dumps({"tokens": tokens})
    rows = fleet.query("SELECT safepoint.enqueue('spending', %s, budget => %s)", json.dumps({"n": generations}), budget)
    return UUID(str(rows[0][0]))


def counted(fleet: Fleet) -> int:
    """What the model has counted, for whichever run."""
    lines = [line.split() for line in fleet.record.read_text().splitlines()]
    return sum(int(words[2]) for words in lines if words[0] == "model")


def books(fleet: Fleet, run: UUID) -> tuple[int, int, int, int]:
    """What the budget has spent, holds, what its runs have spent together, and what of it they have wasted."""
    rows = fleet.query(
        "SELECT b.spent_tokens, b.reserved_tokens, sum(r.spent_tokens)::bigint, sum(r.wasted_tokens)::bigint"
        " FROM safepoint.budgets b JOIN safepoint.runs r USING (budget_id) WHERE budget_id = %s GROUP BY b.budget_id",
        run,
    )
    return rows[0]


@pytest.mark.parametrize("target", ["child", "worker"])
@pytest.mark.parametrize(("point", "extra"), [("claim.after", 0), ("commit.before", 1), ("commit.after", 0)])
def test_totals_are_what_the_model_counted_or_more_by_what_the_dead_had_reserved(
    fleet: Fleet, point: str, extra: int, target: str
) -> None:
    survivor = fleet.worker("online", "recovery", wait=False)
    fleet.relay()
    once = fleet.folder / f"dead-{uuid4().hex[:8]}"
    victim = fleet.worker("front", concurrency=1, env=trap(f"{point}@ask_model", target=target, once=once))
    survivor.ready()
    run = enqueue(fleet, 3, 10_000)
    fleet.until(lambda: has_died(once, victim, whole=target == "worker"), timeout=60)
    if target == "worker":
        victim.restart()

    account = fleet.until_status(run, "succeeded", "failed", "held", timeout=90)

    assert account.run["status"] == "succeeded", fleet.tell(run)
    real = counted(fleet)
    spent, reserved, together, wasted = books(fleet, run)
    assert real == (CALLS + extra) * PRICE
    assert (spent, reserved) == (together, 0)
    # Who died before its commit was charged its reservation; the model had counted one call of it, or none.
    assert spent - real == {"claim.after": RESERVE, "commit.before": RESERVE - PRICE, "commit.after": 0}[point]
    assert wasted == 2 * PRICE + (0 if point == "commit.after" else RESERVE)


@pytest.mark.children
def test_a_family_whose_members_die_never_spends_more_than_it_was_given(fleet: Fleet) -> None:
    survivor = fleet.worker("online", "recovery", wait=False)
    fleet.relay()
    once = fleet.folder / "dead"
    victim = fleet.worker("front", concurrency=2, env=trap("commit.before@ask_model", target="child", once=once))
    survivor.ready()
    victim.ready()

    run = enqueue(fleet, 50, 6 * RESERVE)
    account = fleet.until_status(run, "succeeded", "failed", "held", timeout=90)

    assert account.run["error"]["type"] in {"BudgetExceeded", "StepFailed"}, fleet.tell(run)
    assert once.exists()
    fleet.until(lambda: books(fleet, run)[1] == 0)
    spent, _, together, _ = books(fleet, run)
    assert counted(fleet) <= spent == together <= 6 * RESERVE

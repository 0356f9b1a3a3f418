"""Keeps the books of a family of runs twice: what a fake model really counted, and what the ledger says."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

from ledger_verbs import NODE, Verbs, ask, key
from safepoint.ledger import commit as commits
from safepoint.ledger import once, steps
from safepoint.ledger.codec import Encoded
from safepoint.ledger.commit import Result
from safepoint.ledger.errors import LeaseLost
from safepoint.ledger.key import Key
from safepoint.ledger.steps import Claimed
from safepoint.tasks.rows import child_id

__all__ = ["Attempt", "Books", "child", "model"]


def model(text: str, tokens: int = 0, usd: float = 0.0) -> dict[str, Any]:
    """Give a row of a step that reserves."""
    wanted = {name: amount for name, amount in (("tokens", tokens), ("usd", usd)) if amount}
    return ask(text, reserve=wanted) if wanted else ask(text)


def child(run: UUID, text: str = "sub#1") -> dict[str, Any]:
    """Give a row of a child run."""
    facts = {"flow": "f", "version": "1", "input": "e30=", "encoding": "json", "hash": "00", "versions": {}}
    return ask(text, "child", child={"run_id": str(child_id(run, key(text))), **facts})


@dataclass
class Attempt:
    """A claim, what its executor has really spent under it, and what of that it has not yet told the ledger."""

    claimed: Claimed
    reserve: int
    untold: int = 0
    spent: int = 0
    told: int = 0
    is_lost: bool = False
    is_over: bool = False

    @property
    def doubt(self) -> int:
        """How much too much may have been charged for it, should nobody hear of it any more."""
        return self.reserve - self.told


@dataclass
class Books:
    """A root run with a budget, and a child of it; `real` is what the model counted."""

    verbs: Verbs
    limit: int
    reserve: int
    root: UUID = field(init=False)
    sub: UUID = field(init=False)
    real: int = 0
    unknown: int = 0  # reservations of attempts of which nobody ever said what they spent

    STEPS = ("a#1", "b#1", "c#1")

    def __post_init__(self) -> None:
        """Begin both runs."""
        self.root = self.verbs.enqueue(budget=f'{{"tokens": {self.limit}}}')
        asked = [model(one, self.reserve) for one in self.STEPS]
        self.verbs.done(self.root, asked=[*asked, child(self.root)])
        self.sub = child_id(self.root, key("sub#1"))
        self.verbs.done(self.sub, asked=asked)

    def places(self) -> list[tuple[UUID, Key]]:
        """Give the steps of both runs."""
        return [(run, key(one)) for run in (self.root, self.sub) for one in self.STEPS]

    def claim(self, run: UUID, of: Key) -> Attempt | None:
        """Claim a step, if the ledger lets us."""
        row = self.verbs.step(run, of)
        answer = self.verbs.claim(run, of, lane=row["lane"])
        if not isinstance(answer, Claimed):
            return None
        return Attempt(answer, 0 if "lacks" in answer.run["purse"] else self.reserve)

    def call(self, attempt: Attempt, tokens: int) -> None:
        """Call the model: it counts, whatever becomes of the attempt."""
        tokens = min(tokens, attempt.reserve - attempt.spent)
        self.real += tokens
        attempt.spent += tokens
        attempt.untold += tokens

    def part(self, attempt: Attempt) -> None:
        """Commit what was spent so far as a part of the step."""
        c = attempt.claimed
        try:
            once.put(
                self.verbs.connection, c.run_id, c.key, token=c.token, name=uuid4().hex, value=Encoded.of(b"1"),
                tokens=attempt.untold,
            )  # fmt: skip
        except LeaseLost:
            return
        attempt.told += attempt.untold
        attempt.untold = 0

    def commit(self, attempt: Attempt, status: str = "succeeded") -> str:
        """Commit, as a success or for good as a failure; said twice, for the first answer may have been lost."""
        error = {"type": "Boom", "message": "boom"} if status == "failed" else None
        at = attempt.claimed.db_now
        result = Result(status, at, b"1", "json", b"d", tokens=attempt.untold, error=error)
        first = self.verbs.commit(attempt.claimed, result=result, advanced_from=None)
        self.verbs.commit(attempt.claimed, result=result, advanced_from=None)
        self.ended(attempt, told=first.verdict == "committed")
        return first.verdict

    def retry(self, attempt: Attempt) -> str:
        """Let the attempt fail, to be repeated."""
        c = attempt.claimed
        first, _ = (
            commits.retry(
                self.verbs.connection, c.run_id, c.key, token=c.token, node=NODE, error={"type": "Boom"}, delay=0.0,
                tokens=attempt.untold,
            )
            for _ in range(2)
        )  # fmt: skip
        self.ended(attempt, told=first.verdict == "retried")
        return first.verdict

    def release(self, attempt: Attempt) -> bool:
        """Give the claim back, with what it has spent."""
        c = attempt.claimed
        told = steps.release(self.verbs.connection, c.run_id, c.key, token=c.token, why="drain", tokens=attempt.untold)
        self.ended(attempt, told=told)
        return told

    def lose(self, attempt: Attempt) -> str:
        """Take the step from its executor, who may come back."""
        answer = self.verbs.lose(attempt.claimed)
        attempt.is_lost = attempt.is_lost or answer == "lost"
        return answer

    def ended(self, attempt: Attempt, *, told: bool) -> None:
        """Note that nothing more is heard of an attempt, and whether it has said what it spent."""
        if not attempt.is_over and not told:
            self.unknown += attempt.doubt
        attempt.is_over = True

    # What the ledger says.

    def budget(self) -> dict[str, Any]:
        """Read the family's budget."""
        return self.verbs.rows("SELECT * FROM safepoint.budgets WHERE budget_id = %s", (self.root,))[0]

    def assert_balanced(self, open_: list[Attempt]) -> None:
        """Nothing is counted twice or forgotten, whatever has happened so far."""
        budget = self.budget()
        by_run = self.verbs.rows(
            "SELECT r.spent_tokens, r.wasted_tokens, sum(s.tokens + s.wasted_tokens) AS spent, sum(s.wasted_tokens) AS"
            " wasted, sum(s.reserved_tokens) AS reserved FROM safepoint.runs r JOIN safepoint.steps s USING (run_id)"
            " WHERE budget_id = %s GROUP BY run_id",
            (self.root,),
        )
        assert len(by_run) == 2
        for run in by_run:
            assert (run["spent_tokens"], run["wasted_tokens"]) == (run["spent"], run["wasted"])
        assert budget["spent_tokens"] == sum(run["spent_tokens"] for run in by_run)
        assert budget["reserved_tokens"] == sum(run["reserved"] for run in by_run)
        # Never too little, at no moment; and too much by no more than what nobody can know.
        spent, reserved = budget["spent_tokens"], budget["reserved_tokens"]
        assert spent + reserved >= self.real
        at_risk = sum(one.doubt for one in open_ if not one.is_over and one.is_lost)
        assert spent <= self.real + self.unknown + at_risk
        assert spent + reserved <= self.limit

"""`approve` and `deny`: what they decide, what they refuse and with which words, and what `why` says before."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

import pytest
from prepared import Ledger, step
from safepoint.ledger.codec import input_hash
from safepoint.ledger.key import Key

Run = Callable[..., Any]

OK = Key(1, "", "approval:ok", 1)
PAY = Key(1, "", "pay", 1)
SHOWN = b'{"amount": 7}'
DIGEST = input_hash(SHOWN).hex()


def asks(ledger: Ledger, **more: Any) -> UUID:
    """A run whose flow asks for an approval."""
    return ledger.started(approval(**more))


def approval(key: Key = OK, **more: Any) -> dict[str, Any]:
    request = {"request": encoded(SHOWN), "encoding": "json", "hash": DIGEST}
    return step(key, "approval", reason={"code": "approval"}, **request | more) | {"name": "ok"}


def guarded(**more: Any) -> dict[str, Any]:
    effect = {"requires_approval": "role:oncall", "runbook": "https://runbooks/pay"}
    return step(PAY, "effect", request=encoded(SHOWN), encoding="json", effect=effect, reason={"code": "approval"},
                **{"hash": DIGEST} | more)  # fmt: skip


def encoded(data: bytes) -> str:
    import base64

    return base64.b64encode(data).decode()


def told(text: str) -> str:
    return " ".join(text.replace("│", " ").split())


@pytest.mark.parametrize(("verb", "outcome"), [("approve", "approved"), ("deny", "denied")])
def test_a_decision_names_who_made_it_and_on_what(ledger: Ledger, run: Run, verb: str, outcome: str) -> None:
    made = asks(ledger)

    ran = run(verb, made, "ok", "--by", "ada", "--note", "seen", "--json")

    assert ran.code == 0, ran.err
    assert ran.document == {
        "run_id": str(made), "name": "ok", "key": "approval:ok#1", "digest": DIGEST, "outcome": outcome, "by": "ada",
        "note": "seen", "value": None,
    }  # fmt: skip
    row = ledger.connection.execute("SELECT outcome_data FROM safepoint.steps WHERE kind = 'approval'").fetchone()
    assert row is not None
    assert json.loads(row[0])["outcome"] == outcome


def test_approve_takes_the_edited_payload(ledger: Ledger, run: Run) -> None:
    made = asks(ledger)

    ran = run("approve", made, "ok", "--by", "ada", "--with", '{"amount": 5}')

    assert (ran.code, ran.out) == (
        0, f"approval:ok#1 is approved by ada, with your edits. safepoint watch {made} shows what follows.\n",
    )  # fmt: skip
    row = ledger.connection.execute("SELECT outcome_data FROM safepoint.steps WHERE kind = 'approval'").fetchone()
    assert row is not None
    assert json.loads(row[0])["value"] == {"amount": 5}


def test_without_by_it_is_the_user_who_is_logged_in(ledger: Ledger, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "grace")

    assert run("deny", asks(ledger), "ok", "--json").document["by"] == "grace"


def test_an_effect_that_requires_an_approval_is_decided_by_its_name_or_its_key(ledger: Ledger, run: Run) -> None:
    by_name, by_key = ledger.started(guarded()), ledger.started(guarded())

    assert run("approve", by_name, "pay", "--by", "ada").code == 0
    assert run("deny", by_key, "pay#1", "--by", "ada", "--digest", DIGEST[:12].upper()).code == 0
    rows = ledger.connection.execute("SELECT decision->>'outcome' FROM safepoint.effects ORDER BY run_id").fetchall()
    assert sorted(row[0] for row in rows) == ["approved", "denied"]


def test_edits_of_an_effects_request_are_refused(ledger: Ledger, run: Run) -> None:
    ran = run("approve", ledger.started(guarded()), "pay", "--by", "ada", "--with", '{"amount": 5}')

    assert ran.code == 1
    assert "the request of pay is frozen: deny it, and let the flow ask again" in ran.err


REFUSALS = [
    (("approve", "nothing"), "approve nothing is not possible: nothing is not asked"),
    (("deny", "nothing"), "asked now: approval:ok#1 (ok, digest"),
    (("approve", "ok", "--digest", "00000000"), "nothing of the digest 00000000 is asked as ok"),
]


@pytest.mark.parametrize(("arguments", "text"), REFUSALS)
def test_a_refusal_is_one_line_that_says_what_stands(
    ledger: Ledger, run: Run, arguments: tuple[str, ...], text: str
) -> None:
    verb, *rest = arguments

    ran = run(verb, asks(ledger), *rest, "--by", "ada")

    assert (ran.code, len(ran.err.splitlines())) == (1, 1)
    assert text in ran.err


def test_who_comes_second_hears_who_was_first(ledger: Ledger, run: Run) -> None:
    made = asks(ledger)
    run("deny", made, "ok", "--by", "bob")

    ran = run("approve", made, "ok", "--by", "ada")

    assert ran.code == 1
    assert "approval:ok#1 was denied by bob at 20" in ran.err


WRONG = [
    (("--with", "yes"), "needs its quotes"),
    (("--with", "NaN"), "NaN is no JSON"),
    (("--with", '"\\ud800"'), "Invalid value for --with"),
    (("--digest", "abc"), "Accepted: 8 to 64 hexadecimal digits"),
    (("--by", " "), "says nothing"),
    (("--note", 10_001 * "a"), "at most 10000"),
]


@pytest.mark.parametrize(("arguments", "text"), WRONG)
def test_wrong_usage_is_exit_code_2_and_decides_nothing(
    ledger: Ledger, run: Run, arguments: tuple[str, ...], text: str
) -> None:
    made = asks(ledger)

    ran = run("approve", made, "ok", *arguments)

    assert ran.code == 2
    assert text in told(ran.err)
    assert ledger.read(made)["status"] == "waiting"


def test_a_run_that_does_not_exist_is_said_so(ledger: Ledger, run: Run) -> None:
    ran = run("approve", uuid4(), "ok", "--by", "ada")

    assert (ran.code, "There is no run" in ran.err) == (1, True)


# What is asked: `why` and `show`.


def test_why_gives_the_command_that_approves_exactly_what_it_shows(ledger: Ledger, run: Run) -> None:
    made = asks(ledger)

    (reason,) = run("why", made, "--json").document["reasons"]
    command = reason["next"].removeprefix("safepoint ").replace("NAME", "ada").split()

    assert reason["detail"] == {"shown": {"amount": 7}, "digest": DIGEST}
    assert command == ["approve", str(made), "ok", "--by", "ada", "--digest", DIGEST[:12]]
    assert run(*command).code == 0
    assert run(*command).code == 1


def test_why_names_the_step_key_where_a_name_is_not_enough(ledger: Ledger, run: Run) -> None:
    made = ledger.started(*(approval(Key(1, f"gather#1.{n}", "approval:ok", 1)) for n in (1, 2)))

    reasons = run("why", made, "--json").document["reasons"]

    assert [reason["next"].split()[3] for reason in reasons] == [f"'gather#1.{n}/approval:ok#1'" for n in (1, 2)]


def test_why_shows_the_frozen_request_and_who_may_approve(ledger: Ledger, run: Run) -> None:
    made = ledger.started(guarded())

    ran = run("why", made)
    (reason,) = run("why", made, "--json").document["reasons"]

    assert reason["code"] == "approval"
    assert "pay#1 waits for role:oncall to approve its request" in reason["text"]
    assert reason["detail"]["shown"] == {"amount": 7}
    assert '{"amount": 7}' in ran.out
    assert f"safepoint approve {made} 'pay#1' --by NAME --digest {DIGEST[:12]}" in ran.out
    assert f"safepoint deny {made} 'pay#1' --by NAME --digest {DIGEST[:12]}" in ran.out


def test_a_sealed_question_is_shown_as_sealed(ledger: Ledger, run: Run) -> None:
    made = asks(ledger, encoding="sealed")

    (reason,) = run("why", made, "--json").document["reasons"]

    assert reason["detail"]["shown"] == {"encoding": "sealed", "bytes": len(SHOWN)}
    assert "amount" not in run("why", made).out

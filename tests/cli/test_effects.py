"""`effects`: the card of each that nobody knows, one with its history, and what a person says became of it."""

from __future__ import annotations

import base64
import shlex
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from prepared import NODE, Ledger, step
from safepoint.ledger import effects
from safepoint.ledger.key import Key

Run = Callable[..., Any]

OPEN = Key(1, "", "open_ticket", 1)
REQUEST = b'{"title": "checkout is slow", "body": "since 14:02"}'
ANSWER = {"answer": "unsure", "text": "the ticket service says 503"}


def effect(key: Key = OPEN, *, request: bytes = REQUEST, encoding: str = "json", **declared: Any) -> dict[str, Any]:
    data = base64.b64encode(request).decode()
    return step(key, "effect", request=data, encoding=encoding, effect=declared)


def unknown(
    ledger: Ledger, key: Key = OPEN, *, held: bool = True, answer: dict[str, Any] | None = None, **more: Any
) -> tuple[UUID, str]:
    """A run whose effect was sent, and of which nobody knows what became; its key."""
    options = {name: more.pop(name) for name in ("tenant",) if name in more}
    run = ledger.started(effect(key, **more), **options)
    sent(ledger, run, key)
    hold = "no way to ask" if held else None
    error = {"type": "ReadTimeout", "message": "no answer within 10 s"}
    unsettle(ledger, run, key, error=error, hold=None if answer else hold, delay=0.0 if answer else 90.0)
    if answer is not None:
        ledger.claim(run, key)
        unsettle(ledger, run, key, answer=answer, hold=hold, delay=90.0)
    return run, key_of(ledger, run)


def unsettle(ledger: Ledger, run: UUID, key: Key, **facts: Any) -> None:
    effects.unsettle(ledger.connection, run, key, token=ledger.tokens[key], node=NODE, **facts)


def sent(ledger: Ledger, run: UUID, key: Key = OPEN) -> None:
    ledger.claim(run, key)
    begun = effects.begin(
        ledger.connection, run, key, token=ledger.tokens[key], digest=bytes(32), how="send", timeout=60.0,
        authoritative_after=5.0, key_retention=None, asked_at=datetime.now(UTC),
    )  # fmt: skip
    assert begun.answer == "begun"


def key_of(ledger: Ledger, run: UUID) -> str:
    query = "SELECT encode(idempotency_key, 'hex') FROM safepoint.effects WHERE run_id = %s"
    row = ledger.connection.execute(query, (run,)).fetchone()
    assert row is not None
    return str(row[0])


def told(text: str) -> str:
    return " ".join(text.replace("│", " ").split())


# The list, and its cards.


def test_without_effects_there_is_nothing_to_do(ledger: Ledger, run: Run) -> None:
    assert run("effects").out == "No effects.\n"
    assert run("effects", "--json").document == []


def test_a_card_says_what_a_person_needs_at_night(ledger: Ledger, run: Run) -> None:
    made, key = unknown(ledger, answer=ANSWER, lookup=True, runbook="https://runbooks/tickets", tenant="acme")

    card = run("effects").out

    for part in (
        "open_ticket of triage@1, step open_ticket#1: NOBODY KNOWS whether it was executed",
        f"{made}  (held, tenant acme)",
        key,
        '{"title": "checkout is slow", "body": "since 14:02"}',
        f"by {NODE}, attempt 1",
        "ReadTimeout: no answer within 10 s",
        "unsure: the ticket service says 503",
        "(asked once); it is not asked again",
        "https://runbooks/tickets",
        f"safepoint effects resolve {key[:16]} --succeeded JSON --by NAME --why TEXT",
        f"safepoint effects resolve {key[:16]} --not-executed --by NAME --why TEXT",
    ):
        assert part in card


def test_a_card_says_when_the_lookup_is_asked_next(ledger: Ledger, run: Run) -> None:
    unknown(ledger, held=False, answer=ANSWER, lookup=True)

    card, (found,) = run("effects").out, run("effects", "--json").document

    assert "asked again at" in card
    assert found["asked_next_at"] is not None
    assert "none is declared: @effect(runbook=...)" in card


def test_a_card_of_an_effect_that_cannot_be_asked_says_so(ledger: Ledger, run: Run) -> None:
    unknown(ledger)

    assert "none is declared: only a person, or a webhook, can tell" in run("effects").out


def test_a_card_of_an_effect_that_waits_for_its_approval_has_both_answers(ledger: Ledger, run: Run) -> None:
    waits = effect(requires_approval="role:oncall") | {"reason": {"code": "approval"}}
    made = ledger.started(waits)
    card, (found,) = run("effects").out, run("effects", "--json").document

    assert "step open_ticket#1: WAITS for role:oncall to decide" in card
    assert found["request_digest"] in card
    assert [command.split()[:3] for command in found["commands"]] == [
        ["safepoint", "approve", str(made)], ["safepoint", "deny", str(made)]
    ]  # fmt: skip
    assert all(command in card for command in found["commands"])
    assert run(*shlex.split(found["commands"][1].replace("NAME", "ada"))[1:]).code == 0
    assert "WAITS" not in run("effects").out


def test_a_card_of_an_undoing_that_cannot_finish_may_be_settled_by_hand(ledger: Ledger, run: Run) -> None:
    made = ledger.started(effect())
    ledger.connection.execute("UPDATE safepoint.effects SET compensates = idempotency_key")
    ledger.connection.execute("UPDATE safepoint.steps SET status = 'held' WHERE kind = 'effect'")

    card = run("effects").out

    assert "CANNOT FINISH, and was not sent: it may be done by hand" in card
    assert f"safepoint effects resolve {key_of(ledger, made)[:16]} --succeeded" in card


def test_a_card_says_until_when_a_request_may_still_arrive(ledger: Ledger, run: Run) -> None:
    unknown(ledger, authoritative_after=3600)
    late = run("effects").out
    ledger.connection.execute("UPDATE safepoint.effects SET declared = '{}', may_send_until = now() - interval '1 min'")

    assert "it may still arrive until 20" in late
    assert "it may still arrive" not in run("effects").out


def test_the_document_has_what_the_contract_names(ledger: Ledger, run: Run) -> None:
    made, key = unknown(ledger, runbook="https://runbooks/tickets")

    (found,) = run("effects", "--json").document

    assert set(found) >= {
        "idempotency_key", "key", "status", "attempts", "external_id", "history", "run_id", "tenant", "flow", "name",
        "reference", "version", "request", "unknown_since", "sent_by", "last_answer", "runbook", "commands",
    }  # fmt: skip
    assert (found["idempotency_key"], found["key"], found["run_id"]) == (key, "open_ticket#1", str(made))
    assert (found["status"], found["attempts"], found["sent_by"]) == ("unknown", 1, NODE)
    assert found["request"] == {"title": "checkout is slow", "body": "since 14:02"}
    assert found["reference"] == f"{made}/1/open_ticket#1"
    assert [one["status"] for one in found["history"]] == ["pending", "executing", "unknown"]
    assert len(found["commands"]) == 2


def test_what_nobody_knows_comes_first_then_what_is_under_way_then_the_rest(ledger: Ledger, run: Run) -> None:
    settled, key = unknown(ledger)
    run("effects", "resolve", key, "--failed", "refused", "--by", "ada", "--why", "asked them")
    pending = ledger.started(effect())
    executing = ledger.started(effect())
    sent(ledger, executing)
    doubtful, _ = unknown(ledger)

    listed = run("effects", "--json").document

    assert [one["run_id"] for one in listed] == [str(one) for one in (doubtful, executing, pending, settled)]
    assert [one["status"] for one in listed] == ["unknown", "executing", "pending", "failed"]
    assert len(run("effects", "--json", "--limit", 2).document) == 2
    people = run("effects").out
    assert people.index("NOBODY KNOWS") < people.index(str(executing))


def test_the_list_is_narrowed_by_status_run_and_tenant(ledger: Ledger, run: Run) -> None:
    first, _ = unknown(ledger, tenant="acme")
    second = ledger.started(effect())

    def runs(*arguments: object) -> list[str]:
        return [one["run_id"] for one in run("effects", "--json", *arguments).document]

    assert runs("--status", "unknown") == [str(first)]
    assert runs("--status", "pending", "--status", "unknown") == [str(first), str(second)]
    assert runs("--status", "all") == [str(first), str(second)]
    assert runs("--run", str(second)[:23]) == [str(second)]
    assert runs("--tenant", "acme") == [str(first)]
    assert "no status 'lost'; there are pending" in told(run("effects", "--status", "lost").err)


def test_a_sealed_request_is_never_shown(ledger: Ledger, run: Run) -> None:
    unknown(ledger, request=b"plainly-readable", encoding="sealed")

    card, document = run("effects").out, run("effects", "--json")

    assert "(sealed, 16 bytes)" in card
    assert document.document[0]["request"] == {"encoding": "sealed", "bytes": 16}
    assert "plainly" not in card + document.out


def test_what_the_other_side_says_does_not_steer_the_terminal(ledger: Ledger, run: Run) -> None:
    unknown(ledger, answer={"answer": "unsure", "text": "fine\x1b[2J\x07"}, lookup=True, request=b'"\\u001b[2J"')

    card = run("effects").out

    assert "unsure: fine\\x1b[2J\\x07" in card
    assert "\x1b" not in card


def test_a_big_request_does_not_flood_the_screen(ledger: Ledger, run: Run) -> None:
    _, key = unknown(ledger, request=b'"' + 100_000 * b"x" + b'"')

    assert len(run("effects").out) < 5_000
    assert len(run("effects", "--json").out) < 5_000
    assert run("effects", "show", key, "--json").document["request"] == 100_000 * "x"


def test_show_tells_the_whole_history(ledger: Ledger, run: Run) -> None:
    _, key = unknown(ledger, answer=ANSWER, lookup=True)
    run("effects", "resolve", key, "--not-executed", "--by", "ada", "--why", "their log has no such call")

    shown, document = run("effects", "show", key[:8]), run("effects", "show", key, "--json").document

    assert shown.code == 0
    assert "person:ada" in shown.out
    assert "their log has no such call" in shown.out
    assert [one["status"] for one in document["history"]] == ["pending", "executing", "unknown", "unknown", "pending"]


@pytest.mark.parametrize(
    ("key", "code", "text"),
    [("0123456789", 1, "There is no effect 0123456789: `safepoint effects` lists them"),
     ("0123", 2, "Accepted: 8 to 64 hexadecimal digits"), ("not-a-key", 2, "'not-a-key' is no effect's key")],
)  # fmt: skip
@pytest.mark.parametrize("verb", ["show", "resolve"])
def test_an_unknown_key_is_said_so(ledger: Ledger, run: Run, verb: str, key: str, code: int, text: str) -> None:
    more = ("--not-executed", "--by", "ada", "--why", "asked") if verb == "resolve" else ()

    ran = run("effects", verb, key, *more)

    assert (ran.code, text in told(ran.err)) == (code, True), ran.err


def test_a_beginning_that_several_keys_have_is_refused(ledger: Ledger, run: Run) -> None:
    ledger.started(effect(Key(1, "", "one", 1)), effect(Key(1, "", "two", 1)))
    connection = ledger.connection
    connection.execute("DELETE FROM safepoint.effect_history")
    connection.execute("UPDATE safepoint.steps SET effect_key = NULL")
    for n, name in enumerate(("one", "two")):
        key = bytes([*31 * [0xAB], n])
        connection.execute("UPDATE safepoint.effects SET idempotency_key = %s WHERE name = %s", (key, name))

    ran = run("effects", "show", "abababab")

    assert ran.code == 2
    assert "abababab is the beginning of several keys" in told(ran.err)


# What a person says became of it.


VERDICTS = [
    (("--succeeded", '{"number": 7}'), "succeeded", "has succeeded, says ada"),
    (("--not-executed",), "pending", "was not executed: it will be sent, says ada"),
    (("--failed", "no such project"), "failed", "has failed, says ada"),
]


@pytest.mark.parametrize(("verdict", "status", "text"), VERDICTS)
def test_a_verdict_settles_it_and_the_run_goes_on(
    ledger: Ledger, run: Run, verdict: tuple[str, ...], status: str, text: str
) -> None:
    made, key = unknown(ledger)

    ran = run("effects", "resolve", key[:12], *verdict, "--by", "ada", "--why", "asked the ticket service")

    assert ran.code == 0, ran.err
    assert ran.out.startswith(f"open_ticket#1 {text}. safepoint why {made}")
    found = run("effects", "show", key, "--json").document
    last = found["history"][-1]
    assert (found["status"], last["actor"], last["why"]) == (status, "person:ada", "asked the ticket service")
    assert ledger.read(made)["status"] != "held"


def test_the_commands_of_the_card_can_be_pasted(ledger: Ledger, run: Run) -> None:
    for n in (0, 1):
        unknown(ledger)
        command = run("effects", "--json", "--status", "unknown").document[0]["commands"][n]
        words = shlex.split(command.replace("JSON", "'null'").replace("NAME", "ada").replace("TEXT", "'I have looked'"))

        assert run(*words[1:]).code == 0


def test_json_gives_the_effect_as_it_stands_then(ledger: Ledger, run: Run) -> None:
    _, key = unknown(ledger)

    found = run("effects", "resolve", key, "--succeeded", "7", "--by", "ada", "--why", "seen", "--json").document

    assert (found["status"], found["result"], found["commands"]) == ("succeeded", 7, [])


def resolve(run: Run, key: str, *arguments: object) -> Any:
    return run("effects", "resolve", key, "--not-executed", "--by", "ada", "--why", "asked", *arguments)


def test_a_second_verdict_hears_who_gave_the_first(ledger: Ledger, run: Run) -> None:
    _, key = unknown(ledger)
    run("effects", "resolve", key, "--failed", "no", "--by", "bob", "--why", "their mail of today")

    ran = resolve(run, key)

    assert (ran.code, len(ran.err.splitlines())) == (1, 1)
    assert f"resolving {key[:16]} (open_ticket#1) is not possible: it has been settled" in ran.err
    assert "by person:bob: their mail of today" in ran.err


def test_a_verdict_on_an_older_version_is_refused(ledger: Ledger, run: Run) -> None:
    _, key = unknown(ledger)
    version = run("effects", "show", key, "--json").document["version"]

    stale, fresh = resolve(run, key, "--version", version - 1), resolve(run, key, "--version", version)

    assert stale.code == 1
    assert f"the verdict is on version {version - 1}, and it is at version {version}: look at it again" in stale.err
    assert fresh.code == 0


def test_what_is_under_way_or_not_sent_is_refused(ledger: Ledger, run: Run) -> None:
    executing, pending = ledger.started(effect()), ledger.started(effect())
    sent(ledger, executing)

    under_way, not_sent = resolve(run, key_of(ledger, executing)), resolve(run, key_of(ledger, pending))

    assert (under_way.code, not_sent.code) == (1, 1)
    assert f"{NODE} is executing it: nothing is unknown yet" in under_way.err
    assert "it has not been sent: nothing is to be settled" in not_sent.err


def test_a_verdict_against_the_evidence_of_its_executor_is_refused(ledger: Ledger, run: Run) -> None:
    made, key = unknown(ledger)
    told_by = {"outcome": "succeeded", "epoch": 1}
    ledger.connection.execute(
        "SELECT safepoint.note_effect_v1(decode(%s, 'hex'), 'unknown', 'node-9', 'its executor knows', %s::jsonb)",
        (key, str(told_by).replace("'", '"')),
    )

    ran = resolve(run, key)

    assert ran.code == 1
    assert "something speaks against it (node-9: its executor knows)" in ran.err
    assert ledger.read(made)["status"] == "held"
    assert run("effects", "resolve", key, "--succeeded", "7", "--by", "ada", "--why", "node-9 says so").code == 0


WRONG = [
    ((), "say exactly one of --succeeded JSON, --not-executed and --failed TEXT"),
    (("--not-executed", "--failed", "no"), "say exactly one of"),
    (("--succeeded", "yes"), "needs its quotes"),
    (("--failed", " "), "says nothing"),
    (("--not-executed", "--why", " "), "say how you know"),
    (("--not-executed", "--by", " "), "says nothing"),
    (("--not-executed", "--version", "new"), "Input should be a valid integer"),
]


@pytest.mark.parametrize(("arguments", "text"), WRONG)
def test_wrong_usage_is_exit_code_2_and_settles_nothing(
    ledger: Ledger, run: Run, arguments: tuple[str, ...], text: str
) -> None:
    _, key = unknown(ledger)

    ran = run("effects", "resolve", key, "--why", "asked", *arguments)

    assert ran.code == 2, ran.err
    assert text in told(ran.err)
    assert run("effects", "--json").document[0]["status"] == "unknown"


def test_why_is_required(ledger: Ledger, run: Run) -> None:
    _, key = unknown(ledger)

    ran = run("effects", "resolve", key, "--not-executed", "--by", "ada")

    assert (ran.code, "say how you know" in told(ran.err)) == (2, True)


FLOWS = """
from dataclasses import dataclass
from safepoint import effect, flow

@dataclass
class Ticket:
    number: int

@effect
def open_ticket(title: str, body: str) -> Ticket:
    return Ticket(1)
"""


def test_a_result_that_does_not_fit_is_refused_where_the_code_is_here(
    ledger: Ledger, run: Run, tmp_path: Path, clean: pytest.MonkeyPatch
) -> None:
    _, key = unknown(ledger)
    (tmp_path / "night_flows.py").write_text(FLOWS)
    clean.syspath_prepend(str(tmp_path))
    clean.setenv("SAFEPOINT_FLOWS", "night_flows")
    said = ("effects", "resolve", key, "--by", "ada", "--why", "seen", "--succeeded")

    wrong, right = run(*said, '{"number": "seven"}'), run(*said, '{"number": 7}')

    assert wrong.code == 2
    assert "what open_ticket returns: result.number: Input should be a valid integer" in told(wrong.err)
    assert right.code == 0


def test_without_the_code_the_worker_checks_the_result(ledger: Ledger, run: Run, clean: pytest.MonkeyPatch) -> None:
    _, key = unknown(ledger, Key(1, "", "nowhere_declared", 1))
    clean.setenv("SAFEPOINT_FLOWS", "not_on_this_machine")

    ran = run("effects", "resolve", key, "--succeeded", "7", "--by", "ada", "--why", "seen")

    assert ran.code == 0
    assert "the result is checked by the worker, not here" in ran.err


def test_a_result_is_sealed_like_any_value(ledger: Ledger, run: Run, clean: pytest.MonkeyPatch) -> None:
    _, key = unknown(ledger, Key(1, "", "nowhere_declared", 1))
    clean.setenv("SAFEPOINT_VALUES__CODEC", "toy_codec:xor")

    ran = run("effects", "resolve", key, "--succeeded", '"plainly"', "--by", "ada", "--why", "seen", "--json")

    assert ran.document["result"]["encoding"] == "sealed"
    row = ledger.connection.execute("SELECT result FROM safepoint.effects").fetchone()
    assert row is not None
    assert b"plainly" not in row[0]


# Where a person looks first.


@pytest.mark.parametrize("verb", ["why", "show"])
def test_a_held_run_names_the_next_command(ledger: Ledger, run: Run, verb: str) -> None:
    made, key = unknown(ledger)

    said = run(verb, made).out

    assert f"Next: safepoint effects --run {made}" in said
    if verb == "why":
        assert f"safepoint effects resolve {key[:16]} --not-executed" in said


def test_the_next_command_of_a_held_run_shows_the_card(ledger: Ledger, run: Run) -> None:
    made, key = unknown(ledger)
    (reason,) = run("why", made, "--json").document["reasons"]

    ran = run(*reason["next"].split()[1:])

    assert reason["code"] == "unknown_effect"
    assert f"safepoint effects resolve {key[:16]}" in ran.out

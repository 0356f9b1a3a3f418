"""What must be true of a seed of the effect fuzzer when all is over, by the outside world's own account."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import audit
from audit import Account
from effect_deaths import effects_of, result_of
from fuzz_run import FINAL, Fuzz, Trial, business

__all__ = ["problems", "tell"]


def problems(fuzz: Fuzz, trial: Trial) -> list[str]:
    """Return what is wrong with a seed: nothing."""
    account, effects = fuzz.fleet.account(trial.run), effects_of(fuzz.fleet, trial.run)
    done = {reference: fuzz.witness.numbers(reference) for reference in trial.references}
    found = [*_executions(fuzz, trial, done), *_effects(trial, effects, done), *_end(trial, account, done)]
    try:
        audit.assert_sound(account)
    except AssertionError as error:
        found.append(f"the ledger's accounts differ: {error}")
    return found


def _executions(fuzz: Fuzz, trial: Trial, done: dict[str, list[int]]) -> Iterator[str]:
    for reference, numbers in done.items():
        if len(numbers) > 1:
            yield f"{reference} was done {len(numbers)} times"
        asked = {(fact["key"], fact["text"]) for fact in fuzz.witness.of(reference, "post")}
        if len(asked) > 1:
            yield f"{reference} was asked for in {len(asked)} ways: {asked}"


def _effects(trial: Trial, effects: Sequence[dict[str, Any]], done: dict[str, list[int]]) -> Iterator[str]:
    known = {business(trial, effect): effect for effect in effects}
    yield from [
        f"{reference} was done, and the ledger has no effect" for reference in done.keys() - known if done[reference]
    ]
    for reference, effect in known.items():
        numbers, status = done[reference], effect["status"]
        if trial.status in FINAL and status not in ("succeeded", "failed"):
            yield f"{reference} is {status} in a run that is {trial.status}"
        if status == "succeeded" and (len(numbers) != 1 or _stored(effect) != str(numbers[0])):
            yield f"{reference} is said to have succeeded with {_stored(effect)}; what was done: {numbers}"
        if status == "failed" and numbers:
            yield f"{reference} is said to have failed, and was done: {effect['error']}"


def _end(trial: Trial, account: Account, done: dict[str, list[int]]) -> Iterator[str]:
    status, happened = trial.status, "\n".join(trial.story)
    if status not in FINAL:
        yield f"lost: {status}, {account.run['reason']}"
    if status == "succeeded" and (found := [[number] for number in result_of(account)]) != list(done.values()):
        yield f"succeeded with {found}, and what was done is {done}"
    if status == "cancelled" and "cancel" not in happened:
        yield "cancelled, and nobody has asked for it"
    may_fail = any("refuse" in script.post or "down" in script.knock for script in trial.plan.scripts)
    if status == "failed" and not may_fail:
        yield f"failed, and nobody has refused anything: {account.run['error']}"


def _stored(effect: dict[str, Any]) -> str | None:
    return None if effect["result"] is None else bytes.fromhex(effect["result"].removeprefix("\\x")).decode()


def tell(fuzz: Fuzz, trial: Trial) -> str:
    """Say all that is known of a seed, for one that has failed."""
    account = fuzz.fleet.account(trial.run)
    lines = [str(trial.plan), f"  beside seeds {trial.neighbours}", f"run {trial.run}, {trial.status}:", *trial.story]
    lines += [f"{event['at']:%H:%M:%S.%f} {event['type']} {event['key']} {event['data']}" for event in account.events]
    for effect in effects_of(fuzz.fleet, trial.run):
        lines.append(f"effect {business(trial, effect)}: {effect['status']}, attempts {effect['attempts']}")
        lines += [
            f"  {entry['at']} {entry['status']} {entry['actor']}: {entry['why']}" for entry in effect["history"] or ()
        ]
    lines += [str(fact) for reference in trial.references for fact in fuzz.witness.of(reference)]
    return "\n".join(lines)

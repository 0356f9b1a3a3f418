"""The form that the gate lets in (P41): all that the publisher builds, and nothing else."""

from __future__ import annotations

import itertools
import json
import random
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import hostile
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kombu.transport.virtual.base import Base64
from kombu.transport.virtual.base import Message as KombuMessage
from kombu.utils.json import loads as kombu_loads
from safepoint.tasks.app import SCAN
from safepoint.tasks.commands import ALLOWED, is_command
from safepoint.tasks.gate import refusal
from safepoint.tasks.refusals import LINES, PERIOD, Refusals
from safepoint.tasks.senders import Parcel
from safepoint.tasks.transport import readable
from safepoint.tasks.wire import Chore, Message, chore_parcel, parcel

LANES = {"online", "recovery"}
NAMES = st.text(st.characters(exclude_categories=("C", "Z"), exclude_characters="/#@"), min_size=1, max_size=200)
REPLIES = "reply.celery.pidbox"


def received(made: Parcel, **changes: Any) -> Any:
    form = {"headers": made.headers, "body": made.body, "content_type": "application/json", "content_encoding": "utf-8"}
    return SimpleNamespace(**form | changes)


def message(**changes: Any) -> Message:
    form = {"run": str(UUID(int=7)), "step": "good#1", "lane": "online", "name": "good", "attempt": 1, "epoch": 0}
    return Message(**form | changes)


@given(
    run=st.uuids(),
    step=NAMES,
    path=st.sampled_from(["", "gather#1.2/", "g2:gather#1.2/inner#3/"]),
    lane=st.sampled_from(sorted(LANES)),
    attempt=st.integers(1, 10_000),
    epoch=st.integers(0, 2**53),
)
def test_what_the_publisher_builds_comes_in(
    run: UUID, step: str, path: str, lane: str, attempt: int, epoch: int
) -> None:
    made = Message(run=str(run), step=f"{path}{step}#1", lane=lane, name=step, attempt=attempt, epoch=epoch)

    assert refusal(received(parcel(made, "queue")), lanes=LANES) is None


def test_a_chore_comes_in() -> None:
    assert refusal(received(chore_parcel(Chore(SCAN, "control", expires=10))), lanes=LANES) is None


def test_a_message_stays_under_a_kilobyte() -> None:
    made = parcel(message(step="gather#1.12/search_the_web#17", name="search_the_web", attempt=3, epoch=12), "online")

    assert len(json.dumps(made.headers)) + len(made.body) < 1024


def test_what_a_broker_adds_on_redelivery_comes_in() -> None:
    made = parcel(message(), "online")

    headers = made.headers | {"redelivered": True, "x-delivery-count": 3}

    assert refusal(received(made, headers=headers), lanes=LANES) is None


@pytest.mark.parametrize(
    "kind", sorted(set(hostile.KINDS) - {"broken body"})
)  # a flipped byte may give another good id
def test_every_hostile_kind_is_refused(kind: str) -> None:
    rng = random.Random(kind)
    for _ in range(50):
        valid = hostile.valid(rng)
        forged = hostile.KINDS[kind](rng, valid)
        if forged == valid:
            continue  # a mutation may give back what was there
        try:
            reason = refusal(forged, lanes=LANES)
        except Exception as error:  # noqa: BLE001  # the gate refuses whatever breaks the comparison
            reason = type(error).__name__

        assert reason is not None or _is_harmless(forged, valid), forged


def _is_harmless(forged: hostile.Forged, valid: hostile.Forged) -> bool:
    """Another attempt number, another text for Flower, an unknown step of another name: a form like any other."""
    free = {"retries", "argsrepr", "kwargsrepr", "task", "redelivered"}
    changed = {
        name for name in {*forged.headers, *valid.headers} if forged.headers.get(name) != valid.headers.get(name)
    }
    return changed <= free


def test_kombu_can_take_apart_whatever_the_guard_lets_through() -> None:
    def decode_body(body: str, encoding: str | None) -> str | bytes:
        return Base64().decode(body) if encoding == "base64" else body

    channel: Any = SimpleNamespace(decode_body=decode_body)
    for _, item in hostile.redis_items(seed=41, count=400):
        made = KombuMessage(kombu_loads(readable(item)), channel=channel)

        assert isinstance(made.delivery_tag, str)
        assert not made.errors


def test_a_valid_envelope_is_left_alone() -> None:
    rng = random.Random(41)
    item = json.dumps(hostile.envelope(hostile.valid(rng), rng)).encode()

    assert readable(item) is item


@pytest.mark.parametrize("method", hostile.COMMANDS)
def test_a_command_that_changes_a_worker_is_not_heard(method: str) -> None:
    assert not is_command({"method": method, "arguments": {}, "destination": None}, reply_exchange=REPLIES)


@pytest.mark.parametrize("method", sorted(ALLOWED))
def test_a_question_is_heard(method: str) -> None:
    arguments = {"ids": ["x"]} if method == "query_task" else {}
    reply_to = {"exchange": REPLIES, "routing_key": str(UUID(int=1))}
    body = {"method": method, "arguments": arguments, "destination": ["worker@host"], "pattern": None, "matcher": None}

    assert is_command(body | {"reply_to": reply_to, "ticket": str(UUID(int=2))}, reply_exchange=REPLIES)


@pytest.mark.parametrize(
    "change",
    [
        {"pattern": "(a+)+$", "matcher": "pcre"},
        {"reply_to": {"exchange": "celeryev", "routing_key": "x"}, "ticket": "x"},
        {"reply_to": {"exchange": REPLIES}, "ticket": "x"},
        {"reply_to": {"exchange": REPLIES, "routing_key": "x"}, "ticket": None},
        {"destination": "worker@host"},
        {"arguments": [1]},
        {"arguments": {"taskinfoitems": ["__globals__"]}, "method": "registered"},
        {"method": ["ping"]},
        {"more": 1},
    ],
)
def test_a_question_in_another_form_is_not_heard(change: dict[str, Any]) -> None:
    body = {"method": "ping", "arguments": {}, "destination": None}

    assert not is_command(body | change, reply_exchange=REPLIES)


def test_random_commands_are_either_heard_or_not() -> None:
    heard = [is_command(body, reply_exchange=REPLIES) for body in hostile.commands(seed=5, count=2_000)]

    assert not all(heard)


def test_a_flood_of_refusals_is_counted_and_seldom_logged(caplog: pytest.LogCaptureFixture) -> None:
    clock = itertools.count(0, PERIOD / 1000).__next__
    refusals = Refusals("message", clock=clock)

    for _ in range(1000):
        refusals.note(SimpleNamespace(body=b"secret", headers={}), "size")

    assert refusals.total == 1000
    assert len(caplog.records) <= 2 * LINES + 2
    assert "secret" not in caplog.text

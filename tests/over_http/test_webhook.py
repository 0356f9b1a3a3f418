"""Webhooks: nothing but what was signed, under a known secret, within the window, is let in; and how it is read."""

from __future__ import annotations

import hashlib
import hmac
import json
import pickle
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from safepoint.errors import BadSettlement, NaiveDatetime, WebhookRefused
from safepoint.http.webhook import HEADER, Settlement, settlement, sign, verify

SECRET, OLD = "whsec_current_0123456789", b"whsec_previous_0123456789"
NOW = datetime(2025, 3, 14, 9, 56, tzinfo=UTC)
BODY = b'{"key": "k", "verdict": "succeeded", "value": {"number": 7}}'
KEY = "ab" * 32


def reason_of(body: bytes, header: str | None, **options: Any) -> str:
    with pytest.raises(WebhookRefused) as caught:
        verify(body, header, **{"secrets": [SECRET], "now": NOW} | options)
    assert SECRET not in str(caught.value)
    assert SECRET not in repr(vars(caught.value))
    return caught.value.reason


# --- signatures -----------------------------------------------------------------------------------------------------


def test_what_was_signed_verifies() -> None:
    delivery = verify(BODY, sign(BODY, secrets=[SECRET], now=NOW), secrets=[SECRET], now=NOW + timedelta(seconds=10))

    assert delivery.at == NOW
    assert delivery.digest == hashlib.sha256(f"{NOW.timestamp():.0f}.".encode() + BODY).hexdigest()


def test_the_header_is_what_any_sender_can_compute() -> None:
    mac = hmac.new(SECRET.encode(), b"1741946160." + BODY, "sha256").hexdigest()

    assert HEADER == "Safepoint-Signature"
    assert sign(BODY, secrets=[SECRET], now=NOW) == f"t=1741946160,v1={mac}"
    assert verify(BODY, f"t=1741946160, v0=unknown, v1={mac}", secrets=[SECRET], now=NOW)


def test_the_clock_is_the_machines_unless_given() -> None:
    assert verify(BODY, sign(BODY, secrets=[SECRET]), secrets=[SECRET])


@pytest.mark.parametrize(
    ("signed_with", "known"),
    [([SECRET], [OLD, SECRET]), ([OLD], [SECRET, OLD]), ([OLD, SECRET], [SECRET]), ([SECRET, OLD], [OLD])],
)
def test_secrets_can_be_rotated_on_either_side(signed_with: list[str | bytes], known: list[str | bytes]) -> None:
    assert verify(BODY, sign(BODY, secrets=signed_with, now=NOW), secrets=known, now=NOW)


@given(st.binary(), st.integers(0, 2**31), st.binary(min_size=1))
def test_every_body_time_and_secret_verifies(body: bytes, at: int, secret: bytes) -> None:
    instant = datetime.fromtimestamp(at, UTC)

    assert verify(body, sign(body, secrets=[secret], now=instant), secrets=[secret], now=instant).at == instant


@given(st.binary(min_size=1), st.data())
def test_any_changed_byte_of_the_body_is_refused(body: bytes, data: st.DataObject) -> None:
    header = sign(body, secrets=[SECRET], now=NOW)
    place, change = data.draw(st.integers(0, len(body) - 1)), data.draw(st.integers(1, 255))
    changed = bytearray(body)
    changed[place] ^= change

    assert reason_of(bytes(changed), header) == "mismatch"


@given(st.binary(), st.binary())
def test_any_other_body_is_refused(body: bytes, other: bytes) -> None:
    assume(body != other)

    assert reason_of(other, sign(body, secrets=[SECRET], now=NOW)) == "mismatch"


@given(st.integers(-300, 300).filter(bool))
def test_any_changed_timestamp_is_refused(moved: int) -> None:
    at = int(NOW.timestamp())
    header = sign(BODY, secrets=[SECRET], now=NOW).replace(f"t={at}", f"t={at + moved}")

    assert reason_of(BODY, header) == "mismatch"


@pytest.mark.parametrize("written", ["01741946160", "1741946160.0", " 1741946160", "+1741946160", "١٧٤١٩٤٦١٦٠"])
def test_the_same_instant_written_differently_is_refused(written: str) -> None:
    header = sign(BODY, secrets=[SECRET], now=NOW).replace("1741946160", written)

    assert reason_of(BODY, header) in {"mismatch", "malformed"}


@given(st.binary(min_size=1), st.binary(min_size=1))
def test_any_other_secret_is_refused(ours: bytes, theirs: bytes) -> None:
    # HMAC pads a short key with zeros and hashes a long one: these two are one key to it.
    assume(hmac.digest(ours, b"", "sha256") != hmac.digest(theirs, b"", "sha256"))

    assert reason_of(BODY, sign(BODY, secrets=[theirs], now=NOW), secrets=[ours]) == "mismatch"


@given(st.integers(0, 63), st.sampled_from("0123456789abcdef"))
def test_any_changed_digit_of_the_signature_is_refused(place: int, digit: str) -> None:
    start, mac = sign(BODY, secrets=[SECRET], now=NOW).split("v1=")
    assume(mac[place] != digit)

    assert reason_of(BODY, f"{start}v1={mac[:place]}{digit}{mac[place + 1 :]}") == "mismatch"


@given(st.text(max_size=200))
def test_whatever_stands_in_the_header_has_a_reason(header: str) -> None:
    assert reason_of(BODY, header) in {"missing", "malformed"}


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (None, "missing"),
        ("", "missing"),
        ("nonsense", "malformed"),
        ("t=1741946160", "malformed"),
        (f"v1={'0' * 64}", "malformed"),
        (f"t=1741946160,t=1741946161,v1={'0' * 64}", "malformed"),
        (f"t=-1,v1={'0' * 64}", "malformed"),
        (f"t=999999999999,v1={'0' * 64}", "malformed"),
        (f"t=1741946160,v1={'0' * 63}", "malformed"),
        (f"t=1741946160,v1={'G' * 64}", "malformed"),
        (f"t=1741946160,v1={'0' * 64}", "mismatch"),
        ("t=1741946160" + f",v1={'0' * 64}" * 17, "malformed"),
        ("x" * 5_000, "malformed"),
    ],
)
def test_a_header_that_is_wrong_has_its_reason(header: str | None, reason: str) -> None:
    assert reason_of(BODY, header) == reason


# --- the window -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("later", "reason"), [(301, "too_old"), (86_400, "too_old"), (-301, "too_early"), (300, None), (-300, None)]
)
def test_what_is_too_old_or_from_the_future_is_refused(later: int, reason: str | None) -> None:
    header, then = sign(BODY, secrets=[SECRET], now=NOW), NOW + timedelta(seconds=later)

    if reason is None:
        assert verify(BODY, header, secrets=[SECRET], now=then)
    else:
        assert reason_of(BODY, header, now=then) == reason


def test_the_window_is_the_receivers_choice() -> None:
    header, then = sign(BODY, secrets=[SECRET], now=NOW), NOW + timedelta(seconds=11)

    assert reason_of(BODY, header, now=then, tolerance=10) == "too_old"
    assert verify(BODY, header, secrets=[SECRET], now=then, tolerance=timedelta(seconds=11))


def test_an_old_delivery_with_a_wrong_signature_is_told_of_the_signature_only() -> None:
    assert reason_of(BODY, f"t=1,v1={'0' * 64}") == "mismatch"


def test_a_replay_has_the_digest_of_the_first_whoever_reorders_its_header() -> None:
    header = sign(BODY, secrets=[SECRET, OLD], now=NOW)
    start, first, second = header.split(",")

    digests = {
        verify(BODY, one, secrets=[SECRET], now=NOW).digest for one in (header, f"{second},{first},{start}", header)
    }

    assert len(digests) == 1


# --- mistakes of the receiver's programmer --------------------------------------------------------------------------


@pytest.mark.parametrize("secrets", [[], [""], [SECRET, b""]])
def test_without_a_secret_nothing_is_verified(secrets: list[str | bytes]) -> None:
    with pytest.raises(ValueError, match="at least one, none empty"):
        verify(BODY, sign(BODY, secrets=[SECRET], now=NOW), secrets=secrets, now=NOW)


def test_one_secret_is_no_sequence_of_letters() -> None:
    with pytest.raises(TypeError, match="accepted is a sequence"):
        verify(BODY, "", secrets=SECRET)


def test_a_parsed_body_is_refused() -> None:
    with pytest.raises(TypeError, match="the bytes as they came"):
        sign(BODY.decode(), secrets=[SECRET])  # type: ignore[arg-type]  # what is tested


def test_a_naive_clock_is_refused() -> None:
    with pytest.raises(NaiveDatetime):
        sign(BODY, secrets=[SECRET], now=NOW.replace(tzinfo=None))


def test_a_refusal_survives_its_way_between_processes() -> None:
    error = WebhookRefused(reason="mismatch", text="no")

    assert vars(pickle.loads(pickle.dumps(error))) == vars(error)


# --- what it says ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "meant"),
    [
        ({"verdict": "succeeded", "value": {"n": [7]}}, Settlement(KEY, "succeeded", value={"n": [7]})),
        ({"verdict": "succeeded", "value": None}, Settlement(KEY, "succeeded")),
        ({"verdict": "failed", "error": "declined", "version": 3}, Settlement(KEY, "failed", None, "declined", 3)),
        ({"verdict": "not_executed", "why": "no trace"}, Settlement(KEY, "not_executed", why="no trace")),
    ],
)
def test_a_settlement_is_read(body: dict[str, Any], meant: Settlement) -> None:
    assert settlement(json.dumps({"key": KEY} | body).encode()) == meant


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        (b"", [""]),
        (b"{", [""]),
        (b"[]", [""]),
        (b"\xff", [""]),
        (b"null", [""]),
        (b'{"key": NaN}', [""]),
        ({}, ["key", "verdict"]),
        ({"key": KEY, "verdict": "succeeded"}, ["value"]),
        ({"key": KEY, "verdict": "failed"}, ["error"]),
        ({"key": KEY, "verdict": "done"}, ["verdict"]),
        ({"key": KEY, "verdict": ["failed"]}, ["verdict"]),
        ({"key": KEY.upper(), "verdict": "not_executed"}, ["key"]),
        ({"key": 7, "verdict": "not_executed"}, ["key"]),
        ({"key": f"{KEY}\n", "verdict": "not_executed"}, ["key"]),
        ({"key": KEY, "verdict": "not_executed", "version": 0}, ["version"]),
        ({"key": KEY, "verdict": "not_executed", "version": True}, ["version"]),
        ({"key": KEY, "verdict": "not_executed", "version": 2**31}, ["version"]),
        ({"key": KEY, "verdict": "not_executed", "version": None}, ["version"]),
        ({"key": KEY, "verdict": "not_executed", "why": "\0"}, ["why"]),
        ({"key": KEY, "verdict": "failed", "error": " "}, ["error"]),
        ({"key": KEY, "verdict": "failed", "error": "x" * 5_000}, ["error"]),
        ({"key": KEY, "verdict": "failed", "error": "no", "value": 1}, ["value"]),
        ({"key": KEY, "verdict": "succeeded", "value": 1, "error": "no"}, ["error"]),
        ({"key": KEY, "verdict": "not_executed", "result": 1}, ["result"]),
        ({"key": "k", "verdict": "failed", "version": "1"}, ["key", "error", "version"]),
    ],
)
def test_a_settlement_that_cannot_be_read_names_every_field(body: Any, fields: list[str]) -> None:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()

    with pytest.raises(BadSettlement) as caught:
        settlement(raw)

    assert [problem.field for problem in caught.value.problems] == fields
    assert all(str(problem) in str(caught.value) for problem in caught.value.problems)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists) | st.binary())
def test_whatever_comes_is_read_or_refused(given: Any) -> None:
    raw = given if isinstance(given, bytes) else json.dumps({"key": given, "verdict": given, "value": given}).encode()

    with pytest.raises(BadSettlement):
        settlement(raw)

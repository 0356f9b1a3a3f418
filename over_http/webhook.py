"""Webhooks that settle effects: a signature over timestamp and body, and what a settlement says.

    Safepoint-Signature: t=1741946000,v1=<hex of HMAC-SHA256(secret, "1741946000." + body)>[,v1=...]

The body is verified as it came, before it is parsed. A delivery that is sent again within the tolerance verifies
again, with the same digest; settling an effect twice is refused by the ledger.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal

from ..config.errors import SafepointError
from ..tasks.duration import aware, seconds
from .settlement import BadSettlement, FieldProblem, Settlement, settlement

__all__ = [
    "HEADER",
    "BadSettlement",
    "Delivery",
    "FieldProblem",
    "Reason",
    "Settlement",
    "WebhookRefused",
    "settlement",
    "sign",
    "verify",
]

HEADER = "Safepoint-Signature"
TOLERANCE = 300.0

# Bounds of what a stranger can make us parse and compute.
LONGEST = 4_096
MOST_SIGNATURES = 16

Secrets = Sequence[str | bytes]
Reason = Literal["missing", "malformed", "mismatch", "too_old", "too_early"]


class WebhookRefused(SafepointError):  # noqa: N818  # named after what happened
    """The webhook is refused ({reason}): {text}."""

    reason: Reason
    text: str


@dataclass(frozen=True, slots=True)
class Delivery:
    """A verified delivery: when it was signed, and a digest that names it, for who keeps those of the last minutes."""

    at: datetime
    digest: str


def verify(
    body: bytes,
    signature: str | None,
    *,
    secrets: Secrets,
    tolerance: float | timedelta = TOLERANCE,
    now: datetime | None = None,
) -> Delivery:
    """Verify a body against its signature header under any of the secrets, or raise `WebhookRefused`.

    `now` is the receiver's clock unless given. A timestamp further than `tolerance` from it, back or ahead, is refused.
    """
    keys = _keys(secrets)
    window = seconds(tolerance, what="tolerance")
    instant = datetime.now(UTC) if now is None else aware(now, what="now")
    timestamp, given = _parse(signature)
    signed = _signed(timestamp, body)
    # Every pair is compared, each in constant time: how long it takes does not tell which secret fits, or how far.
    fits = [hmac.compare_digest(_hmac(key, signed), one) for key in keys for one in given]
    if not any(fits):
        raise WebhookRefused(reason="mismatch", text="no signature fits this body and timestamp under a known secret")
    age = instant.timestamp() - int(timestamp)
    if age > window:
        raise WebhookRefused(reason="too_old", text=f"it was signed {age:.0f} s ago; at most {window:g} s are accepted")
    if age < -window:
        text = f"it was signed {-age:.0f} s ahead of this clock; at most {window:g} s are accepted"
        raise WebhookRefused(reason="too_early", text=text)
    return Delivery(datetime.fromtimestamp(int(timestamp), UTC), hashlib.sha256(signed).hexdigest())


def sign(body: bytes, *, secrets: Secrets, now: datetime | None = None) -> str:
    """Give the signature header of a body: one signature a secret, so that a sender can rotate as well."""
    instant = datetime.now(UTC) if now is None else aware(now, what="now")
    timestamp = str(int(instant.timestamp()))
    signed = _signed(timestamp, body)
    return ",".join([f"t={timestamp}", *(f"v1={_hmac(key, signed).hex()}" for key in _keys(secrets))])


def _parse(signature: str | None) -> tuple[str, list[bytes]]:
    if not signature:
        raise WebhookRefused(reason="missing", text=f"there is no {HEADER} header")
    if len(signature) > LONGEST:
        raise _malformed(f"it has {len(signature)} characters, at most {LONGEST} are accepted")
    pairs = [part.strip().partition("=") for part in signature.split(",")]
    timestamps = [value for name, _, value in pairs if name == "t"]
    signatures = [value for name, _, value in pairs if name == "v1"]  # other names are schemes to come
    if len(timestamps) != 1 or not re.fullmatch(r"[0-9]{1,11}", timestamps[0]):
        raise _malformed("accepted is one t= with whole seconds since 1970")
    if not 1 <= len(signatures) <= MOST_SIGNATURES:
        raise _malformed(f"it has {len(signatures)} v1= signatures, accepted are 1 to {MOST_SIGNATURES}")
    if not all(re.fullmatch(r"[0-9a-f]{64}", one) for one in signatures):
        raise _malformed("a v1= signature is 64 hexadecimal digits in lower case")
    return timestamps[0], [bytes.fromhex(one) for one in signatures]


def _malformed(text: str) -> WebhookRefused:
    return WebhookRefused(reason="malformed", text=f"the {HEADER} header is not as expected: {text}")


def _keys(secrets: Iterable[str | bytes]) -> list[bytes]:
    # A single text would be taken for a sequence of secrets of one letter each.
    if isinstance(secrets, str | bytes):
        msg = "secrets: accepted is a sequence of secrets, as in secrets=[current, previous]"
        raise TypeError(msg)
    keys = [secret.encode() if isinstance(secret, str) else bytes(secret) for secret in secrets]
    if not keys or not all(keys):
        msg = f"secrets: {len(keys)} are given, {keys.count(b'')} of them empty. Accepted: at least one, none empty"
        raise ValueError(msg)
    return keys


def _signed(timestamp: str, body: bytes) -> bytes:
    given: object = body
    if not isinstance(given, bytes | bytearray | memoryview):
        msg = f"body: {type(given).__name__} is given. Accepted: the bytes as they came, not what was parsed of them"
        raise TypeError(msg)
    return timestamp.encode() + b"." + bytes(given)


def _hmac(key: bytes, signed: bytes) -> bytes:
    return hmac.digest(key, signed, "sha256")

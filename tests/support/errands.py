"""Flows that change an outside world (`downstream`), which can do a key once, or only be asked, or neither.

A model that answers differently each time writes every request. For each crash point there is an effect of its own on
the lane `abroad`, so that one victim can be armed for all of them; those of the fuzzer are on the ordinary lane.
"""

from __future__ import annotations

import json
import os
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlencode, urlsplit

from journeys import begin, dwell, gate
from safepoint import NOT_EXECUTED, UNSURE, Found, Lookup, Permanent, current, effect, flow, gather, step
from safepoint.tasks.effect import Effect
from tenacity import stop_after_attempt, wait_fixed

POINTS = ("effect.before", "effect.after", "commit.before", "commit.after", "publish.after")
PATIENCE = float(os.environ.get("PATIENCE", "2"))  # seconds that a client waits for an answer
AUTHORITATIVE_AFTER = float(os.environ.get("AUTHORITATIVE_AFTER", "1"))
SOON = wait_fixed(0.1)


class RefusedError(Exception):
    """The other side has understood the request and will not do it."""


class TroubleError(Exception):
    """The other side has an error of its own: it may have done it or not."""


# --- the client -----------------------------------------------------------------------------------------------------


def talk(
    method: str, path: str, body: dict[str, Any] | None = None, *, key: str = "", patience: float | None = None
) -> Any:
    """Send a request and read the answer, as long as the client's patience lasts."""
    url = urlsplit(os.environ["OUTSIDE"])
    connection = HTTPConnection(url.hostname or "", url.port, timeout=patience or PATIENCE)
    headers = {"X-Pid": str(os.getpid()), "X-Parent": str(os.getppid()), "Idempotency-Key": key}
    try:
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        document = json.loads(answer.read())
    finally:
        connection.close()
    if answer.status == 503:
        raise ConnectionRefusedError("nobody is there")
    if answer.status == 422:
        raise RefusedError(document)
    if answer.status != 200:
        raise TroubleError(answer.status, document)
    return document


def order(kind: str, reference: str, text: str) -> int:
    """Have it done and return its number."""
    begin()
    talk("GET", "/knock?" + urlencode({"reference": reference}), patience=60)  # whoever waits here has sent nothing
    key = current().idempotency_key  # type: ignore[attr-defined]  # an effect's
    return int(talk("POST", f"/{kind}", {"reference": reference, "text": text}, key=key)["number"])


def look(by: str, reference: str) -> Lookup[int]:
    """Ask whether it was done."""
    key = current().idempotency_key  # type: ignore[attr-defined]  # as above
    document = talk("GET", "/searchable?" + urlencode({"by": by, "key": key, "reference": reference}))
    if not isinstance(document, dict):
        return UNSURE
    return NOT_EXECUTED if document["number"] is None else Found(document["number"])


# --- one effect for each kind of other side ---------------------------------------------------------------------------


def make(kind: str, *, name: str, lane: str, by: str = "key", timeout: float = 10.0) -> Effect[[str, str], int]:
    """Declare an effect whose other side is of that kind."""

    @effect(
        name=name,
        lane=lane,
        timeout=timeout,
        idempotent=kind == "keyed",
        key_retention=600 if kind == "keyed" else None,
        authoritative_after=AUTHORITATIVE_AFTER,
        not_sent=(ConnectionRefusedError,),
        rejected=(RefusedError,),
        wait=SOON,
        stop=stop_after_attempt(8),
    )
    def send(reference: str, text: str) -> int:
        return order(kind, reference, text)

    if kind == "searchable":

        @send.lookup(timeout=PATIENCE + 1, wait=SOON, stop=stop_after_attempt(30))
        def found(reference: str, text: str) -> Lookup[int]:
            return look(by, reference)

    return send


def effect_at(kind: str, point: str) -> str:
    """Return the name of the effect that is there for that crash point."""
    return f"{kind}_{point.replace('.', '_')}"


AT_POINTS = {
    effect_at(kind, point): make(kind, name=effect_at(kind, point), lane="abroad")
    for kind in ("keyed", "searchable", "blind")
    for point in POINTS
}
EVERYDAY = {
    kind: make(kind, name=f"everyday_{kind}", lane="online", by="reference", timeout=3.0)
    for kind in ("keyed", "searchable", "blind")
}
booked = make("keyed", name="booked", lane="front")


@booked.compensate
def unbook(number: int) -> int:
    """Take it back: a request of its own, under a key of its own."""
    return order("keyed", f"undo {number}", "undo")


fickle_order = make("keyed", name="fickle_order", lane="front")


# --- flows ----------------------------------------------------------------------------------------------------------


@step
def compose(reference: str) -> str:
    """Write the request: a model that never answers the same twice."""
    begin()
    return f"{reference}: {os.urandom(8).hex()}"


@step
def file(numbers: list[int]) -> list[int]:
    begin()
    return numbers


@flow
async def errand(name: str, reference: str) -> list[int]:
    """One effect on the victims' lane, and a step after it."""
    text = await compose(reference)
    return await file([await AT_POINTS[name](reference, text)])


@flow
async def errands(reference: str, kinds: list[str], at_once: bool) -> list[int]:
    """Several effects, one after the other or all at once; each has a reference of its own."""
    if at_once:
        return await file(await gather(*[one(f"{reference}/{n}", kind) for n, kind in enumerate(kinds)]))
    return await file([await one(f"{reference}/{n}", kind) for n, kind in enumerate(kinds)])


async def one(reference: str, kind: str) -> int:
    text = await compose(reference)
    return await EVERYDAY[kind](reference, text)


@flow
async def fickle(reference: str) -> list[int]:
    """A flow whose code asks for something else as soon as a gate is open: nothing that a flow may do."""
    await dwell(f"{reference}-go")  # by the victim: who goes on has not seen what follows
    text = "another request" if gate(reference).exists() else "the request"
    return await file([await fickle_order(reference, text)])


@flow
async def regret(reference: str) -> None:
    """Two bookings, and then a failure: both are to be taken back."""
    numbers = [await booked(f"{reference}/{n}", "book") for n in (1, 2)]
    await file(numbers)
    raise Permanent("for a reason")

"""How fast one client enqueues: one run after the other and many at once, with and without keys and the code."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from uuid import uuid4

from bench_flows import held
from safepoint import Client
from safepoint.ledger.connect import connect
from stack import brokers

TEXT = "x" * 180  # with the rest about 200 bytes of JSON
ROUNDS = 3


def one_by_one(client: Client, count: int, **key: bool) -> None:
    """Enqueue by name, as an app does that has none of the code."""
    for n in range(count):
        client.enqueue("bench_foreign", {"n": n, "text": TEXT}, **_key(**key))


def calls(client: Client, count: int, **key: bool) -> None:
    """Enqueue calls, whose arguments are checked."""
    for n in range(count):
        client.enqueue(held(float(n)), **_key(**key))


def many(client: Client, count: int, *, keyed: bool = False) -> None:
    """Enqueue in one transaction."""
    keys = [str(uuid4()) for _ in range(count)] if keyed else None
    client.enqueue_many("bench_foreign", ({"n": n, "text": TEXT} for n in range(count)), keys=keys)


def many_calls(client: Client, count: int, *, keyed: bool = False) -> None:
    """Enqueue calls in one transaction."""
    keys = [str(uuid4()) for _ in range(count)] if keyed else None
    client.enqueue_many([held(float(n)) for n in range(count)], keys=keys)


def _key(*, keyed: bool = False) -> dict[str, str]:
    return {"key": str(uuid4())} if keyed else {}


KINDS: dict[str, tuple[Callable[..., None], bool]] = {
    "one by one, by name": (one_by_one, False),
    "one by one, a call": (calls, False),
    "`enqueue_many`, by name": (many, True),
    "`enqueue_many`, calls": (many_calls, True),
}


def main(*, quick: bool) -> None:
    """Print runs a second, the median and the best of a few rounds."""
    print("| enqueue, one client | keys | runs/s | best |")
    print("| --- | --- | --- | --- |")
    with brokers() as found:
        url = next(iter(found.values()))[0]
        with connect(url, name="bench") as connection:
            row = ("bench_foreign", "1")
            connection.execute("INSERT INTO safepoint.flows (name, version, registered_at) VALUES (%s, %s, now())", row)
        with Client(url) as client:
            for name, (kind, in_bulk) in KINDS.items():
                count = (5_000 if in_bulk else 500) if quick else (20_000 if in_bulk else 3_000)
                for keyed in (False, True):
                    kind(client, 100, keyed=keyed)  # plans and pages are warm
                    rates = [_rate(kind, client, count, keyed=keyed) for _ in range(ROUNDS)]
                    shown = "yes" if keyed else "no"
                    print(f"| {name} | {shown} | {statistics.median(rates):,.0f} | {max(rates):,.0f} |")


def _rate(kind: Callable[..., None], client: Client, count: int, *, keyed: bool) -> float:
    started = time.perf_counter()
    kind(client, count, keyed=keyed)
    return count / (time.perf_counter() - started)

"""What the checkers must refuse: each line's comments name the complaint, and an unused one is itself an error."""

from __future__ import annotations

from safepoint import Found, Lookup, continue_as, effect, flow, gather, sleep, step, wait_for


@step
def length(text: str) -> int:
    return len(text)


@step(timeout=5)
async def shout(text: str) -> str:
    return text.upper()


@effect
def send(to: str) -> int:
    return 1


@flow
async def child(text: str) -> int:
    return await length(text)


@flow
async def forgotten_awaits(text: str) -> None:
    length(text)  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]
    shout(text)  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]
    send(text)  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]
    sleep(1)  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]
    wait_for("go")  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]
    continue_as(text)  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]
    gather(length(text), shout(text))  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]


@flow
async def wrong_arguments() -> None:
    await length(3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await length()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await shout(txt="a")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await child(3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await length("a", timeout=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await sleep("1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


@flow
async def wrong_results() -> str:
    text: str = await length("a")  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    number: int = await shout("a")  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    total = await length("a") + await child("b")
    (await shout("a")).bit_length()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    one, other = await gather(length("a"), shout("b"))
    one.upper()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    other.bit_length()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    text, number = str(number), len(text)
    return total  # type: ignore[return-value]  # pyright: ignore[reportReturnType]


@flow
async def unawaited_value() -> int:
    return length("a") + 1  # type: ignore[operator]  # pyright: ignore[reportOperatorIssue]


def no_coroutine(text: str) -> int:
    return len(text)


def wrong_lookup(to: int) -> Lookup[int]:
    return Found(to)


def wrong_compensation(receipt: str) -> None:
    receipt.upper()


flow(no_coroutine)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
send.lookup(wrong_lookup)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
send.compensate(wrong_compensation)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def outside() -> None:
    run = child("a").enqueue(tenant=3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    text: str = run.result()  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    text.upper()

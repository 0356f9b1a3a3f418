"""With a codec, no value is in the open: not in a table, not in the artifact store; and the run ends as without one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import toy_codec
from ledger_verbs import Verbs, key
from safepoint import Client, approval, continue_as, current, effect, flow, step, wait_for
from safepoint.ledger.codec import Codec
from safepoint.ledger.document import hashed
from safepoint.ledger.errors import IdempotencyConflict, ValueNotOpened
from safepoint.ledger.seal import Seal
from tenacity import stop_after_attempt
from workshop import Workshop, settings_of

MARKER = "plainly-readable"
calls: list[str] = []


def secret() -> str:
    calls.append("once")
    return f"{MARKER} once"


@step(name="seal_look")
def look(word: str) -> str:
    return f"{word}, {current().once('secret', secret)}"


@step(name="seal_once", stop=stop_after_attempt(1))
def fails(word: str) -> str:
    return word


@effect(name="seal_send")
def send(word: str) -> str:
    return word


@flow(name="seal_child", version="1")
async def child(word: str) -> str:
    return await look(word)


@flow(name="seal_parent", version="1")
async def parent(word: str, turn: int) -> list[str]:
    if turn == 0:
        await continue_as(word, turn=1)
    seen, said = await child(word), await wait_for("go", type=str)
    return [seen, said, await send(word), 2_000 * MARKER]


@flow(name="seal_asks", version="1")
async def asks(word: str) -> None:
    await approval("may", show={"word": word})


@flow(name="seal_fails", version="1")
async def asks_a_step(word: str) -> str:
    return await fails(word)


@pytest.fixture
def verbs(crowd: Callable[[], Verbs]) -> Verbs:
    calls.clear()
    toy_codec.calls.clear()
    return crowd()


Hire = Callable[[str | None], Workshop]


@pytest.fixture
def hire(verbs: Verbs, crowded_ledger_url: str, tmp_path: Path) -> Hire:
    def hired(codec: str | None) -> Workshop:
        settings = settings_of(tmp_path, relay={"grace": 0.0}, values={"codec": codec, "artifact_threshold": 1000})
        shop = Workshop(crowded_ledger_url, settings)
        shop.register(crowded_ledger_url)
        return shop

    return hired


@pytest.fixture
def shop(hire: Hire) -> Workshop:
    return hire("toy_codec:xor")


@pytest.fixture
def client(shop: Workshop, crowded_ledger_url: str) -> Iterator[Client]:
    with Client(crowded_ledger_url, settings=shop.settings) as opened:
        yield opened


def in_the_open(verbs: Verbs, folder: Path) -> list[str]:
    """Name every place in which the marker can be read."""
    columns = verbs.rows(
        "SELECT table_name, column_name FROM information_schema.columns"
        " WHERE table_schema = 'safepoint' AND data_type IN ('bytea', 'jsonb', 'text')"
    )
    found = []
    for row in columns:
        name = f"safepoint.{row['table_name']}"
        text = f"convert_to({row['column_name']}::text, 'UTF8')"
        query = f"SELECT count(*) FROM {name} WHERE position(%s::bytea IN {text}) > 0"
        if verbs.value(query, (MARKER.encode(),)) or verbs.value(query, (MARKER.encode().hex().encode(),)):
            found.append(f"{name}.{row['column_name']}")
    blobs = [path for path in folder.rglob("*") if path.is_file()]
    return found + [path.name for path in blobs if MARKER.encode() in path.read_bytes()]


def finish(shop: Workshop, verbs: Verbs, url: str) -> None:
    for _ in range(4):
        shop.work(url)
        verbs.chores()


def test_nothing_of_a_run_can_be_read_and_its_result_is_what_it_would_be(
    shop: Workshop, client: Client, hire: Hire, verbs: Verbs, crowded_ledger_url: str, tmp_path: Path
) -> None:
    run = client.enqueue(parent(MARKER, turn=0), tenant="sealing")
    assert client.signal(run.id, "go", f"{MARKER} said") == "stored"
    client.enqueue_many("seal_asks", [{"word": MARKER}], tenant="sealing")

    finish(shop, verbs, crowded_ledger_url)

    assert run.result(timeout=0) == [f"{MARKER}, {MARKER} once", f"{MARKER} said", MARKER, 2_000 * MARKER]
    assert calls == ["once"]
    assert verbs.value("SELECT count(*) FROM safepoint.artifacts WHERE tenant_id = 'sealing'") == 1
    assert in_the_open(verbs, tmp_path) == []
    sealed = {row["kind"]: row["input_encoding"] for row in verbs.rows("SELECT * FROM safepoint.steps") if row["input"]}
    assert sealed == {"approval": "sealed"}
    assert verbs.value("SELECT DISTINCT request_encoding FROM safepoint.effects") == "sealed"
    assert verbs.value("SELECT encoding FROM safepoint.once") == "sealed"
    assert set(toy_codec.calls) == {"sealing"}

    # It cannot be read with another tenant's key, nor with another codec, nor without one.
    own, seal = verbs.run(UUID(run.id)), Seal.load("toy_codec:xor")
    assert MARKER.encode() in seal.open(own["input"], own["input_encoding"], "sealing")
    with pytest.raises(ValueNotOpened, match="the key of acme does not fit"):
        seal.open(own["input"], own["input_encoding"], "acme")
    with Client(crowded_ledger_url, settings=hire(None).settings) as outsider:
        with pytest.raises(ValueNotOpened, match=r"set values\.codec"):
            outsider.run(run.id).result(timeout=0)
    with Client(crowded_ledger_url, settings=hire("toy_codec:other").settings) as outsider:
        with pytest.raises(ValueNotOpened, match="the key of sealing does not fit"):
            outsider.run(run.id).result(timeout=0)


def test_plain_and_sealed_values_are_mixed_in_one_run(
    shop: Workshop, client: Client, verbs: Verbs, crowded_ledger_url: str
) -> None:
    given = json.dumps({"word": "from SQL", "turn": 0})
    run = verbs.value("SELECT safepoint.enqueue('seal_parent', %s, version => '1')", (given,))
    verbs.signal(run, data=b'"said in SQL"')

    finish(shop, verbs, crowded_ledger_url)

    assert client.run(run).result(timeout=0)[:2] == [f"from SQL, {MARKER} once", "said in SQL"]


def test_a_key_means_the_same_input_whether_it_is_sealed_or_not(client: Client, verbs: Verbs) -> None:
    given = json.dumps({"turn": 0.0, "word": "x"})
    run = verbs.value("SELECT safepoint.enqueue('seal_parent', %s, version => '1', key => 'k')", (given,))

    assert client.enqueue(parent("x", turn=0), key="k").id == str(run)
    with pytest.raises(IdempotencyConflict):
        client.enqueue(parent("y", turn=0), key="k")


VALUES: dict[str, Any] = {
    "keys": {"b": 1, "aa": 2, "a": 3, "ä": 4, "": 5, "c": {"z": [], "y": {}}},
    "numbers": {"n": [0, -1, 2**63, 10**40, 1.0, -0.0, 0.1, 1.50, 1e16, 1e22, 1e-7, 5e-324, 1.7976931348623157e308]},
    "texts": {"t": 'ä€😀\u2028\x7f " / \\ \t\n\r\b\f\x01\x1f', "1.0": "1.50", "x": [None, True, False]},
}


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_a_sealed_input_has_the_ledgers_hash_of_the_plain_one(verbs: Verbs, value: dict[str, Any]) -> None:
    data = Codec[dict[str, Any]](dict[str, Any]).encode(value).data
    run = verbs.value("SELECT safepoint.enqueue('f', convert_from(%s, 'UTF8')::jsonb, version => '1')", (data,))

    assert verbs.run(run)["input_hash"] == hashed(data)


def test_a_codec_that_fails_costs_an_attempt_and_never_the_worker(
    hire: Hire, client: Client, verbs: Verbs, crowded_ledger_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = UUID(client.enqueue(asks_a_step("x")).id)
    shop = hire("toy_codec:broken")
    finish(shop, verbs, crowded_ledger_url)

    error = verbs.step(run, key("seal_once#1"))["error"]
    assert error["type"] == "ValueNotSealed"
    assert "the key service is away" in error["message"]
    assert verbs.run(run)["status"] == "failed"

    # What follows a step cannot be sealed: the run is held with the words, and nothing of it is stored in the open.
    other = UUID(client.enqueue(parent("x", turn=0)).id)
    finish(shop, verbs, crowded_ledger_url)
    assert verbs.run(other)["reason"]["code"] == "flow_error"
    assert "the key service is away" in verbs.run(other)["reason"]["text"]
    assert verbs.run(other)["generation"] == 1

    monkeypatch.setattr(toy_codec.Broken, "works", True)
    verbs.resume(other)
    verbs.signal(other, data=b'"said"')
    finish(shop, verbs, crowded_ledger_url)
    assert verbs.run(other)["status"] == "succeeded"


@pytest.mark.parametrize("codec", [None, "toy_codec:other", "no_such_module:codec"])
def test_a_worker_that_cannot_open_a_value_holds_the_run_until_one_can(
    hire: Hire, client: Client, verbs: Verbs, crowded_ledger_url: str, codec: str | None
) -> None:
    run = UUID(client.enqueue(parent("x", turn=1)).id)

    finish(hire(codec), verbs, crowded_ledger_url)

    assert verbs.run(run)["reason"]["code"] == "flow_error"
    assert "values.codec" in verbs.run(run)["reason"]["text"]


def test_a_run_whose_history_was_sealed_is_not_lost_to_a_worker_without_the_codec(
    hire: Hire, shop: Workshop, client: Client, verbs: Verbs, crowded_ledger_url: str
) -> None:
    run = UUID(client.enqueue(parent("x", turn=1)).id)
    finish(shop, verbs, crowded_ledger_url)
    verbs.signal(run, data=b'"said"')

    finish(hire(None), verbs, crowded_ledger_url)
    assert "set values.codec" in verbs.run(run)["reason"]["text"]
    verbs.resume(run)
    finish(hire("toy_codec:xor"), verbs, crowded_ledger_url)

    assert verbs.run(run)["status"] == "succeeded"

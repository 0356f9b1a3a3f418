"""The witness: the outside world does what its script says, and what it did survives its own death."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from http.client import HTTPException

import errands
import pytest
from errands import RefusedError, TroubleError, talk
from witness import Witness

pytestmark = pytest.mark.chaos


@pytest.fixture
def side(witness: Witness, monkeypatch: pytest.MonkeyPatch) -> Witness:
    monkeypatch.setenv("OUTSIDE", witness.url)
    monkeypatch.setattr(errands, "PATIENCE", 0.2)
    return witness


def post(kind: str, reference: str, key: str = "key") -> int:
    answer = talk("POST", f"/{kind}", {"reference": reference, "text": "please"}, key=f"{key} of {reference}")
    return int(answer["number"])


def test_a_keyed_side_does_a_key_once_and_a_reference_under_two_keys_twice(side: Witness) -> None:
    first, second, third = post("keyed", "kd"), post("keyed", "kd"), post("keyed", "kd", key="other")

    assert first == second
    assert side.numbers("kd") == [first, third]


@pytest.mark.parametrize("kind", ["searchable", "blind"])
def test_a_side_without_keys_does_every_request(side: Witness, kind: str) -> None:
    numbers = [post(kind, f"every-{kind}"), post(kind, f"every-{kind}")]

    assert side.numbers(f"every-{kind}") == numbers
    assert len(set(numbers)) == 2


@pytest.mark.parametrize(
    ("behaviour", "done", "error"),
    [
        ("ok", 1, None),
        ("late:5", 1, TimeoutError),
        ("hang:5", 0, TimeoutError),
        ("500-before", 0, TroubleError),
        ("500-after", 1, TroubleError),
        ("reset-before", 0, (OSError, HTTPException)),
        ("reset-after", 1, (OSError, HTTPException)),
        ("refuse", 0, RefusedError),
    ],
)
def test_a_script_says_how_a_request_is_treated(
    side: Witness, behaviour: str, done: int, error: type[Exception] | None
) -> None:
    reference = f"scripted-{behaviour}"
    side.script(reference, post=[behaviour])

    if error is None:
        post("searchable", reference)
    else:
        with pytest.raises(error):
            post("searchable", reference)

    assert len(side.numbers(reference)) == done
    assert len(side.of(reference, "post")) == 1


def test_a_delayed_request_is_done_though_the_client_has_gone(side: Witness, eventually: Callable[..., None]) -> None:
    side.script("delayed", post=["delayed:0.4"])
    with pytest.raises(TimeoutError):
        post("blind", "delayed")
    before = side.numbers("delayed")

    def done() -> None:
        assert len(side.numbers("delayed")) == 1
        assert side.in_flight() == 0

    eventually(done)
    assert before == []


def test_what_was_done_survives_the_death_of_its_process(
    side: Witness, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.mktemp("mortal")
    with closing(Witness.start(folder)) as mortal:
        monkeypatch.setenv("OUTSIDE", mortal.url)
        number = post("keyed", "again")
        mortal.process.kill()

    with closing(Witness.start(folder)) as heir:
        monkeypatch.setenv("OUTSIDE", heir.url)
        repeated = post("keyed", "again")

    assert repeated == number
    assert heir.numbers("again") == [number]

"""Sealed values: what a codec may do, what it may not, and what is said where it is missing."""

from __future__ import annotations

import pytest
import toy_codec
from safepoint.ledger.codec import Encoded, digest
from safepoint.ledger.errors import ConfigError, ValueNotDecodable, ValueNotOpened, ValueNotSealed
from safepoint.ledger.seal import Seal

PLAIN = Encoded.of(b'{"word":"marker"}')


@pytest.fixture
def seal() -> Seal:
    return Seal.load("toy_codec:xor")


def test_without_a_codec_a_value_stays_as_it_is():
    seal = Seal.load(None)

    assert seal.close(PLAIN, "acme") is PLAIN
    assert seal.open(PLAIN.data, "json", "acme") == PLAIN.data
    assert not seal.is_configured


def test_a_sealed_value_keeps_the_digest_of_the_plain_one_and_comes_back(seal: Seal):
    sealed = seal.close(PLAIN, "acme")

    assert (sealed.encoding, sealed.digest) == ("sealed", digest(PLAIN.data))
    assert b"marker" not in sealed.data
    assert seal.open(sealed.data, sealed.encoding, "acme") == PLAIN.data


def test_a_plain_value_is_read_beside_sealed_ones_and_nothing_is_sealed_twice(seal: Seal):
    sealed = seal.close(PLAIN, "acme")

    assert seal.open(PLAIN.data, "json", "acme") == PLAIN.data
    assert seal.close(sealed, "acme") is sealed


def test_another_tenants_key_does_not_open_it(seal: Seal):
    sealed = seal.close(PLAIN, "acme")

    with pytest.raises(ValueNotOpened, match="LookupError: the key of umbrella does not fit"):
        seal.open(sealed.data, "sealed", "umbrella")


def test_where_the_codec_is_missing_its_setting_is_named(seal: Seal):
    with pytest.raises(ValueNotDecodable, match=r"no codec is configured here: set values\.codec"):
        Seal.load(None).open(seal.close(PLAIN, "acme").data, "sealed", "acme")


def test_an_unknown_encoding_is_named(seal: Seal):
    with pytest.raises(ValueNotOpened, match="'gzip'"):
        seal.open(b"x", "gzip", "acme")


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("no_such_module:xor", "No module named 'no_such_module'"),
        ("toy_codec:no_such_object", "no_such_object"),
        ("toy_codec:deaf", "it has no encode"),
        ("toy_codec:Xor", "its encode cannot be called with a tenant and bytes"),
    ],
)
def test_a_wrong_setting_is_found_when_it_is_needed(place: str, text: str):
    seal = Seal.load(place)  # nothing is imported yet

    with pytest.raises(ConfigError) as caught:
        seal.close(PLAIN, "acme")
    for part in ("values.codec", text, "Accepted", "encode(tenant: str, data: bytes)"):
        assert part in str(caught.value)
    with pytest.raises(ValueNotOpened, match=r"values\.codec"):
        seal.open(b"x", "sealed", "acme")


@pytest.mark.parametrize(("place", "text"), [("broken", "ConnectionError: the key service"), ("silent", "nothing")])
def test_what_the_codec_raises_or_gives_wrongly_has_words(place: str, text: str):
    with pytest.raises(ValueNotSealed, match=text):
        Seal.load(f"toy_codec:{place}").close(PLAIN, "acme")


def test_the_codec_is_loaded_once(seal: Seal):
    toy_codec.calls.clear()

    for _ in range(2):
        seal.close(PLAIN, "acme")

    assert toy_codec.calls == ["acme", "acme"]

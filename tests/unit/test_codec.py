"""The codec: what comes back equal is kept, everything else is refused with its path."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum, StrEnum
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, SecretStr, computed_field
from safepoint.errors import Permanent, ValueNotDecodable, ValueNotEncodable
from safepoint.ledger.codec import Codec, input_hash


class Colour(StrEnum):
    RED = "red"


class Size(Enum):
    SMALL = 1


@dataclass
class Part:
    name: str
    tags: set[str] = field(default_factory=set)
    fn: object = None


@dataclass(eq=False)
class WithoutEquality:
    n: int


class Order(BaseModel):
    items: list[Any]
    at: datetime | None = None


NOW = datetime(2025, 1, 1, 12, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("declared", "value"),
    [
        (int, 2**80),
        (float, 3),
        (str, "ü\x00"),
        (bytes, b"\xff\x00"),
        (None, None),
        (Decimal, Decimal("1.10")),
        (datetime, NOW),
        (timedelta, timedelta(seconds=1.5)),
        (UUID, UUID(int=7)),
        (Colour, Colour.RED),
        (str, Colour.RED),
        (Size, Size.SMALL),
        (tuple[int, str], (1, "a")),
        (dict[int, str], {1: "a"}),
        (frozenset[int], frozenset({3, 1})),
        (Part, Part("a", {"x", "y"}, [1])),
        (Order, Order(items=[1, {"a": None}], at=NOW)),
        (list[Part | Order], [Part("a"), Order(items=[])]),
        (WithoutEquality, WithoutEquality(3)),
        (Any, {"a": [1, 2.5, None, True, "x"]}),
    ],
)
def test_what_comes_back_equal_is_kept(declared: object, value: object):
    codec = Codec[Any](declared)

    back = codec.decode(codec.encode(value).data)

    assert back == value or vars(back) == vars(value)


@pytest.mark.parametrize(
    ("declared", "value", "path"),
    [
        (SecretStr, SecretStr("x"), "result"),
        (float, float("nan"), "result"),
        (dict[str, Any], {"a": [1, float("inf")]}, "result.a[1]"),
        (Order, Order(items=[1, 2, 3, Part("a", fn=len)]), "result.items[3].fn"),
        (Order, Order(items=[1, Part("a")]), "result.items[1]"),
        (Any, {"f": lambda: 1}, "result.f"),
        (Any, {"pair": (1, 2)}, "result.pair"),
        (Any, {"when": NOW}, "result.when"),
        (Any, {"odd key": {1}}, "result['odd key']"),
        (Any, {1: "a"}, "result"),
        (Any, b"\xff", "result"),
        (Any, "\ud800", "result"),
        (str, 3, "result"),
        (list[int], [1, "x"], "result[1]"),
        (Part, Order(items=[]), "result.name"),
    ],
)
def test_what_would_not_come_back_equal_is_refused_with_its_path(declared: object, value: object, path: str):
    with pytest.raises(ValueNotEncodable) as refused:
        Codec[Any](declared, root="result").encode(value)

    assert refused.value.path == path
    assert isinstance(refused.value, Permanent)


def test_a_value_that_holds_itself_is_refused():
    value: list[Any] = []
    value.append(value)

    with pytest.raises(ValueNotEncodable, match="holds itself"):
        Codec[Any](Any).encode(value)


def test_a_list_for_a_declared_tuple_is_the_declared_tuple():
    codec = Codec[Any](tuple[int, int])

    assert codec.decode(codec.encode([1, 2]).data) == (1, 2)


def test_the_order_of_a_dictionary_is_kept():
    codec = Codec[Any](dict[str, float])

    assert list(codec.decode(codec.encode({"z": 0.9, "a": 0.5}).data)) == ["z", "a"]


def test_the_input_hash_does_not_depend_on_the_order_of_keys():
    assert input_hash(b'{"a":1,"b":{"c":2,"d":3}}') == input_hash(b'{"b":{"d":3,"c":2},"a":1}')
    assert input_hash(b"1180591620717411303424") != input_hash(b"1180591620717411303425")
    assert len(input_hash(b"null")) == 32


def test_a_stored_value_that_does_not_fit_names_the_place():
    with pytest.raises(ValueNotDecodable) as refused:
        Codec[Any](Order, root="result").decode(b'{"items": [], "at": "x"}')

    assert refused.value.path == "result.at"


def test_a_set_has_the_same_bytes_whatever_its_order():
    one, other = {0, 8}, {8, 0}  # equal, but they collide, and come out as they went in
    assert list(one) != list(other)

    for declared, wrap in ((set[int], lambda s: s), (dict[str, list[set[int]]], lambda s: {"x": [s]})):
        codec = Codec[Any](declared)
        assert codec.encode(wrap(one)) == codec.encode(wrap(other))
    assert Codec[Any](Part).encode(Part("a", {"y", "x"})).data == b'{"name":"a","tags":["x","y"],"fn":null}'


texts = st.text('ab\x00ü€😀"\\ ', max_size=6)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda parts: st.lists(parts, max_size=4) | st.dictionaries(texts, parts, max_size=4),
    max_leaves=15,
)


@settings(max_examples=50, deadline=None)
@given(json_values)
def test_every_json_value_comes_back(value: object):
    codec = Codec[Any](Any)
    data = codec.encode(value).data

    assert codec.decode(data) == value
    assert codec.encode(codec.decode(data)).data == data
    assert json.loads(data) == value


class Aliased(BaseModel):
    model_config = ConfigDict(extra="forbid")
    full_name: str = Field(alias="fullName")
    size: int = Field(serialization_alias="s", validation_alias="grandeur")

    @computed_field
    def shout(self) -> str:
        return self.full_name.upper()


def test_aliases_and_computed_fields_are_no_obstacle():
    codec = Codec[Any](Aliased)
    value = Aliased.model_validate({"fullName": "a", "grandeur": 3})

    assert codec.encode(value).data == b'{"full_name":"a","size":3}'
    assert codec.decode(codec.encode(value).data) == value
    assert codec.decode(b'{"fullName":"a","grandeur":3}') == value

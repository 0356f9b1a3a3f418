"""One document has one hash, however its numbers are written: the ledger's text of it against Python's."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safepoint.ledger.connect import Connection, connect
from safepoint.ledger.document import hashed

# What the expression must tell from a number: quotes, backslashes and fractions inside of strings.
TEXTS = st.text(st.sampled_from('"\\.015\n{}[]:, é😀'), max_size=8)
NUMBERS = st.from_regex(r"-?(0|[1-9][0-9]{0,3})(\.[0-9]{1,5})?([eE][+-]?[0-9])?", fullmatch=True, alphabet="-0159.eE+")
LEAVES = NUMBERS | TEXTS.map(json.dumps) | st.sampled_from(["true", "false", "null"])
DOCUMENTS = st.recursive(
    LEAVES,
    lambda parts: (
        st.lists(parts, max_size=4).map(lambda texts: "[" + ", ".join(texts) + "]")
        | st.dictionaries(TEXTS.map(json.dumps), parts, max_size=4).map(
            lambda named: "{" + ",".join(f"{name}:{part}" for name, part in named.items()) + "}"
        )
    ),
    max_leaves=12,
)


@pytest.fixture
def connection(ledger_url: str) -> Iterator[Connection]:
    with connect(ledger_url, name="test") as opened:
        yield opened


@settings(
    max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(text=DOCUMENTS)
def test_the_ledger_and_python_hash_one_text(connection: Connection, text: str) -> None:
    (canonical,) = connection.execute("SELECT safepoint.canonical_v1(%s::jsonb)", (text,)).fetchone() or ("",)

    assert hashlib.sha256(canonical.encode()).digest() == hashed(text.encode()), (text, canonical)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("1.0", "1"),
        ("-0.0", "0"),
        ("100", "100"),
        ("1.0500", "1.05"),
        ('{"1.0": 10.00}', '{"1.0": 10}'),
        (r'["\\", 1.0, "\"1.0", 2.50]', r'["\\", 1, "\"1.0", 2.5]'),
    ],
)
def test_zeros_that_end_a_fraction_go(connection: Connection, text: str, canonical: str) -> None:
    assert connection.execute("SELECT safepoint.canonical_v1(%s::jsonb)", (text,)).fetchone() == (canonical,)

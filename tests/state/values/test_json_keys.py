"""Keys out of text: what is written of a key is read back, and what is no key is refused with an example.

Property: `key_of_text(json_text(key), its type)` is the key, for keys of every type that has a form in JSON.
"""

import datetime
import uuid
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.state.errors import TypeMismatchError
from headrace.state.open.column_types import schema_of_values
from headrace.state.values.json_keys import example_of_key, key_of_text
from headrace.state.values.json_text import json_text

ATOMS = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    st.binary(max_size=10),
    st.decimals(allow_nan=False, allow_infinity=False, places=3),
    st.uuids(),
    st.dates(),
    st.times().filter(lambda time: not time.fold),
    st.datetimes().filter(lambda time: not time.fold),
    st.datetimes(timezones=st.just(datetime.timezone.utc)).filter(lambda time: not time.fold),
    st.timedeltas(datetime.timedelta(days=-999), datetime.timedelta(days=999)),
)
KEYS = st.one_of(
    ATOMS, st.recursive(ATOMS, lambda inner: st.lists(inner, min_size=1, max_size=3).map(tuple), max_leaves=4)
)


@pytest.mark.hypothesis
@given(KEYS)
def test_what_is_written_of_a_key_is_read_back(key):
    schema = schema_of_values([key])
    read = key_of_text(json_text(key), schema)
    assert read == key
    assert schema_of_values([read]) == schema or not isinstance(key, tuple)


def test_texts_stand_without_quotes_where_keys_are_texts():
    assert key_of_text("ann", "string") == "ann"
    assert key_of_text("7", "string") == "7"
    assert key_of_text('"7"', "string") == "7"
    assert key_of_text("null", "string") == "null"
    assert key_of_text("2026-05-31", "date") == datetime.date(2026, 5, 31)
    assert key_of_text("2026-05-31T12:30:00Z", "timestamp[UTC]").tzinfo is not None
    assert key_of_text("12.50", "decimal") == Decimal("12.50")
    assert key_of_text("7", None) == 7
    assert key_of_text("ann", None) == "ann"
    assert key_of_text('["ann", [1, 2]]', None) == ("ann", (1, 2))


@pytest.mark.parametrize(
    ("text", "schema"),
    [
        ("ann", "int64"),
        ("[1]", "int64"),
        ("{}", "float64"),
        ("sNaN", "decimal"),
        ("not-base64!", "binary"),
        ("2026-13-01", "date"),
        ("2026-05-31T12:30:00", "timestamp[UTC]"),
        ("true", "duration"),
        ("1e300", "duration"),
        ("ann", {"tuple": ["string", "int64"]}),
        ('["ann"]', {"tuple": ["string", "int64"]}),
        ('["ann", "x"]', {"tuple": ["string", "int64"]}),
        ("[" * 5_000, "string"),
    ],
)
def test_what_is_no_key_is_refused_with_an_example(text, schema):
    with pytest.raises(TypeMismatchError) as refused:
        key_of_text(text, schema)
    example = example_of_key(schema)
    assert len(text) > 4_096 or f"as {example}" in str(refused.value)
    key_of_text(example, schema)  # the example is one


def test_keys_of_objects_are_not_to_be_typed():
    with pytest.raises(TypeMismatchError, match="has no form in JSON"):
        key_of_text("1", {"opaque": "pickle"})
    assert example_of_key({"opaque": "pickle"}) is None
    assert key_of_text(str(uuid.UUID(int=7)), "uuid") == uuid.UUID(int=7)

"""One type through every face: hints, columns, stored descriptions, snapshot files, packed values, JSON, both backends.

Families: property (random nested types; what went in comes out, with its types), examples (what is refused).
"""

from __future__ import annotations

import datetime as dt
import json
import uuid
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from backend_kit import BackendKit
from campaigns import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from typed_values import same, same_columns, typed_columns

from headrace.state.errors import TypeMismatchError
from headrace.state.keyed.descriptors import ValueStateDescriptor
from headrace.state.keyed.evolution import evolve
from headrace.state.open.column_types import array_of, field_of, schema_of_field, values_of
from headrace.state.values.encoding import decode_values, encode_values
from headrace.state.values.json_text import json_text
from headrace.state.values.packed import decode_packed, encode_packed
from headrace.state.values.type_sources import type_of_arrow, type_of_hint, type_of_schema


def lowered(kind, values):
    return values if kind.lower is None else list(map(kind.lower, values))


def lifted(kind, values):
    return values if kind.lift is None else list(map(kind.lift, values))


@settings(max_examples=examples(200))
@given(typed_columns(), st.data())
def test_values_come_back_from_columns_as_they_went_in(typed, data):
    hint, values = typed
    kind = type_of_hint(hint)
    assert kind.is_certain
    assert kind.holds(values)
    array = kind.array(values)
    assert array.type.equals(kind.arrow_type)
    array.validate(full=True)
    assert same(kind.values(array), values)
    start = data.draw(st.integers(0, len(values)))
    assert same(kind.values(array.slice(start)), values[start:])
    order = data.draw(st.permutations(range(len(values))))
    assert same(kind.values(array.take(pa.array(order, pa.int64()))), [values[i] for i in order])
    assert same(kind.values(pa.chunked_array([array, array], array.type)), [*values, *values])


@settings(max_examples=examples(200))
@given(typed_columns())
def test_a_stored_description_gives_the_columns_of_the_type_that_it_is_of(typed):
    hint, values = typed
    kind = type_of_hint(hint)
    schema = json.loads(json.dumps(kind.schema))
    again = type_of_schema(schema)
    assert again.schema == schema == kind.schema
    assert again.arrow_type.equals(kind.arrow_type)
    assert evolve(schema, kind) is None
    stored = lowered(kind, values)
    assert again.holds(stored)
    array = again.array(stored)
    assert same_columns(array, kind.array(values))
    assert same(lifted(kind, again.values(array)), values)
    field = field_of("value", schema)
    assert schema_of_field(field) == schema
    assert same(values_of(array_of(stored, schema), schema_of_field(field)), stored)


@settings(max_examples=examples(200))
@given(typed_columns())
def test_columns_come_back_from_values_as_they_were(typed):
    hint, values = typed
    array = type_of_hint(hint).array(values)
    kind = type_of_arrow(array.type)
    assert kind.arrow_type.equals(array.type)
    assert same_columns(kind.array(kind.values(array)), array)


@settings(max_examples=examples(200))
@given(typed_columns())
def test_values_come_back_from_files_and_rows_of_state(typed):
    hint, values = typed
    kind = type_of_hint(hint)
    stored = lowered(kind, values)
    assert same(lifted(kind, decode_values(*encode_values(stored))), values)
    assert same(lifted(kind, [decode_packed(encode_packed(value)) for value in lowered(kind, values)]), values)


@settings(max_examples=examples(100))
@given(typed_columns())
def test_values_are_json_text_whether_they_are_instances_or_fields(typed):
    hint, values = typed
    kind = type_of_hint(hint)
    if "map" in json.dumps(kind.schema):
        return  # keys of objects are texts
    for value, stored in zip(values, lowered(kind, values), strict=True):
        if "named tuple" not in json.dumps(kind.schema):  # JSON has them as tuples
            assert json_text(value) == json_text(stored)
        json.loads(json_text(stored))


@pytest.mark.parametrize("name", ["heap", "rocksdb"])
@settings(max_examples=examples(15))
@given(typed_columns())
def test_values_come_back_from_a_checkpoint(tmp_path_factory, name, typed):
    hint, values = typed
    kit = BackendKit(name, tmp_path_factory.mktemp(name))
    try:
        backend, descriptor = kit.make(), ValueStateDescriptor("state", hint)
        for key, value in enumerate(values):
            backend.current_key = key
            backend.handle(descriptor).update(value)
        backend = kit.again(backend)
        for key, value in enumerate(values):
            backend.current_key = key
            if value is not None:
                assert same(backend.handle(descriptor).value(), value)
    finally:
        kit.close()


# ------------------------------------------------------------------------------------------------------------- checks
BERLIN = dt.timezone(dt.timedelta(hours=2))


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (int, True),
        (int, 1.0),
        (int, 2**63),
        (float, "1"),
        (float, 2**63 + 1),
        (str, b"a"),
        (str, "\ud800"),
        (bytes, "a"),
        (Decimal, 1.5),
        (dt.date, dt.datetime(2020, 1, 1)),  # noqa: DTZ001 - naive on purpose
        (dt.datetime, dt.datetime(2020, 1, 1, tzinfo=BERLIN)),
        (dt.time, dt.time(1, tzinfo=BERLIN)),
        (pa.timestamp("us", "UTC"), dt.datetime(2020, 1, 1)),  # noqa: DTZ001
        (pa.int8(), 200),
        (list[int], (1,)),
        (list[int], [1, "a"]),
        (tuple[int, int], (1,)),
        (tuple[int, int], [1, 2]),
        (dict[str, int], {1: 1}),
        (dict[str, int], {None: 1}),
        (pa.struct([("a", pa.int64())]), {"a": 1, "b": 2}),
        (pa.list_(pa.int64(), 2), [1]),
    ],
    ids=repr,
)
def test_what_would_not_come_back_is_refused_with_its_place(hint, value):
    kind = type_of_hint(hint)
    assert not kind.holds([value])
    with pytest.raises(TypeMismatchError) as caught:
        kind.array([None, value])
    assert caught.value.context["row"] == 1


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.float64(), 1),
        (pa.float32(), 0.1),
        (pa.int64(), np.int64(3)),
        (pa.decimal128(9, 2), Decimal(1)),
        (pa.decimal128(38, 0), 1),
        (pa.timestamp("s"), dt.datetime(2020, 1, 1, 0, 0, 1, fold=1)),  # noqa: DTZ001
        (pa.timestamp("us", "UTC"), dt.datetime(2020, 1, 1, tzinfo=BERLIN)),
    ],
    ids=repr,
)
def test_what_comes_back_equal_but_not_the_same_is_taken_and_not_held(kind, value):
    kind = type_of_arrow(kind)
    assert not kind.holds([value])
    (back,) = kind.values(kind.array([value]))
    assert back == value or back == pytest.approx(value)


def test_times_are_held_by_columns_of_their_unit_and_zone():
    time = dt.datetime(2020, 1, 1, 0, 0, 1, tzinfo=BERLIN)
    assert type_of_arrow(pa.timestamp("us", "+02:00")).holds([time])
    assert not type_of_arrow(pa.timestamp("us", "UTC")).holds([time])
    assert type_of_arrow(pa.timestamp("s", "+02:00")).holds([time])
    assert not type_of_arrow(pa.timestamp("s", "+02:00")).holds([time.replace(microsecond=1)])
    assert type_of_arrow(pa.timestamp("ns", "+02:00")).holds([time])


def test_uuids_are_text_in_columns():
    kind = type_of_schema("uuid")
    assert kind.holds([uuid.UUID(int=1), None])
    assert kind.values(kind.array([uuid.UUID(int=1), None])) == [uuid.UUID(int=1), None]
    with pytest.raises(TypeMismatchError, match="UUID"):
        kind.values(pa.array(["x"]))


NESTED = pa.struct([("t", pa.struct([("f0", pa.int32()), ("f1", pa.list_(pa.string()))]))])


def test_tuples_in_declared_columns_are_tuples_and_were_once_described_as_dicts():
    kind = type_of_hint(NESTED)
    value = {"t": (1, ["a"])}
    assert kind.holds([value])
    assert kind.values(kind.array([value])) == [value]
    once = {"record": [["f0", {"optional": "int32"}], ["f1", {"optional": {"list": "string"}}]], "of": "dict"}
    old = {"record": [["t", {"optional": {**once, "class": None}}]], "of": "dict", "class": None}
    assert evolve(old, kind) is None

"""Rows, columns and stored values: round trips over generated data (property), and what is refused (examples)."""

# ruff: noqa: DTZ001 - naive datetimes are what columns without a zone give
from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import math
import pickle
from collections import OrderedDict
from decimal import Decimal

import cloudpickle
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.state.errors import CheckpointCorruptError, CheckpointMismatchError, TypeMismatchError
from headrace.state.values.encoding import decode_values, encode_values
from headrace.state.values.serde import columns_from_rows, fields_from_rows, pylist_from_array, rows_from_columns

UTC = dt.timezone.utc
INT64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)


@dataclasses.dataclass
class Ride:
    id: int
    city: str


class Color(enum.Enum):
    RED = 1


# ------------------------------------------------------------------------------------------------------------ records
ROW = st.fixed_dictionaries(
    {
        "i": st.none() | INT64,
        "f": st.none() | st.floats(allow_nan=False),
        "s": st.none() | TEXT,
        "b": st.none() | st.binary(max_size=5),
        "ok": st.none() | st.booleans(),
        "t": st.none() | st.datetimes(),
        "z": st.none() | st.datetimes(timezones=st.just(UTC)),
        "d": st.none() | st.dates(),
        "l": st.none() | st.lists(INT64, max_size=3),
    }
)
SCHEMA = pa.schema(
    [
        ("i", pa.int64()),
        ("f", pa.float64()),
        ("s", pa.string()),
        ("b", pa.binary()),
        ("ok", pa.bool_()),
        ("t", pa.timestamp("us")),
        ("z", pa.timestamp("us", "UTC")),
        ("d", pa.date32()),
        ("l", pa.list_(pa.int64())),
    ]
)


@given(st.lists(ROW))
def test_dict_records_survive_the_way_through_columns(rows):
    for schema in (SCHEMA, None):
        columns = columns_from_rows(rows, schema)
        assert columns.num_rows == len(rows)
        assert rows_from_columns(columns) == rows


@given(st.lists(st.tuples(INT64, TEXT), min_size=1))
def test_tuple_records_become_numbered_fields_and_come_back(rows):
    columns = columns_from_rows(rows)
    assert columns.schema.names == ["f0", "f1"]
    assert columns.schema.metadata == {b"headrace.row": b"tuple"}
    assert rows_from_columns(columns) == rows
    assert rows_from_columns(columns_from_rows(rows, columns.schema)) == rows


@given(st.lists(st.none() | INT64, min_size=1))
def test_single_values_become_one_field_and_come_back(rows):
    columns = columns_from_rows(rows)
    assert columns.schema.names == ["value"]
    assert columns.schema.metadata == {b"headrace.row": b"value"}
    assert rows_from_columns(columns) == rows


def test_dataclass_instances_become_their_fields():
    columns = columns_from_rows([Ride(1, "Bonn"), Ride(2, "Kiel")])
    assert columns.schema.metadata is None
    assert rows_from_columns(columns) == [{"id": 1, "city": "Bonn"}, {"id": 2, "city": "Kiel"}]
    assert columns_from_rows([Ride(1, "Bonn")], columns.schema).schema.equals(columns.schema)


def test_no_records_have_no_columns_unless_declared():
    assert columns_from_rows([]).num_columns == 0
    assert columns_from_rows([], SCHEMA).schema == SCHEMA
    assert rows_from_columns(columns_from_rows([], SCHEMA)) == []


def test_records_without_fields_keep_their_number():
    for rows in ([{}, {}], [(), ()]):
        columns = columns_from_rows(rows)
        assert columns.num_rows == 2
        assert rows_from_columns(columns) == rows


def test_a_declared_schema_is_kept_with_its_metadata():
    schema = pa.schema([("f0", pa.int32()), ("f1", pa.float32())], {"headrace.row": "tuple", "note": "x"})
    assert columns_from_rows([(1, 2)], schema).schema.equals(schema, check_metadata=True)


@pytest.mark.parametrize(
    ("rows", "field", "row"),
    [
        ([{"a": 1}, {"a": 2}, {"a": "x"}, {"a": "y"}], "a", 2),
        ([{"a": 1}, {"b": 2}], "a", 1),
        ([{"a": 1}, {"a": 1, "b": 2}], "b", 1),
        ([{"a": 1}, (1,)], None, 1),
        ([{"a": 1}, None], None, 1),
        ([{"a": 2**64}], "a", 0),
        ([{"a": 1}, {"a": ...}], "a", 1),
        ([{"a": dt.datetime(2020, 1, 1)}, {"a": dt.datetime(2020, 1, 1, tzinfo=UTC)}], "a", 1),
        ([(1, 2), (1, 2, 3)], None, 1),
        ([(1, 2), {"f0": 1, "f1": 2}], None, 1),
        ([Ride(1, "a"), {"id": 1, "city": "a"}], None, 1),
        ([1, 2, "x"], "value", 2),
        ([True, 1], "value", 1),
    ],
    ids=str,
)
def test_a_record_that_does_not_fit_is_named_by_field_and_row(rows, field, row):
    with pytest.raises(TypeMismatchError) as caught:
        columns_from_rows(rows)
    assert caught.value.context.get("field") == field
    assert caught.value.context["row"] == row


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (1.5, pa.int64()),
        (Decimal("1.5"), pa.int64()),
        (True, pa.int64()),
        (300, pa.int8()),
        (1, pa.string()),
        (b"a", pa.string()),
        ("a", pa.binary()),
        (dt.datetime(2020, 1, 1, 5), pa.date32()),
        (2**53 + 1, pa.float64()),
        ("2020-01-01", pa.timestamp("ms")),
        (dt.datetime(2020, 1, 1, 12, tzinfo=dt.timezone(dt.timedelta(hours=1))), pa.timestamp("us")),
        (dt.datetime(2020, 1, 1, tzinfo=UTC), pa.timestamp("us")),
        (dt.datetime(2020, 1, 1, 12), pa.timestamp("us", "UTC")),
        (dt.datetime(2020, 1, 1, 12), pa.timestamp("us", "Europe/Berlin")),
    ],
    ids=str,
)
def test_a_value_that_would_change_is_refused(value, kind):
    schema = pa.schema([("a", kind)])
    with pytest.raises(TypeMismatchError) as caught:
        columns_from_rows([{"a": None}, {"a": value}], schema)
    assert caught.value.context == {"field": "a", "row": 1}


def test_whole_floats_fit_integers():
    assert rows_from_columns(columns_from_rows([{"a": 2.0}], pa.schema([("a", pa.int64())]))) == [{"a": 2}]


def test_a_null_in_a_field_without_nulls_is_refused():
    schema = pa.schema([pa.field("a", pa.int64(), nullable=False)])
    with pytest.raises(TypeMismatchError, match="without nulls") as caught:
        columns_from_rows([{"a": 1}, {"a": None}], schema)
    assert caught.value.context["row"] == 1


def test_a_record_against_its_declaration_is_refused():
    schema = pa.schema([("a", pa.int64()), ("b", pa.int64())])
    for rows in ([{"a": 1}], [{"a": 1, "b": 2, "c": 3}], [(1, 2)], [5], [Ride(1, "x")]):
        with pytest.raises(TypeMismatchError):
            columns_from_rows(rows, schema)


def test_nanoseconds_are_rounded_down_to_microseconds():
    assert pylist_from_array(pa.array([1_999, -1, None], pa.timestamp("ns"))) == [
        dt.datetime(1970, 1, 1, 0, 0, 0, 1),
        dt.datetime(1969, 12, 31, 23, 59, 59, 999_999),
        None,
    ]
    nested = pa.array([{"x": [1_999]}], pa.struct([("x", pa.list_(pa.timestamp("ns")))]))
    assert pylist_from_array(nested) == [{"x": [dt.datetime(1970, 1, 1, 0, 0, 0, 1)]}]
    assert type(pylist_from_array(nested)[0]["x"][0]) is dt.datetime
    assert pylist_from_array(pa.array([1_500], pa.duration("ns"))) == [dt.timedelta(microseconds=1)]
    assert pylist_from_array(pa.array([1_500], pa.time64("ns"))) == [dt.time(0, 0, 0, 1)]


@pytest.mark.parametrize("unit", ["s", "ms", "us"])
def test_times_beyond_python_are_refused(unit):
    with pytest.raises(TypeMismatchError, match="outside the years"):
        rows_from_columns(pa.record_batch({"t": pa.array([2**62], pa.timestamp(unit))}))


def test_two_fields_of_one_name_are_refused():
    columns = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    with pytest.raises(TypeMismatchError, match="two fields"):
        rows_from_columns(columns)


def test_fast_lists_equal_arrow_lists():
    arrays = [
        pa.array([1, None, 3]),
        pa.array([1, 2], pa.uint8()),
        pa.array([1.5, None]),
        pa.array([True, False]),
        pa.array([True, None]),
        pa.array(["a", None, ""]),
        pa.array([b"a", None], pa.large_binary()),
        pa.array(["a", None, "a"]).dictionary_encode(),
        pa.array([[1], None]),
        pa.array([{"a": 1}, None]),
        pa.array([None, None]),
        pa.array([dt.date(2020, 1, 1), None]),
        pa.array([Decimal("1.5"), None]),
        pa.array([dt.datetime(1, 1, 1), None, dt.datetime(9999, 12, 31, 23, 59, 59, 999_999)]),
        pa.array([0, None], pa.timestamp("s", "Europe/Berlin")),
    ]
    for array in arrays:
        for piece in (array, array.slice(1), array.slice(0, 0)):
            values = pylist_from_array(piece)
            assert values == piece.to_pylist()
            assert list(map(type, values)) == list(map(type, piece.to_pylist()))


# ------------------------------------------------------------------------------------------------------ stored values
def same(one, other):
    """Equal in value and type, at every level; NaN equals NaN."""
    if type(one) is not type(other):
        return False
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(map(same, one.values(), other.values()))
    if isinstance(one, float):
        return (one == other and math.copysign(1, one) == math.copysign(1, other)) or (
            math.isnan(one) and math.isnan(other)
        )
    return one == other


ATOM = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.binary(max_size=5),
    st.datetimes(),
    st.dates(),
    st.decimals(allow_nan=False),
)
VALUE = st.recursive(
    ATOM,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=2) | st.integers(), inner, max_size=3)
    ),
    max_leaves=6,
)
COLUMN = st.one_of(
    st.lists(VALUE, max_size=6),
    st.lists(st.none() | INT64),
    st.lists(st.none() | st.tuples(INT64, TEXT, st.none() | st.tuples(st.floats(), st.dates()))),
    st.lists(st.none() | st.fixed_dictionaries({"a": INT64, "b": st.lists(TEXT)})),
    st.lists(st.none() | st.dictionaries(TEXT, st.tuples(INT64, VALUE), max_size=3), max_size=5),
    st.lists(st.none() | st.lists(st.none() | st.datetimes())),
)


@given(COLUMN, st.data())
def test_stored_values_come_back_equal_and_of_equal_type(values, data):
    array, encoding = encode_values(values)
    assert len(array) == len(values)
    assert same(decode_values(array, encoding), values)
    order = data.draw(st.permutations(range(len(values))))
    selected = array.take(pa.array(order[: len(order) // 2 + 1], pa.int64()))
    assert same(decode_values(selected, encoding), [values[i] for i in order[: len(order) // 2 + 1]])
    assert same(decode_values(array.slice(1), encoding), values[1:])


@pytest.mark.parametrize(
    ("values", "encoding"),
    [
        ([1, None], "int64"),
        ([1.5], "float64"),
        ([True], "bool"),
        (["a"], "string"),
        ([b"a"], "binary"),
        ([dt.datetime(2020, 1, 1)], "timestamp"),
        ([dt.date(2020, 1, 1)], "date"),
        ([None, None], "null"),
        ([], "null"),
        ([(1, "a"), None], ["tuple", ["int64", "string"]]),
        ([{"a": 1}, {"a": 2}], ["dict", ["a"], ["int64"]]),
        ([{"a": 1}, {"b": 2}], ["map", "string", "int64"]),
        ([[1], []], ["list", "int64"]),
        ([(1, Color.RED)], ["tuple", ["int64", "packed"]]),
        ([1, 1.0], "packed"),
        ([1, True], "packed"),
        ([2**63], "packed"),
        (["\ud800"], "packed"),
        ([dt.datetime(2020, 1, 1, tzinfo=UTC)], "packed"),
        ([dt.datetime(2020, 1, 1, fold=1)], "packed"),
        ([(1,), (1, 2)], "packed"),
        ([()], "packed"),
        ([OrderedDict(a=1)], "packed"),
        ([Ride(1, "a")], "packed"),
    ],
    ids=str,
)
def test_values_are_typed_exactly_when_that_loses_nothing(values, encoding):
    array, found = encode_values(values)
    assert found == encoding
    assert same(decode_values(array, found), values)


def test_typed_columns_are_read_without_pickle(monkeypatch):
    array, encoding = encode_values([(1, ["a", None], {"x": 1.5, "y": b"z"}), None])
    monkeypatch.setattr(pickle, "loads", None)
    assert decode_values(array, encoding) == [(1, ["a", None], {"x": 1.5, "y": b"z"}), None]


def test_a_class_that_pickle_cannot_find_travels_by_value():
    class Local:
        def __init__(self, x):
            self.x = x

    cloudpickle.dumps(Local)
    array, encoding = encode_values([Local(3)])
    assert decode_values(array, encoding)[0].x == 3


def test_a_value_that_cannot_be_stored_is_refused():
    with pytest.raises(TypeMismatchError, match="cannot be stored in a checkpoint"):
        encode_values([(i for i in ())])


def test_a_column_of_another_encoding_is_corrupt():
    array, _ = encode_values([1, 2])
    for encoding in ("string", "nonsense", ["tuple", ["int64"]], ["list", "int64"], ["odd"], [], 5, None):
        with pytest.raises(CheckpointCorruptError):
            decode_values(array, encoding)


def test_a_pickle_that_cannot_be_built_is_a_mismatch():
    array = pa.array([b"cno_such_module\nThing\n."], pa.large_binary())
    with pytest.raises(CheckpointMismatchError, match="no_such_module"):
        decode_values(array, "pickle")


def test_only_the_fields_that_are_asked_for_become_columns():
    """What is beside them may be anything, and need not be in every record."""
    rows = [{"a": 1, "b": {1, 2}}, {"a": None, "b": object(), "c": 3}]
    assert fields_from_rows(rows, ["a"]).to_pydict() == {"a": [1, None]}
    assert fields_from_rows(rows, []).num_rows == 2
    assert fields_from_rows([(1, "x"), (2, "y")], ["f0"]).to_pydict() == {"f0": [1, 2], "f1": ["x", "y"]}
    assert fields_from_rows([5, 6], ["value"]).to_pydict() == {"value": [5, 6]}
    with pytest.raises(TypeMismatchError, match="field 'a' cannot hold 'x'"):
        fields_from_rows([{"a": 1}, {"a": "x"}], ["a"])
    with pytest.raises(TypeMismatchError, match="field 'a' is missing"):
        fields_from_rows([{"a": 1}, {"b": 2}], ["a"])

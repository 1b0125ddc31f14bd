"""Types: what is found from hints and declarations, and what the Arrow schema of it is. Example tests."""

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Optional, TypedDict

import pyarrow as pa
import pytest

from headrace.arguments.data_types import Types, infer_output_type, infer_type, resolve_type, schema_of
from headrace.engine.columns.records import Batch
from headrace.engine.errors import ProgramError


@dataclass
class Bid:
    auction: int
    price: float
    bidder: str | None


class Person(TypedDict):
    name: str
    born: dt.datetime


class Point(NamedTuple):
    x: int
    y: int


@dataclass
class Opaque:
    anything: Any


@pytest.mark.parametrize(
    ("hint", "name"),
    [
        (str, "STRING"),
        (bool, "BOOLEAN"),
        (int, "LONG"),
        (float, "DOUBLE"),
        (bytes, "BYTES"),
        (dt.datetime, "SQL_TIMESTAMP"),
        (dt.date, "SQL_DATE"),
        (list[int], "LIST(LONG)"),
        (dict[str, float], "MAP(STRING, DOUBLE)"),
        (tuple[str, int], "TUPLE(STRING, LONG)"),
        (Optional[int], "LONG"),  # noqa: UP045
        (int | None, "LONG"),
        (Bid, "ROW(auction: LONG, price: DOUBLE, bidder: STRING)"),
        (Person, "ROW(name: STRING, born: SQL_TIMESTAMP)"),
        (Point, "TUPLE(LONG, LONG)"),
        (list[tuple[str, int]], "LIST(TUPLE(STRING, LONG))"),
    ],
)
def test_a_hint_gives_a_type(hint, name):
    assert infer_type(hint).name == name


@pytest.mark.parametrize(
    "hint", [Any, dict, list, tuple, tuple[int, ...], int | str, Opaque, object, None, dict[str, Any]]
)
def test_a_hint_that_says_too_little_gives_none(hint):
    assert infer_type(hint) is None


def test_the_type_of_a_function_is_its_return_hint():
    def one(row) -> tuple[str, int]: ...

    def many(row) -> Iterator[str]: ...

    class Mapper:
        def map(self, value) -> int: ...

    class Called:
        def __call__(self, value) -> float: ...

    def unknown(row) -> "NotDefinedAnywhere": ...  # noqa: F821

    assert infer_output_type(one, "map").name == "TUPLE(STRING, LONG)"
    assert infer_output_type(many, "flat_map", many=True).name == "STRING"
    assert infer_output_type(one, many=True) is None
    assert infer_output_type(Mapper(), "map").name == "LONG"
    assert infer_output_type(Called(), "map").name == "DOUBLE"
    assert infer_output_type(lambda row: row, "map") is None
    assert infer_output_type(unknown, "map") is None
    assert infer_output_type(len, "map") is None


def test_schemas_say_what_a_record_is():
    assert schema_of(Types.STRING()).metadata == {b"headrace.row": b"value"}
    assert schema_of(Types.TUPLE([Types.STRING(), Types.LONG()])).names == ["f0", "f1"]
    assert schema_of(Types.ROW([Types.STRING()])).metadata == {b"headrace.row": b"tuple"}
    named = schema_of(Types.ROW_NAMED(["a", "b"], [Types.INT(), Types.LIST(Types.DOUBLE())]))
    assert named == pa.schema([("a", pa.int32()), ("b", pa.list_(pa.float64()))])
    assert named.metadata is None
    assert schema_of(Types.PICKLED_BYTE_ARRAY()) is None
    assert schema_of(None) is None


@pytest.mark.parametrize(
    ("declared", "rows"),
    [
        (Types.TUPLE([Types.STRING(), Types.LONG()]), [("a", 1), ("b", 2)]),
        (Types.STRING(), ["a", None]),
        (
            Types.ROW_NAMED(["n", "t"], [Types.LONG(), Types.SQL_TIMESTAMP()]),
            [{"n": 1, "t": dt.datetime(2024, 1, 2, 3, 4, 5, 6)}],  # noqa: DTZ001
        ),
        (Types.INSTANT(), [dt.datetime(2024, 1, 2, tzinfo=dt.timezone.utc)]),
        (Types.PRIMITIVE_ARRAY(Types.BYTE()), [b"abc"]),
        (Types.LIST(Types.ROW_NAMED(["a"], [Types.BOOLEAN()])), [[{"a": True}], []]),
        (Types.SQL_DATE(), [dt.date(2024, 1, 2)]),
        (Types.SQL_TIME(), [dt.time(1, 2, 3, 4)]),
    ],
)
def test_records_of_a_declared_type_come_back_from_columns_unchanged(declared, rows):
    columns = Batch.of_rows(rows).columns_as(schema_of(declared))
    assert Batch.of_columns(columns).rows == rows


def test_a_type_can_be_declared_in_many_ways():
    assert resolve_type(Types.LONG()).name == "LONG"
    assert resolve_type(pa.int64()).arrow_type == pa.int64()
    assert resolve_type(Bid).shape == "dict"
    assert resolve_type(tuple[int, str]).shape == "tuple"
    schema = pa.schema([("a", pa.int64())])
    assert schema_of(resolve_type(schema)) == schema
    assert schema_of(resolve_type(pa.struct([("a", pa.int64())]))) == schema
    for given in (Types.TUPLE([Types.LONG()]), Types.LONG()):
        again = schema_of(resolve_type(schema_of(given)))
        assert again.equals(schema_of(given), check_metadata=True)


@pytest.mark.parametrize("declared", [3, "LONG", object(), Opaque, None])
def test_what_is_no_type_is_refused(declared):
    with pytest.raises(ProgramError, match="a type must be one of Types, an Arrow schema"):
        resolve_type(declared)


def test_contradictory_rows_are_refused():
    with pytest.raises(ProgramError, match="as many names as types; got 2 and 1"):
        Types.ROW_NAMED(["a", "b"], [Types.LONG()])
    with pytest.raises(ProgramError, match="field names must be unique"):
        Types.ROW_NAMED(["a", "a"], [Types.LONG(), Types.LONG()])
    with pytest.raises(ProgramError, match="the element of a list cannot be PICKLED_BYTE_ARRAY"):
        Types.LIST(Types.PICKLED_BYTE_ARRAY())

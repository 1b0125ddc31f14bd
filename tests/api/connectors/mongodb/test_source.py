"""Collections of MongoDB as a source: values of BSON, the order of ``_id`` of all types, positions, errors.

Risks and families: documents that are lost between types (a set of all types of ``_id``, read from each position);
values that are changed on the way (each type against each other); hostile positions.
"""

from __future__ import annotations

import uuid
from datetime import datetime, timezone
from decimal import Decimal

import pyarrow as pa
import pytest
from mongodb_server import mongodb_server  # noqa: F401 - a fixture
from reading_kit import read_some, reader_of, splits_of
from upsert_kit import told

from headrace.connectors.messages.client_thread import AnswerError
from headrace.connectors.mongodb import MongodbClient, MongodbLookup, MongodbSource
from headrace.connectors.mongodb.bson_values import reader_of as reader_of_values
from headrace.connectors.mongodb.ids import range_filter
from headrace.engine.connectors.contract import Split
from headrace.engine.errors import CheckpointMismatchError, ConfigurationError
from headrace.formats.client_values import column_of
from headrace.formats.schemas import schema_of


def rows_of(server, name, schema, **arguments):
    source = MongodbSource(server.uri, name, schema=schema, **arguments)
    splits = splits_of(source)
    return read_some(reader_of(source, splits)) if splits else []


def ids_of_all_types():
    from bson import DBRef, Decimal128, Int64, MaxKey, MinKey, ObjectId, Timestamp

    return [
        MinKey(), None, -1, 0.5, Int64(2**40), Decimal128("1e30"), "", "a", "b", {"a": 1}, {"a": 2, "b": 1},
        DBRef("items", 1), b"\0",
        b"\xff",
        ObjectId("0" * 24), ObjectId("f" * 24), False, True,
        datetime(1950, 1, 1, tzinfo=timezone.utc), datetime(2024, 1, 1, tzinfo=timezone.utc), Timestamp(5, 1), MaxKey(),
    ]  # fmt: skip


@pytest.mark.parametrize("splits", [1, 3, 40])
def test_documents_of_all_types_of_ids_are_read_once_from_any_position(splits, mongodb_server):  # noqa: F811
    name = mongodb_server.new_name()
    ids = ids_of_all_types()
    mongodb_server.put(name, [{"_id": one, "n": n} for n, one in enumerate(ids)])
    source = MongodbSource(mongodb_server.uri, name, schema={"n": "int64"}, splits=splits, page_size=2)
    every = list(range(len(ids)))
    for number in every:
        reader = reader_of(source, splits_of(source))
        rows = read_some(reader, number) if number else []
        kept = reader.snapshot()
        reader.close()
        if kept:
            rows += read_some(reader_of(source, kept))
        assert sorted(row["n"] for row in rows) == every


def test_filters_choose_documents_and_the_greatest_id_is_the_end(mongodb_server):  # noqa: F811
    name = mongodb_server.new_name()
    assert rows_of(mongodb_server, name, {"n": "int64"}) == []
    mongodb_server.put(name, [{"_id": n, "n": n, "even": n % 2 == 0, "x": {"y": n}} for n in range(50)])
    schema = {"n": "int64"}
    found = rows_of(mongodb_server, name, schema, query={"even": True, "n": {"$lt": 30}}, splits=4, page_size=3)
    assert sorted(row["n"] for row in found) == list(range(0, 30, 2))
    source = MongodbSource(mongodb_server.uri, name, schema={"n": "int64"}, splits=4)
    splits = splits_of(source)
    assert len(splits) == 4
    mongodb_server.put(name, [{"_id": 100, "n": 100}])
    assert sorted(row["n"] for row in read_some(reader_of(source, splits))) == list(range(50))


def test_a_range_does_not_end_with_code():
    """Which is a text for Python, and another type for MongoDB."""
    bson = pytest.importorskip("bson")
    assert range_filter("a", "b", has_start=True) == {"_id": {"$gt": "a", "$lte": "b"}}
    assert "cannot be read in the order of their _id" in told(lambda: range_filter("a", bson.Code("x"), has_start=True))


def test_collections_with_nan_as_an_id_and_names_that_lead_elsewhere_are_refused(mongodb_server):  # noqa: F811
    """NaN is in no range; of a field behind a dot there would be nulls."""
    name = mongodb_server.new_name()
    mongodb_server.put(name, [{"_id": n, "n": 1} for n in (1, float("nan"), 2)])
    assert "has NaN as its _id" in told(lambda: rows_of(mongodb_server, name, {"n": "int64"}))
    for field in ("a.b", "$a", ""):
        with pytest.raises(ConfigurationError, match=r"a name without \."):
            MongodbSource(mongodb_server.uri, name, schema={field: "int64"})
        with pytest.raises(ConfigurationError, match=r"a name without \."):
            MongodbLookup(MongodbClient(mongodb_server.uri), name, pa.schema([(field, pa.int64())]), [field])


def test_a_damaged_document_is_named():
    """As the driver gives it; the server of these tests mends it."""
    bson = pytest.importorskip("bson")
    damaged = bson.encode({"t": "abcd"}).replace(b"abcd", b"ab\xff\xfe")
    connection = MongodbClient("mongodb://127.0.0.1:1").connect()
    with pytest.raises(AnswerError, match=r"a document is damaged: .*utf-8") as error:
        connection.ask(lambda: bson.decode(damaged))
    assert not error.value.is_away
    connection.close()


class Refused(str):
    """What an error says."""


def exact_values():
    from bson import Binary, Code, Decimal128, Int64, ObjectId, Regex, Timestamp

    one, who = ObjectId("0123456789abcdef01234567"), uuid.UUID(int=7)
    time = datetime(2024, 1, 1, 12, tzinfo=timezone.utc)
    cents, numbers, parts = pa.decimal128(10, 2), pa.list_(pa.int64()), pa.struct({"a": pa.int64()})
    return [
        ("int64", 5, 5), ("int64", Int64(2**40), 2**40), ("int64", 3.0, 3), ("int64", Decimal128("7"), 7),
        ("int64", 3.5, Refused("no whole number")), ("int64", "3", Refused("no whole number")),
        ("int64", True, Refused("no whole number")), ("int8", 200, Refused("int8")), ("float64", 2, 2.0),
        ("float64", Int64(2**53 + 1), Refused("does not hold")), ("float64", "x", Refused("no double")),
        ("float32", 0.5, 0.5), ("float32", 0.1, Refused("does not hold")), (cents, Decimal128("1.5"), Decimal("1.50")),
        (cents, Decimal128("1.555"), Refused("decimal128")), (cents, Decimal128("NaN"), Refused("no decimal")),
        (cents, 1.5, Refused("no decimal")), (cents, 2, Decimal(2)), ("string", one, str(one)), ("string", None, None),
        ("string", Binary.from_uuid(who), str(who)), ("string", Code("x"), Refused("Code is no text")),
        ("string", Regex("x"), Refused("Regex is no text")), ("string", 5, Refused("int is no text")),
        (pa.binary(), b"\0", b"\0"), (pa.binary(), Binary(b"\0", 5), Refused("Binary is no bytes")),
        (pa.binary(), "x", Refused("no bytes")), (pa.timestamp("us", "UTC"), time, time),
        (pa.timestamp("s", "UTC"), time, time), (pa.timestamp("ms"), Timestamp(1, 1), Refused("Timestamp is no time")),
        (pa.date32(), time, Refused("not at midnight")), ("bool", 1, Refused("int is no bool")),
        (numbers, [1, None], [1, None]), (numbers, 5, Refused("int is no list")), (parts, {"b": 1}, {"a": None}),
        (parts, 5, Refused("no document")), (pa.map_(pa.string(), pa.int64()), {"a": 1}, [("a", 1)]),
    ]  # fmt: skip


def test_values_are_read_exactly_or_refused_by_name():
    """As the driver gives them; the server of these tests does not know them all."""
    bson = pytest.importorskip("bson")
    options = bson.CodecOptions(datetime_conversion=bson.codec_options.DatetimeConversion.DATETIME_MS)
    for kind, given, expected in exact_values():
        value = bson.decode(bson.encode({"v": given}), options)["v"]
        field = schema_of({"v": kind}).field(0)
        convert = reader_of_values("v", field.type)
        if isinstance(expected, Refused):
            text = told(lambda convert=convert, field=field, value=value: column_of([value], field, convert))
            assert expected in text, (kind, value)
            assert "column 'v'" in text
        else:
            assert column_of([value], field, convert).to_pylist() == [expected], (kind, value)


def test_a_value_that_does_not_fit_is_named_by_its_place(mongodb_server):  # noqa: F811
    name = mongodb_server.new_name()
    mongodb_server.put(name, [{"_id": n, "v": "x" if n == 7 else n} for n in range(9)])
    text = told(lambda: rows_of(mongodb_server, name, {"v": "int64"}, splits=1))
    for part in ("a str is no whole number", "column 'v'", f"collection '{name}'", f"split '{name}/0'", "position"):
        assert part in text


def test_positions_of_others_are_refused(mongodb_server):  # noqa: F811
    name = mongodb_server.new_name()
    mongodb_server.put(name, [{"_id": 1, "n": 1}])
    source = MongodbSource(mongodb_server.uri, name, schema={"n": "int64"})
    (split,) = splits_of(source)
    wrong = (({"start": None}, None), ({"start": 5, "end": "00"}, None), (split.payload, "xy"), (split.payload, 7))
    for payload, position in wrong:
        with pytest.raises(CheckpointMismatchError, match="not one of a collection"):
            reader_of(source, [Split("s", payload, position)])
    reader = reader_of(source, [Split("s", split.payload, "0011")])
    with pytest.raises(CheckpointMismatchError, match="not one of a collection"):
        read_some(reader)


def test_wrong_arguments_are_refused_and_what_cannot_be_asked_is_named():
    with pytest.raises(ConfigurationError, match="with its database"):
        MongodbSource("mongodb://localhost", "x", schema={"n": "int64"})
    with pytest.raises(ConfigurationError, match="1 split or more"):
        MongodbSource("mongodb://localhost", "a.b", schema={"n": "int64"}, splits=0)
    source = MongodbSource("mongodb://me:hidden@127.0.0.1:1", "a.b", schema={"n": "int64"}, patience=0)
    text = told(lambda: splits_of(source))
    assert "cannot be looked at" in text
    assert "hidden" not in text + repr(source)

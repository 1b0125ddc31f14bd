"""Messages of Protocol Buffers, with and without a real registry.

Risks and families: values that come back as others (round trip of random rows; the library's own classes read what is
written); damaged and foreign messages (each told by its place); Confluent's serializer as the other side.
"""

from __future__ import annotations

import pickle
import random
import sys
import types
from decimal import Decimal

import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from kafka_server import kafka_server  # noqa: F401 - a fixture
from registry_server import registry_url  # noqa: F401 - a fixture

from headrace.connectors.kafka import ProtobufMessages, SchemaRegistry
from headrace.engine.columns.records import Batch
from headrace.engine.errors import ConfigurationError, TypeMismatchError
from headrace.table import TableEnvironment

KINDS = {
    "i": Field.TYPE_INT32, "l": Field.TYPE_SINT64, "u": Field.TYPE_UINT32, "v": Field.TYPE_FIXED64,
    "d": Field.TYPE_DOUBLE, "f": Field.TYPE_FLOAT, "b": Field.TYPE_BOOL, "s": Field.TYPE_STRING, "y": Field.TYPE_BYTES,
}  # fmt: skip
VALUES = {
    "i": [0, 7, -(2**31)], "l": [0, -1, 2**62], "u": [0, 2**32 - 1], "v": [Decimal(0), Decimal(2**64 - 1)],
    "d": [0.0, -1e300], "f": [0.0, 1.5], "b": [False, True], "s": ["", "日本"], "y": [b"", b"\0\xff"],
    "e": ["NONE", "RED"], "o": [None, 0, 3], "r": [[], [1, -2]], "rows": [[], [{"x": 1}, {"x": None}]],
    "m": [[], [("", 1), ("k", -3)]], "n": [None, {"x": 5}, {"x": None}],
}  # fmt: skip


def made_classes():
    """``Small`` with one optional number, ``Event`` with a field of each kind, ``Event.Inner``; a file of another."""
    other = FileDescriptorProto(name="small.proto", package="t", syntax="proto3")
    small = other.message_type.add(name="Small")
    small.field.add(name="x", number=1, type=Field.TYPE_INT32, label=1, proto3_optional=True, oneof_index=0)
    small.oneof_decl.add(name="_x")
    file = FileDescriptorProto(name="event.proto", package="t", syntax="proto3", dependency=["small.proto"])
    file.message_type.add(name="First")
    event = file.message_type.add(name="Event")
    for number, (name, kind) in enumerate(KINDS.items(), 1):
        event.field.add(name=name, number=number, type=kind, label=1)
    colours = event.enum_type.add(name="Colour")
    colours.value.add(name="NONE", number=0)
    colours.value.add(name="RED", number=5)
    event.field.add(name="e", number=20, type=Field.TYPE_ENUM, type_name=".t.Event.Colour", label=1)
    event.field.add(name="o", number=21, type=Field.TYPE_INT64, label=1, proto3_optional=True, oneof_index=0)
    event.oneof_decl.add(name="_o")
    event.field.add(name="r", number=22, type=Field.TYPE_INT32, label=3)
    event.field.add(name="rows", number=23, type=Field.TYPE_MESSAGE, type_name=".t.Small", label=3)
    entry = event.nested_type.add(name="MEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=Field.TYPE_STRING, label=1)
    entry.field.add(name="value", number=2, type=Field.TYPE_INT64, label=1)
    event.field.add(name="m", number=24, type=Field.TYPE_MESSAGE, type_name=".t.Event.MEntry", label=3)
    event.field.add(name="n", number=25, type=Field.TYPE_MESSAGE, type_name=".t.Small", label=1)
    inner = event.nested_type.add(name="Inner")
    inner.field.add(name="again", number=1, type=Field.TYPE_MESSAGE, type_name=".t.Event.Inner", label=1)
    pool = DescriptorPool()
    pool.AddSerializedFile(other.SerializeToString())
    pool.AddSerializedFile(file.SerializeToString())
    return {
        name: GetMessageClass(pool.FindMessageTypeByName(f"t.{name}")) for name in ("Event", "First", "Event.Inner")
    }


CLASSES = made_classes()
EVENT = CLASSES["Event"]


@pytest.fixture
def events_module(monkeypatch):
    """A module with the class, as protoc would make it."""
    module = types.ModuleType("made_events_pb2")
    module.Event = EVENT
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module.__name__


def random_rows(seed, num):
    rng = random.Random(seed)
    return [{name: rng.choice(values) for name, values in VALUES.items()} for _ in range(num)]


def test_what_is_written_comes_back_and_the_classes_read_it():
    made = pickle.loads(pickle.dumps(ProtobufMessages(EVENT)))
    rows = random_rows(1, 300)
    written = pa.RecordBatch.from_pylist(rows, made.schema)
    messages = made.encode(Batch.of_columns(written))
    decoded = made.decode(messages)
    assert decoded.batch.columns.equals(written)
    assert decoded.good.tolist() == list(range(300))
    for row, message in zip(rows, map(EVENT.FromString, messages), strict=True):
        assert (message.i, message.v, message.y, list(message.r)) == (row["i"], int(row["v"]), row["y"], row["r"])
        assert (message.HasField("o"), message.e) == (row["o"] is not None, {"NONE": 0, "RED": 5}[row["e"]])
        assert (dict(message.m), message.HasField("n")) == (dict(row["m"]), row["n"] is not None)
        assert [one.HasField("x") for one in message.rows] == [one["x"] is not None for one in row["rows"]]


def test_columns_may_be_some_fields_and_have_other_types():
    made = ProtobufMessages(EVENT, {"o": "int64", "i": "int64", "u": "int32"})
    decoded = made.decode([EVENT(i=3, u=4).SerializeToString(), EVENT(u=2**32 - 1).SerializeToString(), b"\xff\xff"])
    assert decoded.batch.columns.to_pylist() == [{"o": None, "i": 3, "u": 4}]
    assert [(bad.index, bool(bad.cause)) for bad in decoded.bad] == [(1, True), (2, True)]
    defaults = ProtobufMessages(EVENT, {"o": "int64"}, reads_defaults=True)
    assert defaults.decode([b""]).batch.columns.to_pylist() == [{"o": 0}]


def test_what_has_no_form_is_refused():
    with pytest.raises(ConfigurationError, match="no field 'z'"):
        ProtobufMessages(EVENT, {"z": "int64"})
    with pytest.raises(ConfigurationError, match=r"field 'r' of t\.Event is list"):
        ProtobufMessages(EVENT, {"r": "int64"})
    with pytest.raises(ConfigurationError, match="go deeper than 16"):
        ProtobufMessages(CLASSES["Event.Inner"])
    with pytest.raises(ConfigurationError, match=r"there is no class 'nowhere_pb2\.Event'"):
        ProtobufMessages("nowhere_pb2.Event")
    with pytest.raises(ConfigurationError, match="class that protoc has made"):
        ProtobufMessages(dict)
    with pytest.raises(TypeMismatchError, match=r"no form as t\.Event"):
        ProtobufMessages(EVENT, {"e": "string"}).encode(Batch.of_rows([{"e": "BLUE"}]))


def made_awkward():
    """``Needed``, of proto2, with a required field; ``Awkward`` with a choice, and lists and a map that hold values."""
    needed = FileDescriptorProto(name="needed.proto", package="t", syntax="proto2")
    kind = needed.message_type.add(name="Needed")
    kind.field.add(name="a", number=1, type=Field.TYPE_INT32, label=2)
    kind.field.add(name="b", number=2, type=Field.TYPE_INT32, label=1)
    file = FileDescriptorProto(name="awkward.proto", package="t", syntax="proto3")
    colours = file.enum_type.add(name="Colour")
    colours.value.add(name="NONE", number=0)
    part = file.message_type.add(name="Part")
    part.oneof_decl.add(name="choice")
    part.field.add(name="x", number=1, type=Field.TYPE_INT32, label=1, oneof_index=0)
    part.field.add(name="y", number=2, type=Field.TYPE_INT32, label=1, oneof_index=0)
    kind = file.message_type.add(name="Awkward")
    kind.field.add(name="parts", number=1, type=Field.TYPE_MESSAGE, type_name=".t.Part", label=3)
    kind.field.add(name="colours", number=2, type=Field.TYPE_ENUM, type_name=".t.Colour", label=3)
    entry = kind.nested_type.add(name="ByNameEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=Field.TYPE_STRING, label=1)
    entry.field.add(name="value", number=2, type=Field.TYPE_MESSAGE, type_name=".t.Part", label=1)
    kind.field.add(name="by_name", number=3, type=Field.TYPE_MESSAGE, type_name=".t.Awkward.ByNameEntry", label=3)
    kind.field.add(name="n", number=4, type=Field.TYPE_INT32, label=1)
    pool = DescriptorPool()
    for one in (needed, file):
        pool.AddSerializedFile(one.SerializeToString())
    return [GetMessageClass(pool.FindMessageTypeByName(f"t.{name}")) for name in ("Needed", "Awkward")]


def test_what_a_message_cannot_hold_is_refused_with_its_row():
    needed, awkward = made_awkward()
    made = ProtobufMessages(awkward)
    good = {"parts": [{"x": 1, "y": None}], "colours": ["NONE", "7"], "by_name": [("a", {"x": None, "y": 2})], "n": 1}

    def refused(message, made=made, schema=made.schema, **fields):
        rows = [good, {**good, **fields}] if schema is made.schema else [{}, fields]
        with pytest.raises(TypeMismatchError, match=message) as error:
            made.encode(Batch.of_columns(pa.RecordBatch.from_pylist(rows, schema)))
        return error.value.context["row"]

    (message,) = made.encode(Batch.of_columns(pa.RecordBatch.from_pylist([good], made.schema)))
    assert list(awkward.FromString(message).colours) == [0, 7]
    assert made.decode([message]).batch.columns.to_pylist() == [good]
    both = {"x": 1, "y": 2}
    assert refused("oneof 'choice' one field is set at most", parts=[both]) == 1
    assert refused("oneof 'choice' one field is set at most", by_name=[("a", both)]) == 1
    assert refused("'parts' is a list or map, which holds no nulls", parts=[None]) == 1
    assert refused("'by_name' is a list or map, which holds no nulls", by_name=[("a", None)]) == 1
    assert refused("'colours' is a list or map, which holds no nulls", colours=[None]) == 1
    wide = pa.schema([("n", pa.int64())])
    assert refused("not in range", ProtobufMessages(awkward, wide), wide, n=1 << 40) == 1
    schema = ProtobufMessages(needed).schema
    assert refused("missing required fields: a", ProtobufMessages(needed), schema, b=1) == 0


@pytest.mark.lane("registry")
def test_confluents_own_serializer_is_the_other_side(registry_url):  # noqa: F811
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    client, context = SchemaRegistryClient({"url": registry_url}), SerializationContext("p", MessageField.VALUE)
    theirs = ProtobufSerializer(EVENT, client)(EVENT(i=7, s="x"), context)
    ours = ProtobufMessages(EVENT, {"i": "int32", "s": "string"}, SchemaRegistry(registry_url, "ours-value"))
    (made,) = ours.encode(Batch.of_rows([{"i": 8, "s": "y"}]))
    read = ProtobufDeserializer(EVENT, {}, client)(made, SerializationContext("ours", MessageField.VALUE))
    assert (read.i, read.s) == (8, "y")
    first = ProtobufSerializer(CLASSES["First"], client)(
        CLASSES["First"](), SerializationContext("f", MessageField.VALUE)
    )
    decoded = ours.decode([theirs, made, first, b"\0\0\0\0\1", b"{}"])
    assert decoded.batch.columns.to_pylist() == [{"i": 7, "s": "x"}, {"i": 8, "s": "y"}]
    assert "at place [0] of its schema, and not [1]" in decoded.bad[0].cause
    assert ["of which kind" in decoded.bad[1].cause, "number of a schema" in decoded.bad[2].cause] == [True, True]


@pytest.mark.parametrize("name", ["protobuf", pytest.param("protobuf-confluent", marks=pytest.mark.lane("registry"))])
def test_tables_of_protobuf(name, request, kafka_server, events_module):  # noqa: F811
    topic = kafka_server.create_topic(2)
    t = TableEnvironment.create(parallelism=2, actor_system="local")
    more = ""
    if name == "protobuf-confluent":
        more = f", 'protobuf-confluent.url' = '{request.getfixturevalue('registry_url')}'"
    t.execute_sql(f"""
        CREATE TABLE t (s STRING, l BIGINT, o BIGINT, n ROW<x INT>)
        WITH ('connector' = 'kafka', 'topic' = '{topic}', 'properties.bootstrap.servers' = '{kafka_server.address}',
              'format' = '{name}', '{name}.message-class-name' = '{events_module}.Event', 'key.fields' = 's',
              'scan.startup.mode' = 'earliest-offset', 'scan.bounded.mode' = 'latest-offset'{more})
    """)
    t.execute_sql(
        "INSERT INTO t SELECT s, l, o, ROW(CAST(l AS INT)) FROM (VALUES ('a', 1, 5), ('b', 2, NULL)) AS r(s, l, o)"
    )
    rows = t.execute_sql("SELECT s, l, o, n.x AS x FROM t").to_arrow().to_pylist()
    assert sorted(rows, key=str) == [{"s": "a", "l": 1, "o": 5, "x": 1}, {"s": "b", "l": 2, "o": None, "x": 2}]

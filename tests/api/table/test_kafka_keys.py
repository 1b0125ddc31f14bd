"""Keys of ``upsert-kafka`` in formats that have schemas, against a real broker and a real registry.

Risks and families: keys that other clients cannot read, or that are two for one row (what Confluent's own classes read
is compared with the rows that are alive); rows of one key under several schemas (the table is what its last rows say).
"""

from __future__ import annotations

import io
import json
import random
import sys
import types
from collections import Counter

import pyarrow as pa
import pytest
from campaigns import campaign
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from kafka_server import kafka_server  # noqa: F401 - a fixture
from query_kit import in_small_batches
from registry_server import registry_url  # noqa: F401 - a fixture

from headrace.formats.avro_types import avro_schema_of
from headrace.table import TableEnvironment

fastavro = pytest.importorskip("fastavro")

SCHEMA = pa.schema([("room", pa.string()), ("number", pa.int64())])
COLUMNS = "total BIGINT, room STRING, number BIGINT, PRIMARY KEY (room, number) NOT ENFORCED"


def key_class():
    file = FileDescriptorProto(name="row_key.proto", package="k", syntax="proto3")
    file.message_type.add(name="Other")
    key = file.message_type.add(name="RowKey")
    key.field.add(name="room", number=1, type=Field.TYPE_STRING, label=1)
    key.field.add(name="number", number=2, type=Field.TYPE_SINT64, label=1)
    pool = DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return GetMessageClass(pool.FindMessageTypeByName("k.RowKey"))


KEY = key_class()


@pytest.fixture
def keys_module(monkeypatch):
    """A module with the class, as protoc would make it."""
    module = types.ModuleType("made_keys_pb2")
    module.RowKey = KEY
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module.__name__


def options_of(name, request):
    """What the table says of its keys."""
    options = {"key.format": name}
    if name.startswith("protobuf"):
        options[f"key.{name}.message-class-name"] = f"{request.getfixturevalue('keys_module')}.RowKey"
    if name.endswith("-confluent"):
        options[f"key.{name}.url"] = request.getfixturevalue("registry_url")
    return options


def reader_of(name, url, topic):
    """What makes room and number of a key, by classes that are not ours."""
    if name == "avro":
        parsed = fastavro.parse_schema(avro_schema_of(SCHEMA, of_messages=True))
        return lambda key: tuple(fastavro.schemaless_reader(io.BytesIO(key), parsed, None).values())
    if name == "protobuf":
        return lambda key: (KEY.FromString(key).room, KEY.FromString(key).number)
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from confluent_kafka.schema_registry.avro import AvroDeserializer
    from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    client, context = SchemaRegistryClient({"url": url}), SerializationContext(topic, MessageField.KEY)
    if name == "avro-confluent":
        read = AvroDeserializer(client)
        return lambda key: tuple(read(key, context).values())
    read = ProtobufDeserializer(KEY, {}, client)
    return lambda key: (read(key, context).room, read(key, context).number)


def declare(t, server, topic, **options):
    named = {"connector": "upsert-kafka", "topic": topic, "properties.bootstrap.servers": server.address}
    given = {**named, "value.format": "json", "scan.bounded.mode": "latest-offset", **options}
    t.execute_sql(f"CREATE TABLE totals ({COLUMNS}) WITH ({', '.join(f'{k!r} = {v!r}' for k, v in given.items())})")


WITH_REGISTRY = [pytest.param(f"{name}-confluent", marks=pytest.mark.lane("registry")) for name in ("avro", "protobuf")]


@pytest.mark.parametrize("name", ["avro", campaign("protobuf"), *WITH_REGISTRY])
def test_what_is_written_by_key_is_read_by_others_and_comes_back(name, request, kafka_server):  # noqa: F811
    rng, topic = random.Random(7), kafka_server.create_topic(3)
    rows = [
        (rng.choice(["", "hall", "d\u00e9p\u00f4t"]), rng.choice([0, -1, 2**40]), rng.randrange(-9, 9))
        for _ in range(200)
    ]
    rows[0], rows[95] = ("hall", 0, 5_000), ("hall", 0, -9_999)  # there for a while, and taken back
    events = pa.table(dict(zip(("room", "number", "v"), map(list, zip(*rows, strict=True)), strict=True)))
    totals = Counter()
    for room, number, v in rows:
        totals[room, number] += v
    alive = {key: total for key, total in totals.items() if total > 0}
    with in_small_batches(TableEnvironment.create(parallelism=2, actor_system="local"), {"events": events}, 20) as t:
        options = options_of(name, request)
        declare(t, kafka_server, topic, **options)
        t.execute_sql("""
            INSERT INTO totals SELECT SUM(v), room, number FROM events GROUP BY room, number HAVING SUM(v) > 0
        """)
        found = t.execute_sql("SELECT room, number, total FROM totals").to_arrow().to_pylist()
    assert {(row["room"], row["number"]): row["total"] for row in found} == alive
    read = reader_of(name, options.get(f"key.{name}.url"), topic)
    last, keys = {}, set()
    for message in kafka_server.committed(topic):
        keys.add(message.key())
        last[read(message.key())] = message.value()
    assert {key: json.loads(value)["total"] for key, value in last.items() if value is not None} == alive
    assert len(keys) == len(last), "a row has one key"
    assert last["hall", 0] is None, "a row was taken back"


@pytest.mark.lane("registry")
@pytest.mark.parametrize("name", ["avro-confluent", "protobuf-confluent"])
def test_a_key_is_its_columns_under_whatever_schema(name, request, kafka_server, registry_url):  # noqa: F811
    """Confluent's own classes write the keys; the row of one is replaced, and deleted, under a later schema."""
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from confluent_kafka.schema_registry.avro import AvroSerializer
    from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    topic = kafka_server.create_topic(1)
    client, context = SchemaRegistryClient({"url": registry_url}), SerializationContext(topic, MessageField.KEY)

    def avro(*more):
        fields = [{"name": "room", "type": "string"}, {"name": "number", "type": "long"}, *more]
        return AvroSerializer(client, json.dumps({"type": "record", "name": "k", "fields": fields}))

    if name == "avro-confluent":
        older, newer = avro(), avro({"name": "note", "type": ["null", "string"], "default": None})
        made = lambda room, number: {"room": room, "number": number}
    else:
        older = newer = ProtobufSerializer(KEY, client, {"use.deprecated.format": False})
        made = lambda room, number: KEY(room=room, number=number)
    changes = [(older, "hall", 1, 5), (older, "hall", 2, 6), (older, "", 0, 7), (newer, "hall", 1, 8)]
    changes += [(newer, "hall", 2, None), (newer, "study", 1, 9)]
    for write, room, number, total in changes:
        value = None if total is None else json.dumps({"room": room, "number": number, "total": total})
        kafka_server.produce(topic, [value], key=write(made(room, number), context))
    if name == "avro-confluent":
        assert len({message.key()[:5] for message in kafka_server.committed(topic)}) == 2
    with TableEnvironment.create(parallelism=2, actor_system="local") as t:
        declare(t, kafka_server, topic, **options_of(name, request))
        found = t.execute_sql("SELECT room, number, total FROM totals").to_arrow().to_pylist()
    assert sorted((row["room"], row["number"], row["total"]) for row in found) == [
        ("", 0, 7), ("hall", 1, 8), ("study", 1, 9),
    ]  # fmt: skip

"""Messages in Avro, with one schema and with a real registry.

Risks and families: values that come back as others (round trip of random rows; fastavro alone reads what is written);
damaged and foreign messages (each told by its place); schemas that change.
"""

from __future__ import annotations

import datetime as dt
import io
import json
import random
import struct
import sys
from decimal import Decimal

import pyarrow as pa
import pytest
from kafka_server import kafka_server  # noqa: F401 - a fixture
from registry_server import registry_url  # noqa: F401 - a fixture

from headrace.connectors.kafka import AvroMessages, SchemaRegistry
from headrace.engine.columns.records import Batch
from headrace.engine.errors import ConfigurationError, ExternalError, TypeMismatchError
from headrace.formats.avro_types import avro_schema_of
from headrace.table import TableEnvironment

fastavro = pytest.importorskip("fastavro")

UTC = dt.timezone.utc
VALUES = {
    "i": (pa.int64(), [0, -1, 2**62]),
    "n": (pa.int32(), [7, -(2**31)]),
    "s": (pa.string(), ["", "x", "日本"]),
    "y": (pa.binary(), [b"", b"\0\xff"]),
    "b": (pa.bool_(), [True, False]),
    "f": (pa.float64(), [0.5, -1e300]),
    "d": (pa.decimal128(10, 2), [Decimal("-3.20"), Decimal("99999999.99")]),
    "at": (pa.timestamp("ms"), [dt.datetime(1969, 1, 2, 3, 4, 5, 6000), dt.datetime(2024, 2, 29)]),  # noqa: DTZ001
    "z": (pa.timestamp("us", "UTC"), [dt.datetime(2024, 2, 29, 1, 2, 3, 4, tzinfo=UTC)]),
    "day": (pa.date32(), [dt.date(1960, 1, 1), dt.date(2024, 2, 29)]),
    "l": (pa.list_(pa.int32()), [[], [1, None, -2]]),
    "m": (pa.map_(pa.string(), pa.int64()), [[], [("k", 3), ("", None)]]),
    "r": (pa.struct([("x", pa.float32()), ("t", pa.timestamp("ms"))]), [{"x": 1.5, "t": None}]),
}
SCHEMA = pa.schema([(name, kind) for name, (kind, _) in VALUES.items()])


def random_rows(seed, num):
    rng = random.Random(seed)
    rows = [
        {name: None if rng.random() < 0.3 else rng.choice(values) for name, (_, values) in VALUES.items()}
        for _ in range(num)
    ]
    return pa.RecordBatch.from_pylist(rows, SCHEMA)


def test_what_is_written_comes_back_and_others_read_it():
    written, made = random_rows(1, 300), AvroMessages(SCHEMA)
    messages = made.encode(Batch.of_columns(written))
    decoded = made.decode(messages)
    assert decoded.batch.columns.equals(written)
    assert decoded.good.tolist() == list(range(300))
    parsed = fastavro.parse_schema(avro_schema_of(SCHEMA, of_messages=True))
    alone = [fastavro.schemaless_reader(io.BytesIO(message), parsed, None) for message in messages]
    assert [row["d"] for row in alone] == written.column("d").to_pylist()
    assert [row["l"] for row in alone] == written.column("l").to_pylist()
    times = [row["at"] and row["at"].replace(tzinfo=None) for row in alone]
    assert times == written.column("at").to_pylist()


def test_bad_messages_are_told_by_their_places():
    made = AvroMessages({"a": "int64", "s": "string"})
    good = made.encode(Batch.of_rows([{"a": 1, "s": "x"}, {"a": 2, "s": None}]))
    decoded = made.decode([good[0], b"", good[0][:-1], good[0] + b"\0", good[1], b"\xff" * 12])
    assert decoded.good.tolist() == [0, 4]
    assert decoded.batch.columns.to_pylist() == [{"a": 1, "s": "x"}, {"a": 2, "s": None}]
    assert [bad.index for bad in decoded.bad] == [1, 2, 3, 5]
    assert "left behind it" in decoded.bad[2].cause
    as_number = AvroMessages({"s": "int64"}, avro_schema=json.dumps(avro_schema_of(made.schema, of_messages=True)))
    misfit = as_number.decode(good)
    assert (misfit.good.tolist(), [bad.index for bad in misfit.bad]) == ([1], [0])


def test_rows_within_rows_have_names_of_their_own():
    row = pa.struct([("v", pa.int64())])
    made = AvroMessages(pa.schema([("a", pa.struct([("b", row)])), ("a_b", row)]))
    rows = [{"a": {"b": {"v": 1}}, "a_b": {"v": 2}}]
    assert made.decode(made.encode(Batch.of_rows(rows))).batch.columns.to_pylist() == rows


@pytest.mark.parametrize("kind", [pa.date32(), pa.time32("ms"), pa.list_(pa.date32()), pa.struct([("x", pa.date32())])])
def test_a_fraction_is_no_date(kind):
    """Avro keeps days and milliseconds as whole numbers; others are no days that were cut off."""
    made = {"double": 1.5, "float": 2.0, "int": 3}
    for avro, value in made.items():
        own, found = avro, value
        if pa.types.is_list(kind):
            own, found = {"type": "array", "items": avro}, [value]
        if pa.types.is_struct(kind):
            own, found = {"type": "record", "name": "inner", "fields": [{"name": "x", "type": avro}]}, {"x": value}
        schema = {"type": "record", "name": "r", "fields": [{"name": "c", "type": own}]}
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), {"c": found})
        decoded = AvroMessages(pa.schema({"c": kind}), avro_schema=json.dumps(schema)).decode([stream.getvalue()])
        if avro == "int":
            assert not decoded.bad
            assert decoded.batch.num_rows == 1
        else:
            (bad,) = decoded.bad
            assert f"column 'c' has a {'TIME' if pa.types.is_time(kind) else 'DATE'}; got {value}" in bad.cause


def test_what_has_no_form_is_refused():
    with pytest.raises(ConfigurationError, match="Avro has no type for duration"):
        AvroMessages(pa.schema([("a", pa.duration("s"))]))
    with pytest.raises(ConfigurationError, match="no schema of Avro"):
        AvroMessages({"a": "int64"}, avro_schema='{"type": "nothing"}')
    avro = avro_schema_of(pa.schema([("a", pa.int32())]), of_messages=True)
    narrow = AvroMessages({"a": "int64"}, avro_schema=json.dumps(avro))
    with pytest.raises(TypeMismatchError, match="no form in the Avro schema"):
        narrow.encode(Batch.of_rows([{"a": 2**40}]))
    with pytest.raises(ConfigurationError, match="has an address such as"):
        SchemaRegistry("localhost:8081")
    with pytest.raises(ExternalError, match="does not say what schema 1 is"):
        AvroMessages({"a": "int64"}, SchemaRegistry("http://127.0.0.1:1")).decode([b"\0\0\0\0\1\0"])
    with pytest.raises(ConfigurationError, match="subject must be named"):
        AvroMessages({"a": "int64"}, SchemaRegistry("http://127.0.0.1:1")).encode(Batch.of_rows([{"a": 1}]))


def test_a_client_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "confluent_kafka.schema_registry", None)
    made = AvroMessages({"a": "int64"}, SchemaRegistry("http://127.0.0.1:1", "t-value"))
    for ask in (lambda: made.decode([b"\0\0\0\0\1\0"]), lambda: made.encode(Batch.of_rows([{"a": 1}]))):
        with pytest.raises(ConfigurationError, match=r"confluent-kafka\[schemaregistry\]"):
            ask()


def test_a_registry_knows_which_schema_each_message_is_of(registry_url):  # noqa: F811
    older = AvroMessages({"a": "int64", "gone": "string"}, SchemaRegistry(registry_url, "t-value"))
    newer = AvroMessages({"a": "int64", "b": "double"}, SchemaRegistry(registry_url, "t-value"))
    messages = older.encode(Batch.of_rows([{"a": 1, "gone": "x"}])) + newer.encode(Batch.of_rows([{"a": 2, "b": 0.5}]))
    assert messages[0][:1] == b"\0"
    assert messages[0][:5] != messages[1][:5]
    decoded = newer.decode([*messages, b"\0" + struct.pack(">I", 999) + b"\0", b"{}"])
    assert decoded.batch.columns.to_pylist() == [{"a": 1, "b": None}, {"a": 2, "b": 0.5}]
    assert ["no schema 999" in decoded.bad[0].cause, "number of a schema" in decoded.bad[1].cause] == [True, True]


@pytest.mark.parametrize("name", ["avro", pytest.param("avro-confluent", marks=pytest.mark.lane("registry"))])
def test_tables_of_avro(name, request, kafka_server):  # noqa: F811
    topic = kafka_server.create_topic(2)
    t = TableEnvironment.create(parallelism=2, actor_system="local")
    more = ""
    if name == "avro-confluent":
        more = f", 'avro-confluent.url' = '{request.getfixturevalue('registry_url')}'"
    t.execute_sql(f"""
        CREATE TABLE t (k STRING, v BIGINT, r ROW<x DOUBLE, ts TIMESTAMP(3)>)
        WITH ('connector' = 'kafka', 'topic' = '{topic}', 'properties.bootstrap.servers' = '{kafka_server.address}',
              'format' = '{name}', 'key.fields' = 'k', 'scan.startup.mode' = 'earliest-offset',
              'scan.bounded.mode' = 'latest-offset'{more})
    """)
    t.execute_sql("""
        INSERT INTO t SELECT k, v, ROW(CAST(v AS DOUBLE), TIMESTAMP '2024-01-01 00:00:00')
        FROM (VALUES ('a', 1), ('b', 2), ('a', CAST(NULL AS BIGINT))) AS s(k, v)
    """)
    rows = t.execute_sql("SELECT k, v, r.x AS x, r.ts AS ts FROM t").to_arrow().to_pylist()
    at = dt.datetime(2024, 1, 1)  # noqa: DTZ001 - SQL's TIMESTAMP has no zone
    assert sorted(rows, key=str) == sorted(
        [{"k": k, "v": v, "x": v and float(v), "ts": at} for k, v in (("a", 1), ("b", 2), ("a", None))], key=str
    )

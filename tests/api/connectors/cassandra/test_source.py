"""Tables of Cassandra as a source, against a real server: each row once, from any position on.

Risks and families: positions inside of partitions and between them (readers that are restored behind any row, in tables
of all kinds), rows that go away, values of all types, tables that will not do.
"""

from __future__ import annotations

import random
from datetime import date, datetime, time, timezone
from decimal import Decimal
from operator import itemgetter

import pyarrow as pa
import pytest
from cassandra_server import cassandra_server  # noqa: F401 - a fixture
from failing_functions import FailsAtFirst
from reading_kit import read_some, reader_of, splits_of
from upsert_kit import AT_ONCE, told, written

from headrace import RestartStrategies, StreamExecutionEnvironment, WatermarkStrategy
from headrace.connectors.cassandra import CassandraSink, CassandraSource
from headrace.engine.connectors.contract import Split
from headrace.engine.errors import CheckpointMismatchError, ConfigurationError, TypeMismatchError


def read_all(source, splits):
    return read_some(reader_of(source, splits))


SHAPES = {
    "no clustering": ("k int PRIMARY KEY, n int", ["k"]),
    "composite partitions": ("a int, b text, n int, PRIMARY KEY ((a, b))", ["a", "b"]),
    "one column": ("a int, b int, n int, PRIMARY KEY (a, b)", ["a", "b"]),
    "reversed": ("a int, b int, c text, n int, PRIMARY KEY (a, b, c)) WITH CLUSTERING ORDER BY (b DESC, c ASC",
                 ["a", "b", "c"]),
    "three columns": ("a int, b int, c text, d timestamp, n int, PRIMARY KEY (a, b, c, d))"
                      " WITH CLUSTERING ORDER BY (b ASC, c DESC, d DESC", ["a", "b", "c", "d"]),
}  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
def test_reading_goes_on_behind_each_row(shape, cassandra_server):  # noqa: F811
    """Also if that row and all before are gone by then."""
    columns, key = SHAPES[shape]
    table = cassandra_server.new_table(columns)
    rng, expected = random.Random(7), {}
    for number in range(60):
        made = {
            "k": number, "a": rng.randrange(3), "b": rng.randrange(4), "c": rng.choice("xyz"),
            "d": datetime(1600, 1, 1, 0, 0, 0, 1_000 * rng.randrange(3), timezone.utc), "n": number,
        }  # fmt: skip
        if shape == "composite partitions":
            made["b"] = str(number)
        names = [*key, "n"]
        marks = ", ".join(["%s"] * len(names))
        cassandra_server.ask(
            f"INSERT INTO {table} ({', '.join(names)}) VALUES ({marks})", [made[name] for name in names]
        )
        expected[tuple(made[name] for name in key)] = number
    source = CassandraSource(cassandra_server.host, table, schema={"n": "int32"}, splits=2, page_size=4)
    splits = splits_of(source)
    numbers = sorted(row["n"] for row in read_all(source, splits))
    assert numbers == sorted(expected.values())
    by_number = {number: key_ for key_, number in expected.items()}
    for split in splits:
        whole = [row["n"] for row in read_all(source, [split])]
        for given in range(0, len(whole), 3):
            reader = reader_of(source, [split])
            came = [row["n"] for row in read_some(reader, given)] if given else []
            left = reader.snapshot()
            reader.close()
            assert came + [row["n"] for row in read_all(source, left)] == whole
        if len(whole) > 6:
            reader = reader_of(source, [split])
            came = [row["n"] for row in read_some(reader, 5)]
            left = reader.snapshot()
            reader.close()
            where = " AND ".join(f"{name} = %s" for name in key)
            for number in came:
                cassandra_server.ask(f"DELETE FROM {table} WHERE {where}", by_number[number])
            assert came + [row["n"] for row in read_all(source, left)] == whole


def test_partitions_with_static_columns_alone_are_rows(cassandra_server):  # noqa: F811
    table = cassandra_server.new_table("a int, b int, s int static, n int, PRIMARY KEY (a, b)")
    for number in range(5):
        cassandra_server.ask(f"INSERT INTO {table} (a, s) VALUES ({number}, {number})")
    cassandra_server.ask(f"INSERT INTO {table} (a, b, n) VALUES (2, 1, 1)")
    cassandra_server.ask(f"INSERT INTO {table} (a, b, n) VALUES (2, 2, 2)")
    schema = {"a": "int32", "b": "int32", "s": "int32"}
    source = CassandraSource(cassandra_server.host, table, schema=schema, splits=1, page_size=1)
    found = []
    splits = splits_of(source)
    for _ in range(20):  # a new reader for each row or two
        reader = reader_of(source, splits)
        found += read_some(reader, 1)
        splits = reader.snapshot()
        reader.close()
    assert sorted((row["a"], row["b"] or 0) for row in found) == [(0, 0), (1, 0), (2, 1), (2, 2), (3, 0), (4, 0)]


AWKWARD = {
    "empty clustering": ("a int, b int, c text, n int, PRIMARY KEY (a, b, c)", "int"),
    "empty, reversed": ("a int, b bigint, c text, n int, PRIMARY KEY (a, b, c))"
                        " WITH CLUSTERING ORDER BY (b DESC, c ASC", "bigint"),
    "empty last": ("a int, c text, b uuid, n int, PRIMARY KEY (a, c, b)", "uuid"),
    "long varints": ("a int, b varint, c text, n int, PRIMARY KEY (a, b, c)", "varint"),
    "part of a partition": ("a int, b int, c text, n int, PRIMARY KEY ((a, b), c)", "int"),
    "varints of partitions": ("a int, b varint, c text, n int, PRIMARY KEY ((b), a, c)", "varint"),
    "frozen lists": ("a int, b frozen<list<int>>, c text, n int, PRIMARY KEY (a, b, c)", "list"),
    "own types": ("a int, b frozen<point>, c text, n int, PRIMARY KEY (a, b, c)", "point"),
}  # fmt: skip


def awkward_values(kind):
    """Values of a column, as statements have them, some of which a client does not tell apart."""
    if kind in ("list", "point"):
        return {"list": ["[]", "[1]", "[1, 2]"], "point": ["{x: 1}", "{x: null}", "{x: 2}"]}[kind]
    sizes = {"int": 4, "bigint": 8, "uuid": 16}
    plain = [f"0x{number:0{2 * sizes.get(kind, 1)}x}" for number in (0, 1, 2)]
    more = ["0x0003", "0x00000004"] if kind == "varint" else ["0x"]
    return [f"blobAs{kind.capitalize()}({value})" for value in plain + more]


@pytest.mark.parametrize("shape", AWKWARD)
def test_reading_goes_on_behind_keys_that_are_empty_or_longer_than_they_need_to_be(shape, cassandra_server):  # noqa: F811
    columns, kind = AWKWARD[shape]
    if kind == "point":
        cassandra_server.new_table("k int PRIMARY KEY")  # makes the keyspace
        cassandra_server.ask("CREATE TYPE IF NOT EXISTS tests.point (x int)")
    table, num = cassandra_server.new_table(columns), 0
    for value in awkward_values(kind):
        for word in ("", "x"):
            cassandra_server.ask(f"INSERT INTO {table} (a, b, c, n) VALUES (1, {value}, '{word}', {num})")
            num += 1
    source = CassandraSource(cassandra_server.host, table, schema={"n": "int32"}, splits=1, page_size=1)
    splits = splits_of(source)
    rows, some = [], [None]
    while some:  # a new reader for each row
        reader = reader_of(source, splits)
        some = read_some(reader, 1, at_once=1)
        rows, splits = rows + some, reader.snapshot()
        reader.close()
    assert sorted(row["n"] for row in rows) == list(range(num))


def moment(*parts):
    """A time without a zone."""
    return datetime(*parts, tzinfo=timezone.utc).replace(tzinfo=None)


VALUES = {
    "k": ("int", pa.int32(), 1),
    "yes": ("boolean", pa.bool_(), True),
    "wide": ("smallint", pa.int64(), -5),
    "any": ("varint", pa.decimal128(38, 0), Decimal(-(10**37))),
    "whole": ("varint", pa.int64(), -(2**63)),
    "single": ("float", pa.float64(), 0.5),
    "exact": ("decimal", pa.decimal128(38, 10), Decimal("1234567890123456789.1234567890")),
    "word": ("ascii", pa.string(), "a b"),
    "raw": ("blob", pa.binary(), b"\0\xff"),
    "id": ("uuid", pa.string(), "00000000-0000-0000-0000-000000000007"),
    "id_of_bytes": ("uuid", pa.binary(16), bytes(range(16))),
    "ip": ("inet", pa.string(), "::1"),
    "day": ("date", pa.date32(), date(1, 1, 1)),
    "clock": ("time", pa.time64("us"), time(23, 59, 59, 999_999)),
    "moment": ("timestamp", pa.timestamp("ms", "UTC"), datetime(1600, 1, 1, 0, 0, 0, 1_000, timezone.utc)),
    "naive": ("timestamp", pa.timestamp("us"), moment(2100, 1, 1, 5)),
    "some": ("list<decimal>", pa.list_(pa.decimal128(10, 2)), [Decimal("0.10"), Decimal("-5.00")]),
    "set_of": ("set<date>", pa.list_(pa.date32()), [date(2020, 1, 1), date(2021, 1, 1)]),
    "map_of": ("map<text, frozen<list<timestamp>>>", pa.map_(pa.string(), pa.list_(pa.timestamp("ms"))),
               {"x": [moment(2020, 1, 1)], "y": []}),
    "none": ("map<text, int>", pa.map_(pa.string(), pa.int32()), None),
}  # fmt: skip


def test_values_come_back_as_they_were(cassandra_server):  # noqa: F811
    columns = ", ".join(f'"{name}" {kind}' for name, (kind, *_) in VALUES.items())
    table = cassandra_server.new_table(f"{columns}, PRIMARY KEY (k)")
    written_as = {"wide": pa.int16(), "single": pa.float32()}
    schema = pa.schema([(name, kind) for name, (_, kind, _) in VALUES.items()])
    into = pa.schema([(field.name, written_as.get(field.name, field.type)) for field in schema])
    row = {name: value for name, (*_, value) in VALUES.items()}
    written(CassandraSink(cassandra_server.host, table, schema=into, key="k", options=AT_ONCE), [row])
    source = CassandraSource(cassandra_server.host, table, schema=schema)
    (found,) = read_all(source, splits_of(source))
    assert {name: value for name, value in found.items() if value != row[name]} == {}


@pytest.mark.parametrize(
    ("kind", "value", "wanted"),
    [
        ("decimal", "0.125", pa.decimal128(5, 2)),
        ("decimal", "100000", pa.decimal128(5, 2)),
        ("varint", str(2**63), pa.int64()),
        ("time", "'01:02:03.000000001'", pa.time64("us")),
        ("list<decimal>", "[0.125]", pa.list_(pa.decimal128(5, 2))),
    ],
)
def test_values_that_a_type_cannot_hold_are_named(kind, value, wanted, cassandra_server):  # noqa: F811
    table = cassandra_server.new_table(f"k int PRIMARY KEY, v {kind}")
    cassandra_server.ask(f"INSERT INTO {table} (k, v) VALUES (1, {value})")
    source = CassandraSource(cassandra_server.host, table, schema={"v": wanted})
    with pytest.raises(TypeMismatchError, match="column 'v' has a value that is no") as error:
        read_all(source, splits_of(source))
    assert error.value.context["split"].startswith(table)


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"w": "int32"}, "has no column 'w'"),
        ({"k": "int16"}, "do not fit"),
        ({"k": "string"}, "do not fit"),
        ({"at": pa.timestamp("s")}, "do not fit"),
        ({"f": "float32"}, "do not fit"),
        ({"u": "string"}, "do not fit"),
    ],
)
def test_tables_that_will_not_do_are_refused_at_start(schema, text, cassandra_server):  # noqa: F811
    table = cassandra_server.new_table("k int PRIMARY KEY, at timestamp, f double, u duration")
    source = CassandraSource(cassandra_server.host, table, schema=schema)
    assert text in told(lambda: splits_of(source))
    assert "has no table" in told(lambda: splits_of(CassandraSource(cassandra_server.host, f"{table}x", schema=schema)))


def test_a_job_from_a_table_to_another_that_fails_has_each_row_once(cassandra_server, tmp_path):  # noqa: F811
    """Each row is counted, so that one that comes twice is seen."""
    first = cassandra_server.new_table("p int, c int, n bigint, PRIMARY KEY (p, c)")
    second = cassandra_server.new_table("n bigint PRIMARY KEY, num bigint")
    rows = [{"p": n % 17, "c": n, "n": n} for n in range(3_000)]
    schema = {"p": "int32", "c": "int32", "n": "int64"}
    written(CassandraSink(cassandra_server.host, first, schema=schema, key=("p", "c")), rows)
    source = CassandraSource(cassandra_server.host, first, schema={"n": "int64"}, page_size=50)
    sink = CassandraSink(cassandra_server.host, second, schema={"n": "int64", "num": "int64"}, key="n", options=AT_ONCE)
    with StreamExecutionEnvironment.get_execution_environment("local", parallelism=2) as env:
        env.enable_checkpointing(20, directory=str(tmp_path / "checkpoints"))
        env.set_restart_strategy(RestartStrategies.fixed_delay_restart(5, 10))
        failing = FailsAtFirst(tmp_path, (900, 1_700, 2_300), itemgetter("n"))
        stream = env.from_source(source, WatermarkStrategy.no_watermarks(), "table")
        stream = stream.map(lambda row: {"n": row["n"], "num": 1}).key_by("n")
        stream = stream.reduce(lambda a, b: {**a, "num": a["num"] + b["num"]}).map(failing)
        stream.key_by("n").sink_to(sink)
        result = env.execute("from a table to a table")
    assert result.num_restarts >= 1
    assert sorted(cassandra_server.ask(f"SELECT n, num FROM {second}")) == [(n, 1) for n in range(3_000)]


@pytest.mark.parametrize(
    ("payload", "position"),
    [
        ({"start": 1}, None), ({"start": 1, "end": "2"}, None), ({"start": 1, "end": 2}, {"token": 1}),
        ({"start": 1, "end": 2}, {"token": 1, "key": ["zz"]}), ({"start": 1, "end": 2}, [1]),
    ],
)  # fmt: skip
def test_positions_of_something_else_are_refused(payload, position):
    source = CassandraSource("localhost", "a.b", schema={"n": "int64"})
    with pytest.raises(CheckpointMismatchError, match="not one of a table of Cassandra"):
        reader_of(source, [Split("s", payload, position)])


def test_wrong_arguments_are_refused():
    for options, text in (
        ({"splits": 0}, "1 split or more"),
        ({"page_size": 0}, "1 row or more"),
        ({"patience": -1}, "negative"),
    ):
        with pytest.raises(ConfigurationError, match=text):
            CassandraSource("localhost", "a.b", schema={"n": "int64"}, **options)

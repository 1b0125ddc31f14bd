"""Tables of Cassandra as a sink, against a real server: what stays, whatever is written again, or late.

Risks and families: an older value that wins (random orders of writes against a dict, several attempts, jobs that fail),
deletions, tables that will not do, values that will not, a server that is away.
"""

from __future__ import annotations

import uuid
from collections import Counter
from datetime import date, datetime, time, timezone
from decimal import Decimal
from operator import itemgetter

import pyarrow as pa
import pytest
from cassandra_server import cassandra_server  # noqa: F401 - a fixture
from failing_functions import FailsAtFirst
from upsert_kit import AT_ONCE, harness_of, told, written

from headrace import RestartStrategies, StreamExecutionEnvironment
from headrace.connectors.cassandra import CassandraClient, CassandraSink, OrderKey, UpsertOptions
from headrace.engine.errors import ConfigurationError
from headrace.testing.upsert_contract import UPSERT_CONTRACT, UpsertSubject

NOWHERE = "127.0.0.1:1"
ROW = {"k": "int32", "at": "int64", "v": "int64"}


def moment(*parts):
    """A time without a zone."""
    return datetime(*parts, tzinfo=timezone.utc).replace(tzinfo=None)


def sink_into(server, table, schema=ROW, **arguments):
    return CassandraSink(server.host, table, schema=schema, **{"key": "k", "options": AT_ONCE, **arguments})


def rows_of(server, table, columns="k, at, v"):
    return {row[0]: row for row in server.ask(f"SELECT {columns} FROM {table}")}


@pytest.mark.parametrize("check", UPSERT_CONTRACT, ids=lambda check: check.__name__)
def test_contract(check, cassandra_server):  # noqa: F811
    table = cassandra_server.new_table("k int PRIMARY KEY, at bigint, v bigint")

    def sink(order, options):
        return sink_into(cassandra_server, table, order=order, options=options, delete_column="gone")

    def rows():
        return {k: (at, v) for k, at, v in rows_of(cassandra_server, table).values()}

    bad = {"k": 2, "at": 1, "v": "text", "gone": False}
    check(UpsertSubject(sink, rows, bad=bad, server=cassandra_server))


def test_of_equal_orders_the_larger_value_stays_so_there_are_ties(cassandra_server):  # noqa: F811
    """What an order must be different for: Cassandra keeps the larger of two cells, not the later one."""
    table = cassandra_server.new_table("k int PRIMARY KEY, at bigint, v bigint")
    changes = [{"k": 1, "at": 5, "v": v, "seq": seq} for seq, v in enumerate((2, 7, 3))]
    plain = sink_into(cassandra_server, table, order="at")
    for row in changes:
        written(plain, [row])
    assert rows_of(cassandra_server, table)[1] == (1, 5, 7)
    exact = sink_into(cassandra_server, table, order=OrderKey("at", ties="seq"))
    for row in (*changes, changes[1], changes[0]):
        written(exact, [row])
    assert rows_of(cassandra_server, table)[1] == (1, 5, 3)


def test_texts_of_one_key_are_one_row_in_a_request(cassandra_server):  # noqa: F811
    """A UUID in capitals, an address with its zeros: of equal numbers Cassandra would keep the larger value."""
    table = cassandra_server.new_table("id uuid, host inet, v bigint, PRIMARY KEY (id, host)")
    sink = sink_into(
        cassandra_server, table, schema={"id": "string", "host": "string", "v": "int64"}, key=["id", "host"]
    )
    one = str(uuid.uuid5(uuid.NAMESPACE_URL, "one"))
    keys = [(one, "::1"), (one.upper(), "::1"), (one, "0:0:0:0:0:0:0:1")]
    written(sink, [{"id": name, "host": host, "v": 9 - n} for n, (name, host) in enumerate(keys)])
    assert [row[0] for row in cassandra_server.ask(f"SELECT v FROM {table}")] == [7]


def test_what_other_programs_wrote_before_is_older(cassandra_server):  # noqa: F811
    table = cassandra_server.new_table("k int PRIMARY KEY, at bigint, v bigint")
    cassandra_server.ask(f"INSERT INTO {table} (k, at, v) VALUES (1, 0, 9)")
    written(sink_into(cassandra_server, table), [{"k": 1, "at": 1, "v": 2}])
    assert rows_of(cassandra_server, table)[1] == (1, 1, 2)


@pytest.mark.parametrize("order", ["at", None])
def test_a_job_that_fails_ends_with_the_newest_of_each_key(order, cassandra_server, tmp_path):  # noqa: F811
    table = cassandra_server.new_table("k int PRIMARY KEY, at bigint, v bigint")
    rows = [{"k": at * 7 % 40, "at": at, "v": -at} for at in range(3_000)]
    with StreamExecutionEnvironment.get_execution_environment("local", parallelism=2) as env:
        env.enable_checkpointing(20, directory=str(tmp_path / "checkpoints"))
        env.set_restart_strategy(RestartStrategies.fixed_delay_restart(4, 10))
        failing = FailsAtFirst(tmp_path, (900, 1_700, 2_300), itemgetter("at"))
        stream = env.from_collection(rows).set_parallelism(1).key_by("k").map(failing)
        stream.key_by("k").sink_to(sink_into(cassandra_server, table, order=order))
        result = env.execute("to a table")
    assert result.num_restarts >= 1
    assert rows_of(cassandra_server, table) == {row["k"]: (row["k"], row["at"], row["v"]) for row in rows}


@pytest.mark.parametrize("order", ["at", None])
def test_a_job_goes_on_from_its_savepoint_at_another_parallelism(order, cassandra_server, tmp_path):  # noqa: F811
    """And a job that begins anew writes above both."""
    table = cassandra_server.new_table("k int PRIMARY KEY, at bigint, v bigint")
    rows = [{"k": at * 7 % 40, "at": at, "v": -at} for at in range(2_000)]

    def run(parallelism, rows, directory):
        with StreamExecutionEnvironment.get_execution_environment("local", parallelism=parallelism) as env:
            env.enable_checkpointing(20, directory=str(directory / "checkpoints"))
            env.set_restart_strategy(RestartStrategies.fixed_delay_restart(4, 10))
            failing = FailsAtFirst(directory, (500, 1_500), itemgetter("at"))
            stream = env.from_collection(rows).set_parallelism(1).key_by("k").map(failing)
            stream.key_by("k").sink_to(sink_into(cassandra_server, table, order=order))
            env.execute("to a table")

    for parallelism in (3, 1, 2):
        directory = tmp_path / str(parallelism)
        directory.mkdir()
        rows = [{**row, "v": row["v"] - 1, "at": row["at"] + 2_000} for row in rows]
        run(parallelism, rows, directory)
        assert rows_of(cassandra_server, table) == {row["k"]: (row["k"], row["at"], row["v"]) for row in rows}


TYPES = {
    "k": ("uuid", pa.string(), str(uuid.UUID(int=7)), uuid.UUID(int=7)),
    "yes": ("boolean", pa.bool_(), True, True),
    "tiny": ("tinyint", pa.int8(), -128, -128),
    "big": ("bigint", pa.int64(), 2**63 - 1, 2**63 - 1),
    "wide": ("bigint", pa.int32(), 5, 5),
    "any": ("varint", pa.decimal128(38, 0), Decimal(10**37), 10**37),
    "single": ("float", pa.float32(), 0.5, 0.5),
    "real": ("double", pa.float64(), 0.1, 0.1),
    "exact": ("decimal", pa.decimal128(38, 10), Decimal("1234567890123456789.1234567890"),
              Decimal("1234567890123456789.1234567890")),
    "word": ("text", pa.string(), "a\0ä", "a\0ä"),
    "raw": ("blob", pa.binary(), b"\0\xff", b"\0\xff"),
    "ip": ("inet", pa.string(), "10.0.0.1", "10.0.0.1"),
    "day": ("date", pa.date32(), date(1969, 12, 31), date(1969, 12, 31)),
    "clock": ("time", pa.time64("us"), time(1, 2, 3, 4), time(1, 2, 3, 4)),
    "moment": ("timestamp", pa.timestamp("ms", "UTC"), datetime(2024, 1, 1, 0, 0, 0, 1_000, timezone.utc),
               moment(2024, 1, 1, 0, 0, 0, 1_000)),
    "naive": ("timestamp", pa.timestamp("us"), moment(1900, 1, 1, 5), moment(1900, 1, 1, 5)),
    "some": ("frozen<list<int>>", pa.list_(pa.int32()), [3, 1, 3], [3, 1, 3]),
    "set_of": ("set<text>", pa.list_(pa.string()), ["b", "a"], {"a", "b"}),
    "map_of": ("map<text, timestamp>", pa.map_(pa.string(), pa.timestamp("ms")), [("x", moment(2020, 1, 1))],
               {"x": moment(2020, 1, 1)}),
    "none": ("text", pa.string(), None, None),
}  # fmt: skip


def plain(value):
    """A value of the driver as one of Python."""
    kind = type(value).__name__
    if kind == "Date":
        return value.date()
    if kind == "Time":
        return value.time()
    if kind == "OrderedMapSerializedKey":
        return dict(value.items())
    return set(value) if kind == "SortedSet" else value


def test_values_of_all_types_are_written_exactly_and_written_again_change_nothing(cassandra_server):  # noqa: F811
    columns = ", ".join(f'"{name}" {kind}' for name, (kind, *_) in TYPES.items())
    table = cassandra_server.new_table(f"{columns}, PRIMARY KEY (k)")
    schema = pa.schema([(name, kind) for name, (_, kind, *_) in TYPES.items()])
    sink = sink_into(cassandra_server, table, schema, order="big")
    row = {name: value for name, (_, _, value, _) in TYPES.items()}
    expected = tuple(value for *_, value in TYPES.values())
    for _ in range(3):
        written(sink, [row])
        listed = ", ".join(f'"{name}"' for name in TYPES)
        ((*found,),) = cassandra_server.ask(f"SELECT {listed} FROM {table}")
        assert tuple(map(plain, found)) == expected


def test_lists_that_are_not_frozen_are_written_whole_by_numbers_of_the_sink(cassandra_server):  # noqa: F811
    table = cassandra_server.new_table("k int PRIMARY KEY, v list<int>")
    schema = {"k": pa.int32(), "v": pa.list_(pa.int32())}
    sink = sink_into(cassandra_server, table, schema)
    for value in ([1, 2], [1, 2], [2], [2], None, [5]):
        written(sink, [{"k": 1, "v": value}])
        assert rows_of(cassandra_server, table, "k, v")[1] == (1, value)
    assert "each element twice" in told(lambda: harness_of(sink_into(cassandra_server, table, schema, order="k")))


KEYED = "k int PRIMARY KEY, at bigint, v bigint"


@pytest.mark.parametrize(
    ("columns", "schema", "options", "text"),
    [
        (KEYED, {"k": "int32", "w": "int64"}, {}, "has no column 'w'"),
        (KEYED, {"k": "int32", "v": "string"}, {}, "do not fit column 'v' of type bigint"),
        (KEYED, {"k": "int64", "v": "int64"}, {}, "do not fit column 'k' of type int"),
        (KEYED, {"k": "int32", "v": "float64"}, {}, "do not fit"),
        ("k int, at bigint, v bigint, PRIMARY KEY (k, at)", ROW, {}, r"is \(k, at\); got \(k\)"),
        ("k int PRIMARY KEY, v counter", {"k": "int32", "v": "int64"}, {}, "is a counter"),
        ("k int, c int, v bigint static, PRIMARY KEY (k, c)", {"k": "int32", "c": "int32", "v": "int64"},
         {"key": ("k", "c")}, "is static"),
        ("k double PRIMARY KEY, v int", {"k": "float64", "v": "int32"}, {}, "equal values"),
        ("k int PRIMARY KEY, v duration", {"k": "int32", "v": "int64"}, {}, "do not fit"),
    ],
)  # fmt: skip
def test_tables_that_will_not_do_are_refused_at_start(columns, schema, options, text, cassandra_server):  # noqa: F811
    table = cassandra_server.new_table(columns)
    with pytest.raises(AssertionError, match=text):
        raise AssertionError(told(lambda: harness_of(sink_into(cassandra_server, table, schema, **options))))


def test_what_is_not_there_is_said_at_start(cassandra_server):  # noqa: F811
    table = cassandra_server.new_table(KEYED)
    assert "no keyspace 'nope'" in told(lambda: harness_of(sink_into(cassandra_server, "nope.t")))
    assert "has no table" in told(lambda: harness_of(sink_into(cassandra_server, f"{table}x")))


def test_refused_rows_are_named_or_counted(cassandra_server):  # noqa: F811
    table = cassandra_server.new_table("k int PRIMARY KEY, at timestamp, v bigint")
    schema = {"k": "int32", "at": pa.timestamp("us"), "v": "int64"}
    good = {"k": 1, "at": moment(2024, 1, 1), "v": 1}
    rows = [good, {**good, "k": 2, "at": moment(2024, 1, 1, 0, 0, 0, 1)}, {**good, "k": 3, "v": "text"}]
    text = told(lambda: written(sink_into(cassandra_server, table, schema), rows[:2]))
    for part in (f"table {table!r}", "key (2,)", "microseconds", "operator", "subtask", "on_error='skip'"):
        assert part in text
    skipping = UpsertOptions(batch_interval="10 ms", on_error="skip")
    counters = written(sink_into(cassandra_server, table, schema, options=skipping), rows)
    assert counters["num_records_skipped"] == 2
    assert cassandra_server.ask(f"SELECT k FROM {table}") == [(1,)]


def test_a_server_that_stays_away_is_an_error():
    impatient = UpsertOptions(batch_interval="10 ms", patience=0)
    sink = CassandraSink(NOWHERE, "a.b", schema=ROW, key="k", options=impatient)
    text = told(lambda: written(sink, [{"k": 1, "at": 1, "v": 1}]))
    assert "takes nothing" in text
    assert "patience" in text


def test_many_rows_of_a_partition_keep_their_order(cassandra_server):  # noqa: F811
    """Several requests, each of several pieces."""
    table = cassandra_server.new_table("p text, c bigint, v bigint, PRIMARY KEY (p, c)")
    schema = {"p": "string", "c": "int64", "v": "int64"}
    options = UpsertOptions(batch_size=300, batch_interval="10 ms")
    sink = sink_into(cassandra_server, table, schema, key=("p", "c"), options=options)
    rows = [{"p": "ab"[n % 2], "c": n % 700, "v": n} for n in range(2_100)]
    written(sink, rows)
    expected = Counter({(row["p"], row["c"]): row["v"] for row in rows})
    assert {(p, c): v for p, c, v in cassandra_server.ask(f"SELECT p, c, v FROM {table}")} == expected


def test_wrong_arguments_are_refused():
    def refused(**arguments):
        with pytest.raises(ConfigurationError) as error:
            CassandraSink(**{"client": "localhost", "table": "a.b", "schema": ROW, "key": "k", **arguments})
        return str(error.value)

    assert "with its keyspace" in refused(table="b")
    assert "hosts are names" in refused(client="http://localhost:9042")
    assert "hosts are names" in refused(client="me:secret@localhost")
    assert "key is missing" in refused(key=())
    assert "no column 'x' of the key" in refused(key="x")
    assert "is not written" in refused(delete_column="v")
    with pytest.raises(ConfigurationError, match="need each other"):
        CassandraClient("localhost", user="me")
    with pytest.raises(ConfigurationError, match="LOCAL_QUORUM"):
        CassandraClient("localhost", consistency="LOCAL_QUORM")
    with pytest.raises(ConfigurationError, match="no consistency 'ANY'"):
        CassandraClient("localhost", consistency="ANY")
    with pytest.raises(ConfigurationError, match="not for the program"):
        CassandraClient("localhost", options={"port": 5})


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({"at": 1, "v": 1}, "no field 'k'"), ({"k": None, "at": 1, "v": 1}, "null"),
        ({"k": 1, "at": -1, "v": 1}, "whole number"), ({"k": 1, "at": 1}, "no field 'v'"), (7, "named fields"),
    ],
)  # fmt: skip
def test_records_that_cannot_be_rows_are_named(row, text):
    sink = CassandraSink(NOWHERE, "a.b", schema=ROW, key="k", order="at")
    assert text in told(lambda: written(sink, [row]))

"""Tables of HBase as a sink, against a real server: what stays, whatever is written again, or late.

Risks and families: an older value that wins (random orders of writes against a dict, several attempts, jobs that fail),
deletions, tables and values that will not do, bytes that others read, a server that is away.
"""

from __future__ import annotations

from datetime import date, datetime, time, timezone
from decimal import Decimal
from operator import itemgetter

import pyarrow as pa
import pytest
from failing_functions import FailsAtFirst
from hbase_server import hbase_server  # noqa: F401 - a fixture
from upsert_kit import AT_ONCE, harness_of, told, written

from headrace import RestartStrategies, StreamExecutionEnvironment
from headrace.connectors.hbase import HbaseClient, HbaseSink, UpsertOptions
from headrace.connectors.hbase.cell_values import TableFields, coder_of
from headrace.engine.errors import ConfigurationError, TypeMismatchError
from headrace.testing.upsert_contract import UPSERT_CONTRACT, UpsertSubject

NOWHERE = "127.0.0.1:1"
SCHEMA = pa.schema([("k", pa.int32()), ("f", pa.struct([("at", pa.int64()), ("v", pa.int64())]))])


def sink_into(server, table, schema=SCHEMA, **arguments):
    return HbaseSink(server.host, table, schema=schema, **{"options": AT_ONCE, **arguments})


def row_of(k, at, v, **more):
    return {"k": k, "at": at, "f": {"at": at, "v": v}, **more}


def rows_of(server, table):
    def number(found):
        return int.from_bytes(found, "big", signed=True)

    return {number(key): (number(cells[b"f:at"]), number(cells[b"f:v"])) for key, cells in server.rows(table).items()}


@pytest.mark.parametrize("check", UPSERT_CONTRACT, ids=lambda check: check.__name__)
def test_contract(check, hbase_server):  # noqa: F811
    table = hbase_server.new_table()

    def sink(order, options):
        return sink_into(hbase_server, table, order=order, options=options, delete_column="gone")

    def row(k, at, v, gone):
        return row_of(k, at, v, gone=gone)

    check(UpsertSubject(sink, lambda: rows_of(hbase_server, table), row, server=hbase_server))


@pytest.mark.parametrize("order", ["at", None])
def test_a_job_that_fails_and_goes_on_elsewhere_ends_with_the_newest(order, hbase_server, tmp_path):  # noqa: F811
    """At several parallelisms, one job behind the other."""
    table = hbase_server.new_table()
    for number, parallelism in enumerate((2, 3, 1)):
        directory = tmp_path / str(number)
        directory.mkdir()
        rows = [row_of(at * 7 % 40, 1_000 * number + at + 1, -at - number) for at in range(1_000)]
        with StreamExecutionEnvironment.get_execution_environment("local", parallelism=parallelism) as env:
            env.enable_checkpointing(20, directory=str(directory / "checkpoints"))
            env.set_restart_strategy(RestartStrategies.fixed_delay_restart(4, 10))
            failing = FailsAtFirst(directory, (1_000 * number + 300, 1_000 * number + 700), itemgetter("at"))
            stream = env.from_collection(rows).set_parallelism(1).key_by("k").map(failing)
            stream.key_by("k").sink_to(sink_into(hbase_server, table, order=order))
            result = env.execute("to a table")
        assert result.num_restarts >= 1
        assert rows_of(hbase_server, table) == {row["k"]: (row["f"]["at"], row["f"]["v"]) for row in rows}


@pytest.mark.parametrize(
    ("kind", "value", "found"),
    [
        (pa.bool_(), True, b"\xff"), (pa.bool_(), False, b"\0"), (pa.int8(), -1, b"\xff"),
        (pa.int16(), 258, b"\1\2"), (pa.int32(), -2, b"\xff\xff\xff\xfe"), (pa.int64(), 1, b"\0\0\0\0\0\0\0\1"),
        (pa.float32(), 1.0, b"\x3f\x80\0\0"), (pa.float64(), -2.0, b"\xc0\0\0\0\0\0\0\0"),
        (pa.string(), "aä", "aä".encode()), (pa.binary(), b"\0\1", b"\0\1"),
        (pa.decimal128(10, 2), Decimal("1.50"), b"\0\0\0\2\0\x96"),
        (pa.decimal128(10, 2), Decimal("-1.28"), b"\0\0\0\2\x80"),
        (pa.decimal128(38, 0), Decimal(-(10**37)), b"\0\0\0\0" + (-(10**37)).to_bytes(16, "big", signed=True)),
        (pa.date32(), date(1969, 12, 31), b"\xff\xff\xff\xff"), (pa.time32("ms"), time(0, 0, 1), b"\0\0\3\xe8"),
        (pa.timestamp("ms", "UTC"), datetime(1970, 1, 1, 0, 0, 1, tzinfo=timezone.utc), b"\0\0\0\0\0\0\3\xe8"),
    ],
)  # fmt: skip
def test_values_are_the_bytes_that_java_makes_of_them(kind, value, found):
    """As ``Bytes.toBytes`` of HBase, which Flink's connector uses."""
    encode, decode = coder_of("c", kind)
    assert encode(value) == found
    assert decode(found) == value


def test_what_will_not_do_is_refused_at_start(hbase_server):  # noqa: F811
    table = hbase_server.new_table("f")
    other = pa.schema([("k", pa.int32()), ("g", pa.struct([("v", pa.int64())]))])
    assert "no column family 'g'" in told(lambda: harness_of(sink_into(hbase_server, table, other)))
    assert "has no table 'nope'" in told(lambda: harness_of(sink_into(hbase_server, "nope")))


def test_a_server_that_stays_away_is_an_error():
    impatient = UpsertOptions(batch_interval="10 ms", patience=0)
    sink = HbaseSink(NOWHERE, "t", schema=SCHEMA, options=impatient)
    text = told(lambda: written(sink, [row_of(1, 1, 1)]))
    assert "takes nothing" in text
    assert "patience" in text


def test_wrong_arguments_are_refused():
    def refused(**arguments):
        with pytest.raises(ConfigurationError) as error:
            HbaseSink(**{"client": "localhost", "table": "t", "schema": SCHEMA, **arguments})
        return str(error.value)

    assert "a host is a name" in refused(client="http://localhost:9090")
    assert "one column that is its row key" in refused(schema=pa.schema([("a", pa.int32()), ("b", pa.int32())]))
    assert "cannot write" in refused(schema=pa.schema([("a", pa.list_(pa.int32()))]))
    with pytest.raises(ConfigurationError, match="buffered or framed"):
        HbaseClient("localhost", transport="http")


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({"f": {}}, "no field 'k'"), ({"k": None, "f": {}}, "null"), ({"k": 2**40, "f": {}}, "row key 'k' cannot be"),
        ({"k": 1, "f": {"v": "text"}}, "column 'f:v' cannot hold"),
    ],
)  # fmt: skip
def test_records_that_cannot_be_rows_are_named(row, text):
    assert text in told(lambda: written(HbaseSink(NOWHERE, "t", schema=SCHEMA), [row]))


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.binary(), 7), (pa.binary(), [1, 2]), (pa.decimal128(10, 2), Decimal("NaN")), (pa.decimal128(10, 2), 1),
        (pa.string(), b"bytes"), (pa.string(), "\ud800"), (pa.int32(), 2**31), (pa.float32(), 1e40),
    ],
)  # fmt: skip
def test_values_that_are_none_of_the_type_are_named(kind, value):
    fields = TableFields(pa.schema([("k", pa.int32()), ("f", pa.struct([("v", kind)]))]))
    with pytest.raises(TypeMismatchError, match="column 'f:v' cannot hold"):
        fields.cells_of({"f": {"v": value}})

"""Tables behind a driver of Java, of H2 in a process of its own.

Families: contract (the checks of every source), property (values of all types come back as they went in), crash (the
server is killed while rows are read and written), errors (what would be changed, or cannot be guaranteed, is refused).
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from decimal import Decimal

import pyarrow as pa
import pytest
from h2_server import h2_server  # noqa: F401 - a fixture
from query_kit import FailsNowAndThen, in_small_batches
from sql_servers import refused_by

from headrace import RestartStrategies
from headrace.connectors.sql import GrowingColumn, JdbcConnection, KeyRanges, SqlSink, SqlSource
from headrace.connectors.sql.jdbc import JDBC
from headrace.connectors.sql.reading import ReadSettings, TableRows
from headrace.engine.errors import ConfigurationError, HeadraceError, TypeMismatchError
from headrace.table import TableEnvironment, udf
from headrace.testing import SinkTestHarness
from headrace.testing.source_contract import SOURCE_CONTRACT, SourceSubject

pytestmark = pytest.mark.slow


@pytest.fixture
def server(h2_server):  # noqa: F811 - the fixture
    h2_server.clear()
    return h2_server


UTC = dt.timezone.utc
VALUES = {
    "b": (pa.bool_(), "BOOLEAN", [True, False]),
    "i": (pa.int64(), "BIGINT", [2**63 - 1, -(2**63)]),
    "s": (pa.int16(), "SMALLINT", [-(2**15), 7]),
    "u": (pa.uint64(), "NUMERIC(20)", [2**64 - 1, 0]),
    "f": (pa.float64(), "DOUBLE PRECISION", [0.1, -1e300]),
    "r": (pa.float32(), "REAL", [0.5, -2.25]),
    "n": (pa.decimal128(38, 10), "NUMERIC(38, 10)", [Decimal("12345678901234567890.0123456789"), Decimal("1E-10")]),
    "t": (pa.string(), "VARCHAR", ["\u00e9'\"?;--\N{PILE OF POO} ", ""]),
    "v": (pa.string(), "VARCHAR(3)", ["a  ", "abc"]),
    "c": (pa.string(), "CHAR(3)", ["abc", "ab\u00e9"]),
    "y": (pa.binary(), "VARBINARY", [b"\0\xff'", b""]),
    "d": (pa.date32(), "DATE", [dt.date(1, 1, 1), dt.date(1582, 10, 10)]),
    "h": (pa.time64("us"), "TIME(6)", [dt.time(23, 59, 59, 999_999), dt.time(0)]),
    "m": (pa.timestamp("us"), "TIMESTAMP(6)", [
        dt.datetime.fromisoformat(text) for text in ("2024-03-31 02:30:00.123456", "1582-10-10")
    ]),
    "z": (pa.timestamp("us", "UTC"), "TIMESTAMP(6) WITH TIME ZONE", [
        dt.datetime(2024, 3, 31, 1, 30, 0, 1, UTC), dt.datetime(1, 1, 2, tzinfo=UTC)
    ]),
    "l": (pa.list_(pa.int64()), "VARCHAR", [[1, 2], []]),
}  # fmt: skip


def read_back(server, table, schema, **options):
    source = SqlSource(server.connection(), table, schema, **options)
    with SourceSubject(source, number=lambda row: row["ID"], put=lambda *_: None).job(1) as job:
        job.start()
        job.read_to_the_end()
        return sorted(job.rows, key=lambda row: row["ID"])


@pytest.mark.parametrize("key", [(), "ID"], ids=["added", "by key"])
def test_values_of_all_types_come_back(server, key):
    columns = ", ".join(f'"{name}" {own}' for name, (_, own, _) in VALUES.items())
    server.execute(f"CREATE TABLE V (ID BIGINT PRIMARY KEY, {columns})")
    schema = pa.schema([("ID", pa.int64()), *((name, kind) for name, (kind, _, _) in VALUES.items())])
    given = [{"ID": 0, **dict.fromkeys(VALUES)}]
    given += [{"ID": i + 1, **{name: values[i] for name, (*_, values) in VALUES.items()}} for i in range(2)]
    job = SinkTestHarness(SqlSink.at_least_once(server.connection(), "V", schema=schema, key=key))
    job.start()
    if key:  # the row that is there is changed by another statement
        job.write([{**dict.fromkeys(row), "ID": row["ID"]} for row in given])
    job.write(given)
    job.checkpoint(1)
    job.finish()
    assert read_back(server, "V", schema, key="ID") == given
    said = server.shell('SELECT "n", "m", "z", "d" FROM V ORDER BY ID')
    assert "12345678901234567890.0123456789" in said
    assert "2024-03-31 02:30:00.123456" in said
    assert "2024-03-31 01:30:00.000001+00" in said
    assert "1582-10-10" in said


@pytest.mark.parametrize("check", SOURCE_CONTRACT, ids=lambda check: check.__name__)
def test_contract_of_sources(check, server):
    server.execute('CREATE TABLE CONTRACT ("n" BIGINT, "k" VARCHAR(9), PRIMARY KEY ("k", "n"))')

    def put(part, given):
        server.execute("INSERT INTO CONTRACT VALUES " + ", ".join(f"({n}, 'k{n // 4:05}')" for n in given))

    source = SqlSource(server.connection(), "CONTRACT", {"n": "int64", "k": "string"}, key=("k", "n"))
    try:
        check(SourceSubject(source, number=lambda row: row["n"], put=put, server=server, grows=False))
    except BaseException:
        server.restart()
        raise


@pytest.mark.parametrize(
    ("kind", "own", "value", "reason"),
    [
        (pa.decimal128(9, 3), "NUMERIC(9, 2)", Decimal("1.005"), "would round 1.005 to 2 digits"),
        (pa.float64(), "NUMERIC(9, 2)", 1.5, "do not fit column"),
        (pa.float64(), "REAL", 0.1, "do not fit column"),
        (pa.int64(), "DOUBLE PRECISION", 2**53 + 1, "would round"),
        (pa.timestamp("us"), "TIMESTAMP(0)", dt.datetime.fromisoformat("2024-01-01 00:00:00.5"), "fraction"),
        (pa.time64("us"), "TIME", dt.time(1, 2, 3, 4), "fraction"),
        (pa.string(), "CHAR(5)", "ab", "would add blanks"),
        (pa.string(), "VARCHAR(3)", "four", "refuses the records"),
        (pa.int64(), "SMALLINT", 2**15, "refuses the records"),
        (pa.binary(), "BINARY(4)", b"ab", "would add zeros"),
        (pa.string(), "UUID", "x", "do not fit column"),
    ],
)  # fmt: skip
def test_what_a_column_would_change_is_refused(kind, own, value, reason, server):
    refused_by(server, server.connection(), "V", own, kind, value, reason, TypeMismatchError)


def test_rows_are_found_again_by_their_key_through_deaths_of_the_server(server):
    """What a failure repeats is written again; each key has its last row."""
    server.execute('CREATE TABLE TOTALS ("room" VARCHAR(9), "floor" INT, "n" BIGINT, PRIMARY KEY ("floor", "room"))')
    schema = {"room": "string", "floor": "int32", "n": "int64", "gone": "bool"}
    job = SinkTestHarness(
        SqlSink.at_least_once(
            server.connection(), "TOTALS", schema=schema, key=("room", "floor"), delete_column="gone"
        ),
        2,
    )
    job.start()
    expected = {}
    for number in range(60):
        room, floor, gone = f"r{number % 7}", number % 2, number % 5 == 4
        job.write([{"room": room, "floor": floor, "n": number, "gone": gone}], subtask=number % 7 % 2)
        expected[room, floor] = None if gone else number
        if number % 20 == 7:
            server.restart()
    job.checkpoint(1)
    job.finish()
    found = {(room, floor): n for room, floor, n in server.rows('SELECT "room", "floor", "n" FROM TOTALS')}
    assert found == {key: n for key, n in expected.items() if n is not None}


def test_a_job_reads_once_and_writes_by_key_through_failures(server, tmp_path, monkeypatch):
    """By SQL, from one table into another, with ranges; the job fails twice, and goes on from checkpoints."""
    monkeypatch.setattr("headrace.connectors.sql.source.PAGE_ROWS", 50)
    server.execute(
        'CREATE TABLE BIDS ("id" BIGINT PRIMARY KEY, "item" VARCHAR(9) NOT NULL, "price" NUMERIC(9, 2))',
        "INSERT INTO BIDS SELECT X, 'i' || MOD(X, 7), X / 4.0 FROM SYSTEM_RANGE(1, 400)",
        'CREATE TABLE SUMS ("item" VARCHAR(9) PRIMARY KEY, "n" BIGINT, "total" NUMERIC(38, 2))',
        'CREATE TABLE SEEN ("id" BIGINT)',
    )
    options = (
        f"'connector' = 'jdbc', 'url' = '{server.url}', 'driver' = 'org.h2.Driver', 'driver.jars' = '{server.jar}', "
        f"'username' = 'me', 'password' = '{server.password}'"
    )
    with TableEnvironment.create(parallelism=2, actor_system="local") as env:
        env.stream_environment.enable_checkpointing(10, directory=tmp_path / "checkpoints")
        env.stream_environment.set_restart_strategy(RestartStrategies.fixed_delay_restart(10, 1))
        env.create_temporary_function(
            "shaky", udf(FailsNowAndThen(tmp_path / "calls", {150, 300}), result_type="BIGINT")
        )
        env.execute_script(f"""
            CREATE TABLE bids (id BIGINT, item STRING, price DECIMAL(9, 2), PRIMARY KEY (id) NOT ENFORCED)
            WITH ({options}, 'table-name' = 'BIDS', 'scan.partition.column' = 'id', 'scan.partition.num' = '3');
            CREATE TABLE sums (item STRING, n BIGINT, total DECIMAL(38, 2), PRIMARY KEY (item) NOT ENFORCED)
            WITH ({options}, 'table-name' = 'SUMS');
            CREATE TABLE items (item STRING, n BIGINT) WITH ({options}, 'table-name' = 'SUMS');
        """)
        env.execute_sql("""
            INSERT INTO sums SELECT item, COUNT(shaky(id)), SUM(price) FROM bids GROUP BY item
        """).wait()
        assert (tmp_path / "calls").stat().st_size > 400
        expected = {f"i{k}": [n for n in range(1, 401) if n % 7 == k] for k in range(7)}
        assert {item: (n, total) for item, n, total in server.rows('SELECT "item", "n", "total" FROM SUMS')} == {
            item: (len(of_it), sum(Decimal(n) / 4 for n in of_it)) for item, of_it in expected.items()
        }
        in_small_batches(env, {"asked": pa.table({"item": ["i0", "i6", "none"]})}, 2)
        env.execute_sql("CREATE VIEW l AS SELECT *, PROCTIME() AS p FROM asked")
        rows = env.execute_sql("SELECT l.item, n FROM l JOIN items FOR SYSTEM_TIME AS OF l.p AS r ON l.item = r.item")
        assert Counter((row["item"], row["n"]) for row in rows.to_arrow().to_pylist()) == Counter(
            (item, len(expected[item])) for item in ("i0", "i6")
        )
    with TableEnvironment.create(mode="batch") as env:
        env.execute_sql(f"CREATE TABLE sums (item STRING, n BIGINT) WITH ({options}, 'table-name' = 'SUMS')")
        assert env.execute_sql("SELECT SUM(n) AS n FROM sums").to_arrow().to_pylist() == [{"n": 400}]


def test_what_cannot_be_guaranteed_is_refused(server):
    server.execute(
        'CREATE TABLE WORDS ("k" VARCHAR_IGNORECASE(9) PRIMARY KEY, "v" BIGINT)',
        'CREATE TABLE PLAIN ("k" VARCHAR(9) PRIMARY KEY)',
    )
    there = server.connection()
    with pytest.raises(ConfigurationError, match="is written at least once"):
        SqlSink.exactly_once(there, "WORDS", sink_id="w")
    with pytest.raises(ConfigurationError, match="not followed"):
        SqlSource(there, "WORDS", {"k": "string", "v": "int64"}, follow=GrowingColumn("v"))
    with pytest.raises(ConfigurationError, match="has type VARCHAR_IGNORECASE"):
        SinkTestHarness(SqlSink.at_least_once(there, "WORDS", key="k")).start()
    with pytest.raises(ConfigurationError, match="no primary key"):
        SinkTestHarness(SqlSink.at_least_once(there, "WORDS", key="v")).start()
    with pytest.raises(ConfigurationError, match="there is no table 'nothing'"):
        SinkTestHarness(SqlSink.at_least_once(there, "nothing")).start()
    job = SinkTestHarness(SqlSink.at_least_once(there, "PLAIN", key="k"))
    job.start()
    with pytest.raises(TypeMismatchError, match="overlooks blanks"):
        job.write([{"k": "hall "}])
    wrong = JdbcConnection(server.url, there.jars, there.driver, "me", "wr0ng")
    with pytest.raises(HeadraceError, match="Wrong user name or password") as told:
        TableRows(ReadSettings(JDBC, wrong, ("PLAIN",), pa.schema({"k": "string"}), 0)).rows()
    assert "wr0ng" not in str(told.value)
    assert "s3cret" not in repr(there)
    for options in ({"url": "h2:x"}, {"jars": ()}, {"driver": ""}):
        with pytest.raises(ConfigurationError, match="needs a url that begins with jdbc:"):
            JdbcConnection(**{"url": "jdbc:h2:x", "jars": ("a",), "driver": "d", **options})


def test_a_table_is_cut_into_ranges(server):
    server.execute(
        'CREATE TABLE "r_1" (ID BIGINT, "p" INT)',
        'INSERT INTO "r_1" SELECT X, MOD(X, 50) FROM SYSTEM_RANGE(1, 200)',
        'CREATE TABLE "rx1" (OTHER INT)',
    )
    rows = read_back(server, "r_1", {"ID": "int64", "p": "int32"}, ranges=KeyRanges("p", 4))
    assert rows == [{"ID": n, "p": n % 50} for n in range(1, 201)]

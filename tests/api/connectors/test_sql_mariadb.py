"""Tables of MariaDB on a real server.

Families: contract (the checks of every sink and source), crash (the server is killed around commits), property (values
of all types come back as they went in), errors (what does not fit, or cannot be guaranteed, is refused by name)."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest
from campaigns import campaign
from mariadb_server import mariadb  # noqa: F401 - a fixture

from headrace.connectors.sql import GrowingColumn, KeyRanges, SqlSink, SqlSource
from headrace.connectors.sql.connecting import connector_of
from headrace.connectors.sql.reading import ReadSettings, TableRows
from headrace.engine.errors import ConfigurationError, HeadraceError, TypeMismatchError
from headrace.testing import SinkTestHarness
from headrace.testing.sink_contract import SINK_CONTRACT, SinkSubject
from headrace.testing.source_contract import SOURCE_CONTRACT, SourceSubject

pytestmark = pytest.mark.slow


@pytest.fixture
def server(mariadb):  # noqa: F811 - the fixture
    mariadb.clear()
    mariadb.execute("CREATE TABLE numbers (n BIGINT NOT NULL, label TEXT)")
    return mariadb


def numbers(server):
    return sorted(n for (n,) in server.rows("SELECT n FROM numbers"))


def rows(*values):
    return [{"n": value, "label": f"number {value}"} for value in values]


def sink(server, connect=None, **options):
    connection = server.url if connect is None else connect
    dialect = None if connect is None else "mariadb"
    return SqlSink.exactly_once(connection, "numbers", sink_id="numbers", dialect=dialect, **options)


# ------------------------------------------------------------------------------------------------------------ contracts
@pytest.mark.parametrize("staging", ["checkpoint", "table"])
@pytest.mark.parametrize("check", SINK_CONTRACT, ids=lambda check: check.__name__)
@pytest.mark.sampled(4)
def test_contract_of_sinks(check, staging, server):
    check(SinkSubject(sink(server, staging=staging), lambda: numbers(server), lambda number: rows(number)[0]))
    if server.rows("SHOW TABLES LIKE 'headrace_staged'"):
        assert server.rows("SELECT COUNT(*) FROM headrace_staged") == [(0,)], "staged rows were left"


@pytest.mark.parametrize("follow", [None, GrowingColumn("at", "10 ms", "100 ms")], ids=["once", "followed"])
@pytest.mark.parametrize("check", SOURCE_CONTRACT, ids=lambda check: check.__name__)
def test_contract_of_sources(check, follow, server):
    server.execute("CREATE TABLE contract (n BIGINT PRIMARY KEY, at DATETIME(6) NOT NULL)")

    def put(part, given):
        values = ", ".join(f"({n}, '2024-01-01' + INTERVAL {n // 4} SECOND)" for n in given)
        server.execute(f"INSERT INTO contract VALUES {values}")

    schema = {"n": "int64", "at": pa.timestamp("us")}
    source = SqlSource(server.url, "contract", schema, key="n", follow=follow)
    subject = SourceSubject(source, number=lambda row: row["n"], put=put, server=server, grows=follow is not None)
    try:
        check(subject)
    except BaseException:
        server.restart()
        raise


# ----------------------------------------------------------------------------------------------------- the server dies
class Session:
    """A connection whose commits can be disturbed."""

    def __init__(self, connection, commit):
        self._connection = connection
        self._commit = commit

    def __getattr__(self, name):
        return getattr(self._connection, name)

    def commit(self):
        self._commit(self._connection)


@pytest.mark.parametrize(
    ("staging", "is_made"),
    [("checkpoint", False), ("table", True), campaign("checkpoint", True), campaign("table", False)],
)
def test_the_server_dies_around_a_commit_and_the_marker_says_whether_it_was_made(server, staging, is_made):
    import pymysql

    armed, deaths = [], []

    def commit(connection):
        if not armed:
            connection.commit()
            return
        armed.pop()
        if is_made:
            connection.commit()
        server.restart()
        deaths.append(is_made)
        message = "the connection is lost"
        raise pymysql.err.OperationalError(2013, message)

    connect = lambda: Session(server.connect(autocommit=False), commit)
    job = SinkTestHarness(sink(server, connect, staging=staging), 2)
    job.start()
    for checkpoint_id in (1, 2, 3):
        job.write(rows(10 * checkpoint_id), 0)
        job.write(rows(10 * checkpoint_id + 1), 1)
        job.checkpoint(checkpoint_id, notifies=False)
        armed.append(True)
        job.notify(checkpoint_id)
        assert not armed
    job.finish()
    assert deaths == [is_made] * 3
    assert numbers(server) == [10, 11, 20, 21, 30, 31]


def test_rows_are_found_again_by_their_key_and_deleted(server):
    server.execute("CREATE TABLE totals (room VARCHAR(20) PRIMARY KEY, bids BIGINT)")
    schema = {"room": "string", "bids": "int64", "gone": "bool"}
    one = SqlSink.at_least_once(server.url, "totals", schema=schema, key="room", delete_column="gone")
    job = SinkTestHarness(one, 1)
    job.start()
    for checkpoint_id, (room, bids, gone) in enumerate(
        [("hall", 1, False), ("study", 2, False), ("hall", 3, False), ("study", None, True), ("a'`b%", 4, False)]
    ):
        job.write([{"room": room, "bids": bids, "gone": gone}])
        job.checkpoint(checkpoint_id + 1)
    job.finish()
    assert sorted(server.rows("SELECT * FROM totals")) == [("a'`b%", 4), ("hall", 3)]


# --------------------------------------------------------------------------------------------------------------- values
KINDS = {
    "i": (pa.int64(), "BIGINT", [0, -(2**63), 2**63 - 1]),
    "u": (pa.uint64(), "BIGINT UNSIGNED", [0, 2**64 - 1, 7]),
    "w": (pa.bool_(), "BOOLEAN", [True, False, True]),
    "f": (pa.float64(), "DOUBLE", [0.1, -1e300, 5e-324]),
    "n": (pa.decimal128(38, 10), "DECIMAL(38, 10)", [Decimal("0.0000000001"), Decimal("-1"), Decimal(10**27)]),
    "s": (pa.string(), "TEXT CHARACTER SET utf8mb4", ["a'b\\%s", "", "\N{PILE OF POO} \0"]),
    "y": (pa.binary(), "BLOB", [b"", b"\0'\\\xff", b"%s"]),
    "d": (pa.date32(), "DATE", [dt.date(1, 1, 1), dt.date(9999, 12, 31), dt.date(2024, 2, 29)]),
    "t": (pa.time64("us"), "TIME(6)", [dt.time(), dt.time(23, 59, 59, 999_999), dt.time(1, 2, 3)]),
    "m": (pa.timestamp("us"), "DATETIME(6)", [
        dt.datetime.fromisoformat(text) for text in ("0001-01-01", "9999-12-31 23:59:59.999999", "2024-03-31 02:30")
    ]),
    "z": (pa.timestamp("us", "UTC"), "TIMESTAMP(6) NULL", [
        dt.datetime.fromisoformat(text).replace(tzinfo=dt.timezone.utc)
        for text in ("1970-01-01 00:00:01", "2038-01-19 03:14:07.999999", "2024-03-31 02:30")
    ]),
    "l": (pa.list_(pa.int64()), "JSON", [[], [1, 2], [3]]),
}  # fmt: skip


def read_back(server, table, schema):
    whole = TableRows(ReadSettings(*connector_of(server.url), (table,), schema))
    try:
        return whole.rows()
    finally:
        whole.close()


def test_values_of_all_types_come_back(server):
    server.execute(
        f"CREATE TABLE v (id INT PRIMARY KEY, {', '.join(f'{k} {own}' for k, (_, own, _) in KINDS.items())})"
    )
    schema = pa.schema([("id", pa.int32()), *((name, kind) for name, (kind, _, _) in KINDS.items())])
    given = [{"id": 0, **dict.fromkeys(KINDS)}]
    given += [{"id": i + 1, **{name: values[i] for name, (*_, values) in KINDS.items()}} for i in range(3)]
    job = SinkTestHarness(SqlSink.exactly_once(server.url, "v", sink_id="v", schema=schema), 1)
    job.start()
    job.write(given)
    job.checkpoint(1)
    job.finish()
    assert read_back(server, "v", schema).sort_by("id").to_pylist() == given


@pytest.mark.parametrize(
    ("kind", "own", "value", "reason"),
    [
        (pa.int64(), "INT UNSIGNED", -1, "Out of range"),
        (pa.int64(), "TINYINT(1)", 200, "Out of range"),
        (pa.float64(), "DOUBLE", float("nan"), "nan can not be used"),
        (pa.float64(), "FLOAT", 1.5, "do not fit column"),
        (pa.float64(), "DECIMAL(5, 2)", 1.5, "do not fit column"),
        (pa.decimal128(9, 3), "DECIMAL(9, 2)", Decimal("1.005"), "would round"),
        (pa.string(), "VARCHAR(3)", "four", "too long"),
        (pa.string(), "VARCHAR(3) CHARACTER SET latin1", "\N{PILE OF POO}", "Incorrect string"),
        (pa.timestamp("us"), "DATETIME(3)", dt.datetime.fromisoformat("2024-01-01 00:00:00.123456"), "cut the"),
        (pa.timestamp("us"), "TIMESTAMP NULL", dt.datetime.fromisoformat("2024-01-01"), "times with a zone"),
        (pa.time64("us"), "TIME", dt.time(1, 2, 3, 4), "cut the fraction"),
        (pa.bool_(), "INT", True, "do not fit column"),
    ],
)  # fmt: skip
def test_what_a_column_would_change_is_refused(kind, own, value, reason, server):
    server.execute(f"CREATE TABLE v (v {own})")
    job = SinkTestHarness(SqlSink.at_least_once(server.url, "v", schema=pa.schema([("v", kind)])), 1)
    with pytest.raises(TypeMismatchError, match=reason):
        job.start()
        job.write([{"v": value}])
        job.checkpoint(1)
    assert server.rows("SELECT * FROM v") == []


@pytest.mark.parametrize(
    ("kind", "own", "value", "reason"),
    [
        (pa.time64("us"), "TIME", "'24:00:00'", "no time of a day"),
        (pa.time64("us"), "TIME", "'-00:00:01'", "no time of a day"),
        (pa.date32(), "DATE", "'0000-00-00'", "zero dates"),
        (pa.timestamp("us"), "DATETIME", "'2024-00-00'", "zero dates"),
        (pa.int64(), "BIGINT UNSIGNED", "18446744073709551615", "is no int64"),
        (pa.timestamp("s"), "DATETIME(3)", "'2024-01-01 00:00:00.5'", r"is no timestamp\[s\]"),
    ],
)
def test_a_value_without_a_counterpart_is_refused_by_name(kind, own, value, reason, server):
    server.execute(f"CREATE TABLE v (v {own})", "SET sql_mode = ''")
    with server.connect(sql_mode="") as connection, connection.cursor() as cursor:
        cursor.execute(f"INSERT INTO v VALUES ({value})")
    with pytest.raises(TypeMismatchError, match=f"column 'v' has a value that .*{reason}"):
        read_back(server, "v", pa.schema([("v", kind)]))


# ------------------------------------------------------------------------------------------------------------- refusals
@pytest.mark.parametrize(
    ("table", "options", "reason"),
    [
        ("(n BIGINT) ENGINE = MyISAM", {}, "has no transactions"),
        ("(n BIGINT PRIMARY KEY, label VARCHAR(9) UNIQUE)", {"key": "n", "form": "upsert"}, "rows are found by any"),
        ("(n BIGINT)", {"key": "n", "form": "upsert"}, "no primary key"),
    ],
)
def test_a_table_that_cannot_be_written_exactly_once_is_refused(table, options, reason, server):
    server.execute("DROP TABLE numbers", f"CREATE TABLE numbers {table}")
    with pytest.raises(ConfigurationError, match=reason):
        SinkTestHarness(sink(server, schema={"n": "int64"}, **options), 1).start()


def test_a_server_or_connection_that_cannot_be_trusted_is_refused(server):
    from pymysql.constants import CLIENT

    with pytest.raises(ConfigurationError, match="FOUND_ROWS"):
        SinkTestHarness(sink(server, lambda: server.connect(client_flag=CLIENT.FOUND_ROWS)), 1).start()
    server.execute("SET GLOBAL innodb_flush_log_at_trx_commit = 0")
    try:
        with pytest.raises(ConfigurationError, match="may lose what it committed"):
            SinkTestHarness(sink(server), 1).start()
    finally:
        server.execute("SET GLOBAL innodb_flush_log_at_trx_commit = 1")


def test_a_wrong_password_is_told_without_it(server):
    url = server.url.replace(server.password, "wr0ng")
    with pytest.raises(HeadraceError, match="Access denied") as refused:
        SinkTestHarness(SqlSink.at_least_once(url, "numbers", schema={"n": "int64"}), 1).start()
    assert "wr0ng" not in str(refused.value)
    assert "s3cret" not in repr(connector_of(server.url))


def test_a_table_is_cut_into_ranges_and_looked_up(server):
    from headrace.connectors.sql.reading import SqlLookup

    server.execute("INSERT INTO numbers VALUES " + ", ".join(f"({n}, 'l{n}')" for n in range(50)))
    schema = {"n": "int64", "label": "string"}
    whole = SqlSource(server.url, "numbers", schema, ranges=KeyRanges("n", 4))
    subject = SourceSubject(whole, number=lambda row: row["n"], put=lambda *_: None)
    with subject.job(2) as job:
        job.start()
        job.read_to_the_end()
        assert sorted(row["n"] for row in job.rows) == list(range(50))
    lookup = SqlLookup(ReadSettings(*connector_of(server.url), ("numbers",), pa.schema(schema)), ["n", "label"])
    lookup.open()
    keys = pa.RecordBatch.from_pydict({"n": [3, 4, 99], "label": ["l3", "no", "l99"]})
    assert lookup.lookup(keys).to_pylist() == [{"n": 3, "label": "l3"}]
    lookup.close()

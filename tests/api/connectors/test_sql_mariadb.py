"""Tables of MariaDB on a real server; what its sinks do as on PostgreSQL is in ``test_sql_servers.py``.

Families: contract (the checks of every source), property (values of all types come back as they went in), errors (what
does not fit, or cannot be guaranteed, is refused by name)."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest
from mariadb_server import mariadb  # noqa: F401 - a fixture
from sql_servers import refused, sink, with_numbers

from headrace.connectors.sql import GrowingColumn, KeyRanges, SqlSink, SqlSource
from headrace.connectors.sql.connecting import connector_of, dialect_named
from headrace.connectors.sql.reading import ReadSettings, SqlLookup, TableRows
from headrace.engine.errors import ConfigurationError, HeadraceError, TypeMismatchError
from headrace.table import TableEnvironment
from headrace.testing import SinkTestHarness
from headrace.testing.source_contract import SOURCE_CONTRACT, SourceSubject

pytestmark = pytest.mark.slow


@pytest.fixture
def server(mariadb):  # noqa: F811 - the fixture
    return with_numbers(mariadb)


# ------------------------------------------------------------------------------------------------------------- contract
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


# -------------------------------------------------------------------------------------------------------------- by key
def test_rows_are_found_again_by_their_key_and_deleted(server):
    server.execute("CREATE TABLE totals (room VARCHAR(20) COLLATE utf8mb4_bin PRIMARY KEY, bids BIGINT)")
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
    "i%s": (pa.int64(), "DOUBLE", [2**53, -(2**60), 0]),
    "b%%": (pa.string(), "VARCHAR(3) CHARACTER SET utf8mb4", ["a  ", " ", "\N{PILE OF POO}  "]),
    "x`": (pa.binary(), "BINARY(2)", [b"\0 ", b"  ", b"\xff\0"]),
    "big": (pa.decimal256(65, 30), "DECIMAL(65, 30)", [
        Decimal(f"{sign}{'9' * 35}.{'9' * 30}") for sign in ("", "-")] + [Decimal("0." + "0" * 29 + "1")
    ]),
}  # fmt: skip


def read_back(server, table, schema):
    whole = TableRows(ReadSettings(*connector_of(server.url), (table,), schema))
    try:
        return whole.rows()
    finally:
        whole.close()


@pytest.mark.parametrize("form", ["transactional", "upsert"])
def test_values_of_all_types_come_back(form, server):
    columns = [f"`{name.replace('`', '``')}` {own}" for name, (_, own, _) in KINDS.items()]
    server.execute(f"CREATE TABLE v (id INT PRIMARY KEY, {', '.join(columns)})")
    schema = pa.schema([("id", pa.int32()), *((name, kind) for name, (kind, _, _) in KINDS.items())])
    given = [{"id": 0, **dict.fromkeys(KINDS)}]
    given += [{"id": i + 1, **{name: values[i] for name, (*_, values) in KINDS.items()}} for i in range(3)]
    key = {"form": form, "key": "id"} if form == "upsert" else {}
    job = SinkTestHarness(SqlSink.exactly_once(server.url, "v", sink_id="v", schema=schema, **key), 1)
    job.start()
    if key:  # rows that are there are changed by another part of the statement
        job.write([{**dict.fromkeys(row), "id": row["id"]} for row in given])
        job.checkpoint(1)
    job.write(given)
    job.checkpoint(2)
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
        (pa.timestamp("us"), "DATETIME(3)", dt.datetime.fromisoformat("2024-01-01 00:00:00.123456"), "fraction"),
        (pa.timestamp("us"), "TIMESTAMP NULL", dt.datetime.fromisoformat("2024-01-01"), "times with a zone"),
        (pa.time64("us"), "TIME", dt.time(1, 2, 3, 4), "cut the fraction"),
        (pa.bool_(), "INT", True, "do not fit column"),
        (pa.float64(), "DOUBLE(5, 2)", 1.234, "do not fit column"),
        (pa.int64(), "DOUBLE", 2**53 + 1, "would round 9007199254740993"),
        (pa.int64(), "YEAR", 70, "would take 70 for a year"),
        (pa.string(), "CHAR(5)", "ab ", "would cut blanks"),
        (pa.string(), "VARCHAR(3) CHARACTER SET utf8mb4", "a\N{PILE OF POO}b ", "would cut blanks"),
        pytest.param(pa.string(), "TINYTEXT", "\xe9" * 254 + "  ", "would cut", id="tinytext"),
        (pa.binary(), "BINARY(4)", b"ab", "would add zeros"),
        (pa.timestamp("us", "UTC"), "TIMESTAMP NOT NULL", None, "takes no null"),
    ],
)  # fmt: skip
def test_what_a_column_would_change_is_refused(kind, own, value, reason, server):
    refused(server, own, kind, value, reason, TypeMismatchError)


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


@pytest.mark.parametrize("own", ["VARCHAR(9)", "CHAR(9) CHARACTER SET latin1", "VARCHAR(9) COLLATE utf8mb3_general_ci"])
def test_keys_that_a_collation_calls_equal_are_refused_and_the_hint_mends_it(own, server):
    server.execute(f"CREATE TABLE words (k {own} PRIMARY KEY, v BIGINT)")
    made = SqlSink.at_least_once(server.url, "words", key="k")
    with pytest.raises(
        ConfigurationError, match=r"key column 'k' of table 'words' has collation \w+_ci: it takes"
    ) as told:
        SinkTestHarness(made).start()
    server.execute(told.value.hint)
    job = SinkTestHarness(made)
    job.start()
    job.write([{"k": "Hall", "v": 1}, {"k": "hall", "v": 2}])
    job.checkpoint(1)
    assert sorted(server.rows("SELECT * FROM words")) == [("Hall", 1), ("hall", 2)]


def test_a_key_with_blanks_is_refused_where_a_collation_overlooks_them(server):
    server.execute("CREATE TABLE words (k VARCHAR(9) COLLATE utf8mb4_bin PRIMARY KEY, v BIGINT)")
    made = SqlSink.at_least_once(server.url, "words", key="k")
    job = SinkTestHarness(made)
    job.start()
    with pytest.raises(TypeMismatchError, match=r"column 'k' .*overlooks blanks at the end of a key.*record 2") as told:
        job.write([{"k": "hall", "v": 1}, {"k": "hall ", "v": 2}])
    server.execute(told.value.hint)
    job = SinkTestHarness(made)
    job.start()
    job.write([{"k": "hall", "v": 1}, {"k": "hall ", "v": 2}])
    job.checkpoint(1)
    assert sorted(server.rows("SELECT * FROM words")) == [("hall", 1), ("hall ", 2)]


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


def test_what_a_connection_or_the_server_says_otherwise_changes_no_value(server):
    server.execute("SET GLOBAL sql_select_limit = 1", "SET GLOBAL sql_mode = 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES'")
    try:
        connect = lambda: server.connect(charset="latin1", autocommit=False)
        job = SinkTestHarness(sink(server, connect, schema={"n": "int64", "label": "string"}), 1)
        job.start()
        given = [{"n": n, "label": label} for n, label in enumerate(["\xc3\xa9", "a\\'\"%s", "\xe9"])]
        job.write(given)
        job.checkpoint(1)
        job.finish()
        whole = TableRows(
            ReadSettings(dialect_named("mariadb"), connect, ("numbers",), pa.schema({"n": "int64", "label": "string"}))
        )
        assert whole.rows().sort_by("n").to_pylist() == given
        whole.close()
    finally:
        server.execute("SET GLOBAL sql_select_limit = DEFAULT", "SET GLOBAL sql_mode = DEFAULT")
    assert server.rows("SELECT label = CONVERT(X'C3A9' USING utf8mb4) FROM numbers WHERE n = 2") == [(1,)]


def test_keys_that_a_column_cannot_hold_are_not_found(server):
    server.execute(
        "CREATE TABLE v (d DECIMAL(9, 2), s VARCHAR(3) CHARACTER SET latin1, m DATETIME)",
        "INSERT INTO v VALUES (1.5, '\xe9', '2024-01-01')",
    )
    schema = pa.schema({"d": pa.decimal128(9, 4), "s": pa.string(), "m": pa.timestamp("us")})
    one, other, at = Decimal("1.5"), Decimal("1.5001"), dt.datetime.fromisoformat("2024-01-01")
    later = at.replace(microsecond=1)
    asked = [(one, "\xe9", at), (other, "\xe9", at), (one, "abc   ", at), (one, "\xe9", later)]
    lookup = SqlLookup(ReadSettings(*connector_of(server.url), ("v",), schema), schema.names)
    lookup.open()
    keys = pa.RecordBatch.from_pylist([dict(zip(schema.names, row, strict=True)) for row in asked], schema=schema)
    assert lookup.lookup(keys).to_pylist() == keys.to_pylist()[:1]
    assert lookup.lookup(keys.slice(1)).num_rows == 0
    lookup.close()


def test_a_table_of_sql_is_read_looked_up_and_written(server):
    """By a URL of Java's drivers, with user and password beside it."""
    server.execute(
        "CREATE TABLE rooms (item VARCHAR(9) PRIMARY KEY, room VARCHAR(9))",
        "INSERT INTO rooms VALUES ('lamp', 'hall'), ('desk', 'study')",
        "CREATE TABLE totals (room VARCHAR(9) COLLATE utf8mb4_bin PRIMARY KEY, bids BIGINT)",
    )
    options = (
        f"'connector' = 'jdbc', 'url' = 'jdbc:mariadb://127.0.0.1:{server.port}/shop', 'username' = 'headrace', "
        f"'password' = '{server.password}'"
    )
    with TableEnvironment.create(parallelism=2, actor_system="local") as env:
        env.execute_script(f"""
            CREATE TABLE rooms (item STRING, room STRING, PRIMARY KEY (item) NOT ENFORCED)
            WITH ({options}, 'table-name' = 'shop.rooms');
            CREATE TABLE totals (room STRING, bids BIGINT, PRIMARY KEY (room) NOT ENFORCED)
            WITH ({options}, 'table-name' = 'totals', 'sink.id' = 'totals');
            CREATE VIEW bids AS SELECT *, PROCTIME() AS p FROM (VALUES ('lamp'), ('lamp'), ('desk')) AS v(item);
        """)
        env.execute_sql("""
            INSERT INTO totals SELECT r.room, COUNT(*)
            FROM bids AS b JOIN rooms FOR SYSTEM_TIME AS OF b.p AS r ON b.item = r.item GROUP BY r.room
        """).wait()
        assert sorted(server.rows("SELECT * FROM totals")) == [("hall", 2), ("study", 1)]
        rows = env.execute_sql("SELECT room, item FROM rooms").collect()
        assert sorted(row[-2:] for row in rows) == [("hall", "lamp"), ("study", "desk")]
        with pytest.raises(HeadraceError, match="Access denied") as refused:
            env.execute_sql(
                f"CREATE TABLE other (item STRING) WITH ({options.replace(server.password, 'wr0ng')}, "
                "'table-name' = 'rooms')"
            )
            list(env.execute_sql("SELECT * FROM other").collect())
        assert "wr0ng" not in str(refused.value)


def test_a_table_is_cut_into_ranges_and_looked_up(server):
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
